/** \file
 * Results of operators that the benchmark loaded, as Markdown: the ways to a plan beside each other.
 */
#ifndef DISTILE_BENCH_OWN_SUMMARY_H
#define DISTILE_BENCH_OWN_SUMMARY_H

#include "bench/harness/results.h"
#include <string>

namespace distile::bench {

/** Means over operators, and plain inputs against bordered ones; "" if there are no such rows. */
std::string own_means(const Json &rows);
/** Every row, and the seconds that each plan took; "" if there are no such rows. */
std::string own_table(const Json &rows);

}  // namespace distile::bench

#endif
