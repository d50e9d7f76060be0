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

Tensor run(Session &session, const distile_polykernel &polykernel, distile_weights_order order,
           const WeightedCall &call);

}  // namespace distile::python

#endif
