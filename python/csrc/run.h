/** \file
 * Running a PolyKernel that multiplies by weights.
 */
#ifndef DISTILE_PYTHON_RUN_H
#define DISTILE_PYTHON_RUN_H

#include "weights.h"
#include <distile/polykernel.h>

namespace distile::python {

/** The tensors of such an operator, and where its result goes. */
struct WeightedCall {
    const Tensor &input, &weight;
    const OptionalTensor &bias;
    const Tensor &mask;
    const OptionalTensor &residual;
    int64_t place; /**< Of the packed weights. */
    /** Written at the active pixels; null: a new tensor that is zero elsewhere. */
    const Tensor *out;
    bool zero; /**< Sets the inactive pixels of `out` to zero. */
};

/** Fails if the residual or `out` has another type than the input, or `out` another shape than a result of so many
 * channels at the mask's pixels. */
void check_types_and_out(const WeightedCall &call, int64_t channels);

Tensor run(Session &session, const distile_polykernel &polykernel, distile_weights_order order,
           const WeightedCall &call);

}  // namespace distile::python

#endif
