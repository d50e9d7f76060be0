/** \file
 * The operators of data/operators.csv, and the PolyKernels that this program was built with.
 */
#ifndef DISTILE_BENCH_OPERATORS_H
#define DISTILE_BENCH_OPERATORS_H

#include "bench/harness/rows.h"
#include <distile/distile.hpp>
#include <distile/polykernel.h>
#include <string>

namespace distile::bench {

/** An operator at the size that the benchmarks measure, as a convolution: a linear layer is a 1 x 1 convolution.
 */
struct BenchOperator {
    OperatorSpec spec;
    std::string category;
    int32_t height, width;      /**< The input's size. Tokens are the columns of one row. */
    distile_operator_kind kind; /**< The convolution's kind. */
    distile_conv2d conv;
    distile_dtype dtype; /**< The stored type of activations and weights. */
    const distile_polykernel *polykernel;
    double weight_zeros = 0; /**< The share of its weights that are 0. */

    int32_t output_height() const;
    int32_t output_width() const;
    /** For instance "40x40 256->256 3x3", or "197 tokens 384->1536". */
    std::string shape() const;
};

/** The linked PolyKernel with this name. Throws PeerMissing if this program was built without it, as it is where
 * DISTILE_BENCH_GPU is off or no compiler for GPUs was found. */
const distile_polykernel &find_polykernel(const std::string &name);

/** The PolyKernel that a kernel took from the chain that starts with `built`. */
const distile_polykernel &taken_polykernel(const distile_polykernel &built, const Kernel &kernel);

/** Whether a PolyKernel has a variant of this name. */
bool has_variant(const distile_polykernel &polykernel, const std::string &name);

/** The name of a PolyKernel's dense variant; null if it has none. */
const char *dense_variant(const distile_polykernel &polykernel);

/** An operator of this size, with the padding, epilogue and type of the PolyKernel. */
BenchOperator make_operator(const OperatorSpec &spec, const std::string &category, int32_t height, int32_t width,
                            const distile_polykernel &polykernel);

/** Reads an operator's line. Throws std::runtime_error if there is no such line, or if the PolyKernel computes
 * something else, and PeerMissing if there is no PolyKernel. */
BenchOperator find_operator(const std::string &csv_path, const OperatorSpec &spec);
/** Reads an operator's line, for a PolyKernel that this program was not built with. */
BenchOperator find_operator(const std::string &csv_path, const OperatorSpec &spec,
                            const distile_polykernel &polykernel);

}  // namespace distile::bench

#endif
