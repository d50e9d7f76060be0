/** \file
 * What our figures have in common.
 */
#ifndef DISTILE_BENCH_SVG_H
#define DISTILE_BENCH_SVG_H

#include <fmt/core.h>
#include <string>

namespace distile::bench {

/** A line of text at a point, which is its "start", "middle" or "end". */
inline std::string svg_label(double x, double y, const std::string &anchor, const std::string &text) {
    return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>\n", x, y, anchor, text);
}

/** A whole figure, with a white ground under its parts. */
inline std::string svg_figure(int width, int height, const std::string &title, const std::string &parts) {
    return fmt::format("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} "
                       "{1}\" font-family=\"sans-serif\" font-size=\"11\" fill=\"#1e2228\">\n"
                       "<title>{2}</title>\n"
                       "<rect width=\"{0}\" height=\"{1}\" fill=\"#ffffff\"/>\n{3}</svg>\n",
                       width, height, title, parts);
}

}  // namespace distile::bench

#endif
