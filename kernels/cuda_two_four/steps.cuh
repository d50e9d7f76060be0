/** \file
 * What code for weights of the pattern 2:4 reads, in steps of 64 input channels.
 */
#ifndef DISTILE_CUDA_TWO_FOUR_STEPS_CUH
#define DISTILE_CUDA_TWO_FOUR_STEPS_CUH

#include "kernels/cuda_nonzeros/listed_pixels.cuh"
#include "kernels/cuda_two_four/arguments.h"
#include "kernels/tensor_core/activation.cuh"
#include "kernels/tensor_core/ptx.cuh"
#include "kernels/tensor_core/types.cuh"

namespace distile::cuda_two_four {

using cuda_nonzeros::Pixel;

constexpr int32_t lanes = 32, unit_rows = DISTILE_TWO_FOUR_ROWS, unit_columns = DISTILE_TWO_FOUR_COLUMNS,
                  unit_bytes = DISTILE_TWO_FOUR_UNIT_BYTES, value_bytes = DISTILE_TWO_FOUR_VALUE_BYTES,
                  piece_bytes = 16, piece_channels = 8;

__device__ inline uint32_t load_shared(uint32_t from) {
    uint32_t value;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(value) : "r"(from) : "memory");
    return value;
}

__device__ inline void end_group_of_copies() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}
/** Waits for all groups of copies but the last ones. */
template<int32_t Last> __device__ inline void wait_for_groups() {
    asm volatile("cp.async.wait_group %0;" ::"n"(Last) : "memory");
}

/** What a block reads for one of its pixels. */
struct Source {
    int32_t at;         ///< What it reads first, from Arguments::input.data on, in 16 bytes.
    uint32_t readable;  ///< Bit i: column i of the kernel may be read; bit 16 + i: row i.

    __device__ static Source of(const Arguments &a, const Pixel &pixel) {
        const int32_t y = pixel.y() * a.rows.stride + a.rows.first, x = pixel.x() * a.columns.stride + a.columns.first;
        return {pixel.image * a.input_n + y * a.input_h + x * a.input_w,
                pixel.is_there() ? bits_of(a.columns, x) | bits_of(a.rows, y) << most_taps : 0};
    }

private:
    __device__ static uint32_t bits_of(const Axis &axis, int32_t begin) {
        uint32_t bits = 0;
#pragma unroll 1
        for (int32_t i = 0; i < axis.taps; i++) {
            const int32_t at = begin + i * axis.step;
            bits |= (at >= axis.begin && at < axis.end ? 1u : 0u) << i;
        }
        return bits;
    }
};

/** The part of the reduction that a block has: the first step, and how many there are. */
struct Steps {
    int32_t first, count;

    __device__ static Steps of(const Arguments &a, int32_t split) {
        const auto first = static_cast<int32_t>(int64_t{split} * a.steps / a.splits);
        return {first, static_cast<int32_t>((int64_t{split} + 1) * a.steps / a.splits) - first};
    }
};

/** The place of a step in the reduction, for a thread that copies a piece of each pixel: kernel positions outside,
 * input channels inside. */
class Place {
public:
    __device__ Place(const Arguments &a, int32_t step, int32_t piece) : piece_(piece) {
        const int32_t tap = step / a.channel_units;
        unit_ = step - tap * a.channel_units;
        tap_y_ = tap / a.columns.taps;
        tap_x_ = tap - tap_y_ * a.columns.taps;
        offset_ = tap_y_ * a.rows.step * a.input_h + tap_x_ * a.columns.step * a.input_w + unit_ * pieces + piece;
    }
    /** From what a pixel reads first on, in 16 bytes. */
    __device__ int32_t offset() const {
        return offset_;
    }
    /** What a pixel's bits must have. */
    __device__ uint32_t needed() const {
        return 1u << tap_x_ | 1u << (most_taps + tap_y_);
    }
    /** Whether a kernel position begins. */
    __device__ bool is_first_of_tap() const {
        return unit_ == 0;
    }
    __device__ bool is_channel(const Arguments &a) const {
        return unit_ * unit_columns + piece_ * piece_channels < a.in_channels;
    }
    __device__ void step(const Arguments &a) {
        unit_++;
        offset_ += pieces;
        if (unit_ == a.channel_units) {
            unit_ = 0;
            offset_ += a.columns.step * a.input_w - a.channel_units * pieces;
            tap_x_++;
            if (tap_x_ == a.columns.taps) {
                tap_x_ = 0;
                tap_y_++;
                offset_ += a.rows.step * a.input_h - a.columns.taps * a.columns.step * a.input_w;
            }
        }
    }

private:
    static constexpr int32_t pieces = unit_columns / piece_channels;
    int32_t piece_, unit_, tap_x_, tap_y_, offset_;
};

/** Eight neighbouring channels of a pixel. */
struct Eight {
    float4 low, high;

    __device__ void add(const Eight &more) {
        low.x += more.low.x;
        low.y += more.low.y;
        low.z += more.low.z;
        low.w += more.low.w;
        high.x += more.high.x;
        high.y += more.high.y;
        high.z += more.high.z;
        high.w += more.high.w;
    }
    /** Eight numbers of an array, from a channel on, or 0 behind its end. */
    __device__ static Eight of(const float *from, int32_t channel, int32_t end) {
        if (channel >= end) {
            return {};
        }
        const auto *const fours = reinterpret_cast<const float4 *>(from + channel);
        return {__ldg(fours), __ldg(fours + 1)};
    }
};

/** Eight results. */
template<class Element, bool Activates>
__device__ inline uint4 results_of(const Arguments &a, const Eight &sums, const uint4 &residual) {
    using Stored = tensor_core::Storage<Element>;
    const float2 added[4] = {Stored::unpack(residual.x), Stored::unpack(residual.y), Stored::unpack(residual.z),
                             Stored::unpack(residual.w)};
    float results[8] = {sums.low.x + added[0].x,  sums.low.y + added[0].y,  sums.low.z + added[1].x,
                        sums.low.w + added[1].y,  sums.high.x + added[2].x, sums.high.y + added[2].y,
                        sums.high.z + added[3].x, sums.high.w + added[3].y};
    if (Activates && a.epilogue != DISTILE_ACTIVATION_NONE) {
#pragma unroll
        for (float &result : results) {
            result = activated(static_cast<distile_activation>(a.epilogue), result, a.slope);
        }
    }
    return {Stored::pack(results[0], results[1]), Stored::pack(results[2], results[3]),
            Stored::pack(results[4], results[5]), Stored::pack(results[6], results[7])};
}

constexpr int32_t element_bytes = 2;

/** The residual of eight channels; 0 if there is none. */
__device__ inline uint4 residual_of(const Arguments &a, const Pixel &pixel, int32_t channel) {
    return a.residual.data && pixel.is_there() && channel < a.out_channels
               ? *reinterpret_cast<const uint4 *>(pixel.in(a.residual) + channel * element_bytes)
               : uint4{};
}
/** Whether a pixel of a tile is stored: inactive ones are computed as well. */
__device__ inline bool is_stored(const Arguments &a, const Pixel &pixel) {
    return pixel.is_there() && (cuda_nonzeros::word_of(a, pixel) >> (pixel.x() % 32) & 1) != 0;
}

}  // namespace distile::cuda_two_four

#endif
