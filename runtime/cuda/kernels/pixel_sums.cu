// Sums, or maxima, of each channel over the active pixels of each image.
#include "runtime/cuda/kernels/layer_pixels.cuh"

using namespace distile;

namespace {

/** What is known of two sets of values together. */
__device__ Moments merge(const Moments &a, const Moments &b, bool largest) {
    if (a.count == 0 || b.count == 0) {
        return a.count == 0 ? b : a;
    }
    const float count = a.count + b.count, difference = b.mean - a.mean, share = b.count / count;
    if (largest) {
        return {count, larger(a.mean, b.mean), 0};
    }
    // An infinite mean must not become NaN.
    return {count, a.mean * (a.count / count) + b.mean * share,
            a.squares + b.squares + difference * difference * a.count * share};
}

/** One channel of every sum_rows * gridDim.x-th pixel of an image. The sums are of differences from the first, so a
 * large mean cancels nothing. */
template<typename Element> __device__ Moments moments_of_thread(const SummedPixels &of, uint32_t channel) {
    const uint32_t image = blockIdx.y;
    const uint32_t first = of.xy ? static_cast<uint32_t>(of.lengths[image]) : 0;
    const uint32_t count = of.xy ? static_cast<uint32_t>(of.lengths[image + 1]) - first : of.pixels;
    float shift = 0, sum = 0, squares = 0, found = 0;
#pragma unroll 4
    for (uint32_t i = blockIdx.x * sum_rows + threadIdx.x / sum_lanes; i < count; i += gridDim.x * sum_rows) {
        uint32_t x = 0, y = 0;
        if (of.xy) {
            const uint32_t xy = of.xy[first + i];
            x = xy & 0xffff;
            y = xy >> 16;
        } else {
            y = divide(i, of.width);
            x = i - y * of.width.value;
        }
        const float value = to_float(find_pixel<Element>(of.from, image, y, x)[channel]);
        if (of.largest != 0) {
            shift = found == 0 ? value : larger(shift, value);
        } else {
            shift = found == 0 && isfinite(value) ? value : shift;
            const float difference = value - shift;
            sum += difference;
            squares += difference * difference;
        }
        found++;
    }
    if (found == 0 || of.largest != 0) {
        return {found, shift, 0};
    }
    const float mean = sum / found;
    return {found, shift + mean, squares - sum * mean};
}

template<typename Element> __device__ void sum_pixels(const SummedPixels &of) {
    __shared__ Moments rows[sum_rows][sum_lanes];
    const uint32_t lane_of_row = threadIdx.x % sum_lanes, channel = blockIdx.z * sum_lanes + lane_of_row;
    if (channel < of.channels) {
        rows[threadIdx.x / sum_lanes][lane_of_row] = moments_of_thread<Element>(of, channel);
    }
    __syncthreads();
    if (threadIdx.x < sum_lanes && channel < of.channels) {
        Moments all = rows[0][lane_of_row];
        for (uint32_t row = 1; row < sum_rows; row++) {
            all = merge(all, rows[row][lane_of_row], of.largest != 0);
        }
        of.moments[(static_cast<int64_t>(blockIdx.y) * gridDim.x + blockIdx.x) * of.channels + channel] = all;
    }
}

/** Merges the blocks of an image, blockIdx.y, for one channel in each thread. */
template<typename Element> __device__ void merge_pixels(const MergedMoments &of) {
    const uint32_t channel = blockIdx.x * block_threads + threadIdx.x;
    if (channel >= of.channels) {
        return;
    }
    Moments all{};
#pragma unroll 8
    for (uint32_t block = 0; block < of.blocks; block++) {
        all = merge(all, of.moments[(static_cast<int64_t>(blockIdx.y) * of.blocks + block) * of.channels + channel],
                    of.largest != 0);
    }
    from_float(all.mean, static_cast<Element *>(of.to)[blockIdx.y * of.stride_n + channel]);
}

__device__ Moments merge_lanes(Moments all) {
    for (int step = 16; step > 0; step /= 2) {
        const Moments other = {__shfl_xor_sync(all_lanes, all.count, step), __shfl_xor_sync(all_lanes, all.mean, step),
                               __shfl_xor_sync(all_lanes, all.squares, step)};
        all = merge(all, other, false);
    }
    return all;
}

}  // namespace

/** Merges group blockIdx.x of image blockIdx.y. */
extern "C" __global__ void __launch_bounds__(block_threads) distile_merge_groups(MergedGroups of) {
    __shared__ Moments warps[block_threads / 32];
    Moments all{};
    for (uint32_t i = threadIdx.x; i < of.blocks * of.group; i += block_threads) {
        const uint32_t block = i / of.group, channel = blockIdx.x * of.group + i % of.group;
        all = merge(all, of.moments[(static_cast<int64_t>(blockIdx.y) * of.blocks + block) * of.channels + channel],
                    false);
    }
    all = merge_lanes(all);
    if (lane() == 0) {
        warps[threadIdx.x / 32] = all;
    }
    __syncthreads();
    if (threadIdx.x < 32) {
        all = merge_lanes(lane() < block_threads / 32 ? warps[lane()] : Moments{});
        if (lane() == 0) {
            const int64_t at = static_cast<int64_t>(blockIdx.y) * gridDim.x + blockIdx.x;
            of.mean[at] = all.mean;
            // Rounding may leave less than 0; NaN stays.
            of.variance[at] = all.count == 0 || all.squares < 0 ? 0 : all.squares / all.count;
        }
    }
}

#define DISTILE_ROW(number, name, ...)                                                                                 \
    DISTILE_LAYER_KERNEL(distile_sum_pixels_##name, SummedPixels, sum_pixels<ElementOf<number>::Type>)                 \
    DISTILE_LAYER_KERNEL(distile_merge_pixels_##name, MergedMoments, merge_pixels<ElementOf<number>::Type>)
DISTILE_FLOAT_TYPES(DISTILE_ROW)
