/** \file
 * The knobs of a tile, and the constraints on them that several spaces have.
 */
#ifndef DISTILE_SCHEDULES_TILE_KNOBS_H
#define DISTILE_SCHEDULES_TILE_KNOBS_H

#include "schedules/space.h"

namespace distile {

/** The extents of a tile in output pixels, with the values that most spaces try. */
Knob tile_height();
Knob tile_width();

/** Tiles have the same output pixels in each phase. */
Constraint tile_of_whole_phases();
Constraint tile_of_at_most_4096_pixels();
Constraint tile_of_one_token();

}  // namespace distile

#endif
