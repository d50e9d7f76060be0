/** \file
 * A convolution of any kind by its definition: plain loops, with sums in double precision.
 */
#ifndef DISTILE_CONV2D_REFERENCE_H
#define DISTILE_CONV2D_REFERENCE_H

#include <cstddef>
#include <cstdint>
#include <distile/polykernel.h>
#include <vector>

namespace distile {

double apply_epilogue(distile_epilogue epilogue, double value);

/** The output's extents for an input; 0 if the kernel does not fit. */
int32_t reference_output_height(const distile_conv2d &conv, int32_t input_height,
                                distile_operator_kind kind = DISTILE_MASKED_CONV2D);
int32_t reference_output_width(const distile_conv2d &conv, int32_t input_width,
                               distile_operator_kind kind = DISTILE_MASKED_CONV2D);

/** The elements of a filter. */
size_t filter_size(const distile_conv2d &conv);

class Conv2dReference {
public:
    /** Copies the weights, which may come in every order and with batch normalisation. */
    Conv2dReference(const distile_conv2d &conv, const distile_weights_source &weights,
                    distile_operator_kind kind = DISTILE_MASKED_CONV2D);

    const distile_conv2d &conv() const {
        return conv_;
    }

    /** What the epilogue is applied to, for every channel of one output pixel. The input's border is not read;
     * `residual` is null where there is none. `scales`, unless it is null, gets the sums of the absolute values of all
     * that is added up: errors are to be judged by them. */
    void sums(const distile_tensor &input, const distile_tensor *residual, int32_t n, int32_t y, int32_t x,
              std::vector<double> &sums, std::vector<double> *scales = nullptr) const;

private:
    distile_conv2d conv_;
    distile_operator_kind kind_;
    std::vector<float> filter_;           /**< [kernel row][kernel column][input channel of a group][output channel] */
    std::vector<double> factor_, addend_; /**< What is folded in, for each output channel. */
};

}  // namespace distile

#endif
