/** \file
 * What convolutions and linear layers share: a PolyKernel with packed weights, or else the dense operator.
 */
#ifndef DISTILE_ONNXRUNTIME_WEIGHTED_H
#define DISTILE_ONNXRUNTIME_WEIGHTED_H

#include "bindings/registry.h"
#include "dense.h"

namespace distile::ort {

/** The inputs of operators with weights. The filter and the bias are initializers, and stay on the host. */
enum WeightedInput : size_t { input_x, input_filter, input_mask, input_bias, input_residual, input_kept };
std::vector<Input> weighted_inputs();

/** The filter's shape. Fails if it is no initializer. */
Shape filter_shape(const NodeView &node);

/** The PolyKernel of an operator, linked or of the cache folder; null if there is none. */
const distile_polykernel *find_or_load(const bindings::OperatorKey &key);

class WeightedKernel : public LeasingKernel {
public:
    /** What a node computes. */
    struct Description {
        bindings::OperatorKey key;
        std::string words; /**< For a warning. */
        distile_weights_order order;
        Layout layout;
        distile_epilogue epilogue;
    };
    /** `make_dense`: makes the dense form, which only runs if there is no PolyKernel. */
    template<typename MakeDense> WeightedKernel(const Setup &setup, const Description &what, MakeDense make_dense)
        : WeightedKernel(setup, what) {
        if (!polykernel_) {
            dense_ = make_dense();
        }
    }
    void compute(const Call &call) override;

private:
    WeightedKernel(const Setup &setup, const Description &what);
    void run_masked(const Call &call, const Lease &lease);
    void run_dense(const Call &call, const Lease &lease) const;
    distile_weights *weights(const Lease &lease);

    distile_weights_order order_;
    Layout layout_;
    distile_epilogue epilogue_;
    Tensor filter_;
    std::optional<Tensor> bias_;
    const distile_polykernel *polykernel_;
    std::once_flag packed_;
    Weights weights_;
    std::unique_ptr<Dense> dense_;
};

}  // namespace distile::ort

#endif
