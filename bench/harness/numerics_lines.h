/** \file
 * Measured rows of masked operators on a GPU, as the summaries by type need them.
 */
#ifndef DISTILE_BENCH_NUMERICS_LINES_H
#define DISTILE_BENCH_NUMERICS_LINES_H

#include "bench/harness/results.h"
#include <functional>
#include <set>
#include <string>
#include <vector>

namespace distile::bench {

/** The operators of the means. */
inline const std::vector<std::string> mean_operators = {"op3", "op7", "op12", "op21"};

constexpr const char *strict_dtype = "float32";
constexpr const char *numerics_dtypes[] = {strict_dtype, "tf32", "float16", "bfloat16"};

/** A row in mode keep with a plain input, against a dense peer in its type. */
struct NumericsLine {
    std::string dtype, op, mask, density; /**< The last two as the row's name has them. */
    int batch;
    double active, peer, kernels, masked; /**< The fraction of active pixels, and times. */
    std::string shape;                    /**< Pixels, channels and kernel: "80x80 256->256 3x3 stride 2". */
};

/** The type of a row. Older results are of float32 and do not say so. */
std::string dtype_of(const Json &row);
/** The rows that were measured against a peer. */
std::vector<NumericsLine> numerics_lines(const Json &rows, const std::string &peer);
std::set<int> batches_of(const std::vector<NumericsLine> &lines);

/** Returns the cell of a type, an operator and a batch; "" if nothing was measured. */
using CellOf = std::function<std::string(const std::string &dtype, const std::string &op, int batch)>;

/** A table with a line for each type and operator that was measured, and a column for each batch. `blank` is written
 * where nothing was measured. */
std::string batch_table(const std::set<int> &batches, const std::string &blank, const CellOf &cell_of);

}  // namespace distile::bench

#endif
