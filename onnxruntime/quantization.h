/** \file
 * The scales and the zero points of quantized operators, which are inputs of their nodes, as in ONNX's QLinearConv.
 */
#ifndef DISTILE_ONNXRUNTIME_QUANTIZATION_H
#define DISTILE_ONNXRUNTIME_QUANTIZATION_H

#include "onnxruntime/weighted_inputs.h"
#include <distile/polykernel.h>
#include <distile/quantize.h>

namespace distile::ort {

/** The numbers of a quantized node. */
class Quantization {
public:
    /** Fails if they are no initializers, or missing, or too many. */
    Quantization(const Setup &setup, int32_t out_channels, distile_activation epilogue);

    /** Valid as long as this. */
    distile_quantization numbers() const;
    /** The filter as DISTILE_INT4, if the node says that its weights have 4 bits; else null. */
    const uint8_t *int4_filter() const {
        return int4_filter_.empty() ? nullptr : int4_filter_.data();
    }
    /** The real number that is 1 in results before the output's scale: that scale, if the epilogue commutes with it,
     * and else 1 (quantize.h). */
    float unit() const {
        return in_output_units_ ? output_.scale : 1;
    }

private:
    distile_scale input_{}, output_{}, residual_{};
    std::vector<float> filter_scales_;
    std::vector<int32_t> bias_;
    std::vector<uint8_t> int4_filter_;
    bool in_output_units_;
};

}  // namespace distile::ort

#endif
