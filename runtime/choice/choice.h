/** \file
 * A choice among variants on a GPU, shared by the host and the kernels that make it.
 */
#ifndef DISTILE_CHOICE_H
#define DISTILE_CHOICE_H

#include "runtime/choice/choose_variant.h"

namespace distile {

constexpr uint32_t most_counts = 65;  ///< The granularities of a mask.

/** The variant for up to `most` tiles. */
struct ChoiceRange {
    uint32_t most;
    int32_t variant;
    uint32_t all_tiles;  ///< The tiles of a dense variant; else 0.
};
constexpr int32_t most_ranges = 16;

/** The words of a result: the chosen variant and its number of tiles, then each variant's, 0 unless it is chosen. */
enum ChoiceWord : uint32_t { chosen_word, tiles_word, first_count_word };

}  // namespace distile

/** A table, and what a choice reads and writes. Addresses are of the device. */
struct distile_gpu_choice {
    /** If only the first number of tiles matters, the table by ranges of it; else there are none. */
    distile::ChoiceRange ranges[distile::most_ranges];
    int32_t num_ranges;
    const distile::ChoiceVariant *variants;
    uint32_t table_bytes;  ///< The size of the variants and their points: a multiple of 16.
    int32_t num_variants;
    uint32_t *result;
    int32_t num_counts;
    const uint32_t *counts[distile::most_counts];  ///< The numbers of tiles, by granularity. Null: count the pixels.
};

#endif
