/** \file
 * Shared by the host and choose.cu.
 */
#ifndef DISTILE_CUDA_KERNELS_CHOOSE_H
#define DISTILE_CUDA_KERNELS_CHOOSE_H

#include "../../src/dispatch/choose_variant.h"

namespace distile {

constexpr uint32_t most_counts = 65;  ///< The granularities of a mask.

/** The words of a result: the chosen variant and its number of tiles, then each variant's, 0 unless it is chosen. */
enum ChoiceWord : uint32_t { chosen_word, tiles_word, first_count_word };

/** A table, and what a choice reads and writes. */
struct Choice {
    const ChoiceVariant *variants;
    int32_t num_variants;
    uint32_t *result;
    const uint32_t *counts[most_counts];  ///< The numbers of tiles, by granularity.
};

}  // namespace distile

#endif
