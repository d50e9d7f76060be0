/** \file
 * The functions of bitmask.h at a given SIMD level. Only for bitmask.cpp and its tests, which run every supported
 * level.
 */
#ifndef DISTILE_BITMASK_LEVELS_H
#define DISTILE_BITMASK_LEVELS_H

#include "runtime/cpu/bitmask.h"
#include "runtime/cpu/simd/simd_level.h"

namespace distile {

int64_t pack_bitmask(const SimdLevel &level, const uint8_t *bytes, int64_t stride_n, int64_t stride_h, int32_t batch,
                     int32_t height, int32_t width, uint64_t *words);
void count_tiles(const SimdLevel &level, const Bitmask &mask, const Granularity *granularities,
                 int32_t num_granularities, uint64_t *scratch, int64_t *counts);
int64_t list_tiles(const SimdLevel &level, const Bitmask &mask, Granularity granularity, const TileRect &interior,
                   uint64_t *scratch, uint32_t *xy, uint32_t *image);

}  // namespace distile

#endif
