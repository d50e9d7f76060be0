/** \file
 * Masks from the scores of pixels.
 */
#ifndef DISTILE_CPU_SCORES_H
#define DISTILE_CPU_SCORES_H

#include "runtime/cpu/cpu_device.h"

namespace distile {

struct Scores;

/** Sets the bits of the pixels that score enough, in rows of 64-bit words. */
void find_scores(CpuDevice &device, const distile_tensor &tensor, const Scores &scores, uint64_t *words);

}  // namespace distile

#endif
