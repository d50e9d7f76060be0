/** \file
 * What choices on a GPU cost, from results: the device's own in a captured graph, and the host's with the dense peer
 * among the candidates.
 */
#ifndef DISTILE_BENCH_CHOICE_SUMMARY_H
#define DISTILE_BENCH_CHOICE_SUMMARY_H

#include "bench/harness/results.h"
#include <string>

namespace distile::bench {

/** The largest losses by type, batch and density; "" if there are no such rows. */
std::string choice_losses(const Json &rows);
/** Every row; "" if there are no such rows. */
std::string choice_table(const Json &rows);

}  // namespace distile::bench

#endif
