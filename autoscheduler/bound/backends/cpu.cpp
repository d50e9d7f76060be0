#include "autoscheduler/bound/bound_backend.h"
#include "autoscheduler/bound/bound_cpu.h"
#include "autoscheduler/bound/bound_depthwise.h"
#include "autoscheduler/bound/bound_dot_product.h"
#include "autoscheduler/bound/bound_nonzeros.h"
#include "autoscheduler/bound/bound_tokens.h"
#include "schedules/cpu_space.h"
#include "schedules/depthwise_space.h"
#include "schedules/dot_product_space.h"
#include "schedules/nonzeros_space.h"
#include "schedules/token_space.h"

namespace distile {

namespace cpu_functions {
namespace {

template<typename Sink>
void add_terms(const Workload &workload, const BoundKnobs &knobs, int64_t tiles, BoundForm, Sink &sink) {
    add_cpu_terms(workload, CpuKnobs::of(knobs.values), tiles, sink);
}

template<typename Sink>
void add_terms_of_depthwise(const Workload &workload, const BoundKnobs &knobs, int64_t tiles, BoundForm, Sink &sink) {
    add_depthwise_terms(workload, DepthwiseKnobs::of(knobs.values), tiles, sink);
}

template<typename Sink>
void add_terms_of_tokens(const Workload &workload, const BoundKnobs &knobs, int64_t tiles, BoundForm, Sink &sink) {
    add_token_terms(workload, TokenKnobs::of(knobs.values), tiles, sink);
}

template<typename Sink> void add_terms_of_dot_products(const Workload &workload, const BoundKnobs &knobs, int64_t tiles,
                                                       BoundForm, Sink &sink) {
    add_dot_product_terms(workload, DotProductKnobs::of(knobs.values), tiles, sink);
}

template<typename Sink>
void add_terms_of_nonzeros(const Workload &workload, const BoundKnobs &knobs, int64_t tiles, BoundForm, Sink &sink) {
    add_nonzero_terms(workload, NonzeroKnobs::of(knobs.values), tiles, sink);
}

const BoundTerms &model(const Problem &problem) {
    static const BoundTerms dot_products = {DotProductKnobs::names,
                                            nullptr,
                                            {},
                                            add_terms_of_dot_products<NamedTerms>,
                                            add_terms_of_dot_products<TimesAlone>};
    static const BoundTerms nonzeros = {
        NonzeroKnobs::names, nullptr, {}, add_terms_of_nonzeros<NamedTerms>, add_terms_of_nonzeros<TimesAlone>};
    static const BoundTerms tokens = {
        TokenKnobs::names, nullptr, {}, add_terms_of_tokens<NamedTerms>, add_terms_of_tokens<TimesAlone>};
    static const BoundTerms any = {CpuKnobs::names, nullptr, {}, add_terms<NamedTerms>, add_terms<TimesAlone>};
    static const BoundTerms depthwise = {
        DepthwiseKnobs::names, nullptr, {}, add_terms_of_depthwise<NamedTerms>, add_terms_of_depthwise<TimesAlone>};
    return problem.dot_products                    ? dot_products
           : problem.skips_zeros                   ? nonzeros
           : problem.product != TokenProduct::None ? tokens
           : reads_own_channels(problem)           ? depthwise
                                                   : any;
}

const Space &space(const Problem &problem) {
    return problem.dot_products                    ? dot_product_space(*problem.dot_products)
           : problem.skips_zeros                   ? nonzeros_space()
           : problem.product != TokenProduct::None ? cpu_token_space(problem.product)
           : reads_own_channels(problem)           ? cpu_depthwise_space()
                                                   : cpu_space();
}

Vectors vectors_of(const std::string &target) {
    const std::vector<std::string> words = target_words(target);
    return find_platform(target)->architecture.vectors_of(words);
}

std::vector<const char *> profiles_of(const Architecture &architecture) {
    std::vector<const char *> profiles;
    for (const CpuLevel &level : architecture.levels) {
        profiles.push_back(level.profile);
    }
    return profiles;
}

}  // namespace
}  // namespace cpu_functions

const BoundBackend &cpu_bound_backend() {
    using namespace cpu_functions;
    static const BoundBackend backend = {cpu_backend(),
                                         space,
                                         cpu_problem,
                                         vectors_of,
                                         model,
                                         {{"vector_lanes", &DeviceProfile::vector_lanes, 1024},
                                          {"vector_registers", &DeviceProfile::vector_registers, 1024}},
                                         {},
                                         {{"CPU, AVX2", 8, 16},
                                          {"CPU, AVX-512", 16, 32},
                                          {"CPU, NEON", 4, 32},
                                          {"AVX512-BF16", 16, 32, std::nullopt, DotProducts::Avx512Bf16},
                                          {"AMX-BF16", 16, 32, std::nullopt, DotProducts::AmxBf16},
                                          {"AMX-FP16", 16, 32, std::nullopt, DotProducts::AmxFp16},
                                          {"AMX-BF16, float16", 16, 32, std::nullopt, DotProducts::AmxSplitFp16},
                                          {"AVX512-VNNI", 16, 32, std::nullopt, DotProducts::Avx512Vnni},
                                          {"AMX-INT8", 16, 32, std::nullopt, DotProducts::AmxInt8},
                                          {"AVX-VNNI", 8, 16, std::nullopt, DotProducts::AvxVnni},
                                          {"AVX2, quantized", 8, 16, std::nullopt, DotProducts::Avx2Int8},
                                          {"CPU, quantized", 4, 16, std::nullopt, DotProducts::PortableInt8}},
                                         false,
                                         profiles_of,
                                         {1, 2, 4, 8, 16, 32, 64},
                                         [](const std::string &) { return std::vector<std::string>(); },
                                         {}};
    return backend;
}

}  // namespace distile
