/** \file
 * The layouts of packed weights. A new layout is a row in facts/weight_layouts.h; a new order also a function that
 * packs.
 */
#ifndef DISTILE_WEIGHT_LAYOUT_H
#define DISTILE_WEIGHT_LAYOUT_H

#include "runtime/kinds/group_blocks.h"
#include <distile/polykernel.h>

namespace distile {

enum class WeightOrder {
    ChannelBlocks,       /**< Blocks of output channels, for Halide's code (pack_filter). */
    DotProduct,          /**< Steps of the reduction, for pairs of 16 bits (pack_for_dot_products). */
    QuantizedDotProduct, /**< Steps of the reduction, for groups of four numbers of 8 bits. */
    Nonzeros,            /**< The nonzero weights alone (pack_nonzeros). */
    NonzeroQuads,        /**< The quads of 8 bits with a nonzero weight alone (pack_nonzero_quads). */
    PairedNonzeros,      /**< The nonzero weights alone, in pairs (pack_paired_nonzeros). */
    NonzeroBitmap,       /**< The nonzero weights in 16 bits, and a bit for each weight (pack_bitmap). */
    TwoFour,             /**< Two of four input channels in 16 bits, and which these are (pack_two_four). */
    TensorCore,         /**< Steps of the reduction, swizzled, in what tensor cores multiply (pack_for_tensor_cores). */
    QuantizedTensorCore /**< Steps of the reduction in 8 bits, swizzled. */
};

struct WeightLayout {
    const char *name;
    WeightOrder order;
    /** Layouts of nonzero weights, and of two of four: 0. ChannelBlocks: output channels of a block. DotProducts:
     * elements of a step. TensorCore: elements of a step, which are 128 bytes. */
    int32_t block;
    distile_role type_of; /**< The operand whose type the stored weights have. */
    bool keeps_int4;      /**< Weights of a filter of DISTILE_INT4 have that type too. */
    GroupReaders readers; /**< ChannelBlocks: what computes the output channels of a block. */
};

/** Whether the operators that read a layout are quantized; all others' are not. */
inline bool is_quantized(const WeightLayout &layout) {
    return layout.order == WeightOrder::QuantizedDotProduct || layout.order == WeightOrder::QuantizedTensorCore ||
           layout.order == WeightOrder::NonzeroQuads;
}

/** Whether a layout holds the nonzero weights alone. */
inline bool skips_zeros(const WeightLayout &layout) {
    return layout.order == WeightOrder::Nonzeros || layout.order == WeightOrder::NonzeroQuads ||
           layout.order == WeightOrder::PairedNonzeros || layout.order == WeightOrder::NonzeroBitmap;
}

/** Null for an unknown name. */
const WeightLayout *find_layout(const char *name);

/** The type in which an operand of packed weights is stored. */
distile_dtype stored_type(const WeightLayout &layout, const distile_polykernel &polykernel, distile_role role);

}  // namespace distile

#endif
