/** \file
 * The densities at which masked and dense operators take the same time, as SVG.
 */
#ifndef DISTILE_BENCH_BREAK_EVEN_FIGURE_H
#define DISTILE_BENCH_BREAK_EVEN_FIGURE_H

#include <string>
#include <vector>

namespace distile::bench {

/** Up to these fractions of active pixels, an operator is at least as fast as the dense one; 0: at none, 1: at all. */
struct BreakEven {
    std::string op;    /**< Its name. */
    std::string shape; /**< What it is, in words. */
    int batch;
    double masked;  /**< From the byte mask on. */
    double kernels; /**< By the kernels alone. */
};

/** The break-even fractions of a type on a device. */
struct BreakEvenPanel {
    std::string title;
    std::vector<BreakEven> values;
};

/** Panels beside each other, with a group of bars for each batch and a bar for each operator. */
std::string draw_break_even(const std::vector<BreakEvenPanel> &panels);

}  // namespace distile::bench

#endif
