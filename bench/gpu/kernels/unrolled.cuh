/** \file
 * What is common to the straight-line code that bench/python/unrolled.py writes for the pattern of a layer's weights,
 * in float32. The code before it defines the layer and the blocks.
 *
 * A lane has one pixel and a block of output channels, whose sums stay in registers. A warp stages what its pixels
 * read, 32 channels at a time, as rows that a lane reads four channels of at once.
 */
#pragma once

#include <cooperative_groups.h>
#include <cstdint>
#include <cuda_runtime.h>

/** Has linkage, so that functions for Python may take it. */
struct Arguments {
    const float *input, *bias, *weights;
    const float *zeros;  ///< Four, in the allocation of the input, for what lies outside of an image.
    const int *pixels;   ///< Active pixels; null: all.
    float *output;
    int count;
};

namespace {

constexpr int lanes = 32, chunk = 32, stages = 3, row_floats = chunk + 4, stage_floats = lanes * row_floats,
              row_lanes = chunk / 4, rows_at_once = lanes / row_lanes, turns = lanes / rows_at_once,
              threads = groups * warps * lanes, shared_bytes = groups * warps * stages * stage_floats * 4;
constexpr bool shares_sums = splits * groups > 1;
static_assert(inputs % chunk == 0 && channels % chunk == 0 && outputs % channels == 0);
static_assert(!shares_sums || channels / chunk <= stages);

__device__ inline int pixel_of(const Arguments &a, int index) {
    return index >= a.count ? -1 : a.pixels != nullptr ? __ldg(a.pixels + index) : index;
}
__device__ inline int first_pixel() {
    return static_cast<int>(blockIdx.x / splits / (outputs / channels)) * warps * lanes;
}
__device__ inline float4 finish(float4 sum, float4 bias) {
    return {fmaxf(sum.x + bias.x, 0), fmaxf(sum.y + bias.y, 0), fmaxf(sum.z + bias.z, 0), fmaxf(sum.w + bias.w, 0)};
}

/** What a warp has staged. */
struct Staged {
    const Arguments a;
    int lane, first;  ///< The first pixel of the warp.
    float *memory;
    uint32_t offsets[turns], inside[kernel == 1 ? 1 : turns];  ///< Whether each tap is inside, as bits.

    __device__ explicit Staged(const Arguments &arguments) : a(arguments) {
        extern __shared__ __align__(16) float shared[];
        const int warp = static_cast<int>(threadIdx.x) / lanes;
        lane = static_cast<int>(threadIdx.x) % lanes;
        first = first_pixel() + warp % warps * lanes;
        memory = shared + warp * stages * stage_floats;
#pragma unroll
        for (int i = 0; i < turns; i++) {
            const int pixel = pixel_of(a, first + i * rows_at_once + lane / row_lanes), place = max(pixel, 0);
            offsets[i] = (place * inputs + lane % row_lanes * 4) * 4;
            if (kernel > 1) {
                inside[i] = 0;
                for (int tap = 0; tap < kernel * kernel; tap++) {
                    const int y = place / width + tap / kernel - kernel / 2,
                              x = place % width + tap % kernel - kernel / 2;
                    const bool is_inside = pixel >= 0 && y >= 0 && y < height && x >= 0 && x < width;
                    inside[i] |= static_cast<uint32_t>(is_inside) << tap;
                }
            }
        }
    }

    /** Fills a stage with 32 channels of a tap. */
    __device__ void fill(int stage, int tap, int channel) const {
        const int rows = tap / kernel - kernel / 2, columns = tap % kernel - kernel / 2;
        const int offset = ((rows * width + columns) * inputs + channel) * 4;
        const auto *const from = reinterpret_cast<const char *>(a.input);
        const auto zeros = static_cast<uint32_t>(reinterpret_cast<const char *>(a.zeros) - from);
#pragma unroll
        for (int i = 0; i < turns; i++) {
            const bool is_inside = kernel == 1 || (inside[i] >> tap & 1) != 0;
            const float *const to = memory + stage * stage_floats + (i * rows_at_once + lane / row_lanes) * row_floats +
                                    lane % row_lanes * 4;
            asm volatile(
                "cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(static_cast<uint32_t>(__cvta_generic_to_shared(to))),
                "l"(from + (is_inside ? offsets[i] + offset : zeros)));
        }
    }
    __device__ void commit() const {
        asm volatile("cp.async.commit_group;");
    }
    /** Waits for the oldest stage. */
    __device__ void wait() const {
        asm volatile("cp.async.wait_group %0;" ::"n"(stages - 2) : "memory");
        __syncwarp();
    }
    /** Four channels of the lane's pixel. */
    __device__ float4 quad(int stage, int index) const {
        return *reinterpret_cast<const float4 *>(memory + stage * stage_floats + lane * row_floats + index * 4);
    }

    /** Writes sums; if several warps share them, to shared memory only. */
    __device__ void write(const float (&sums)[channels], int first_channel) const {
        __syncwarp();
#pragma unroll
        for (int part = 0; part < channels; part += chunk) {
            float *const at = memory + (shares_sums ? part / chunk * stage_floats : 0);
#pragma unroll
            for (int i = 0; i < chunk; i += 4) {
                *reinterpret_cast<float4 *>(at + lane * row_floats + i) =
                    float4{sums[part + i], sums[part + i + 1], sums[part + i + 2], sums[part + i + 3]};
            }
            if (!shares_sums) {
                __syncwarp();
                const int channel = first_channel + part + lane % row_lanes * 4;
                const auto bias = *reinterpret_cast<const float4 *>(a.bias + channel);
#pragma unroll
                for (int i = 0; i < turns; i++) {
                    const int row = i * rows_at_once + lane / row_lanes, pixel = pixel_of(a, first + row);
                    const auto sum = *reinterpret_cast<const float4 *>(at + row * row_floats + lane % row_lanes * 4);
                    if (pixel >= 0) {
                        *reinterpret_cast<float4 *>(a.output + int64_t{pixel} * outputs + channel) = finish(sum, bias);
                    }
                }
                __syncwarp();
            }
        }
    }
};

/** Adds the sums of the warps and blocks that share an output, always in the same order. */
__device__ inline void add_sums(const Arguments &a, int first_channel) {
    extern __shared__ __align__(16) float shared[];
    const auto cluster = cooperative_groups::this_cluster();
    constexpr int quads = channels / 4;
    cluster.sync();
    for (int i = static_cast<int>(cluster.block_rank() * threads + threadIdx.x); i < warps * lanes * quads;
         i += splits * threads) {
        const int quad = i % quads, row = i / quads, pixel = pixel_of(a, first_pixel() + row);
        if (pixel < 0) {
            continue;
        }
        float4 sum{};
        for (int split = 0; split < splits; split++) {
            for (int group = 0; group < groups; group++) {
                const float *const from = cluster.map_shared_rank(shared, split) +
                                          ((group * warps + row / lanes) * stages + quad / row_lanes) * stage_floats +
                                          row % lanes * row_floats + quad % row_lanes * 4;
                const auto more = *reinterpret_cast<const float4 *>(from);
                sum = {sum.x + more.x, sum.y + more.y, sum.z + more.z, sum.w + more.w};
            }
        }
        const int channel = first_channel + quad * 4;
        *reinterpret_cast<float4 *>(a.output + int64_t{pixel} * outputs + channel) =
            finish(sum, *reinterpret_cast<const float4 *>(a.bias + channel));
    }
    cluster.sync();
}

int launch_kernel(void (*code)(Arguments), const Arguments &a, cudaStream_t stream) {
    cudaFuncSetAttribute(code, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
    const int pixel_blocks = (a.count + warps * lanes - 1) / (warps * lanes);
    cudaLaunchConfig_t launch{};
    launch.gridDim = dim3(splits * (outputs / channels) * pixel_blocks);
    launch.blockDim = dim3(threads);
    launch.dynamicSmemBytes = shared_bytes;
    launch.stream = stream;
    cudaLaunchAttribute cluster{};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {splits, 1, 1};
    launch.attrs = &cluster;
    launch.numAttrs = 1;
    return cudaLaunchKernelEx(&launch, code, a);
}

}  // namespace
