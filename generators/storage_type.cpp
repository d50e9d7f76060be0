#include "generators/storage_type.h"
#include "facts/type_functions.h"

namespace distile {

using namespace Halide;

namespace {

// Halide's operators take an int or a float beside an expression, and an unsigned number is as near to both.
#define OPERATOR(op)                                                                                                   \
    Expr operator op(const Expr &bits, uint32_t number) {                                                              \
        return bits op Expr(number);                                                                                   \
    }
OPERATOR(+)
OPERATOR(-)
OPERATOR(<)
OPERATOR(>)
#undef OPERATOR

#define CHOOSE(condition, bits, other) select(condition, Expr(bits), Expr(other))
#define FLOAT_OF(bits) reinterpret(Float(32), Expr(bits))
#define BITS_OF(number) reinterpret(UInt(32), number)
#define LESSER(bits, other) min(bits, Expr(other))

/** The float32 of an element, both as bits of UInt(32). No casts: Halide 21's of bfloat16 are missing on GPUs, and on
 * CPUs they turn some NaNs into infinities. */
Expr widened_bits(const Expr &x, distile_dtype dtype) {
#define ROW(number, name, NAME, bits, ONNX, digits, widened, narrowed)                                                 \
    if (dtype == DISTILE_##NAME) {                                                                                     \
        return widened;                                                                                                \
    }
    DISTILE_FLOAT_TYPES(ROW)
#undef ROW
    throw CompileError(std::string(type_name(dtype)) + " is no floating-point type.\n");
}

/** The element of a float32. */
Expr narrowed_bits(const Expr &x, distile_dtype dtype) {
#define ROW(number, name, NAME, bits, ONNX, digits, widened, narrowed)                                                 \
    if (dtype == DISTILE_##NAME) {                                                                                     \
        return narrowed;                                                                                               \
    }
    DISTILE_FLOAT_TYPES(ROW)
#undef ROW
    throw CompileError(std::string(type_name(dtype)) + " is no floating-point type.\n");
}

}  // namespace

const std::map<std::string, distile_dtype> &float_types_by_name() {
    static const std::map<std::string, distile_dtype> names = {
#define ROW(number, name, NAME, ...) {#name, DISTILE_##NAME},
        DISTILE_FLOAT_TYPES(ROW)
#undef ROW
    };
    return names;
}

Type stored_type(distile_dtype dtype) {
    return dtype == DISTILE_FLOAT32 ? Float(32) : UInt(facts_of_type(dtype).bits);
}

StorageConversion::StorageConversion(const Target &target)
    : has_float16_(target.has_gpu_feature() ? target.has_feature(Target::CUDA) || target.has_feature(Target::CLHalf)
                                            : target.has_feature(Target::F16C)) {
}

Expr StorageConversion::to_float32(const Expr &stored, distile_dtype dtype) const {
    if (dtype == DISTILE_FLOAT32) {
        return stored;
    }
    return has_float16_ && dtype == DISTILE_FLOAT16
               ? cast(Float(32), reinterpret(Float(16), stored))
               : reinterpret(Float(32), widened_bits(cast(UInt(32), stored), dtype));
}

Expr StorageConversion::from_float32(const Expr &value, distile_dtype dtype) const {
    if (dtype == DISTILE_FLOAT32) {
        return value;
    }
    return has_float16_ && dtype == DISTILE_FLOAT16
               ? reinterpret(UInt(16), cast(Float(16), value))
               : cast(stored_type(dtype), narrowed_bits(reinterpret(UInt(32), value), dtype));
}

}  // namespace distile
