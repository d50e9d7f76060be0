// Chooses a variant by the time table and a mask's numbers of tiles.
#include "choose.h"
#include "device.cuh"

using namespace distile;

/** One warp. Each lane predicts the cost of a variant; then all compare the variants in order, as the host does. */
extern "C" __global__ void __launch_bounds__(32) distile_choose(Choice choice) {
    wait_for_earlier_kernels();
    const auto *points = reinterpret_cast<const TimePoint *>(choice.variants + choice.num_variants);
    int32_t chosen = -1;
    uint32_t chosen_tiles = 0;
    Cost least{};
    for (int32_t first = 0; first < choice.num_variants; first += 32) {
        const int32_t own = first + static_cast<int32_t>(lane());
        uint32_t tiles = 0;
        Cost cost{};
        if (own < choice.num_variants) {
            const ChoiceVariant variant = choice.variants[own];
            tiles = variant.dense != 0 ? variant.all_tiles : *choice.counts[variant.granularity];
            cost = cost_of(
                {points + variant.first_point, variant.num_points, variant.tile_h, variant.tile_w, variant.dense},
                tiles);
        }
        for (int32_t i = 0; i < min(32, choice.num_variants - first); i++) {
            const Cost other = {__shfl_sync(all_lanes, cost.value, i), __shfl_sync(all_lanes, cost.known, i),
                                __shfl_sync(all_lanes, cost.dense, i)};
            const uint32_t other_tiles = __shfl_sync(all_lanes, tiles, i);
            if (chosen < 0 || is_better(other, least)) {
                chosen = first + i;
                chosen_tiles = other_tiles;
                least = other;
            }
        }
    }
    for (int32_t own = static_cast<int32_t>(lane()); own < choice.num_variants; own += 32) {
        const int32_t index = choice.variants[own].index;
        choice.result[first_count_word + index] = own == chosen ? chosen_tiles : 0;
        if (own == chosen) {
            choice.result[chosen_word] = static_cast<uint32_t>(index);
            choice.result[tiles_word] = chosen_tiles;
        }
    }
}
