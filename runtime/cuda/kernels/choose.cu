// Chooses a variant for kernels that do not choose themselves.
#include "kernels/tensor_core/choose.cuh"
#include "runtime/cuda/kernels/device.cuh"

using namespace distile;

/** One warp. Leaves tiles to the chosen variant only. */
extern "C" __global__ void __launch_bounds__(32) distile_choose(distile_gpu_choice choice) {
    wait_for_earlier_kernels();
    const Chosen chosen =
        choose(choice.variants, choice.num_variants, [&](int32_t granularity) { return *choice.counts[granularity]; });
    for (int32_t own = static_cast<int32_t>(lane()); own < choice.num_variants; own += 32) {
        const int32_t index = choice.variants[own].index;
        choice.result[first_count_word + index] = own == chosen.place ? chosen.tiles : 0;
        if (own == chosen.place) {
            choice.result[chosen_word] = static_cast<uint32_t>(index);
            choice.result[tiles_word] = chosen.tiles;
        }
    }
}
