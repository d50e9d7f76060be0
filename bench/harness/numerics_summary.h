/** \file
 * Results of a GPU by type: masked operators against dense ones of cuDNN in the same type.
 */
#ifndef DISTILE_BENCH_NUMERICS_SUMMARY_H
#define DISTILE_BENCH_NUMERICS_SUMMARY_H

#include "bench/harness/results.h"
#include <string>

namespace distile::bench {

/** Means over operators, masks of blocks, real edits and break-even densities, beside their goals where `has_goals`; ""
 * without rows of another type than float32. */
std::string numerics_means(const Json &rows, bool has_goals);
/** Every row of another type than float32; "" if there is none. */
std::string numerics_rows(const Json &rows);

}  // namespace distile::bench

#endif
