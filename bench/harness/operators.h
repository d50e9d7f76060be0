/** \file
 * The operators of data/operators.csv, and the PolyKernels that this program was built with.
 */
#ifndef DISTILE_BENCH_OPERATORS_H
#define DISTILE_BENCH_OPERATORS_H

#include "rows.h"
#include <distile/distile.hpp>
#include <distile/polykernel.h>
#include <string>

namespace distile::bench {

/** A convolution, of any kind, at the size that the benchmarks measure. */
struct Operator {
    OperatorSpec spec;
    std::string category;
    int32_t height, width; /**< Of the input. */
    distile_operator_kind kind;
    distile_conv2d conv;
    const distile_polykernel *polykernel;

    int32_t output_height() const;
    int32_t output_width() const;
    /** For instance "40x40 256->256 3x3". */
    std::string shape() const;
};

/** The PolyKernel of that name, of those that ship. Throws std::runtime_error if there is none. */
const distile_polykernel &find_polykernel(const std::string &name);

/** The PolyKernel that a kernel took, of those behind the one that was built. */
const distile_polykernel &taken_polykernel(const distile_polykernel &built, const Kernel &kernel);

/** Reads an operator's line. Throws std::runtime_error if it has none, or if its PolyKernel is none or computes
 * something else. */
Operator find_operator(const std::string &csv_path, const OperatorSpec &spec);

}  // namespace distile::bench

#endif
