/** \file
 * Attention, its two products and transformer blocks over active tokens, on any device, from results: against the dense
 * operator, and against the same library over packed tokens.
 */
#ifndef DISTILE_BENCH_ATTENTION_SUMMARY_H
#define DISTILE_BENCH_ATTENTION_SUMMARY_H

#include "bench/harness/figure.h"
#include "bench/harness/results.h"
#include <string>

namespace distile::bench {

/** Whether some rows are of such operators. Their fields: kind, op, shape, dtype, batch, density, work_fraction,
 * t_masked_us, t_peer_us (dense), and where they were measured t_kernels_us, t_gather_us (packed) and t_masks_us;
 * attention also has keys, "all" or "active". */
bool has_attention(const Json &rows);

/** A line for each operator, with its speed-ups by density; "" if there are no such rows. */
std::string attention_lines(const Json &rows);
/** Every row; "" if there are no such rows. */
std::string attention_table(const Json &rows);
/** Eta by density of the attention with the most work in the first type of the file, with all keys and the active ones.
 */
Panel attention_panel(const Json &file);

}  // namespace distile::bench

#endif
