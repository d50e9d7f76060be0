/** \file
 * Plans how a mask's bits move through a window.
 */
#ifndef DISTILE_BIT_STEPS_H
#define DISTILE_BIT_STEPS_H

#include "runtime/gpu/bit_transfer.h"
#include "runtime/mask/mask.h"

namespace distile {

/** The steps that map a mask of one shape to a mask of another. */
BitSteps bit_steps(const MaskShape &from, const MaskShape &to, const distile_window &given, Direction direction);

}  // namespace distile

#endif
