/** \file
 * Products of quantized numbers, as product.h uses them: sums are int32. distile_requantization in dot_products.h
 * defines the results, to the bit; so the files that include this are compiled without fused multiply-adds.
 */
#ifndef DISTILE_DOT_PRODUCT_INT8_H
#define DISTILE_DOT_PRODUCT_INT8_H

#include "facts/type_functions.h"
#include "kernels/cpu/epilogue.h"
#include "kernels/cpu/interleave.h"
#include "kernels/cpu/narrow.h"
#include "kernels/cpu/rows.h"
#include "kernels/dot_products.h"
#include <cstring>

namespace distile::dot_product {

template<class Isa> class Int8 {
public:
    using Element = uint8_t;
    using Weight = int8_t;
    using Sum = int32_t;
    static constexpr int32_t parts = 1;

    Int8(const distile_dot_product_code &code, const distile_kernel_call &call)
        : epilogue_(code.epilogue), slope_(call.slope), flip_(call.operands[0].dtype == DISTILE_INT8 ? 0x80 : 0),
          bias_(static_cast<const float *>(call.operands[2].data)),
          residual_(call.num_operands == 6 ? static_cast<const char *>(call.operands[4].data) : nullptr),
          output_(static_cast<char *>(call.operands[call.num_operands - 1].data)),
          dtype_(call.operands[call.num_operands - 1].dtype), channels_(call.operands[2].dim[0].extent) {
        const auto *const words = static_cast<const char *>(call.operands[3].data);
        std::memcpy(&header_, words, sizeof(header_));
        offsets_ = reinterpret_cast<const int32_t *>(words + sizeof(header_));
        multipliers_ = reinterpret_cast<const float *>(offsets_ + int64_t{code.scale_h} * code.scale_w * channels_);
        if (is_quantized(dtype_)) {
            set_range();
        }
    }

    bool stages_as_stored() const {
        return flip_ == 0;
    }
    /** Numbers of int8 become unsigned ones. */
    uint8_t flip() const {
        return flip_;
    }
    void pad(Element *to, int32_t count) const {
        std::memset(to, static_cast<uint8_t>(header_.input_zero_point) ^ flip_, count);
    }
    const char *output(const Row &row, int32_t channel) const {
        return output_ + (row.output + channel) * element_bytes(dtype_);
    }
    /** The sums, the offsets, the multipliers and the bias hold whole vectors. */
    void store(const Phase &phase, const Row *rows, int32_t num_rows, const Sum *sums,
               const ChannelBlock &channels) const {
        const int32_t *const offsets = offsets_ + phase.index * channels_ + channels.place;
        if (!is_quantized(dtype_)) {
            return store_as<float>(rows, num_rows, sums, offsets, channels);
        }
        return facts_of_type(dtype_).least < 0 ? store_as<int8_t>(rows, num_rows, sums, offsets, channels)
                                               : store_as<uint8_t>(rows, num_rows, sums, offsets, channels);
    }

    /** Whether results are bytes that depend on nothing but their sums and their output channels. */
    bool narrows_sums() const {
        return is_quantized(dtype_) && !residual_ && epilogue_ == DISTILE_ACTIVATION_NONE;
    }
    /** Makes these results of four output channels, a byte each of a pixel's word, for a register of pixels. A
     * channel's sums begin `distance` behind those of the one before. There is one phase. */
    [[gnu::always_inline]] void narrow(const Sum *sums, int64_t distance, int32_t place, uint32_t *words) const {
        typename Activation<Isa>::Floats values[4];
        for (int64_t c = 0; c < 4; c++) {
            typename VectorOf<4 * register_lanes>::Words sum;
            std::memcpy(&sum, sums + c * distance, sizeof(sum));
            sum += static_cast<uint32_t>(offsets_[place + c]);
            typename Activation<Isa>::Integers total;
            std::memcpy(&total, &sum, sizeof(total));
            values[c] = __builtin_convertvector(total, typename Activation<Isa>::Floats) * multipliers_[place + c];
            values[c] += bias_[place + c];
            values[c] = values[c] * header_.output_factor;
            const auto highest = typename Activation<Isa>::Floats{} + highest_;
            values[c] = values[c] > highest ? highest : values[c];
        }
        if (facts_of_type(dtype_).least < 0) {
            QuadNarrowing<Isa, int8_t>::store(values, lowest_, header_.output_zero_point, words);
        } else {
            QuadNarrowing<Isa, uint8_t>::store(values, lowest_, header_.output_zero_point, words);
        }
    }

private:
    using Floats = typename Epilogue<Isa>::Floats;
    using Integers = typename Epilogue<Isa>::Integers;
    using Words = typename Epilogue<Isa>::Words;

    /** The range of results before the zero point is added. It is that of a ReLU, too, which then has nothing to do. */
    void set_range() {
        const int32_t least = facts_of_type(dtype_).least;
        lowest_ = least - header_.output_zero_point;
        highest_ = static_cast<float>(least + 255 - header_.output_zero_point);
        const bool six = epilogue_ == DISTILE_ACTIVATION_RELU6;
        if (six || epilogue_ == DISTILE_ACTIVATION_RELU) {
            const float most = 6 * header_.output_factor;
            lowest_ = 0;
            highest_ = six && most < highest_ ? most : highest_;
            epilogue_ = DISTILE_ACTIVATION_NONE;
        }
    }

    /** How numbers become those that are stored, and back. */
    struct Quantizer {
        float residual_factor, output_factor, highest;
        int32_t lowest, residual_zero_point, output_zero_point;
    };
    /** Some channels of all rows, which are stored as a type. */
    template<typename Stored, int32_t Vectors> struct Channels {
        using Vector = typename StoredVector<Stored>::Type;
        static constexpr bool is_float = sizeof(Stored) == sizeof(float);

        Quantizer quantizer;
        const int32_t *sums;
        const Stored *residual;
        Stored *output;
        int64_t distance;
        Words offset[Vectors];
        Floats multiplier[Vectors], bias[Vectors];

        [[gnu::always_inline]] void load(const Row &row, int32_t index, int32_t count, Floats *values) const {
            const int32_t *const of_row = sums + index * distance;
            for (int64_t v = 0; v < Vectors; v++) {
                Words sum;
                std::memcpy(&sum, of_row + v * vector_channels, sizeof(sum));
                sum += offset[v];
                Integers total;
                std::memcpy(&total, &sum, sizeof(total));
                values[v] = __builtin_convertvector(total, Floats) * multiplier[v];
                values[v] += bias[v];
            }
            for (int64_t v = 0; residual && v < Vectors; v++) {
                Vector stored{};
                Epilogue<Isa>::template copy_channels<Stored>(&stored, residual + row.residual + v * vector_channels,
                                                              Vectors == 1 ? count : vector_channels);
                add(stored, values[v]);
            }
        }
        void add(const Vector &stored, Floats &values) const {
            if constexpr (is_float) {
                values += stored;
            } else {
                // In two steps, because GCC 12 has no vector instructions for one.
                const auto pairs = __builtin_convertvector(stored, typename StoredVector<Stored>::Wider);
                const Integers distance = __builtin_convertvector(pairs, Integers) - quantizer.residual_zero_point;
                values += __builtin_convertvector(distance, Floats) * quantizer.residual_factor;
            }
        }
        [[gnu::always_inline]] void save(const Row &row, int32_t count, const Floats *values) const {
            Stored *const to = output + row.output;
            if constexpr (is_float) {
                for (int64_t v = 0; v < Vectors; v++) {
                    Epilogue<Isa>::template copy_channels<float>(to + v * vector_channels, &values[v],
                                                                 Vectors == 1 ? count : vector_channels);
                }
            } else {
                const Floats highest = Floats{} + quantizer.highest;
                Floats scaled[Vectors];
                for (int64_t v = 0; v < Vectors; v++) {
                    scaled[v] = values[v] * quantizer.output_factor;
                    scaled[v] = scaled[v] > highest ? highest : scaled[v];
                }
                const bool is_part = count < Vectors * vector_channels;
                Stored narrowed[Vectors * vector_channels];
                Narrowing<Isa, Stored>::template store<Vectors>(scaled, quantizer.lowest, quantizer.output_zero_point,
                                                                is_part ? narrowed : to);
                if (is_part) {
                    std::memcpy(to, narrowed, count);
                }
            }
        }
    };
    template<typename Stored> struct Results {
        static constexpr int32_t widest = 4;

        Quantizer quantizer;
        const int32_t *sums;
        const Stored *residual;
        Stored *output;
        int64_t distance;
        const int32_t *offsets;
        const float *multipliers, *bias;
        float slope;

        template<int32_t Vectors> [[gnu::always_inline]] Channels<Stored, Vectors> at(int32_t channel) const {
            Channels<Stored, Vectors> channels;
            channels.quantizer = quantizer;
            channels.sums = sums + channel;
            channels.residual = residual ? residual + channel : nullptr;
            channels.output = output + channel;
            channels.distance = distance;
            std::memcpy(channels.offset, offsets + channel, sizeof(channels.offset));
            std::memcpy(channels.multiplier, multipliers + channel, sizeof(channels.multiplier));
            std::memcpy(channels.bias, bias + channel, sizeof(channels.bias));
            return channels;
        }
    };

    template<typename Stored> void store_as(const Row *rows, int32_t num_rows, const Sum *sums, const int32_t *offsets,
                                            const ChannelBlock &channels) const {
        const Results<Stored> results{{header_.residual_factor, header_.output_factor, highest_, lowest_,
                                       header_.residual_zero_point, header_.output_zero_point},
                                      sums,
                                      residual_ ? reinterpret_cast<const Stored *>(residual_) + channels.first
                                                : nullptr,
                                      reinterpret_cast<Stored *>(output_) + channels.first,
                                      channels.padded,
                                      offsets,
                                      multipliers_ + channels.place,
                                      bias_ + channels.place,
                                      slope_};
        Epilogue<Isa>::store(epilogue_, results, rows, num_rows, channels.count);
    }

    distile_activation epilogue_;
    float slope_;
    uint8_t flip_;
    const float *bias_;
    const char *residual_;
    char *output_;
    distile_dtype dtype_;
    int64_t channels_;
    distile_requantization header_{};
    const int32_t *offsets_;
    const float *multipliers_;
    int32_t lowest_ = 0;
    float highest_ = 0;
};

}  // namespace distile::dot_product

#endif
