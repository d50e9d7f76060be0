/** \file
 * The weights of residual blocks that a team of thread blocks computes for each image, shared by the host and kernels.
 *
 * A residual block is a 1x1 convolution from `team_outer` to `team_inner` channels, a 3x3 convolution of these, and a
 * 1x1 convolution back. The weights of each lie in 16 shares, of which a thread block of the team has one or more:
 * those of its part of the input channels, or in the last convolution of the output channels. A share has units in the
 * order of their use, each of team_unit bytes: 256 output channels by 16 input channels, or last 64 by 64. A unit has a
 * line for each output channel, and the line's pieces of 16 bytes are swizzled, as instructions for products have it.
 */
#ifndef DISTILE_STAGE_TEAM_LAYOUT_H
#define DISTILE_STAGE_TEAM_LAYOUT_H

#include <cstdint>

namespace distile {

constexpr uint32_t team_inner = 256, team_outer = 1024;  ///< Channels.
constexpr uint32_t team_shares = 16;
constexpr uint32_t inner_of_share = team_inner / team_shares, outer_of_share = team_outer / team_shares;
constexpr uint32_t team_unit = 8192;
constexpr uint32_t reducing_units = outer_of_share / 16;    ///< Units of a share of the first convolution,
constexpr uint32_t middle_units = 9 * inner_of_share / 16;  ///< of the second, one for each tap,
constexpr uint32_t expanding_units = team_inner / 64;       ///< and of the third.
static_assert(team_inner * 16 * 2 == team_unit && outer_of_share * 64 * 2 == team_unit, "units are as large");

}  // namespace distile

#endif
