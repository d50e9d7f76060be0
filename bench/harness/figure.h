/** \file
 * Curves of eta by density, as SVG.
 */
#ifndef DISTILE_BENCH_FIGURE_H
#define DISTILE_BENCH_FIGURE_H

#include <string>
#include <utility>
#include <vector>

namespace distile::bench {

struct Curve {
    std::string name; /**< In the legend; "" for a curve without a line there. */
    std::string color;
    bool dashed;
    std::vector<std::pair<double, double>> points; /**< Density and eta. */
};

struct Panel {
    std::string title, note;
    std::vector<Curve> curves;
    std::string axis = "active pixels by all pixels"; /**< What density means. */
};

/** Panels beside each other, on one scale. */
std::string draw_eta(const std::vector<Panel> &panels);

}  // namespace distile::bench

#endif
