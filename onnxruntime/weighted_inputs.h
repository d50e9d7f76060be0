/** \file
 * The inputs of operators with weights.
 */
#ifndef DISTILE_ONNXRUNTIME_WEIGHTED_INPUTS_H
#define DISTILE_ONNXRUNTIME_WEIGHTED_INPUTS_H

#include "onnxruntime/operator.h"

namespace distile::ort {

/** The filter, the biases and the numbers of quantized tensors are initializers, and stay on the host. */
enum WeightedInput : size_t {
    input_x,
    input_filter,
    input_mask,
    input_bias,
    input_residual,
    input_kept,
    // For quantized operators. Their filter is int8 and has no zero point; an absent zero point is 0.
    input_x_scale,
    input_x_zero_point,
    input_filter_scale, /**< One number, or one for each output channel. */
    input_integer_bias, /**< In units of x_scale * filter_scale. It adds to the float bias. */
    input_y_scale, /**< The scale of a quantized output, which has the type of its zero point; without both, the output
                      is float32. */
    input_y_zero_point,
    input_residual_scale, /**< The scale of a quantized residual. */
    input_residual_zero_point
};

std::vector<Input> weighted_inputs();
std::vector<Input> quantized_inputs();

}  // namespace distile::ort

#endif
