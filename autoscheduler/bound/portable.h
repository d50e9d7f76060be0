/** \file
 * The plan that any x86-64 CPU runs: what an operator falls back to where a CPU lacks what its tuned plans need.
 */
#ifndef DISTILE_PORTABLE_H
#define DISTILE_PORTABLE_H

#include "plan.h"

namespace distile {

/** The backend that has such plans. */
const Backend &portable_backend();

/** A plan of a fine and a dense variant, scheduled by the bound for 4 lanes and 16 registers, which every x86-64 CPU
 * has. It has no times, because they would differ from CPU to CPU, and no coarser variant, because none is taken
 * without times. Throws FileError where no schedule is legal. */
Plan portable_plan(const Operator &op);

}  // namespace distile

#endif
