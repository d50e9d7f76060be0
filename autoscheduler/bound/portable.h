/** \file
 * The plan that any x86-64 CPU runs: what an operator falls back to where a CPU lacks what its tuned plans need.
 */
#ifndef DISTILE_PORTABLE_H
#define DISTILE_PORTABLE_H

#include "plan.h"

namespace distile {

/** Which backend has such plans. */
const Backend &portable_backend();

/** A fine and a dense variant, scheduled by the bound for 4 lanes and 16 registers, which every x86-64 CPU has. It has
 * no times: they would be of no CPU in particular, and without times no coarser variant would ever be taken. Throws
 * FileError where nothing is legal. */
Plan portable_plan(const Operator &op);

}  // namespace distile

#endif
