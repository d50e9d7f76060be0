/** \file
 * The kernels that compute covers of mixed granularity, beside those of one granularity.
 */
#ifndef DISTILE_BENCH_COVER_CONVOLUTIONS_H
#define DISTILE_BENCH_COVER_CONVOLUTIONS_H

#include <cstdint>

namespace distile::bench {

/** Tiles that are copied in boxes, in each direction. */
constexpr int32_t cover_box = 8;

/** How to launch a kernel; the device's code says it in a variable of its name and "_launch". */
struct CoverLaunch {
    int32_t threads, shared_bytes, blocks;    ///< Blocks that fit a multiprocessor.
    int32_t block_pixels, channel_blocks;     ///< Pixels of a block; blocks of all channels.
    int32_t balanced, has_tiles, has_pixels;  ///< Whether blocks share items; which lists it takes.
};

}  // namespace distile::bench

#endif
