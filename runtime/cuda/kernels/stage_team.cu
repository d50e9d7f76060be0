// Residual blocks of a stage, each image by a team of thread blocks.
#include "runtime/cuda/kernels/stage_team_products.cuh"

using namespace distile;

namespace {

template<class Part> __device__ void init_barriers(TeamControl<Part> &control) {
    const auto init = [](auto &barriers, uint32_t arrivals) {
        for (uint64_t &barrier : barriers) {
            tc::init_barrier(tc::shared_address(&barrier), arrivals);
        }
    };
    init(control.weights_full, 1);
    init(control.weights_empty, multiply_warps);
    init(control.received, 1);
    init(control.described, 1);
    init(control.done, multiply_warps);
    tc::init_barrier(tc::shared_address(&control.listed), 1);
    tc::publish_barriers();
}

template<bool clusters> __device__ void sync_team() {
    if constexpr (clusters) {
        tc::sync_cluster();
    } else {
        __syncthreads();
    }
}

template<class Element, template<uint32_t> class Exchange, uint32_t Blocks, bool clusters>
__device__ __forceinline__ void run(const TeamProgram &program) {
    using Part = TeamPart<Blocks, clusters>;
    static_assert(team_shared_bytes<Part> <= stage_shared_bytes, "a block asks for less shared memory");
    extern __shared__ __align__(1024) char memory[];
    const uint32_t begin = tc::shared_address(memory);
    const TeamShared<Part> shared{begin + Part::image_at, begin + Part::weights_at, begin + Part::received_at,
                                  begin + Part::reduced_at,
                                  *reinterpret_cast<TeamControl<Part> *>(memory + Part::control_at)};
    if (threadIdx.x == 0) {
        init_barriers(shared.control);
    }
    __syncwarp();
    sync_team<clusters>();
    const uint32_t warp = threadIdx.x / 32, rank = blockIdx.x % Blocks;
    if (warp < multiply_warps) {
        tc::raise_registers<216>();
        TeamMultiplier<Element, Exchange<Blocks>>(program, shared).run();
    } else {
        tc::lower_registers<56>();
        if (warp == multiply_warps && lane() == 0) {
            fetch_team_weights(program, shared, rank);
        } else if (warp == multiply_warps + 1) {
            describe_team_blocks(program, shared, rank);
        }
    }
    __syncwarp();
    sync_team<clusters>();  // A block lives as long as others may send to it.
}

}  // namespace

#define DISTILE_TEAM(name, Element, Exchange, blocks, clusters)                                                        \
    extern "C" __global__ void __launch_bounds__(team_threads, 1)                                                      \
        distile_team_##name(const __grid_constant__ TeamProgram program) {                                             \
        run<Element, Exchange, blocks, clusters>(program);                                                             \
    }
DISTILE_TEAM(cluster_float16, tc::Float16, ClusterExchange, cluster_team, true)
DISTILE_TEAM(cluster_bfloat16, tc::Bfloat16, ClusterExchange, cluster_team, true)
DISTILE_TEAM(memory_float16, tc::Float16, MemoryExchange, memory_team, false)
DISTILE_TEAM(memory_bfloat16, tc::Bfloat16, MemoryExchange, memory_team, false)
