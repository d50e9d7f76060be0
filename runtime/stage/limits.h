/** \file
 * The units in which stages count channels and words, shared by the host and kernels.
 */
#ifndef DISTILE_STAGE_LIMITS_H
#define DISTILE_STAGE_LIMITS_H

#include <cstdint>
#include <distile/stage.h>

namespace distile {

constexpr uint32_t stage_words_at_once = 64;  ///< The words whose pixels a kernel counts at once: a chunk.
constexpr uint32_t most_stage_chunks = DISTILE_STAGE_WORDS / stage_words_at_once;  ///< The most chunks of a mask.
constexpr uint32_t stage_piece_bytes = 16;       ///< What a kernel reads and writes at once of a pixel's channels.
constexpr uint32_t stage_row_bytes = 128;        ///< The input channels that one step of a reduction multiplies.
constexpr uint32_t stage_columns = 32;           ///< Output channels are packed in groups of these.
constexpr uint32_t stage_columns_together = 64;  ///< Several groups come in pairs, so that tiles may be as wide.
/** Reductions are packed in multiples of these steps; the last ones may be 0. */
constexpr uint32_t stage_reduction = 4;

}  // namespace distile

#endif
