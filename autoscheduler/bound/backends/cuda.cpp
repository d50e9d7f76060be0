#include "autoscheduler/bound/bound_attention.h"
#include "autoscheduler/bound/bound_backend.h"
#include "autoscheduler/bound/bound_cuda.h"
#include "autoscheduler/bound/bound_cuda_bitmap.h"
#include "autoscheduler/bound/bound_cuda_direct.h"
#include "autoscheduler/bound/bound_cuda_nonzeros.h"
#include "autoscheduler/bound/bound_cuda_two_four.h"
#include "autoscheduler/bound/bound_dp4a.h"
#include "autoscheduler/bound/bound_gpu_tokens.h"
#include "autoscheduler/bound/bound_tensor_core.h"
#include "schedules/cuda_bitmap_space.h"
#include "schedules/cuda_direct_space.h"
#include "schedules/cuda_nonzeros_space.h"
#include "schedules/cuda_space.h"
#include "schedules/cuda_two_four_space.h"
#include "schedules/dot_product_space.h"
#include "schedules/gpu_token_space.h"
#include <cstdlib>

namespace distile {

namespace cuda_functions {
namespace {

/** The needs of a block as if it prefetched, whether it does or not. */
BlockNeeds block(const Workload &workload, const Theta &theta, const BoundKnobs &knobs) {
    const Problem &problem = workload.problem;
    Theta prefetching = theta;
    prefetching["prefetch"] = 1;
    const int pixels = staged_pixels(prefetching, problem);
    return {shared_bytes(prefetching, problem), pixels, prefetch_registers(prefetching, problem),
            warp_accesses(CudaKnobs::of(knobs.values), pixels, problem, workload.device.shared_banks)};
}

template<typename Sink>
void add_terms_of_direct(const Workload &workload, const BoundKnobs &knobs, int64_t tiles, BoundForm, Sink &sink) {
    add_cuda_direct_terms(workload, CudaDirectKnobs::of(knobs.values), tiles, sink);
}

template<typename Sink>
void add_terms_of_tokens(const Workload &workload, const BoundKnobs &knobs, int64_t tiles, BoundForm, Sink &sink) {
    add_gpu_token_terms(workload, GpuTokenKnobs::of(knobs.values), tiles, sink);
}

template<typename Sink>
void add_terms_of_dp4a(const Workload &workload, const BoundKnobs &knobs, int64_t tiles, BoundForm, Sink &sink) {
    add_dp4a_terms(workload, Dp4aKnobs::of(knobs.values), tiles, sink);
}

template<typename Sink>
void add_terms_of_nonzeros(const Workload &workload, const BoundKnobs &knobs, int64_t tiles, BoundForm, Sink &sink) {
    add_cuda_nonzero_terms(workload, CudaNonzeroKnobs::of(knobs.values), tiles, sink);
}

template<typename Sink>
void add_terms_of_bitmap(const Workload &workload, const BoundKnobs &knobs, int64_t tiles, BoundForm, Sink &sink) {
    add_cuda_bitmap_terms(workload, CudaBitmapKnobs::of(knobs.values), tiles, sink);
}

template<typename Sink>
void add_terms_of_two_four(const Workload &workload, const BoundKnobs &knobs, int64_t tiles, BoundForm, Sink &sink) {
    add_cuda_two_four_terms(workload, CudaTwoFourKnobs::of(knobs.values), tiles, sink);
}

const BoundTerms &model(const Problem &problem) {
    static const BoundTerms staged = {
        CudaKnobs::names, block, {"splits", "prefetch"}, add_cuda_terms<NamedTerms>, add_cuda_terms<TimesAlone>};
    static const BoundTerms direct = {
        CudaDirectKnobs::names, nullptr, {}, add_terms_of_direct<NamedTerms>, add_terms_of_direct<TimesAlone>};
    static const BoundTerms tensor_core = {
        TensorCoreKnobs::names, nullptr, {}, add_tensor_core_terms<NamedTerms>, add_tensor_core_terms<TimesAlone>};
    static const BoundTerms attention = {
        AttentionKnobs::names, nullptr, {}, add_attention_terms<NamedTerms>, add_attention_terms<TimesAlone>};
    static const BoundTerms tokens = {
        GpuTokenKnobs::names, nullptr, {}, add_terms_of_tokens<NamedTerms>, add_terms_of_tokens<TimesAlone>};
    static const BoundTerms dp4a = {
        Dp4aKnobs::names, nullptr, {}, add_terms_of_dp4a<NamedTerms>, add_terms_of_dp4a<TimesAlone>};
    static const BoundTerms nonzeros = {
        CudaNonzeroKnobs::names, nullptr, {}, add_terms_of_nonzeros<NamedTerms>, add_terms_of_nonzeros<TimesAlone>};
    static const BoundTerms bitmap = {
        CudaBitmapKnobs::names, nullptr, {}, add_terms_of_bitmap<NamedTerms>, add_terms_of_bitmap<TimesAlone>};
    static const BoundTerms two_four = {
        CudaTwoFourKnobs::names, nullptr, {}, add_terms_of_two_four<NamedTerms>, add_terms_of_two_four<TimesAlone>};
    if (problem.dot_products) {
        return dp4a;
    }
    if (problem.reads_bitmap) {
        return bitmap;
    }
    if (problem.sparse_cores) {
        return two_four;
    }
    if (problem.skips_zeros) {
        return nonzeros;
    }
    if (problem.product != TokenProduct::None) {
        return problem.tensor_cores ? attention : tokens;
    }
    return problem.tensor_cores ? tensor_core : runs_direct(problem) ? direct : staged;
}

const Space &space(const Problem &problem) {
    return problem.dot_products                    ? dot_product_space(*problem.dot_products)
           : problem.reads_bitmap                  ? cuda_bitmap_space()
           : problem.sparse_cores                  ? cuda_two_four_space(*problem.sparse_cores)
           : problem.skips_zeros                   ? cuda_nonzeros_space()
           : problem.tensor_cores                  ? tensor_core_space(*problem.tensor_cores, problem)
           : problem.product != TokenProduct::None ? gpu_token_space()
           : runs_direct(problem)                  ? cuda_direct_space()
                                                   : cuda_space();
}

/** 90 for "sm_90"; 0 for what is no compute capability. */
int capability_of(const std::string &features) {
    const std::string beginning = "sm_";
    return features.compare(0, beginning.size(), beginning) == 0 ? std::atoi(features.c_str() + beginning.size()) : 0;
}

std::vector<std::string> tensor_core_targets(const std::string &features) {
    const int capability = capability_of(features);
    const std::string beginning = "x86-64-linux-cuda-cuda_capability_";
    std::vector<std::string> targets;
    if (capability == 90) {
        targets.push_back(beginning + "90a");
    }
    // Later GPUs run the code of earlier ones.
    for (const int least : {80, 86}) {
        if (capability >= least) {
            targets.push_back(beginning + std::to_string(least));
        }
    }
    return targets;
}

/** Multiply-adds of 16-bit numbers that a multiprocessor's tensor cores start in a cycle. */
int tensor16_per_cycle(const std::string &features) {
    const int capability = capability_of(features);
    return capability == 90 ? 2048 : capability >= 80 ? 1024 : 0;
}

/** Multiply-adds in TF32 that a multiprocessor's tensor cores start in a cycle. */
int tensor32_per_cycle(const std::string &features) {
    return tensor16_per_cycle(features) / 2;
}

}  // namespace
}  // namespace cuda_functions

const BoundBackend &cuda_bound_backend() {
    using namespace cuda_functions;
    static const BoundBackend backend = {
        cuda_backend(),
        space,
        [](const OperatorFacts &op, int, int) { return cuda_problem(op); },
        [](const std::string &) {
            return Vectors{0, 0};
        },
        model,
        {{"max_threads", &DeviceProfile::max_threads, 1 << 20},
         {"max_blocks", &DeviceProfile::max_blocks, 1 << 20},
         {"registers", &DeviceProfile::registers, 1 << 30},
         {"shared_banks", &DeviceProfile::shared_banks, 64},
         {"shared_bytes", &DeviceProfile::shared_bytes, 1 << 30},
         {"tensor16_per_cycle", &DeviceProfile::tensor16_per_cycle, 1 << 20, tensor16_per_cycle},
         {"tensor32_per_cycle", &DeviceProfile::tensor32_per_cycle, 1 << 20, tensor32_per_cycle}},
        {"shared", "L2", "DRAM"},
        {{"NVIDIA GPU", 0, 0},
         {"Tensor, 9.0", 0, 0, TensorCores::Sm90},
         {"Tensor, 8.0", 0, 0, TensorCores::Sm80},
         {"dp4a", 0, 0, std::nullopt, DotProducts::Dp4a}},
        true,
        [](const Architecture &) { return std::vector<const char *>{"generic_cuda"}; },
        {16, 32, 64, 128},
        tensor_core_targets,
        {"generic_cuda_sm90", "generic_cuda"}};
    return backend;
}

}  // namespace distile
