/** \file
 * The bodies of kernels: one runs the variant that the host named, the other the one that the GPU chooses.
 */
#ifndef DISTILE_CUDA_TENSOR_CORE_LAUNCH_CUH
#define DISTILE_CUDA_TENSOR_CORE_LAUNCH_CUH

#include "kernels/tensor_core/arguments.h"
#include "kernels/tensor_core/choose.cuh"
#include "kernels/tensor_core/ptx.cuh"

namespace distile::tensor_core {

/** Finds the variant that costs least. All threads of all blocks find the same one. */
class Choosing {
public:
    __device__ Choosing(const Arguments &arguments, const distile_gpu_choice &choice) : a_(arguments), choice_(choice) {
    }

    /** Called by all threads of a block. Returns the variant's index. */
    __device__ int32_t variant() const {
        return choice_.num_ranges > 0 ? by_count() : by_table();
    }

private:
    /** A number of tiles. Called by a whole warp. */
    __device__ uint32_t count(int32_t granularity) const {
        if (choice_.counts[granularity]) {
            return *choice_.counts[granularity];
        }
        // The active pixels of a mask that has no list.
        uint32_t pixels = 0;
        const uint32_t words = a_.batch * a_.height * a_.words_per_row;
        for (uint32_t i = threadIdx.x % 32; i < words; i += 32) {
            pixels += __popc(a_.bits[i]);
        }
        return __reduce_add_sync(~0u, pixels);
    }
    __device__ void report(int32_t variant, uint32_t tiles) const {
        if (blockIdx.x == 0 && threadIdx.x == 0) {
            choice_.result[chosen_word] = static_cast<uint32_t>(variant);
            choice_.result[tiles_word] = tiles;
        }
    }
    __device__ int32_t by_count() const {
        wait_for_earlier_kernels();
        const uint32_t tiles = count(0);
        int32_t range = 0;
        while (range + 1 < choice_.num_ranges && tiles > choice_.ranges[range].most) {
            range++;
        }
        const ChoiceRange &found = choice_.ranges[range];
        report(found.variant, found.all_tiles != 0 ? found.all_tiles : tiles);
        return found.variant;
    }
    __device__ int32_t by_table() const {
        // The first bytes of the stages, which no copy fills yet.
        extern __shared__ __align__(128) char stages[];
        constexpr uint32_t room = 8 << 10;
        auto *const chosen = reinterpret_cast<int32_t *>(stages);
        auto *const kept = reinterpret_cast<uint4 *>(stages) + 1;
        // No kernel changes the table, so it is read before the mask is there.
        const bool fits = choice_.table_bytes <= room;
        for (uint32_t i = threadIdx.x; fits && i < choice_.table_bytes / sizeof(uint4); i += blockDim.x) {
            kept[i] = reinterpret_cast<const uint4 *>(choice_.variants)[i];
        }
        wait_for_earlier_kernels();
        __syncthreads();
        if (threadIdx.x < 32) {
            const ChoiceVariant *const variants =
                fits ? reinterpret_cast<const ChoiceVariant *>(kept) : choice_.variants;
            // All lanes count the pixels of a mask without a list, if any variant needs them.
            uint32_t pixels = 0;
            for (int32_t i = 0; i < choice_.num_counts; i++) {
                pixels = choice_.counts[i] ? pixels : count(i);
            }
            const Chosen found = choose(variants, choice_.num_variants, [&](int32_t granularity) {
                return choice_.counts[granularity] ? *choice_.counts[granularity] : pixels;
            });
            const int32_t variant = variants[found.place].index;
            report(variant, found.tiles);
            if (threadIdx.x == 0) {
                *chosen = variant;
            }
        }
        __syncthreads();
        const int32_t variant = *chosen;
        // Copies to the stages come later.
        fence_shared();
        __syncthreads();
        return variant;
    }

    const Arguments &a_;
    const distile_gpu_choice &choice_;
};

// A call would keep the products of tensor cores from overlapping.
template<int32_t Place, int32_t Variants, class First, class... Others>
__device__ __forceinline__ void run_variant(const Launch<Variants> &launch, int32_t variant) {
    if (variant == First::index) {
        First::Kernel::run(launch.arguments, launch.tiles[Place]);
    } else if constexpr (sizeof...(Others) > 0) {
        run_variant<Place + 1, Variants, Others...>(launch, variant);
    }
}

/** Runs the variant that the GPU chooses. Returns at once if another kernel has it. Each variant has its `index` in the
 * PolyKernel, and a `Kernel`. */
template<class... Variants> __device__ __forceinline__ void run_chosen(const Launch<sizeof...(Variants)> &launch) {
    const int32_t variant = Choosing(launch.arguments, launch.choice).variant();
    // A kernel that begins before an idle one has left gets its places unevenly.
    if (((variant == Variants::index) || ...)) {
        start_next_kernel();
    }
    run_variant<0, sizeof...(Variants), Variants...>(launch, variant);
}

/** Runs the variant that the host named. */
template<class Variant> __device__ __forceinline__ void run_named(const Launch<1> &launch) {
    Variant::Kernel::run(launch.arguments, launch.tiles[0]);
}

}  // namespace distile::tensor_core

#endif
