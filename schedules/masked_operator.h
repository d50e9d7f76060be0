/** \file
 * The structure that every schedule expects of a masked operator, and the code that recognises it in a pipeline.
 *
 * A masked operator over a virtual pixel domain is a pipeline with one output Func:
 *  - its pure definition is undef, and its first argument is the output channel;
 *  - every update stage scatters over one RVar, the virtual pixel, and reads one accumulator Func.
 * An accumulator `f(channel, pixel)` has one update over a reduction domain (input channel, kernel column, kernel row),
 * or (kernel column, kernel row) for a depthwise convolution. It reads its weights, an input of five dimensions,
 * [channel in block, input channel, kernel column, kernel row, block], whose first extent is constant and whose second
 * is 1 for a depthwise convolution; no other input has five. It may read them through one Func that reads nothing else.
 * The operator's input is the one of four dimensions that it reads, maybe through one staging Func `g(input channel,
 * kernel column, kernel row, pixel)`. The staging Func may read it through one Func `w(input channel, column, row,
 * tile)` over the windows of the tiles, which looks up its tile in one Func `h(tile)`. The output's channel extent and
 * the reduction's extents are constants. If the input's channel extent is constant too, it is the reduction's times the
 * number of groups. A scalar input named `threads` holds the call's number of threads.
 *
 * Columns and rows of the input are sums of constants and products with constants. The factor of the kernel position is
 * the dilation. The factor of the pixel's position, the term read from memory, is the stride. Without such a term they
 * count as 1.
 *
 * With the groups of a convolution apart (GroupForm::Padded), the output, the accumulator and its channels are those of
 * a group, and the first two have the group as an extra last dimension. With diagonals, the accumulator has the
 * diagonal as an extra last dimension and the reduction of a depthwise convolution, and a stage reads it once for each
 * diagonal.
 *
 * If the output has scale_h * scale_w *phases*, an update stage runs over a second RVar, the phase, outside the virtual
 * pixels. The accumulator and the staging Func then have the phase as an extra last dimension, and the reduction is
 * that of the phase with the most taps. The column that a stage stores to adds the phase modulo scale_w.
 *
 * The virtual pixels of a tile are consecutive, row by row. A stage's domain is its number of tiles times the constant
 * tile_h * tile_w (in virtual pixels), and the column that it stores to is the tile's column plus the pixel's index
 * modulo tile_w.
 */
#ifndef DISTILE_SCHEDULES_MASKED_OPERATOR_H
#define DISTILE_SCHEDULES_MASKED_OPERATOR_H

#include "Halide.h"
#include "runtime/kinds/group_blocks.h"
#include "schedules/space.h"
#include <vector>

namespace distile {

/** One update stage of the output. */
struct MaskedStage {
    int update;                                 /**< Index of the output's update definition. */
    Halide::Internal::ReductionVariable pixels; /**< Its virtual pixel domain. */
    Halide::Func accumulator;
    Halide::RVar phase; /**< Defined only if there are phases. */
    /** The accumulator's reduction; depthwise, and with diagonals: no in_channel. */
    Halide::RVar in_channel, kernel_x, kernel_y;
    Halide::Func weights;        /**< The Func that reads the weights. */
    Halide::Func staging;        /**< Defined only if the stage copies its input first. */
    Halide::Func window, lookup; /**< Defined only if the staging Func reads through them. */
};

struct MaskedOperator : OperatorFacts {
    Halide::Func output;
    std::vector<MaskedStage> stages;
    int tile_h = 1, tile_w = 1; /**< The pipeline's granularity in output pixels. */
    GroupForm groups_in_blocks = GroupForm::Whole;
};

/** Recognises a masked operator. Throws Halide::CompileError with the first difference from the structure above, or if
 * the pipeline is already scheduled. */
MaskedOperator recognise_masked_operator(const Halide::Pipeline &pipeline);

}  // namespace distile

#endif
