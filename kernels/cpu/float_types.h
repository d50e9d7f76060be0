/** \file
 * Products of floating-point numbers, as product.h uses them: sums are float32. A type is a class `Format`, which
 * depends on the instruction set as all that files include:
 *
 *     using Element = ..., Stored = ...;  // As tensors hold it, and 16 of them.
 *     static void narrow(const Floats &values, Stored &stored);  // Rounds to nearest even. NaN stays NaN.
 *     static void widen(const Stored &stored, Floats &values);
 */
#ifndef DISTILE_DOT_PRODUCT_FLOAT_TYPES_H
#define DISTILE_DOT_PRODUCT_FLOAT_TYPES_H

#include "kernels/cpu/epilogue.h"
#include "kernels/cpu/rows.h"
#include "kernels/dot_products.h"
#include <cstring>

namespace distile::dot_product {

/** 16 stored numbers of 16 bits. */
using Stored16 = uint16_t __attribute__((vector_size(vector_channels * 2)));

/** A Format of float32. */
template<class Isa> struct Float32Format {
    using Floats = typename Epilogue<Isa>::Floats;
    using Element = float;
    using Stored = Floats;

    static void narrow(const Floats &values, Stored &stored) {
        stored = values;
    }
    static void widen(const Stored &stored, Floats &values) {
        values = stored;
    }
};

template<class Isa, class Format> class FloatTypes {
public:
    using Element = typename Format::Element;
    using Weight = Element;
    using Sum = float;
    static constexpr int32_t parts = 1;

    FloatTypes(const distile_dot_product_code &code, const distile_kernel_call &call)
        : epilogue_(code.epilogue), slope_(call.slope), bias_(static_cast<const float *>(call.operands[2].data)),
          residual_(call.num_operands == 5 ? static_cast<const Element *>(call.operands[3].data) : nullptr),
          output_(static_cast<Element *>(call.operands[call.num_operands - 1].data)) {
    }

    static bool stages_as_stored() {
        return true;
    }
    static uint8_t flip() {
        return 0;
    }
    void pad(Element *to, int32_t count) const {
        std::memset(to, 0, count * sizeof(Element));
    }
    const char *output(const Row &row, int32_t channel) const {
        return reinterpret_cast<const char *>(output_ + row.output + channel);
    }
    /** The sums and the bias hold whole vectors. */
    void store(const Phase & /*phase*/, const Row *rows, int32_t num_rows, const Sum *sums,
               const ChannelBlock &channels) const {
        const Results results{sums,
                              residual_ ? residual_ + channels.first : nullptr,
                              output_ + channels.first,
                              channels.padded,
                              bias_ + channels.place,
                              slope_};
        Epilogue<Isa>::store(epilogue_, results, rows, num_rows, channels.count);
    }

private:
    using Floats = typename Epilogue<Isa>::Floats;

    /** Some channels of all rows. */
    struct Channels {
        const float *sums;
        const Element *residual;
        Element *output;
        int64_t distance;
        Floats bias;

        [[gnu::always_inline]] void load(const Row &row, int32_t index, int32_t count, Floats *values) const {
            std::memcpy(values, sums + index * distance, sizeof(*values));
            *values += bias;
            if (residual) {
                typename Format::Stored stored{};
                Epilogue<Isa>::template copy_channels<Element>(&stored, residual + row.residual, count);
                Floats widened;
                Format::widen(stored, widened);
                *values += widened;
            }
        }
        [[gnu::always_inline]] void save(const Row &row, int32_t count, const Floats *values) const {
            typename Format::Stored stored;
            Format::narrow(*values, stored);
            Epilogue<Isa>::keep_in_register(stored);
            Epilogue<Isa>::template copy_channels<Element>(output + row.output, &stored, count);
        }
    };
    struct Results {
        const float *sums;
        const Element *residual;
        Element *output;
        int64_t distance;
        const float *bias;
        float slope;
        static constexpr int32_t widest = 1;

        template<int32_t Vectors> [[gnu::always_inline]] Channels at(int32_t channel) const {
            Channels channels{sums + channel, residual ? residual + channel : nullptr, output + channel, distance, {}};
            std::memcpy(&channels.bias, bias + channel, sizeof(channels.bias));
            return channels;
        }
    };

    distile_activation epilogue_;
    float slope_;
    const float *bias_;
    const Element *residual_;
    Element *output_;
};

}  // namespace distile::dot_product

#endif
