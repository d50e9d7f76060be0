/** \file
 * Pictures of many masks at once.
 */
#ifndef DISTILE_CONTACT_SHEET_H
#define DISTILE_CONTACT_SHEET_H

#include "masks/mask_families.h"
#include <string>
#include <vector>

namespace distile {

/** A PNG file that shows the first image of each mask, white where it is active, on gray. Each group begins a line; a
 * line has up to 20 masks, each as large as fits into 64 x 64 pixels. Groups of one mask or more, at least one group.
 * Throws std::runtime_error. */
std::string contact_sheet_png(const std::vector<std::vector<ByteMask>> &groups);

}  // namespace distile

#endif
