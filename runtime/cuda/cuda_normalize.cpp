// Layer norm and RMS norm on a GPU.
#include "runtime/base/types.h"
#include "runtime/cuda/cuda_mask.h"
#include "runtime/cuda/kernels/normalize.h"
#include "runtime/cuda/pixel_update.h"
#include "runtime/gpu/views.h"
#include <algorithm>
#include <utility>

namespace distile {

namespace {

bool is_aligned(const float *vector) {
    return reinterpret_cast<uintptr_t>(vector) % normalized_bytes == 0;
}

}  // namespace

void CudaDevice::normalize(const Normalization &normalization) {
    const distile_tensor &input = normalization.input, &output = normalization.output;
    const int64_t element = element_bytes(output.dtype);
    check_pointer(input.data, element, "input");
    check_pointer(output.data, element, "output");
    for (const auto &[vector, name] : {std::pair(normalization.gamma, "gamma"), {normalization.beta, "beta"}}) {
        if (vector) {
            check_pointer(vector, sizeof(float), name);
        }
    }
    const TileList list = normalization.mask.list({1, 1}, {});
    NormalizedPixels pixels{};
    pixels.from = view_of(input);
    pixels.to = view_of(output);
    pixels.list = {list.xy, list.image, list.device_count};
    pixels.gamma = normalization.gamma;
    pixels.beta = normalization.beta;
    pixels.channels = static_cast<uint32_t>(output.channels);
    pixels.centred = normalization.centred ? 1 : 0;
    pixels.epsilon = normalization.epsilon;
    const uint32_t vectors = pixels.channels / static_cast<uint32_t>(normalized_bytes / element);
    const bool in_vectors = is_in_units(input, normalized_bytes) && is_in_units(output, normalized_bytes) &&
                            is_aligned(pixels.gamma) && is_aligned(pixels.beta) &&
                            vectors <= vectors_of_thread * block_threads;
    // As few threads as keep a pixel in registers; many pixels then share a multiprocessor.
    const uint32_t loads = in_vectors ? vectors : pixels.channels;
    pixels.team = 32;
    while (pixels.team < block_threads && pixels.team * vectors_of_thread < loads) {
        pixels.team *= 2;
    }
    const LibraryKernels::PixelKernels &normalize = kernels->normalize(output.dtype);
    LaunchGrid grid = grid_of(static_cast<uint64_t>(list.capacity) * pixels.team);
    grid.x = std::min(grid.x, most_blocks());
    grid.early = kernels->masks_wait;
    launch(in_vectors ? normalize.vectors : normalize.elements, caller_stream, grid, pixels);
    if (normalization.zero) {
        update_pixels(&normalization.mask, output, nullptr, true);
    }
}

}  // namespace distile
