/** \file
 * The densities at which masked operators and cuDNN's dense ones take the same time, from results.
 */
#ifndef DISTILE_BENCH_BREAK_EVEN_SUMMARY_H
#define DISTILE_BENCH_BREAK_EVEN_SUMMARY_H

#include "bench/harness/break_even_figure.h"
#include "bench/harness/numerics_lines.h"
#include <string>
#include <utility>
#include <vector>

namespace distile::bench {

/** Densities, and times by the peer's. */
using RelativeTimes = std::vector<std::pair<double, double>>;
/** The density up to which the peer takes at least as long; 0 if it is faster at the least that was measured. Between
 * measured densities, times are straight lines. Requires a density. */
double break_even(RelativeTimes times);

/** The break-even densities in Markdown; "" without masks of two densities. */
std::string break_even_table(const std::vector<NumericsLine> &lines);
/** A panel for each type. */
std::vector<BreakEvenPanel> break_even_panels(const Json &file);

}  // namespace distile::bench

#endif
