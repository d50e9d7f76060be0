/** \file
 * Products of float16 by instructions for bfloat16. A number of 11 significant bits is the sum of two of 8, so a
 * product is the sum of four, each of them exact in float32.
 */
#ifndef DISTILE_DOT_PRODUCT_SPLIT_FLOAT16_H
#define DISTILE_DOT_PRODUCT_SPLIT_FLOAT16_H

#include "kernels/cpu/float16.h"

namespace distile::dot_product {

/** Types, as in product.h. `Isa` as in Epilogue; it also widens, and makes NaN quiet:
 *
 *     static void widen(const Stored16 &stored, Floats &values);
 */
template<class Isa> class SplitFloat16 : public FloatTypes<Isa, Float16Format<Isa>> {
public:
    using FloatTypes<Isa, Float16Format<Isa>>::FloatTypes;
    static constexpr int32_t parts = 2;

    static bool stages_as_stored() {
        return false;
    }
    /** Splits a multiple of 16 numbers. `high` may be `from`. */
    static void split(const uint16_t *from, int64_t count, uint16_t *high, uint16_t *low) {
        for (int64_t i = 0; i < count; i += vector_channels) {
            Stored16 stored;
            std::memcpy(&stored, from + i, sizeof(stored));
            Stored16 parts[2];
            split_vector(stored, parts);
            std::memcpy(high + i, &parts[0], sizeof(stored));
            std::memcpy(low + i, &parts[1], sizeof(stored));
        }
    }

private:
    using Floats = typename Epilogue<Isa>::Floats;
    using Words = typename Epilogue<Isa>::Words;

    /** A rest of 0 becomes the least normal number, which no sum notices: 0 times infinity would be NaN. So does that
     * of infinity. */
    [[gnu::always_inline]] static void split_vector(const Stored16 &stored, Stored16 (&split)[2]) {
        constexpr uint32_t sign = 0x80000000, least_normal = 0x00800000;
        Floats value, rest;
        Isa::widen(stored, value);
        Words bits, rest_bits;
        std::memcpy(&bits, &value, sizeof(bits));
        const Words high = bits & 0xffff0000;
        std::memcpy(&rest, &high, sizeof(rest));
        rest = value - rest;
        std::memcpy(&rest_bits, &rest, sizeof(rest_bits));
        const Words least = (bits & ~sign) == 0 ? bits : (bits & sign) | least_normal;
        const Words low = (rest > 0) | (rest < 0) ? rest_bits : least;
        split[0] = __builtin_convertvector(high >> 16, Stored16);
        split[1] = __builtin_convertvector(low >> 16, Stored16);
    }
};

}  // namespace distile::dot_product

#endif
