// NCHW from and to NHWC.
#include "runtime/cuda/kernels/device.cuh"
#include "runtime/cuda/kernels/layout.h"

using namespace distile;

namespace {

/** Converts a tile through shared memory, so both sides are accessed along their innermost dimension. */
template<typename Element, bool to_planes> __device__ void convert(const Conversion &conversion) {
    // Rows have one extra element, so columns fall into different banks.
    __shared__ Element tile[tile_elements + tile_elements];
    const uint32_t log_channels = conversion.log_channels, tile_channels = 1u << log_channels;
    const uint32_t tile_columns = tile_elements >> log_channels;
    const uint32_t channel_tile = divide(blockIdx.x, conversion.column_tiles);
    const uint32_t row_tile = divide(channel_tile, conversion.channel_tiles);
    const uint32_t image = divide(row_tile, conversion.rows), row = row_tile - image * conversion.rows.value;
    const uint32_t first_column = (blockIdx.x - channel_tile * conversion.column_tiles.value) * tile_columns;
    const uint32_t first_channel = (channel_tile - row_tile * conversion.channel_tiles.value) * tile_channels;
    const uint32_t columns = min(tile_columns, conversion.columns - first_column);
    const uint32_t channels = min(tile_channels, conversion.channels - first_channel);
    Element *const planes = static_cast<Element *>(conversion.planes) + image * conversion.plane_stride_n +
                            first_channel * conversion.plane_stride_c + row * conversion.plane_stride_h + first_column;
    Element *const pixels = static_cast<Element *>(conversion.pixels) + image * conversion.pixel_stride_n +
                            row * conversion.pixel_stride_h + first_column * conversion.pixel_stride_w + first_channel;
    const auto for_planes = [&](const auto &move) {
#pragma unroll
        for (uint32_t i = threadIdx.x; i < tile_elements; i += block_threads) {
            const uint32_t column = i & (tile_columns - 1), channel = i / tile_columns;
            if (column < columns && channel < channels) {
                move(planes[channel * conversion.plane_stride_c + column],
                     tile[column * (tile_channels + 1) + channel]);
            }
        }
    };
    const auto for_pixels = [&](const auto &move) {
#pragma unroll
        for (uint32_t i = threadIdx.x; i < tile_elements; i += block_threads) {
            const uint32_t channel = i & (tile_channels - 1), column = i >> log_channels;
            if (column < columns && channel < channels) {
                move(pixels[column * conversion.pixel_stride_w + channel],
                     tile[column * (tile_channels + 1) + channel]);
            }
        }
    };
    const auto load = [](const Element &outside, Element &inside) { inside = outside; };
    const auto store = [](Element &outside, const Element &inside) { outside = inside; };
    if (to_planes) {
        for_pixels(load);
        __syncthreads();
        for_planes(store);
    } else {
        for_planes(load);
        __syncthreads();
        for_pixels(store);
    }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(block_threads) distile_to_planes_1(Conversion conversion) {
    convert<uint8_t, true>(conversion);
}

extern "C" __global__ void __launch_bounds__(block_threads) distile_to_planes_2(Conversion conversion) {
    convert<uint16_t, true>(conversion);
}

extern "C" __global__ void __launch_bounds__(block_threads) distile_to_planes_4(Conversion conversion) {
    convert<uint32_t, true>(conversion);
}

extern "C" __global__ void __launch_bounds__(block_threads) distile_to_pixels_1(Conversion conversion) {
    convert<uint8_t, false>(conversion);
}

extern "C" __global__ void __launch_bounds__(block_threads) distile_to_pixels_2(Conversion conversion) {
    convert<uint16_t, false>(conversion);
}

extern "C" __global__ void __launch_bounds__(block_threads) distile_to_pixels_4(Conversion conversion) {
    convert<uint32_t, false>(conversion);
}
