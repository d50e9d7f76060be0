/** \file
 * The structure that every schedule expects of a masked operator, and its recognition in a pipeline.
 *
 * A masked operator over a virtual pixel domain is a pipeline with one output Func of which
 *  - the pure definition is undef, and its first argument is the output channel;
 *  - every update stage scatters over one RVar, the virtual pixel, and reads one accumulator Func;
 * an accumulator `f(channel, pixel)` has one update over a reduction domain (input channel, kernel column,
 * kernel row), and may read one staging Func `g(input channel, kernel column, kernel row, pixel)`, which may look
 * up its pixel in one Func `h(pixel)`. The output's
 * channel extent and the reduction's extents are constants. A scalar input named `threads` holds the number
 * of threads of the call.
 *
 * The virtual pixels of a tile are consecutive, row by row: a stage's domain is its tiles times the constant
 * tile_h * tile_w, and the column that it stores to adds to the tile's own the pixel's index modulo tile_w.
 *
 * The virtual pixels of a tile are consecutive: pixel p is pixel p % (tile_h * tile_w) of its tile, and column
 * p % tile_w of that. A stage's domain is its tiles times tile_h * tile_w.
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
    Halide::RVar in_channel, kernel_x, kernel_y; /**< The accumulator's reduction. */
    Halide::Func weights;                        /**< The Func that wraps the buffer of the weights. */
    Halide::Func staging;                        /**< Defined only for a stage that copies its input first. */
    Halide::Func lookup;                         /**< Defined only if the staging Func reads it. */
};

struct MaskedOperator : OperatorFacts {
    Halide::Func output;
    std::vector<MaskedStage> stages;
    int tile_h = 1, tile_w = 1; /**< The granularity that the pipeline was built for. */
};

/** Recognises a masked operator. Throws Halide::CompileError with the first difference from the structure
 * above where the pipeline has another, or is scheduled already. */
MaskedOperator recognise_masked_operator(const Halide::Pipeline &pipeline);

}  // namespace distile

#endif
