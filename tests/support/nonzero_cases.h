/** \file
 * Operators with which tests check code that multiplies with the nonzero weights alone.
 */
#ifndef DISTILE_TESTS_NONZERO_CASES_H
#define DISTILE_TESTS_NONZERO_CASES_H

#include "tests/support/dot_product_kernel.h"
#include "tests/support/kept_weights.h"

namespace distile {

/** A convolution or a linear layer, and the share of its weights that are 0. */
struct NonzeroCase {
    const char *name;
    distile_operator_kind kind;
    distile_conv2d conv;
    double zeros;
    distile_dtype dtype = DISTILE_FLOAT32;
    int32_t sharing = 1; /**< Output channels that have most zeros in the same places. */
    Kept kept = Kept::Anything;
};

inline NonzeroCase linear_case(const char *name, int32_t inputs, int32_t outputs, double zeros,
                               distile_activation epilogue, int32_t residual, distile_dtype dtype) {
    return {name,
            DISTILE_MASKED_LINEAR,
            {inputs, outputs, 1, 1, 1, 1, 1, 0, 0, 0, 0, 1, 1, epilogue, residual},
            zeros,
            dtype};
}

inline DotProductOperator operator_of(const NonzeroCase &of, const char *layout) {
    return {of.kind,
            of.conv,
            of.dtype,
            layout,
            {{DISTILE_ROLE_INPUT, of.dtype, of.conv.in_channels},
             {DISTILE_ROLE_WEIGHTS, DISTILE_FLOAT32, 0},
             {DISTILE_ROLE_BIAS, DISTILE_FLOAT32, 0}}};
}

// Channels in, out; groups; kernel, stride; padding at the top, bottom, left and right; dilation; epilogue; residual.
inline const NonzeroCase nonzero_cases[] = {
    {"3x3", DISTILE_MASKED_CONV2D, {32, 48, 1, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1, DISTILE_ACTIVATION_RELU, 0}, .9},
    {"no zeros, odd channels, strides",
     DISTILE_MASKED_CONV2D,
     {17, 20, 1, 3, 3, 2, 1, 0, 1, 0, 1, 1, 1, DISTILE_ACTIVATION_SILU, 1},
     0},
    {"dilation", DISTILE_MASKED_CONV2D, {3, 33, 1, 5, 2, 1, 1, 2, 2, 1, 0, 2, 3, DISTILE_ACTIVATION_RELU6, 1}, .5},
    {"dilated columns",
     DISTILE_MASKED_CONV2D,
     {5, 16, 1, 3, 3, 1, 2, 1, 1, 2, 2, 1, 2, DISTILE_ACTIVATION_LEAKY_RELU, 0},
     .5},
    {"all zeros",
     DISTILE_MASKED_CONV2D,
     {20, 18, 1, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1, DISTILE_ACTIVATION_HARDSIGMOID, 0},
     1},
    {"one channel", DISTILE_MASKED_CONV2D, {1, 1, 1, 3, 3, 1, 2, 1, 1, 1, 1, 1, 1, DISTILE_ACTIVATION_NONE, 0}, .3},
    {"1x1 in chunks and blocks",
     DISTILE_MASKED_CONV2D,
     {272, 200, 1, 1, 1, 1, 1, 0, 0, 0, 0, 1, 1, DISTILE_ACTIVATION_HARDSWISH, 1},
     .95},
    {"1x1 of a padded image",
     DISTILE_MASKED_CONV2D,
     {40, 16, 1, 1, 1, 1, 1, 1, 2, 0, 1, 1, 1, DISTILE_ACTIVATION_NONE, 0},
     .6},
    {"7x7, stride 2", DISTILE_MASKED_CONV2D, {3, 24, 1, 7, 7, 2, 2, 3, 3, 3, 3, 1, 1, DISTILE_ACTIVATION_RELU, 0}, .8},
    {"a wide kernel in chunks",
     DISTILE_MASKED_CONV2D,
     {50, 17, 1, 2, 5, 1, 1, 0, 1, 2, 2, 1, 1, DISTILE_ACTIVATION_SIGMOID, 1},
     .9},
    {"groups", DISTILE_MASKED_CONV2D, {48, 72, 3, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1, DISTILE_ACTIVATION_SILU, 1}, .7},
    {"linear", DISTILE_MASKED_LINEAR, {24, 140, 1, 1, 1, 1, 1, 0, 0, 0, 0, 1, 1, DISTILE_ACTIVATION_GELU, 1}, .9},
    {"bfloat16",
     DISTILE_MASKED_CONV2D,
     {37, 50, 1, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1, DISTILE_ACTIVATION_RELU, 1},
     .9,
     DISTILE_BFLOAT16},
    {"float16",
     DISTILE_MASKED_CONV2D,
     {37, 50, 1, 3, 3, 2, 2, 1, 1, 1, 1, 1, 1, DISTILE_ACTIVATION_TANH, 0},
     .9,
     DISTILE_FLOAT16},
    {"linear in bfloat16",
     DISTILE_MASKED_LINEAR,
     {136, 20, 1, 1, 1, 1, 1, 0, 0, 0, 0, 1, 1, DISTILE_ACTIVATION_NONE, 0},
     .9,
     DISTILE_BFLOAT16},
    {"four channels share columns, in chunks and blocks",
     DISTILE_MASKED_CONV2D,
     {140, 150, 1, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1, DISTILE_ACTIVATION_RELU, 1},
     .9,
     DISTILE_FLOAT32,
     4},
    {"two channels share columns",
     DISTILE_MASKED_LINEAR,
     {150, 37, 1, 1, 1, 1, 1, 0, 0, 0, 0, 1, 1, DISTILE_ACTIVATION_NONE, 0},
     .8,
     DISTILE_FLOAT32,
     2},
    {"all channels share columns",
     DISTILE_MASKED_CONV2D,
     {33, 23, 1, 1, 1, 2, 1, 0, 0, 0, 0, 1, 1, DISTILE_ACTIVATION_SILU, 0},
     .5,
     DISTILE_BFLOAT16,
     23},
    {"full and empty rows",
     DISTILE_MASKED_CONV2D,
     {20, 37, 1, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1, DISTILE_ACTIVATION_RELU, 0},
     0,
     DISTILE_FLOAT32,
     1,
     Kept::Rows},
    {"one column has weights",
     DISTILE_MASKED_CONV2D,
     {36, 50, 1, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1, DISTILE_ACTIVATION_NONE, 1},
     0,
     DISTILE_FLOAT32,
     1,
     Kept::Column},
    {"there is one column",
     DISTILE_MASKED_LINEAR,
     {1, 40, 1, 1, 1, 1, 1, 0, 0, 0, 0, 1, 1, DISTILE_ACTIVATION_NONE, 0},
     .5},
};

}  // namespace distile

#endif
