/** \file
 * The storage types of tensors (float32, float16 and bfloat16) and their conversion to and from float32, the type of
 * all sums.
 */
#ifndef DISTILE_GENERATORS_STORAGE_TYPE_H
#define DISTILE_GENERATORS_STORAGE_TYPE_H

#include "Halide.h"

namespace distile {

/** Throws Halide::CompileError for any other type. */
void check_storage_type(const Halide::Type &type);

/** The bits of a stored value as a 16-bit integer; float32 values stay unchanged. Selects between stored values work on
 * bits, because not every backend has vectors of 16-bit floats. */
Halide::Expr stored_bits(const Halide::Expr &value);

/** Conversions for a target. */
class StorageConversion {
public:
    StorageConversion() = default;
    explicit StorageConversion(const Halide::Target &target);

    /** A stored value as float32. */
    Halide::Expr to_float32(const Halide::Expr &value) const;
    /** The float32 value of a stored value's bits. */
    Halide::Expr to_float32(const Halide::Expr &bits, const Halide::Type &type) const;
    /** A float32 value converted for storage: rounded to nearest, ties to even. NaN stays NaN. */
    Halide::Expr from_float32(const Halide::Expr &value, const Halide::Type &type) const;

private:
    bool has_float16_ = false; /**< Hardware conversion. All others use integer arithmetic, without library calls. */
};

}  // namespace distile

#endif
