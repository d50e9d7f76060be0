/** \file
 * Operators over active tokens on a GPU, from results: against the dense operator, and against the same library over
 * the active tokens alone, with what it takes to move them.
 */
#ifndef DISTILE_BENCH_TOKENS_SUMMARY_H
#define DISTILE_BENCH_TOKENS_SUMMARY_H

#include "bench/harness/results.h"
#include <string>

namespace distile::bench {

/** Whether a row is of such an operator. Its fields: op, shape, dtype, batch, density, t_masked_us, t_kernels_us,
 * t_peer_us (dense), t_gather_us (over the active tokens) and variant. */
bool is_of_tokens(const Json &row);

/** The density as it was asked for, for instance "0.30": a mask has whole tokens, so it has a little more or less. */
std::string token_density(const Json &row);
/** How many times as fast as the field's time: `ours` is that of the kernels alone or from the byte mask. */
double speedup(const Json &row, const char *over, const char *ours);

/** Geometric means of the speed-ups by type and density; "" if there are no such rows. */
std::string token_means(const Json &rows);
/** Every row; "" if there are no such rows. */
std::string token_table(const Json &rows);

}  // namespace distile::bench

#endif
