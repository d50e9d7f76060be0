/** \file
 * How the eight warps that multiply finish and store results, and how they compute steps that take each channel by
 * itself, without a reduction over channels: depthwise convolutions, pooling, upsampling and sums.
 */
#ifndef DISTILE_CUDA_KERNELS_STAGE_CHANNELS_CUH
#define DISTILE_CUDA_KERNELS_STAGE_CHANNELS_CUH

#include "runtime/cuda/kernels/activations.cuh"
#include "runtime/cuda/kernels/stage_block.cuh"
#include "runtime/cuda/kernels/stage_pieces.cuh"

namespace distile {

/** Applies an activation. Turns the values through the first place, so that one call is enough code. */
template<uint32_t count> __device__ void activate_channels(const Activation &activation, float (&values)[count]) {
    if (activation.function == DISTILE_ACTIVATION_RELU) {
#pragma unroll
        for (float &value : values) {
            value = at_least(value, 0);
        }
    } else if (activation.function == DISTILE_ACTIVATION_RELU6) {
#pragma unroll
        for (float &value : values) {
            value = limited(value, 0, 6);
        }
    } else if (activation.function != DISTILE_ACTIVATION_NONE) {
#pragma unroll 1
        for (uint32_t i = 0; i < count; i++) {
            const float first = activate_one(values[0], activation);
#pragma unroll
            for (uint32_t j = 0; j + 1 < count; j++) {
                values[j] = values[j + 1];
            }
            values[count - 1] = first;
        }
    }
}

/** Adds bias and residual to the sums of a piece of a pixel, from a column of the step on, and stores them. */
template<class Element> __device__ void store_piece(const StageStep &step, int32_t output, uint32_t column,
                                                    const float *bias, const uint4 &residual,
                                                    float (&values)[piece_channels<Element>]) {
    float added[piece_channels<Element>];
    unpack_channels<Element>(residual, added);
#pragma unroll
    for (uint32_t i = 0; i < piece_channels<Element>; i++) {
        values[i] += bias[i] + added[i];
    }
    if ((output & keeps_sums) == 0) {
        activate_channels(step.activation, values);
    }
    __stcg(piece_at<Element>(step.output.data, int64_t{output & ~keeps_sums} + column), pack_channels<Element>(values));
}

/** A pixel's residual of the 8 channels that products leave in a thread, as far as the step has them. */
template<class Element> struct ResidualOfEight {
    uint4 pieces[pieces_of_eight<Element>];

    /** `from` is where the first of the channels is, which is `column` of the step. */
    __device__ void load(const StageStep &step, bool adds, int64_t from, uint32_t column) {
#pragma unroll
        for (uint32_t i = 0; i < pieces_of_eight<Element>; i++) {
            const uint32_t more = i * piece_channels<Element>;
            pieces[i] = uint4{};
            if (adds && column + more < step.channels) {
                pieces[i] = __ldcg(piece_at<Element>(step.residual.data, from + more));
            }
        }
    }
};

/** Stores these channels, of which the step has the first. */
template<class Element> __device__ void store_eight(const StageStep &step, int32_t output, uint32_t column,
                                                    const float *bias, const ResidualOfEight<Element> &residual,
                                                    const float (&values)[8]) {
#pragma unroll
    for (uint32_t i = 0; i < pieces_of_eight<Element>; i++) {
        const uint32_t first = i * piece_channels<Element>;
        if (i == 0 || column + first < step.channels) {
            float own[piece_channels<Element>];
#pragma unroll
            for (uint32_t j = 0; j < piece_channels<Element>; j++) {
                own[j] = values[first + j];
            }
            store_piece<Element>(step, output, column + first, bias + first, residual.pieces[i], own);
        }
    }
}

/** Walks through the taps of a window. */
class WindowWalk {
public:
    __device__ explicit WindowWalk(const StageStep &step)
        : columns_(step.kernel_w.value), across_(step.across.dilation * step.input.stride_w),
          down_(step.down.dilation * step.input.stride_h - static_cast<int32_t>(columns_ - 1) * across_) {
    }

    /** Where the next tap reads, in elements from where the window begins. */
    __device__ int32_t next() {
        const int32_t place = place_;
        column_++;
        place_ += column_ == columns_ ? down_ : across_;
        column_ = column_ == columns_ ? 0 : column_;
        return place;
    }

private:
    const uint32_t columns_;
    const int32_t across_, down_;
    uint32_t column_ = 0;
    int32_t place_ = 0;
};

/** A tile of as many channels as a step of a reduction has: eight neighbouring threads have a piece each of the same
 * rows, one of every 32. */
template<class Element, uint32_t own_rows, bool weighs> class ChannelTile {
public:
    __device__ ChannelTile(const StageStep &step, const Shared &shared, uint32_t item)
        : step_(step), shared_(shared), rows_(shared.block.rows[item % listed_items]), item_(item),
          column_(threadIdx.x % 8 * piece_channels<Element>), channel_(rows_.slice * step_channels<Element> + column_),
          data_(step_.input.data) {
    }

    __device__ void compute() {
        const bool is_in = channel_ < step_.channels;
        const uint32_t row = threadIdx.x / 8;
#pragma unroll
        for (uint32_t i = 0; i < own_rows; i++) {
            output_[i] = is_in ? rows_.output[row + i * channel_rows] : ItemRows::none;
        }
        uint4 weights[taps_at_once];
        load_weights(0, weights);  // They are there before what the steps before make.
        wait_for_use(shared_.block.may_start, item_);
        uint4 residual[own_rows];
        int32_t from[own_rows];
#pragma unroll
        for (uint32_t i = 0; i < own_rows; i++) {
            residual[i] = load_residual(i, own_rows < most_channel_rows);
            from[i] = rows_.input[row + i * channel_rows];
        }
        const uint32_t taps = step_.reduction;
        WindowWalk walk(step_);
#pragma unroll 1
        for (uint32_t begin = 0; begin < taps; begin += taps_at_once) {
            uint4 pixels[taps_at_once][own_rows];
#pragma unroll
            for (uint32_t tap = 0; tap < taps_at_once; tap++) {
                load_pixels(begin + tap < taps, walk.next() + channel_, from, pixels[tap]);
            }
#pragma unroll
            for (uint32_t tap = 0; tap < taps_at_once; tap++) {
                if (weighs || begin + tap < taps) {  // Behind the last tap, weights are 0.
                    take(begin + tap, pixels[tap], weights[tap]);
                }
            }
            if (begin + taps_at_once < taps) {
                load_weights(begin + taps_at_once, weights);
            }
        }
#pragma unroll
        for (uint32_t i = 0; i < own_rows; i++) {
            if (output_[i] != ItemRows::none) {
                finish(sums_[i]);
                if (own_rows == most_channel_rows) {  // There were no registers for it before.
                    residual[i] = load_residual(i, true);
                }
                store_piece<Element>(step_, output_[i], channel_, rows_.bias + column_, residual[i], sums_[i]);
            }
        }
    }

private:
    /** As many taps as registers hold of a thread's rows. */
    static constexpr uint32_t taps_at_once = own_rows == 1 ? 9 : weighs && own_rows == 2 ? 5 : own_rows == 2 ? 4 : 2;

    __device__ uint4 load_residual(uint32_t i, bool now) const {
        uint4 residual{};
        if (now && step_.residual.data && output_[i] != ItemRows::none) {
            const int64_t from = int64_t{rows_.residual[threadIdx.x / 8 + i * channel_rows]} + channel_;
            residual = __ldcg(piece_at<Element>(step_.residual.data, from));
        }
        return residual;
    }

    /** Loads weights, or zeros behind the last tap. */
    __device__ void load_weights(uint32_t begin, uint4 (&weights)[taps_at_once]) const {
#pragma unroll
        for (uint32_t i = 0; i < taps_at_once; i++) {
            const uint32_t tap = begin + i;
            weights[i] = weighs && channel_ < step_.channels && tap < step_.reduction
                             ? __ldg(piece_at<Element>(step_.weights, int64_t{tap} * step_.channels + channel_))
                             : uint4{};
        }
    }

    /** Loads the rows' pixels that a tap reads. Other blocks may just have written them: who waited for these has made
     * the first-level cache forget what was there, and neighbouring windows find it there. */
    __device__ void load_pixels(bool exists, int32_t place, const int32_t (&from)[own_rows],
                                uint4 (&pixels)[own_rows]) const {
#pragma unroll
        for (uint32_t i = 0; i < own_rows; i++) {
            pixels[i] = exists && output_[i] != ItemRows::none
                            ? __ldca(piece_at<Element>(data_, int64_t{from[i]} + place))
                            : uint4{};
        }
    }

    /** Takes a tap's pixels into the results. */
    __device__ void take(uint32_t tap, const uint4 (&pixels)[own_rows], const uint4 &weights) {
        float factors[piece_channels<Element>];
        if constexpr (weighs) {
            unpack_channels<Element>(weights, factors);
        }
        const bool takes_largest = step_.window_work == WindowWork::Largest;
#pragma unroll
        for (uint32_t i = 0; i < own_rows; i++) {
            float values[piece_channels<Element>];
            unpack_channels<Element>(pixels[i], values);
#pragma unroll
            for (uint32_t c = 0; c < piece_channels<Element>; c++) {
                float &sum = sums_[i][c];
                if constexpr (weighs) {
                    sum += values[c] * factors[c];
                } else {
                    sum = tap == 0 ? values[c] : takes_largest ? larger(sum, values[c]) : sum + values[c];
                }
            }
        }
    }

    /** The larger number; NaN if one is. */
    __device__ static float larger(float a, float b) {
        return b > a || b != b ? b : a;
    }

    __device__ void finish(float (&values)[piece_channels<Element>]) const {
        if (!weighs && step_.window_work == WindowWork::Mean && step_.reduction > 1) {
#pragma unroll
            for (float &value : values) {
                value /= static_cast<float>(step_.reduction);
            }
        }
    }

    const StageStep &step_;
    const Shared &shared_;
    const ItemRows &rows_;
    const uint32_t item_, column_, channel_;
    const char *const data_;
    int32_t output_[own_rows];
    float sums_[own_rows][piece_channels<Element>] = {};
};

/** Computes an item of a step that takes each channel by itself. */
template<class Element> __device__ void compute_channels(const StagePlan &plan, const Shared &shared, uint32_t item) {
    const StageStep &step = plan.step;
    const bool has_most = plan.tile_rows == most_channel_rows * channel_rows;
    if (step.window_work != WindowWork::Weigh && has_most) {
        ChannelTile<Element, most_channel_rows, false>(step, shared, item).compute();
    } else if (step.window_work != WindowWork::Weigh) {
        ChannelTile<Element, least_plain_rows, false>(step, shared, item).compute();
    } else if (plan.tile_rows == channel_rows) {
        ChannelTile<Element, 1, true>(step, shared, item).compute();
    } else if (plan.tile_rows == 2 * channel_rows) {
        ChannelTile<Element, 2, true>(step, shared, item).compute();
    } else {
        ChannelTile<Element, most_channel_rows, true>(step, shared, item).compute();
    }
    __syncwarp();
}

}  // namespace distile

#endif
