/** \file
 * What convolutions and linear layers share: a PolyKernel with packed weights, or else the dense operator.
 */
#ifndef DISTILE_ONNXRUNTIME_WEIGHTED_H
#define DISTILE_ONNXRUNTIME_WEIGHTED_H

#include "bindings/activation.h"
#include "onnxruntime/dense.h"
#include "onnxruntime/quantization.h"
#include "onnxruntime/wanted.h"
#include <array>

namespace distile::ort {

/** The filter's shape. Fails if it is no initializer. */
Shape filter_shape(const NodeView &node);

class WeightedKernel : public LeasingKernel {
public:
    /** What a node computes. */
    struct Description {
        bindings::OperatorKey key;
        std::string words; /**< For a warning. */
        distile_weights_order order;
        ImageLayout layout;
        int32_t out_channels;
    };
    /** `make_dense`: makes the dense form, which only runs as long as there is no PolyKernel, from the numbers of a
     * quantized operator, which are null for others. */
    template<typename MakeDense> WeightedKernel(const Setup &setup, const Description &what, MakeDense make_dense)
        : WeightedKernel(setup, what) {
        if (!wanted_.get()) {
            dense_ = make_dense(quantization_ ? &*quantization_ : nullptr);
        }
    }
    void compute(const Call &call) override;

private:
    WeightedKernel(const Setup &setup, const Description &what);
    void run_masked(const Call &call, const Lease &lease, const distile_polykernel &polykernel);
    void run_dense(const Call &call, const Lease &lease) const;
    /** For quantized operators: the residual in float32, in the units of the quantization, and the stored result. */
    distile_tensor real_residual(const Lease &lease, const distile_tensor &stored) const;
    void store(const Lease &lease, const distile_tensor &real, distile_mask *mask, const Output &output) const;
    Output output_of(const Call &call, const Lease &lease, const Tensor &x, int32_t height, int32_t width) const;
    distile_weights *weights(const Lease &lease, distile_kernel *kernel, const distile_polykernel &polykernel);

    struct Packed {
        std::once_flag once;
        Weights weights;
    };

    distile_weights_order order_;
    ImageLayout layout_;
    bindings::Activation activation_;
    int32_t out_channels_;
    ElementType output_type_;
    Tensor filter_;
    std::optional<Tensor> bias_;
    std::optional<Quantization> quantization_; /**< Set for a quantized operator. */
    Wanted wanted_;
    std::array<Packed, 3> packed_; /**< By what their PolyKernels serve. */
    std::unique_ptr<Dense> dense_;
};

}  // namespace distile::ort

#endif
