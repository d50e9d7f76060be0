// 3x3 convolutions with a ReLU over single pixels, over tiles of 8 x 8 pixels in boxes, and over both, in one type.
#include "bench/gpu/kernels/cover_convolutions.h"
#include "bench/gpu/kernels/cover_sm90.cuh"
#include "kernels/tensor_core/sm90.cuh"

using namespace distile::bench;

namespace {

template<int Channels, int Tile> struct Convolution {
    using Element = DISTILE_TYPE;
    using Result = Element;
    static constexpr int out_channels = Channels, panel_channels = Channels, read_channels = Channels;
    static constexpr int kernel_h = 3, kernel_w = 3, stride_h = 1, stride_w = 1;
    static constexpr int pad_top = 1, pad_left = 1, dilation_h = 1, dilation_w = 1;
    static constexpr int tile_h = Tile, tile_w = Tile;
    static constexpr Activation activation = Activation::relu;
    static constexpr bool residual = false;
};

}  // namespace

#define DISTILE_KERNEL(name, channels, Class, count, pixels, block_channels, balanced, tiles, singles, run)            \
    using Kernel_##name = Class;                                                                                       \
    extern "C" __global__ void __launch_bounds__(Kernel_##name::threads, count)                                        \
        name(__grid_constant__ const Launch<2> launch) {                                                               \
        Kernel_##name::run;                                                                                            \
    }                                                                                                                  \
    extern "C" __device__ const CoverLaunch name##_launch = {Kernel_##name::threads,                                   \
                                                             Kernel_##name::shared_bytes,                              \
                                                             count,                                                    \
                                                             pixels,                                                   \
                                                             channels / block_channels,                                \
                                                             balanced,                                                 \
                                                             tiles,                                                    \
                                                             singles};
#define DISTILE_ARGUMENTS(...) __VA_ARGS__

/** A kernel for one granularity: its first tiles are its list. */
#define DISTILE_UNIFORM(name, channels, tile, pixels, block_channels, stages, balanced)                                \
    DISTILE_KERNEL(name, channels,                                                                                     \
                   DISTILE_ARGUMENTS(Sm90<Convolution<channels, tile>, pixels, block_channels, stages, 1, balanced>),  \
                   Kernel_##name::blocks, pixels, block_channels, balanced, tile > 1, tile == 1,                       \
                   run(launch.arguments, launch.tiles[0]))
#define DISTILE_COVER(name, channels, pixels, block_channels, stages, balanced)                                        \
    DISTILE_KERNEL(                                                                                                    \
        name, channels,                                                                                                \
        DISTILE_ARGUMENTS(CoverSm90<Convolution<channels, cover_box>, pixels, block_channels, stages, balanced>), 1,   \
        pixels, block_channels, balanced, 1, 1, run(launch.arguments, launch.tiles[0], launch.tiles[1]))

DISTILE_UNIFORM(pixels_128_m64n128, 128, 1, 64, 128, 4, false)
DISTILE_UNIFORM(pixels_128_m128n128, 128, 1, 128, 128, 6, false)
DISTILE_UNIFORM(pixels_128_m256n128, 128, 1, 256, 128, 4, false)
DISTILE_UNIFORM(tiles_128_m128n128, 128, cover_box, 128, 128, 6, false)
DISTILE_UNIFORM(tiles_128_m256n128, 128, cover_box, 256, 128, 4, false)
DISTILE_COVER(cover_128_m128n128, 128, 128, 128, 6, false)
DISTILE_COVER(cover_128_m256n128, 128, 256, 128, 4, false)

DISTILE_UNIFORM(pixels_256_m64n128, 256, 1, 64, 128, 4, false)
DISTILE_UNIFORM(pixels_256_m64n256, 256, 1, 64, 256, 4, false)
DISTILE_UNIFORM(pixels_256_m128n256, 256, 1, 128, 256, 4, true)
DISTILE_UNIFORM(tiles_256_m128n256, 256, cover_box, 128, 256, 4, true)
DISTILE_COVER(cover_256_m128n256, 256, 128, 256, 4, true)
