/** \file
 * The call of a variant's code, made from the arguments of a run.
 */
#ifndef DISTILE_CALL_H
#define DISTILE_CALL_H

#include "runtime/dispatch/kernel.h"
#include "runtime/dispatch/weights.h"

namespace distile {

/** The array that code receives for a tensor: channel, x, y, image, with the border at negative coordinates. */
distile_array array_of(const distile_tensor &tensor);

/** The factor of the scores; 0 for operators without. */
float scale_of(const distile_kernel &kernel, const distile_run_args &args);

/** Whether the code finds the active pixels in the mask's bits, so the mask need not list them. */
bool is_listless(const distile_variant &variant, const MaskShape &shape);

/** The tiles that a variant computes from this input, which need not be that of the arguments. */
TileList list_of(distile_kernel &kernel, const distile_variant &variant, const distile_run_args &args,
                 const distile_tensor &input);

/** The call of a variant for a list of up to `tiles` tiles. Stores the operands, to which it points. */
distile_kernel_call call_of(distile_kernel &kernel, const distile_variant &variant, const distile_run_args &args,
                            const distile_tensor &input, const TileList &list, int64_t tiles, Operands &operands);

}  // namespace distile

#endif
