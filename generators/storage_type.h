/** \file
 * The storage types of tensors and their conversion to and from float32, the type of all sums.
 *
 * Code holds elements of fewer than 32 bits as their bits, in unsigned integers: not every backend has vectors of such
 * numbers, and Halide has no type for some of them.
 */
#ifndef DISTILE_GENERATORS_STORAGE_TYPE_H
#define DISTILE_GENERATORS_STORAGE_TYPE_H

#include "Halide.h"
#include <distile/distile.h>
#include <map>
#include <string>

namespace distile {

/** Maps the names in operator files to the floating-point types. */
const std::map<std::string, distile_dtype> &float_types_by_name();

/** What code holds an element of a floating-point type as. */
Halide::Type stored_type(distile_dtype dtype);

/** Conversions for a target. */
class StorageConversion {
public:
    StorageConversion() = default;
    explicit StorageConversion(const Halide::Target &target);

    /** A stored element as float32. */
    Halide::Expr to_float32(const Halide::Expr &stored, distile_dtype dtype) const;
    /** A float32 value as an element: rounded to nearest, ties to even. NaN stays NaN. */
    Halide::Expr from_float32(const Halide::Expr &value, distile_dtype dtype) const;

private:
    bool has_float16_ = false; /**< Hardware conversion. All others use integer arithmetic, without library calls. */
};

}  // namespace distile

#endif
