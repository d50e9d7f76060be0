/** \file
 * The structure that every schedule expects of a masked operator, and its recognition in a pipeline.
 *
 * A masked operator over a virtual pixel domain is a pipeline with one output Func of which
 *  - the pure definition is undef, and its first argument is the output channel;
 *  - every update stage scatters over one RVar, the virtual pixel, and reads one accumulator Func;
 * an accumulator `f(channel, pixel)` has one update over a reduction domain (input channel, kernel column,
 * kernel row), or over (kernel column, kernel row) for a depthwise convolution. It may read its weights through one
 * Func that reads nothing else, and may read one staging Func `g(input channel, kernel column, kernel row, pixel)`.
 * That one may read its input through one Func `w(input channel, column, row, tile)` over the windows of the tiles,
 * which looks up its tile in one Func `h(tile)`. The output's channel extent and the reduction's extents are constants;
 * if the input's channel extent is one too, it is the reduction's times the number of groups. A scalar input named
 * `threads` holds the number of threads of the call.
 *
 * Columns and rows of the input are sums of constants and products with constants. The factor of the kernel's position
 * is the dilation; that of the term which is read from memory, the pixel's place, is the stride. They count as 1 where
 * there is no such term.
 *
 * Where the output has scale_h * scale_w *phases*, an update stage runs over a second RVar outside of the virtual
 * pixels, the phase, by which the accumulator and the staging Func have one more dimension at the end. The reduction is
 * then that of the phase with the most taps. The column that a stage stores to adds the phase modulo scale_w.
 *
 * The virtual pixels of a tile are consecutive, row by row: a stage's domain is its tiles times the constant
 * tile_h * tile_w (in virtual pixels), and the column that it stores to adds to the tile's own the pixel's index modulo
 * tile_w.
 */
#ifndef DISTILE_SCHEDULES_MASKED_OPERATOR_H
#define DISTILE_SCHEDULES_MASKED_OPERATOR_H

#include "Halide.h"
#include "space.h"
#include <vector>

namespace distile {

/** One update stage of the output. */
struct MaskedStage {
    int update;                                 /**< Index of the output's update definition. */
    Halide::Internal::ReductionVariable pixels; /**< Its virtual pixel domain. */
    Halide::Func accumulator;
    Halide::RVar phase;                          /**< Defined only where there are phases. */
    Halide::RVar in_channel, kernel_x, kernel_y; /**< The accumulator's reduction. A depthwise one has no in_channel. */
    Halide::Func weights;                        /**< The Func through which the weights are read. */
    Halide::Func staging;                        /**< Defined only for a stage that copies its input first. */
    Halide::Func window, lookup;                 /**< Defined only if the staging Func reads its input through them. */
};

struct MaskedOperator : OperatorFacts {
    Halide::Func output;
    std::vector<MaskedStage> stages;
    int tile_h = 1, tile_w = 1; /**< The granularity, in output pixels, that the pipeline was built for. */
};

/** Recognises a masked operator. Throws Halide::CompileError with the first difference from the structure
 * above where the pipeline has another, or is scheduled already. */
MaskedOperator recognise_masked_operator(const Halide::Pipeline &pipeline);

}  // namespace distile

#endif
