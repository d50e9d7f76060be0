#include "generators/storage_type.h"
#include <sstream>

namespace distile {

using namespace Halide;

namespace {

constexpr int float32_infinity = 0x7f800000;

/** 1 if the last kept bit is odd, so ties round to even. */
Expr odd(const Expr &bits, int kept_from) {
    return (bits >> kept_from) & 1;
}

Expr float32_of_float16(const Expr &bits) {
    const Expr magnitude = cast(UInt(32), bits) & 0x7fff, sign = (cast(UInt(32), bits) & 0x8000) << 16;
    const Expr shifted = magnitude << 13;
    // Subnormals are multiples of 2^-24.
    const Expr subnormal = reinterpret(UInt(32), cast(Float(32), cast(Int(32), magnitude)) * 0x1p-24f);
    const Expr value = select(magnitude < 0x400, subnormal, magnitude < 0x7c00, shifted + ((127 - 15) << 23),
                              shifted | float32_infinity);
    return reinterpret(Float(32), value | sign);
}

Expr float16_of_float32(const Expr &value) {
    const Expr bits = reinterpret(UInt(32), value), magnitude = bits & 0x7fffffff;
    // Adding 0.5 makes 2^-24 the last place, so float32 arithmetic does the rounding.
    const Expr subnormal = reinterpret(UInt(32), reinterpret(Float(32), magnitude) + 0.5f) - 0x3f000000;
    const Expr normal = ((magnitude + 0xfff + odd(magnitude, 13)) >> 13) - ((127 - 15) << 10);
    const Expr rounded = select(magnitude > float32_infinity, 0x7e00, magnitude >= 0x47800000, 0x7c00,
                                magnitude < 0x38800000, subnormal, normal);
    return reinterpret(Float(16), cast(UInt(16), rounded | ((bits >> 16) & 0x8000)));
}

Expr bfloat16_of_float32(const Expr &value) {
    const Expr bits = reinterpret(UInt(32), value);
    const Expr rounded = (bits + 0x7fff + odd(bits, 16)) >> 16;
    // Make the NaN quiet, because the remaining bits alone may be those of an infinity.
    const Expr nan = (bits >> 16) | 0x40;
    return reinterpret(BFloat(16), cast(UInt(16), select((bits & 0x7fffffff) > float32_infinity, nan, rounded)));
}

}  // namespace

void check_storage_type(const Type &type) {
    if (type != Float(32) && type != Float(16) && type != BFloat(16)) {
        std::ostringstream message;
        message << "the type " << type << " is not float32, float16 or bfloat16.\n";
        throw CompileError(message.str());
    }
}

Expr stored_bits(const Expr &value) {
    return value.type() == Float(32) ? value : reinterpret(UInt(16), value);
}

StorageConversion::StorageConversion(const Target &target)
    : has_float16_(target.has_feature(Target::CUDA) || target.has_feature(Target::CLHalf) ||
                   target.has_feature(Target::F16C)) {
}

Expr StorageConversion::to_float32(const Expr &value) const {
    return to_float32(stored_bits(value), value.type());
}

Expr StorageConversion::to_float32(const Expr &bits, const Type &type) const {
    if (type == Float(32)) {
        return bits;
    }
    if (type.is_bfloat()) {
        // Not a cast, which Halide 21 lacks on a GPU.
        return reinterpret(Float(32), cast(UInt(32), bits) << 16);
    }
    return has_float16_ ? cast(Float(32), reinterpret(type, bits)) : float32_of_float16(bits);
}

Expr StorageConversion::from_float32(const Expr &value, const Type &type) const {
    if (type == Float(32)) {
        return value;
    }
    if (type.is_bfloat()) {
        // Not a cast: Halide 21's turns some NaNs into infinities.
        return bfloat16_of_float32(value);
    }
    return has_float16_ ? cast(type, value) : float16_of_float32(value);
}

}  // namespace distile
