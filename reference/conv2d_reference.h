/** \file
 * Any kind of operator by definition: plain loops with sums in double precision. Inputs, weights and residuals are
 * first rounded to their storage types, as in the kernels. NaN and infinity follow IEEE 754 and PyTorch.
 */
#ifndef DISTILE_CONV2D_REFERENCE_H
#define DISTILE_CONV2D_REFERENCE_H

#include "reference/activation_reference.h"
#include <cstddef>
#include <cstdint>
#include <distile/polykernel.h>
#include <vector>

namespace distile {

/** The operator as a convolution; a linear layer is a 1x1 convolution. */
distile_conv2d convolution_of(const distile_polykernel &polykernel);

/** The storage type of an operator's activations and weights. */
distile_dtype type_of(const distile_polykernel &polykernel);

// Store an element of a type, read it, or do both.
void store_as(distile_dtype dtype, float value, void *to);
float load_as(distile_dtype dtype, const void *from);
float round_to(distile_dtype dtype, float value);

/** An element of a tensor of any type. */
float read_element(const distile_tensor &tensor, int32_t n, int32_t y, int32_t x, int32_t channel);

/** The output's extents; 0 if the kernel does not fit the input. */
int32_t reference_output_height(const distile_conv2d &conv, int32_t input_height,
                                distile_operator_kind kind = DISTILE_MASKED_CONV2D);
int32_t reference_output_width(const distile_conv2d &conv, int32_t input_width,
                               distile_operator_kind kind = DISTILE_MASKED_CONV2D);

/** The number of elements in a filter. */
size_t filter_size(const distile_conv2d &conv);

class Conv2dReference {
public:
    /** Copies the weights, in any order and type, and folds in batch normalisation. `dtype` is the operator's storage
     * type; types narrower than float32 round the folded weights. */
    Conv2dReference(const distile_conv2d &conv, const distile_weights_source &weights,
                    distile_operator_kind kind = DISTILE_MASKED_CONV2D, distile_dtype dtype = DISTILE_FLOAT32);

    const distile_conv2d &conv() const {
        return conv_;
    }

    /** The sums before the epilogue, for every channel of one output pixel; infinite beyond float32's range. Does not
     * read the input's border; `residual` may be null. Stores the sums of the absolute values of all terms, the scale
     * for judging errors, in `scales` unless that is null. */
    void sums(const distile_tensor &input, const distile_tensor *residual, int32_t n, int32_t y, int32_t x,
              std::vector<double> &sums, std::vector<double> *scales = nullptr) const;

private:
    /** Kernel positions along an axis that read the same input and therefore share one packed weight. */
    struct Run {
        int32_t begin, end, input;
    };

    std::vector<Run> runs(int32_t kernel, int32_t inputs, int32_t output, int32_t stride, int32_t pad,
                          int32_t dilation) const;
    /** The weights of a run of rows and a run of columns: [input channel of a group][output channel]. */
    const float *weights_of(const Run &rows, const Run &columns, std::vector<float> &merged) const;

    distile_conv2d conv_;
    distile_operator_kind kind_;
    distile_dtype dtype_;
    bool merges_;                         /**< Positions that read the same input are summed and rounded. */
    std::vector<float> filter_;           /**< [kernel row][kernel column][input channel of a group][output channel] */
    std::vector<double> factor_, addend_; /**< The folded scale and shift per output channel. */
};

}  // namespace distile

#endif
