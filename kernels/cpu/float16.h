/** \file
 * Products of float16.
 */
#ifndef DISTILE_DOT_PRODUCT_FLOAT16_H
#define DISTILE_DOT_PRODUCT_FLOAT16_H

#include "kernels/cpu/float_types.h"

namespace distile::dot_product {

/** A Format, as in float_types.h. Its arithmetic is that of types.cpp, whatever instructions the CPU has. */
template<class Isa> struct Float16Format {
    using Floats = typename Epilogue<Isa>::Floats;
    using Element = uint16_t;
    using Stored = Stored16;
    using Integers = typename Epilogue<Isa>::Integers;
    using Words = typename Epilogue<Isa>::Words;

    static void narrow(const Floats &values, Stored16 &stored) {
        Words bits;
        std::memcpy(&bits, &values, sizeof(bits));
        const Words sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
        // Adding .5 aligns the bits of a subnormal and rounds them.
        Floats aligned;
        std::memcpy(&aligned, &magnitude, sizeof(aligned));
        aligned += .5f;
        Words subnormal;
        std::memcpy(&subnormal, &aligned, sizeof(subnormal));
        subnormal -= 0x3f000000;
        Words half = (magnitude - 0x38000000 + 0xfff + (magnitude >> 13 & 1)) >> 13;
        half = magnitude < 0x38800000 ? subnormal : half;
        half = magnitude >= 0x477ff000 ? Words{} + 0x7c00 : half;
        half = magnitude > 0x7f800000 ? Words{} + 0x7e00 : half;
        stored = __builtin_convertvector(half | sign, Stored16);
    }
    static void widen(const Stored16 &stored, Floats &values) {
        const Words half = __builtin_convertvector(stored, Words), magnitude = half & 0x7fff;
        // A subnormal is an integer times 2^-24.
        Integers integers;
        std::memcpy(&integers, &magnitude, sizeof(integers));
        const Floats small = __builtin_convertvector(integers, Floats) * 0x1p-24f;
        Words subnormal;
        std::memcpy(&subnormal, &small, sizeof(subnormal));
        Words bits = (magnitude << 13) + 0x38000000;
        bits = magnitude < 0x400 ? subnormal : bits;
        bits = magnitude >= 0x7c00 ? 0x7f800000 | (magnitude & 0x3ff) << 13 : bits;
        bits |= (half & 0x8000) << 16;
        std::memcpy(&values, &bits, sizeof(values));
    }
};

template<class Isa> using Float16 = FloatTypes<Isa, Float16Format<Isa>>;

}  // namespace distile::dot_product

#endif
