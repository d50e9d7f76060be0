/** \file
 * Running a PolyKernel that multiplies by weights.
 */
#ifndef DISTILE_PYTHON_RUN_H
#define DISTILE_PYTHON_RUN_H

#include "bindings/registry.h"
#include "python/csrc/weights.h"
#include <distile/polykernel.h>

namespace distile::python {

/** The tensors of such an operator, and where its result goes. */
struct WeightedCall {
    const Tensor &input, &weight;
    const OptionalTensor &bias;
    const Tensor &mask;
    const OptionalTensor &residual;
    int64_t place; /**< The index of the packed weights. */
    /** Written at the active pixels; null: a new tensor that is zero elsewhere. */
    const Tensor *out;
    bool zero; /**< Sets the inactive pixels of `out` to zero. */
};

/** Checks what a call gives against its result, whichever code computes that: images [N, C, H, W] or tokens [N, T, C].
 * Fails if the mask, the weight, the bias, the residual or `out` does not fit. */
void check_call(const Session &session, const WeightedCall &call, const Ints &result);

/** The types of a call's operator; nothing if no PolyKernel can have them. Weights of 16 bits have PolyKernels of their
 * own where the input is float32, on CPUs (operators.py). */
std::optional<bindings::OperatorTypes> types_of(const WeightedCall &call);
std::optional<bindings::OperatorTypes> types_of(ScalarType input, ScalarType weights, bool on_cpu);

/** The tensor that a call returns: `out`, or a new one with these sizes. */
Tensor output_of(const WeightedCall &call, const Ints &result);

/** Runs a PolyKernel for a call that was checked, with the slope of its activation. */
Tensor run(Session &session, const distile_polykernel &polykernel, distile_weights_order order,
           const WeightedCall &call, const Ints &result, float slope);

}  // namespace distile::python

#endif
