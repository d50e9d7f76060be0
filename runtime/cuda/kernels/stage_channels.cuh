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
        if constexpr (is_quantized_element<Element>) {
            load_quantized(step, adds && column < step.channels, from);
        } else {
#pragma unroll
            for (uint32_t i = 0; i < pieces_of_eight<Element>; i++) {
                const uint32_t more = i * piece_channels<Element>;
                pieces[i] = uint4{};
                if (adds && column + more < step.channels) {
                    pieces[i] = __ldcg(piece_at<Element>(step.residual.data, from + more));
                }
            }
        }
    }

private:
    /** Two pieces of float32, or half a piece of bytes. */
    __device__ void load_quantized(const StageStep &step, bool adds, int64_t from) {
        pieces[0] = pieces[1] = uint4{};
        if (adds && step.stores_floats != 0) {
            pieces[0] = __ldcg(piece_at<float>(step.residual.data, from));
            pieces[1] = __ldcg(piece_at<float>(step.residual.data, from + 4));
        } else if (adds) {
            const uint2 bytes = __ldcg(reinterpret_cast<const uint2 *>(step.residual.data + from));
            pieces[0].x = bytes.x;
            pieces[0].y = bytes.y;
        }
    }
};

/** Makes results of 8 channels' sums, as distile_requantization defines them to the bit, and stores them. What it takes
 * stands where other steps have their bias. */
template<class Element> __device__ void store_quantized(const StageStep &step, int32_t output, uint32_t column,
                                                        const ResidualOfEight<Element> &residual,
                                                        const int32_t (&sums)[8]) {
    const auto &header = *reinterpret_cast<const tc::Requantization *>(step.bias);
    const float *const numbers = step.bias + sizeof(header) / sizeof(float) + column;
    const uint4 pieces[2] = {residual.pieces[0], residual.pieces[1]};
    const bool adds = step.residual.data != nullptr, adds_floats = adds && step.stores_floats != 0;
    const int32_t residual_zero_point = __ldg(&header.residual_zero_point);
    const float residual_factor = __ldg(&header.residual_factor);
    float values[8];
#pragma unroll
    for (uint32_t half = 0; half < 2; half++) {
        const uint32_t first = half * 4;
        const int4 offset = __ldg(reinterpret_cast<const int4 *>(numbers + first));
        const float4 multiplier = __ldg(reinterpret_cast<const float4 *>(numbers + step.channels + first)),
                     bias = __ldg(reinterpret_cast<const float4 *>(numbers + 2 * step.channels + first));
        const int32_t offsets[4] = {offset.x, offset.y, offset.z, offset.w};
        const float multipliers[4] = {multiplier.x, multiplier.y, multiplier.z, multiplier.w};
        const float biases[4] = {bias.x, bias.y, bias.z, bias.w};
        const uint4 &floats = pieces[half];
        const float added_floats[4] = {__uint_as_float(floats.x), __uint_as_float(floats.y), __uint_as_float(floats.z),
                                       __uint_as_float(floats.w)};
        const uint32_t bytes = half == 0 ? pieces[0].x : pieces[0].y;
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            int32_t sum = sums[first + i];
            tc::add(sum, offsets[i]);
            float value = __fadd_rn(__fmul_rn(__int2float_rn(sum), multipliers[i]), biases[i]);
            if (adds) {
                const int32_t stored = static_cast<Element>(bytes >> 8 * i);
                const float real = __fmul_rn(__int2float_rn(stored - residual_zero_point), residual_factor);
                value = __fadd_rn(value, adds_floats ? added_floats[i] : real);
            }
            values[first + i] = value;
        }
    }
    activate_channels(step.activation, values);
    const int64_t to = int64_t{output} + column;
    if (step.stores_floats != 0) {
        auto *const floats = reinterpret_cast<float4 *>(step.output.data + to * sizeof(float));
        __stcg(floats, make_float4(values[0], values[1], values[2], values[3]));
        __stcg(floats + 1, make_float4(values[4], values[5], values[6], values[7]));
        return;
    }
    // Near this number, float32 has integers only, which its lowest bits hold.
    constexpr float to_integer = 0x1.8p23f;
    const int32_t zero_point = __ldg(&header.output_zero_point);
    const float factor = __ldg(&header.output_factor), least = __int2float_rn(tc::Storage<Element>::least - zero_point);
    uint32_t words[2] = {};
#pragma unroll
    for (uint32_t i = 0; i < 8; i++) {
        const float clamped = fminf(fmaxf(__fmul_rn(values[i], factor), least), least + 255);
        const uint32_t stored = __float_as_uint(__fadd_rn(clamped, to_integer)) + static_cast<uint32_t>(zero_point);
        words[i / 4] |= (stored & 0xff) << 8 * (i % 4);
    }
    __stcg(reinterpret_cast<uint2 *>(step.output.data + to), make_uint2(words[0], words[1]));
}

/** Stores these channels, of which the step has the first. */
template<class Element> __device__ void store_eight(const StageStep &step, int32_t output, uint32_t column,
                                                    const float *bias, const ResidualOfEight<Element> &residual,
                                                    const SumOfElements<Element> (&values)[8]) {
    if constexpr (is_quantized_element<Element>) {
        store_quantized<Element>(step, output, column, residual, values);
    } else {
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
                if constexpr (is_quantized_element<Element>) {
                    store_halves(i);
                } else {
                    finish(sums_[i]);
                    if (own_rows == most_channel_rows) {  // There were no registers for it before.
                        residual[i] = load_residual(i, true);
                    }
                    store_piece<Element>(step_, output_[i], channel_, rows_.bias + column_, residual[i], sums_[i]);
                }
            }
        }
    }

private:
    /** As many taps as registers hold of a thread's rows. */
    static constexpr uint32_t taps_at_once = own_rows == 1 ? 9 : weighs && own_rows == 2 ? 5 : own_rows == 2 ? 4 : 2;

    __device__ uint4 load_residual(uint32_t i, bool now) const {
        uint4 residual{};
        if (!is_quantized_element<Element> && now && step_.residual.data && output_[i] != ItemRows::none) {
            const int64_t from = int64_t{rows_.residual[threadIdx.x / 8 + i * channel_rows]} + channel_;
            residual = __ldcg(piece_at<Element>(step_.residual.data, from));
        }
        return residual;
    }

    /** Stores a row's quantized channels, 8 at a time. */
    __device__ void store_halves(uint32_t i) const {
        const bool adds = step_.residual.data != nullptr;
#pragma unroll
        for (uint32_t first = 0; first < piece_channels<Element>; first += 8) {
            ResidualOfEight<Element> residual;
            residual.load(step_, adds,
                          adds ? int64_t{rows_.residual[threadIdx.x / 8 + i * channel_rows]} + channel_ + first : 0,
                          channel_ + first);
            int32_t sums[8];
#pragma unroll
            for (uint32_t c = 0; c < 8; c++) {
                sums[c] = sums_[i][first + c];
            }
            store_eight<Element>(step_, output_[i], channel_ + first, nullptr, residual, sums);
        }
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
        SumOfElements<Element> factors[piece_channels<Element>];
        if constexpr (weighs) {
            unpack_channels<WeightOf<Element>>(weights, factors);
        }
        const bool takes_largest = step_.window_work == WindowWork::Largest;
#pragma unroll
        for (uint32_t i = 0; i < own_rows; i++) {
            SumOfElements<Element> values[piece_channels<Element>];
            unpack_channels<Element>(pixels[i], values);
#pragma unroll
            for (uint32_t c = 0; c < piece_channels<Element>; c++) {
                auto &sum = sums_[i][c];
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
    SumOfElements<Element> sums_[own_rows][piece_channels<Element>] = {};
};

/** Computes an item of such a step without weights. */
template<class Element>
__device__ void compute_plain_channels(const StagePlan &plan, const Shared &shared, uint32_t item) {
    if (plan.tile_rows == most_channel_rows * channel_rows) {
        ChannelTile<Element, most_channel_rows, false>(plan.step, shared, item).compute();
    } else {
        ChannelTile<Element, least_plain_rows, false>(plan.step, shared, item).compute();
    }
}

/** Computes an item of a step that takes each channel by itself. */
template<class Element> __device__ void compute_channels(const StagePlan &plan, const Shared &shared, uint32_t item) {
    const StageStep &step = plan.step;
    if constexpr (!is_quantized_element<Element>) {  // There is no other work on these.
        if (step.window_work != WindowWork::Weigh) {
            compute_plain_channels<Element>(plan, shared, item);
            __syncwarp();
            return;
        }
    }
    if (plan.tile_rows == channel_rows) {
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
