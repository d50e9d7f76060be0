#include "bench/harness/scaling_figure.h"
#include "bench/harness/svg.h"
#include <algorithm>
#include <cmath>
#include <fmt/core.h>
#include <set>

namespace distile::bench {

namespace scaling_figure {
namespace {

constexpr int panel_width = 380, panel_height = 320, left = 56, right = 76, top = 40, bottom = 50;

/** Both axes of all panels, in powers of two. */
struct Axes {
    double most_threads = 1;
    int least = 0, most = 1; /**< Logarithms of speeds. */

    explicit Axes(const std::vector<ScalingPanel> &panels) {
        for (const ScalingPanel &panel : panels) {
            for (const Curve &curve : panel.curves) {
                for (const auto &[threads, speed] : curve.points) {
                    most_threads = std::max(most_threads, threads);
                    least = std::min(least, static_cast<int>(std::floor(std::log2(speed))));
                    most = std::max(most, static_cast<int>(std::ceil(std::log2(speed))));
                }
            }
        }
    }
    double x_of(double threads) const {
        const double share = most_threads > 1 ? std::log2(threads) / std::log2(most_threads) : 0;
        return left + share * (panel_width - left - right);
    }
    double y_of(double speed) const {
        return top + (most - std::log2(speed)) / (most - least) * (panel_height - top - bottom);
    }
};

std::string draw_axes(const Axes &axes, const ScalingPanel &panel) {
    std::string text;
    for (int power = axes.least; power <= axes.most; power++) {
        const double speed = std::exp2(power), y = axes.y_of(speed);
        text += fmt::format("<line x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"{}\"/>\n",
                            axes.x_of(1), axes.x_of(axes.most_threads), y, y, power == 0 ? "#969ca5" : "#e4e7eb");
        text += svg_label(axes.x_of(1) - 6, y + 4, "end", fmt::format("{:g}", speed));
    }
    std::set<double> counts;
    for (const Curve &curve : panel.curves) {
        for (const auto &[threads, speed] : curve.points) {
            counts.insert(threads);
        }
    }
    for (const double threads : counts) {
        text += svg_label(axes.x_of(threads), panel_height - bottom + 18, "middle", fmt::format("{:g}", threads));
    }
    return text + svg_label(axes.x_of(std::sqrt(axes.most_threads)), panel_height - 10, "middle", "threads");
}

/** A line through the points of a curve, the points, and its name at the last of them. */
std::string draw(const Axes &axes, const Curve &curve) {
    std::string points, dots;
    double x = 0, y = 0;
    for (const auto &[threads, speed] : curve.points) {
        x = axes.x_of(threads);
        y = axes.y_of(speed);
        points += fmt::format("{:.1f},{:.1f} ", x, y);
        dots += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"2.5\" fill=\"{}\"/>\n", x, y, curve.color);
    }
    return fmt::format("<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"1.6\"{}/>\n", points,
                       curve.color, curve.dashed ? " stroke-dasharray=\"4 3\"" : "") +
           dots + svg_label(x + 6, y + 4, "start", curve.name);
}

}  // namespace
}  // namespace scaling_figure

std::string draw_scaling(const std::vector<ScalingPanel> &panels) {
    using namespace scaling_figure;
    const Axes axes(panels);
    std::string text;
    for (size_t i = 0; i < panels.size(); i++) {
        text += fmt::format("<g transform=\"translate({},0)\">\n", panel_width * i);
        text += svg_label(panel_width / 2.0, 20, "middle", panels[i].title) + draw_axes(axes, panels[i]);
        for (const Curve &curve : panels[i].curves) {
            text += draw(axes, curve);
        }
        text += "</g>\n";
    }
    return svg_figure(
        panel_width * static_cast<int>(panels.size()), panel_height,
        "Speed by the number of threads, by that of the dense library on the fewest; geometric means over "
        "operators",
        text);
}

}  // namespace distile::bench
