#include "bound_backend.h"
#include "bound_cuda.h"
#include "bound_cuda_direct.h"
#include "cuda_direct_space.h"
#include "cuda_space.h"

namespace distile {

namespace {

/** Of a block, whether it prefetches or not. */
BlockNeeds block(const Workload &workload, const Theta &theta) {
    Theta prefetching = theta;
    prefetching["prefetch"] = 1;
    return {shared_bytes(prefetching, workload.problem), staged_pixels(prefetching, workload.problem),
            prefetch_registers(prefetching, workload.problem)};
}

WarpAccesses warp(const BoundKnobs &knobs, const Workload &workload) {
    return warp_accesses(knobs, workload.problem, workload.device.shared_banks);
}

template<typename Sink>
void add_terms_of_direct(const Workload &workload, const BoundKnobs &knobs, int64_t tiles, BoundForm, Sink &sink) {
    add_cuda_direct_terms(workload, knobs.values, tiles, sink);
}

const BoundTerms &model(const Problem &problem) {
    static const BoundTerms staged = {
        cuda_knobs, block, {"splits", "prefetch"}, warp, add_cuda_terms<NamedTerms>, add_cuda_terms<TimesAlone>};
    static const BoundTerms direct = {
        cuda_direct_knobs, nullptr, {}, nullptr, add_terms_of_direct<NamedTerms>, add_terms_of_direct<TimesAlone>};
    return runs_direct(problem) ? direct : staged;
}

}  // namespace

const BoundBackend &cuda_bound_backend() {
    static const BoundBackend backend = {
        cuda_backend(),
        [](const OperatorFacts &op) -> const Space & { return runs_direct(op) ? cuda_direct_space() : cuda_space(); },
        [](const OperatorFacts &op, int, int) { return cuda_problem(op); },
        [](const std::string &) {
            return Vectors{0, 0};
        },
        model,
        {{"max_threads", &DeviceProfile::max_threads, 1 << 20},
         {"max_blocks", &DeviceProfile::max_blocks, 1 << 20},
         {"registers", &DeviceProfile::registers, 1 << 30},
         {"shared_banks", &DeviceProfile::shared_banks, 64},
         {"shared_bytes", &DeviceProfile::shared_bytes, 1 << 30}},
        {"shared", "L2", "DRAM"},
        {{"NVIDIA GPU", 0, 0}},
        true,
        {"generic_cuda"},
        {16, 32, 64, 128}};
    return backend;
}

}  // namespace distile
