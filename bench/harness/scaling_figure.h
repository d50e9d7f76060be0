/** \file
 * Curves of speed by the number of threads, as SVG.
 */
#ifndef DISTILE_BENCH_SCALING_FIGURE_H
#define DISTILE_BENCH_SCALING_FIGURE_H

#include "bench/harness/figure.h"
#include <string>
#include <vector>

namespace distile::bench {

/** Points of its curves are a number of threads and a speed. */
struct ScalingPanel {
    std::string title;
    std::vector<Curve> curves;
};

/** Panels beside each other, on one scale; both axes are logarithmic. */
std::string draw_scaling(const std::vector<ScalingPanel> &panels);

}  // namespace distile::bench

#endif
