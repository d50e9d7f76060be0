/** \file
 * Shared by the host and stage_team.cu: residual blocks that a team of thread blocks computes for each image.
 */
#ifndef DISTILE_CUDA_KERNELS_STAGE_TEAM_H
#define DISTILE_CUDA_KERNELS_STAGE_TEAM_H

#include "runtime/cuda/kernels/stage.h"
#include "runtime/stage/team_layout.h"

namespace distile {

constexpr uint32_t most_team_blocks = 64;    ///< The most residual blocks of a launch.
constexpr uint32_t most_team_extent = 14;    ///< The most rows and columns of an image.
constexpr uint32_t items_of_team_block = 4;  ///< What a trace has of a residual block: its mask and convolutions.
constexpr uint32_t most_team_pixels = most_team_extent * most_team_extent;
constexpr uint32_t team_threads = 384;
constexpr uint32_t cluster_team = 16, memory_team = 8;  ///< The thread blocks of a team that is a cluster, or not.
constexpr uint32_t memory_team_tiles =
    8;  ///< The most tiles of 16 rows that a team without a cluster computes at once.
/** What such a team exchanges in memory: two times a tile's rows for each of its blocks. */
constexpr uint32_t memory_team_bytes = 2 * memory_team * memory_team_tiles * 16 * team_inner * 2;

/** A convolution of a residual block. */
struct TeamConvolution {
    const char *weights;  ///< A team's.
    const float *bias;    ///< Null: 0.
    Activation activation;
};

/** A residual block: image = expand(middle(reduce(image))) + image at the pixels of the mask. */
struct TeamBlock {
    TeamConvolution reduce, middle, expand;
    StageView reduced, between;  ///< The results of the first two convolutions. Without data: nobody reads them.
    const float *scores;         ///< The factors of the scores that make the mask. Null: the mask is given.
    float score_bias, threshold;
    uint32_t *words;   ///< The mask's, a word for each row.
    MaskBytes mirror;  ///< Where a mask from scores also goes, byte by byte, if its bytes are not null.
};

struct TeamProgram {
    StageView image;
    Divisor width;
    uint32_t height, images, num_blocks;
    char *exchange;      ///< memory_team_bytes for each team, if teams are not clusters.
    uint32_t *counters;  ///< memory_team for each of these teams; 0 between launches.
    StageItemTimes
        *times;  ///< Room for the items of each thread block, four of a residual block. Null: nobody wants them.
    uint32_t timed_items;  ///< How many items of a thread block have room.
    TeamBlock blocks[most_team_blocks];
};
static_assert(sizeof(TeamProgram) <= 32764, "arguments of a kernel have no more bytes");
static_assert(sizeof(TeamBlock) % sizeof(uint32_t) == 0, "blocks are copied in words");

}  // namespace distile

#endif
