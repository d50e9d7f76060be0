/** \file
 * Convolutions on a CPU by the number of threads, beside PyTorch's, from results.
 */
#ifndef DISTILE_BENCH_SCALING_SUMMARY_H
#define DISTILE_BENCH_SCALING_SUMMARY_H

#include "bench/harness/results.h"
#include "bench/harness/scaling_figure.h"
#include <string>
#include <vector>

namespace distile::bench {

/** Whether some rows are of such convolutions. Their fields: op, shape, dtype, batch, density, threads, t_masked_us,
 * t_peer_us (dense) and eta. */
bool has_scaling(const Json &rows);
/** A line for each operator, type, batch and density, and a column for each number of threads. */
std::string scaling_table(const Json &rows);
/** With most threads, and with two, a line for each operator, type and batch, and a column for each density. Then the
 * density at which both take the same time, a line for each operator and type. */
std::string scaling_goals(const Json &rows);

/** A panel for each type: the speed of the masked operators at each density, and of the dense library, by the library's
 * with the fewest threads. Geometric means over the operators of one image that were measured with every number of
 * threads. */
std::vector<ScalingPanel> scaling_panels(const Json &file);

}  // namespace distile::bench

#endif
