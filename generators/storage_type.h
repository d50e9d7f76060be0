/** \file
 * The types in which tensors are stored, float32, float16 and bfloat16, and their conversion to and from float32, in
 * which all sums are computed.
 */
#ifndef DISTILE_GENERATORS_STORAGE_TYPE_H
#define DISTILE_GENERATORS_STORAGE_TYPE_H

#include "Halide.h"

namespace distile {

/** Throws Halide::CompileError for a type that is none of them. */
void check_storage_type(const Halide::Type &type);

/** The bits of a stored value, a 16-bit integer. A float32 value stays what it is. Choices between stored values are
 * made on bits, because not every backend has vectors of 16-bit floats. */
Halide::Expr stored_bits(const Halide::Expr &value);

/** Conversions for a target. */
class StorageConversion {
public:
    StorageConversion() = default;
    explicit StorageConversion(const Halide::Target &target);

    /** A stored value as float32. */
    Halide::Expr to_float32(const Halide::Expr &value) const;
    /** The same of its bits. */
    Halide::Expr to_float32(const Halide::Expr &bits, const Halide::Type &type) const;
    /** A float32 value as it is stored: rounded to the nearest, ties to even. A NaN stays one. */
    Halide::Expr from_float32(const Halide::Expr &value, const Halide::Type &type) const;

private:
    bool has_float16_ = false; /**< By instructions. All else is made of integers, without calls of a library. */
};

}  // namespace distile

#endif
