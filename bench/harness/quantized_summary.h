/** \file
 * Quantized convolutions on a GPU beside dense ones of libraries in other types, from results.
 */
#ifndef DISTILE_BENCH_QUANTIZED_SUMMARY_H
#define DISTILE_BENCH_QUANTIZED_SUMMARY_H

#include "bench/harness/results.h"
#include <string>

namespace distile::bench {

/** Whether some rows are of such convolutions. Their fields: op, shape, dtype, batch, density, variant, t_masked_us,
 * t_peer_us (dense), peer, t_own_dense_us, eta and max_rel_err. */
bool has_quantized(const Json &rows);
/** A line for each row. */
std::string quantized_table(const Json &rows);
/** A line for each operator and batch, and a column for each density. */
std::string quantized_goals(const Json &rows);

}  // namespace distile::bench

#endif
