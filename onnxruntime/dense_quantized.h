/** \file
 * The dense form of quantized operators, by ONNX Runtime's ConvInteger.
 */
#ifndef DISTILE_ONNXRUNTIME_DENSE_QUANTIZED_H
#define DISTILE_ONNXRUNTIME_DENSE_QUANTIZED_H

#include "onnxruntime/dense.h"
#include "onnxruntime/quantization.h"

namespace distile::ort {

/** A convolution as its PolyKernel describes it, or a linear layer as one of 1 x 1 pixels. Its result is float32, in
 * the units of the quantization: the exact sums, scaled, plus the bias. */
class DenseQuantized : public Dense {
public:
    DenseQuantized(const Setup &setup, distile_operator_kind kind, const distile_conv2d &conv,
                   distile_weights_order order, ImageLayout layout, const Quantization &quantization);

    distile_tensor run(const Call &call, const Lease &lease, const Tensor &x, const Tensor &filter,
                       const std::optional<Tensor> &bias) const override;

private:
    /** How an axis of the input becomes one of the image that is convolved without padding: input pixel i stands at i *
     * step + first. */
    struct Axis {
        int64_t step, first, extent, outputs;
    };
    static Axis axis_of(bool transposed, int64_t in, int64_t stride, int64_t dilation, int64_t kernel, int64_t before,
                        int64_t after);
    Tensor image(const Lease &lease, const distile_tensor &input, const Axis &rows, const Axis &columns) const;

    distile_conv2d conv_;
    bool transposed_;
    ImageLayout layout_;
    const Quantization &quantization_;
    /** [out channels][in channels of a group][rows][columns], plus 128: ONNX Runtime's products of unsigned numbers are
     * exact on every CPU, those of uint8 and int8 may saturate without VNNI. */
    std::vector<uint8_t> filter_;
    DenseNode node_;
};

}  // namespace distile::ort

#endif
