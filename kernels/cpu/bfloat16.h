/** \file
 * Products of bfloat16.
 */
#ifndef DISTILE_DOT_PRODUCT_BFLOAT16_H
#define DISTILE_DOT_PRODUCT_BFLOAT16_H

#include "kernels/cpu/float_types.h"

namespace distile::dot_product {

/** A Format, as in float_types.h. */
template<class Isa> struct Bfloat16Format {
    using Floats = typename Epilogue<Isa>::Floats;
    using Element = uint16_t;
    using Stored = Stored16;
    using Words = typename Epilogue<Isa>::Words;

    static void narrow(const Floats &values, Stored16 &stored) {
        Words bits;
        std::memcpy(&bits, &values, sizeof(bits));
        const Words rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16, nan = bits >> 16 | 0x40;
        stored = __builtin_convertvector((bits & 0x7fffffff) > 0x7f800000 ? nan : rounded, Stored16);
    }
    static void widen(const Stored16 &stored, Floats &values) {
        const Words bits = __builtin_convertvector(stored, Words) << 16;
        std::memcpy(&values, &bits, sizeof(values));
    }
};

template<class Isa> using Bfloat16 = FloatTypes<Isa, Bfloat16Format<Isa>>;

}  // namespace distile::dot_product

#endif
