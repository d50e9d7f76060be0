/** \file
 * Operators as PyTorch computes them, dense, with the mask after them: what runs without a PolyKernel in a program
 * without Python. They compute what dense.py says.
 */
#ifndef DISTILE_PYTHON_DENSE_H
#define DISTILE_PYTHON_DENSE_H

#include "python/csrc/run.h"

namespace distile::python {

/** The parameters of a convolution as PyTorch has them, for rows and columns; padding is top, bottom, left, right. */
struct Window {
    const Ints &stride, &padding, &dilation;
    int64_t groups;
};

/** \name Calls that were checked, with results that are not empty
 * @{ */
Tensor dense_conv2d(const WeightedCall &call, const Window &window, const std::string &activation);
/** What that is before the mask: a new tensor. */
Tensor unmasked_conv2d(const WeightedCall &call, const Window &window, const std::string &activation);
/** `scale`: of the nearest upsampling before it. The window has no stride. */
Tensor dense_upsample_conv2d(const WeightedCall &call, const Ints &scale, const Window &window,
                             const std::string &activation);
Tensor dense_conv_transpose2d(const WeightedCall &call, const Ints &output_padding, const Window &window,
                              const std::string &activation);
Tensor dense_linear(const WeightedCall &call, const std::string &activation);

/** The tensors of attention, [N, heads, T, head_dim], and where its result goes. */
struct AttentionCall {
    const Tensor &query, &key, &value, &mask;
    const OptionalTensor &key_mask;
    double scale; /**< 0: that of the channels of a head. */
    bool causal;
    const Tensor *out; /**< Written at the active rows; null: a new tensor that is zero elsewhere. */
    bool zero;
};
Tensor dense_attention(const AttentionCall &call);
/** @} */

}  // namespace distile::python

#endif
