/** \file
 * The spaces of CPU schedules for operators that read a key or a value. Independent of Halide, so a search can walk
 * them anywhere.
 */
#ifndef DISTILE_SCHEDULES_TOKEN_SPACE_H
#define DISTILE_SCHEDULES_TOKEN_SPACE_H

#include "schedules/space.h"

namespace distile {

/** The space of an operator: attention has the knobs of both its products. */
const Space &cpu_token_space(TokenProduct product);

/** The rows of a register tile: the time of a block is that of its rows rounded up to a multiple of this. */
int row_step(const Theta &theta, int lanes);

/** What a block takes besides the time of its rows, in rows. */
int more_rows(TokenProduct product);

/** The channels of a head that fill whole vectors. */
int whole_channels(const Problem &problem);

}  // namespace distile

#endif
