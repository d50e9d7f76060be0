#include "bench/harness/break_even_figure.h"
#include "bench/harness/svg.h"
#include <algorithm>
#include <fmt/core.h>
#include <iterator>
#include <set>
#include <utility>

namespace distile::bench {

namespace break_even_figure {
namespace {

constexpr int panel_width = 300, panel_height = 300;
constexpr double left = 40, right = panel_width - 12.0, top = 44, bottom = panel_height - 62.0;
constexpr const char *colors[] = {"#266ebe", "#d9822b", "#3d9a50", "#8a55b5", "#b5476b", "#6b7280"};

double y_of(double density) {
    return bottom - density * (bottom - top);
}

std::string draw_axis() {
    constexpr int steps = 5;
    std::string text;
    for (int i = 0; i <= steps; i++) {
        const double density = static_cast<double>(i) / steps;
        text += fmt::format("<line x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"{}\"/>\n", left,
                            right, y_of(density), y_of(density), i == 0 ? "#969ca5" : "#e4e7eb");
        text += svg_label(left - 6, y_of(density) + 4, "end", fmt::format("{:.1f}", density));
    }
    return text;
}

/** The bar from the byte mask on, before a pale one by the kernels alone. */
std::string draw_bar(const BreakEven &value, double x, double width, const char *color) {
    std::string text;
    for (const auto &[density, opacity] : {std::pair(value.kernels, 0.3), std::pair(value.masked, 1.0)}) {
        text += fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"{}\" "
                            "fill-opacity=\"{:.1f}\"/>\n",
                            x, y_of(density), width, bottom - y_of(density), color, opacity);
    }
    return text;
}

template<typename T> double index_in(const std::set<T> &values, const T &value) {
    return static_cast<double>(std::distance(values.begin(), values.find(value)));
}

std::string draw_panel(const BreakEvenPanel &panel, const std::vector<std::string> &operators) {
    std::set<int> batches;
    for (const BreakEven &value : panel.values) {
        batches.insert(value.batch);
    }
    const double group = (right - left) / static_cast<double>(batches.size());
    const double slot = group * 0.84 / static_cast<double>(operators.size());
    std::string text = svg_label((left + right) / 2, 20, "middle", panel.title) + draw_axis();
    for (const BreakEven &value : panel.values) {
        const auto op = std::find(operators.begin(), operators.end(), value.op) - operators.begin();
        const double x = left + group * (index_in(batches, value.batch) + 0.08) + slot * static_cast<double>(op);
        text += draw_bar(value, x, slot * 0.85, colors[static_cast<size_t>(op) % std::size(colors)]);
    }
    for (const int batch : batches) {
        text += svg_label(left + group * (index_in(batches, batch) + 0.5), bottom + 15, "middle",
                          fmt::format("batch {}", batch));
    }
    return text;
}

/** An operator below each panel, in as many lines as they need. Adds their height to that of the figure. */
std::string draw_legend(const std::vector<std::string> &operators, const std::vector<std::string> &words, size_t panels,
                        int &height) {
    constexpr int line = 15;
    std::string text;
    for (size_t i = 0; i < operators.size(); i++) {
        const size_t row = i / panels;
        const double x = left + panel_width * static_cast<double>(i % panels);
        const double y = panel_height - 26.0 + line * static_cast<double>(row);
        text += fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"9\" height=\"9\" fill=\"{}\"/>\n", x, y - 9,
                            colors[i % std::size(colors)]);
        text += svg_label(x + 13, y, "start", operators[i] + ": " + words[i]);
    }
    height += line * static_cast<int>((operators.size() - 1) / panels);
    return text + svg_label(left, height - 8.0, "start", "active pixels by all pixels; pale: kernels alone");
}

}  // namespace
}  // namespace break_even_figure

std::string draw_break_even(const std::vector<BreakEvenPanel> &panels) {
    using namespace break_even_figure;
    // In the order of the first panel.
    std::vector<std::string> operators, words;
    for (const BreakEvenPanel &panel : panels) {
        for (const BreakEven &value : panel.values) {
            if (std::find(operators.begin(), operators.end(), value.op) == operators.end()) {
                operators.push_back(value.op);
                words.push_back(value.shape);
            }
        }
    }
    std::string text;
    for (size_t i = 0; i < panels.size(); i++) {
        text += fmt::format("<g transform=\"translate({},0)\">\n", panel_width * static_cast<int>(i)) +
                draw_panel(panels[i], operators) + "</g>\n";
    }
    int height = panel_height;
    text += draw_legend(operators, words, panels.size(), height);
    return svg_figure(panel_width * static_cast<int>(panels.size()), height,
                      "density at which masked and dense operators take the same time", text);
}

}  // namespace distile::bench
