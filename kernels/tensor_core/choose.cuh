/** \file
 * The choice of a variant by the time table and a mask's numbers of tiles.
 */
#ifndef DISTILE_CUDA_TENSOR_CORE_CHOOSE_CUH
#define DISTILE_CUDA_TENSOR_CORE_CHOOSE_CUH

#include "runtime/choice/choice.h"

namespace distile {

/** A variant in the table and its tiles and cost. */
struct Chosen {
    int32_t place;
    uint32_t tiles;
    Cost cost;

    /** Whether this is chosen before another, as the host chooses, which looks at one variant after the other. */
    __device__ bool is_before(const Chosen &other) const {
        return is_better(cost, other.cost) || (!is_better(other.cost, cost) && place < other.place);
    }
    /** The choice of another lane of the warp. */
    __device__ Chosen of_lane(uint32_t distance) const {
        constexpr uint32_t all = ~0u;
        return {__shfl_xor_sync(all, place, distance),
                __shfl_xor_sync(all, tiles, distance),
                {__shfl_xor_sync(all, cost.value, distance), __shfl_xor_sync(all, cost.known, distance),
                 __shfl_xor_sync(all, cost.dense, distance)}};
    }
};

/** The variant that costs least. Called by a warp. `variants` is the table, with the points behind it;
 * `count(granularity)` is a number of tiles. */
template<typename Count>
__device__ inline Chosen choose(const ChoiceVariant *variants, int32_t num_variants, const Count &count) {
    const auto *points = reinterpret_cast<const TimePoint *>(variants + num_variants);
    Chosen chosen{-1, 0, {}};
    for (auto own = static_cast<int32_t>(threadIdx.x % 32); own < num_variants; own += 32) {
        const ChoiceVariant variant = variants[own];
        const uint32_t tiles = variant.dense != 0 ? variant.all_tiles : count(variant.granularity);
        const Chosen next = {
            own, tiles,
            cost_of({points + variant.first_point, variant.num_points, variant.tile_h, variant.tile_w, variant.dense},
                    tiles)};
        chosen = chosen.place < 0 || next.is_before(chosen) ? next : chosen;
    }
#pragma unroll
    for (uint32_t distance = 16; distance > 0; distance /= 2) {
        const Chosen other = chosen.of_lane(distance);
        chosen = other.place >= 0 && (chosen.place < 0 || other.is_before(chosen)) ? other : chosen;
    }
    return chosen;
}

}  // namespace distile

#endif
