/** \file
 * Products of floating-point numbers of 16 bits, as product.h uses them: sums are float32. A type is a class `Format`,
 * which depends on the instruction set as all that files include:
 *
 *     static void narrow(const Floats &values, Stored &stored);  // Rounds to nearest even. NaN stays NaN.
 *     static void widen(const Stored &stored, Floats &values);
 */
#ifndef DISTILE_DOT_PRODUCT_NUMBERS16_H
#define DISTILE_DOT_PRODUCT_NUMBERS16_H

#include "epilogue.h"
#include "rows.h"
#include <cstring>

namespace distile::dot_product {

/** 16 stored numbers. */
using Stored16 = uint16_t __attribute__((vector_size(vector_channels * 2)));

template<class Set, class Format> class Numbers16 {
public:
    using Element = uint16_t;
    using Weight = uint16_t;
    using Sum = float;

    Numbers16(const distile_dot_product_code &code, const distile_kernel_call &call)
        : epilogue_(code.epilogue), bias_(static_cast<const float *>(call.operands[2].data)),
          residual_(call.num_operands == 5 ? static_cast<const Element *>(call.operands[3].data) : nullptr),
          output_(static_cast<Element *>(call.operands[call.num_operands - 1].data)) {
    }

    void copy_step(const Element *from, Element *to) const {
        std::memcpy(to, from, step_bytes);
    }
    void copy(const Element *from, Element *to, int32_t count) const {
        std::memcpy(to, from, count * sizeof(Element));
    }
    void pad(Element *to, int32_t count) const {
        std::memset(to, 0, count * sizeof(Element));
    }
    const char *output(const Row &row, int32_t channel) const {
        return reinterpret_cast<const char *>(output_ + row.output + channel);
    }
    /** The sums and the bias hold whole vectors. */
    void store(const Phase &, const Row &row, const Sum *sums, int32_t channel, int32_t count) const {
        const Results results{sums, bias_ + channel, residual_ ? residual_ + row.residual + channel : nullptr,
                              output_ + row.output + channel};
        Epilogue<Set>::store(epilogue_, results, count);
    }

private:
    using Floats = typename Epilogue<Set>::Floats;

    struct Results {
        const float *sums, *bias;
        const Element *residual;
        Element *output;

        void load(int32_t channel, int32_t count, Floats &values) const {
            Floats added;
            std::memcpy(&values, sums + channel, sizeof(values));
            std::memcpy(&added, bias + channel, sizeof(added));
            values += added;
            if (residual) {
                Stored16 stored{};
                Epilogue<Set>::template copy_channels<Element>(&stored, residual + channel, count);
                Format::widen(stored, added);
                values += added;
            }
        }
        void save(int32_t channel, int32_t count, const Floats &values) const {
            Stored16 stored;
            Format::narrow(values, stored);
            Epilogue<Set>::template copy_channels<Element>(output + channel, &stored, count);
        }
    };

    distile_epilogue epilogue_;
    const float *bias_;
    const Element *residual_;
    Element *output_;
};

}  // namespace distile::dot_product

#endif
