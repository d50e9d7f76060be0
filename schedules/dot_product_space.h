/** \file
 * The space of code for dot-product and matrix instructions, which is in runtime/src/dot_product, and for GPUs in
 * runtime/cuda/dot_product. Independent of Halide, so a search can walk it anywhere.
 *
 * A task stages what `staged` blocks of `pixels` active pixels read, and multiplies them with `channels` output
 * channels after the other, whose sums are held in registers. On a GPU, a block of threads is such a task, with one
 * block of each.
 */
#ifndef DISTILE_SCHEDULES_DOT_PRODUCT_SPACE_H
#define DISTILE_SCHEDULES_DOT_PRODUCT_SPACE_H

#include "space.h"

namespace distile {

/** Whether there is code for an operator, in bfloat16 or float16: a convolution of any kind without groups, or a linear
 * layer. */
bool runs_on_dot_products(const OperatorFacts &op);
/** Whether each output channel reads only the input channel with its own index, so that quantized code multiplies taps
 * below each other. */
bool is_depthwise_product(const OperatorFacts &op);

const Space &dot_product_space(DotProducts instructions);

}  // namespace distile

#endif
