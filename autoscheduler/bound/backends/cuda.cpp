#include "bound_backend.h"
#include "bound_cuda.h"
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

}  // namespace

const BoundBackend &cuda_bound_backend() {
    static const BoundTerms model = {
        cuda_knobs, block, {"splits", "prefetch"}, warp, add_cuda_terms<NamedTerms>, add_cuda_terms<TimesAlone>};
    static const BoundBackend backend = {cuda_backend(),
                                         [](const OperatorFacts &) -> const Space & { return cuda_space(); },
                                         [](const OperatorFacts &op, int, int) { return cuda_problem(op); },
                                         [](const Problem &) -> const BoundTerms & { return model; },
                                         {{"max_threads", &DeviceProfile::max_threads, 1 << 20},
                                          {"max_blocks", &DeviceProfile::max_blocks, 1 << 20},
                                          {"registers", &DeviceProfile::registers, 1 << 30},
                                          {"shared_banks", &DeviceProfile::shared_banks, 64},
                                          {"shared_bytes", &DeviceProfile::shared_bytes, 1 << 30}},
                                         {"shared", "L2", "DRAM"},
                                         {{"NVIDIA GPU", 0, 0}}};
    return backend;
}

}  // namespace distile
