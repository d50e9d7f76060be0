/** \file
 * The operators of layers.h (runtime): what a block has beside its convolutions.
 */
#ifndef DISTILE_PYTHON_LAYERS_H
#define DISTILE_PYTHON_LAYERS_H

#include "python/csrc/tensors.h"
#include <tuple>

namespace distile::python {

Tensor max_pool2d(const Tensor &input, const Tensor &mask, const Ints &kernel, const Ints &stride, const Ints &padding,
                  const Ints &dilation);
Tensor max_pool2d_out(const Tensor &input, const Tensor &mask, const Ints &kernel, const Ints &stride,
                      const Ints &padding, const Ints &dilation, bool zero, const Tensor &out);
Tensor avg_pool2d(const Tensor &input, const Tensor &mask, const Ints &kernel, const Ints &stride, const Ints &padding,
                  bool count_padding);
Tensor avg_pool2d_out(const Tensor &input, const Tensor &mask, const Ints &kernel, const Ints &stride,
                      const Ints &padding, bool count_padding, bool zero, const Tensor &out);
Tensor global_pool(const Tensor &input, const OptionalTensor &mask, bool maximum);
Tensor global_pool_out(const Tensor &input, const OptionalTensor &mask, bool maximum, const Tensor &out);

Tensor add(const Tensor &input, const Tensor &other, const Tensor &mask, const std::string &activation);
Tensor add_out(const Tensor &input, const Tensor &other, const Tensor &mask, const std::string &activation, bool zero,
               const Tensor &out);
Tensor multiply(const Tensor &input, const Tensor &other, const Tensor &mask, const std::string &other_activation,
                const std::string &activation);
Tensor multiply_out(const Tensor &input, const Tensor &other, const Tensor &mask, const std::string &other_activation,
                    const std::string &activation, bool zero, const Tensor &out);
Tensor activate(const Tensor &input, const Tensor &mask, const std::string &activation);
Tensor activate_out(const Tensor &input, const Tensor &mask, const std::string &activation, bool zero,
                    const Tensor &out);

std::tuple<Tensor, Tensor> group_statistics(const Tensor &input, const OptionalTensor &mask, int64_t groups);
std::tuple<Tensor, Tensor> group_statistics_out(const Tensor &input, const OptionalTensor &mask, int64_t groups,
                                                const Tensor &mean, const Tensor &variance);
Tensor group_norm(const Tensor &input, const Tensor &mask, const OptionalTensor &weight, const OptionalTensor &bias,
                  const OptionalTensor &mean, const OptionalTensor &variance, int64_t groups, double epsilon,
                  const std::string &activation);
Tensor group_norm_out(const Tensor &input, const Tensor &mask, const OptionalTensor &weight, const OptionalTensor &bias,
                      const OptionalTensor &mean, const OptionalTensor &variance, int64_t groups, double epsilon,
                      const std::string &activation, bool zero, const Tensor &out);

Tensor upsample_nearest(const Tensor &input, const Tensor &mask, const Ints &scale);
Tensor upsample_nearest_out(const Tensor &input, const Tensor &mask, const Ints &scale, bool zero, const Tensor &out);

Tensor mask_scores(const Tensor &input, const OptionalTensor &weight, double bias, double threshold);
Tensor mask_scores_out(const Tensor &input, const OptionalTensor &weight, double bias, double threshold,
                       const Tensor &out);

}  // namespace distile::python

#endif
