#include "bench/harness/figure.h"
#include "bench/harness/svg.h"
#include <algorithm>
#include <cmath>
#include <fmt/core.h>
#include <set>

namespace distile::bench {

namespace eta_figure {
namespace {

constexpr int panel_width = 380, panel_height = 300, margin = 56;

double x_of(double density) {
    return margin + density * (panel_width - margin - 20);
}

/** The vertical axis: from 0 to the first whole step above all curves. */
struct EtaAxis {
    static constexpr double step = 0.2;
    int steps = 6;

    explicit EtaAxis(const std::vector<Panel> &panels) {
        for (const Panel &panel : panels) {
            for (const Curve &curve : panel.curves) {
                for (const auto &[density, eta] : curve.points) {
                    steps = std::max(steps, static_cast<int>(std::ceil(eta / step)));
                }
            }
        }
    }
    double y_of(double eta) const {
        return 40 + (1 - eta / (steps * step)) * (panel_height - 40 - 44);
    }
};

/** A line through the points of a curve, and the points. */
std::string draw(const EtaAxis &axis, const Curve &curve) {
    std::string points, dots;
    for (const auto &[density, eta] : curve.points) {
        const double x = x_of(density), y = axis.y_of(eta);
        points += fmt::format("{:.1f},{:.1f} ", x, y);
        dots += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"2.5\" fill=\"{}\"/>\n", x, y, curve.color);
    }
    return fmt::format("<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"1.6\"{}/>\n", points,
                       curve.color, curve.dashed ? " stroke-dasharray=\"4 3\"" : "") +
           dots;
}

std::string draw_axes(const EtaAxis &axis, const Panel &panel) {
    std::string text;
    for (int i = 0; i <= axis.steps; i++) {
        const double eta = i * EtaAxis::step;
        text += fmt::format("<line x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"{}\"/>\n", x_of(0),
                            x_of(1), axis.y_of(eta), axis.y_of(eta), i == 5 ? "#969ca5" : "#e4e7eb");
        text += svg_label(x_of(0) - 6, axis.y_of(eta) + 4, "end", fmt::format("{:.1f}", eta));
    }
    std::set<double> densities;
    for (const Curve &curve : panel.curves) {
        for (const auto &[density, eta] : curve.points) {
            densities.insert(density);
        }
    }
    for (const double density : densities) {
        // The label of the smallest would touch its neighbour.
        if (density >= .1) {
            text += svg_label(x_of(density), axis.y_of(0) + 16, "middle", fmt::format("{:.1f}", density));
        }
    }
    return text + svg_label(x_of(.5), panel_height - 8, "middle", panel.axis) +
           svg_label(x_of(0) - 6, 30, "end", "eta");
}

std::string draw_legend(const EtaAxis &axis, const Panel &panel) {
    std::vector<const Curve *> named;
    for (const Curve &curve : panel.curves) {
        if (!curve.name.empty()) {
            named.push_back(&curve);
        }
    }
    constexpr double line_height = 15;
    double y = axis.y_of(0.1) - line_height * static_cast<double>(named.size());
    std::string text = panel.note.empty() ? "" : svg_label(x_of(1), y - 19, "end", panel.note);
    for (const Curve *curve : named) {
        text += fmt::format("<line x1=\"{0:.1f}\" x2=\"{1:.1f}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\" stroke=\"{3}\" "
                            "stroke-width=\"1.6\"/>\n",
                            x_of(.45), x_of(.52), y - 4, curve->color);
        text += svg_label(x_of(.54), y, "start", curve->name);
        y += line_height;
    }
    return text;
}

}  // namespace
}  // namespace eta_figure

std::string draw_eta(const std::vector<Panel> &panels) {
    using namespace eta_figure;
    const int width = panel_width * static_cast<int>(panels.size());
    std::string text;
    const EtaAxis axis(panels);
    for (size_t i = 0; i < panels.size(); i++) {
        const Panel &panel = panels[i];
        text += fmt::format("<g transform=\"translate({},0)\">\n", panel_width * i);
        text += svg_label(panel_width / 2.0, 20, "middle", panel.title) + draw_axes(axis, panel);
        for (const Curve &curve : panel.curves) {
            text += draw(axis, curve);
        }
        text += draw_legend(axis, panel) + "</g>\n";
    }
    return svg_figure(width, panel_height, "eta by density, geometric means over operators", text);
}

}  // namespace distile::bench
