/** \file
 * The densities at which masked operators and cuDNN's dense ones take the same time, from results.
 */
#ifndef DISTILE_BENCH_BREAK_EVEN_SUMMARY_H
#define DISTILE_BENCH_BREAK_EVEN_SUMMARY_H

#include "break_even_figure.h"
#include "numerics_lines.h"
#include <string>
#include <vector>

namespace distile::bench {

/** As Markdown; "" without masks of two densities. */
std::string break_even_table(const std::vector<NumericsLine> &lines);
/** A panel for each type. */
std::vector<BreakEvenPanel> break_even_panels(const Json &file);

}  // namespace distile::bench

#endif
