/** \file
 * The space of code for dot-product and matrix instructions, which is in kernels/cpu, and for GPUs in
 * kernels/dp4a. Independent of Halide, so a search can walk it anywhere.
 *
 * A task stages what `staged` blocks of `pixels` active pixels read, and multiplies them with `channels` output
 * channels after the other, whose sums are held in registers. On a GPU, a block of threads is such a task, with one
 * block of each.
 */
#ifndef DISTILE_SCHEDULES_DOT_PRODUCT_SPACE_H
#define DISTILE_SCHEDULES_DOT_PRODUCT_SPACE_H

#include "runtime/kinds/channel_sections.h"
#include "schedules/space.h"

namespace distile {

/** How a convolution's output channels lie in the blocks of its weights. */
inline ChannelSections channel_sections(const OperatorFacts &op) {
    constexpr int pack_bytes = 4;
    return {op.groups, op.in_channels, op.out_channels / op.groups, pack_bytes / op.bytes_per_element};
}

/** Whether there is code for an operator, in bfloat16 or float16: a linear layer, or a convolution of any kind whose
 * groups vectors keep apart or read no few channels. What reads few takes longer to stage than to multiply in float32.
 */
bool runs_on_dot_products(const OperatorFacts &op);
/** Whether each output channel reads only the input channel with its own index, so that quantized code multiplies taps
 * below each other. */
bool is_depthwise_product(const OperatorFacts &op);
/** Whether only code in vector registers, not in tiles, multiplies it: that of depthwise convolutions, and of groups
 * that must be kept apart. */
bool needs_vectors(const OperatorFacts &op);

const Space &dot_product_space(DotProducts instructions);

}  // namespace distile

#endif
