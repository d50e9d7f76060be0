/** \file
 * What a thread block of a team has in shared memory, and what it does beside multiplying.
 *
 * Eight warps multiply, exchange and find the pixels of masks. One thread fetches weights in the order of their use,
 * ahead of all waits, and one warp brings what describes the next residual block.
 */
#ifndef DISTILE_CUDA_KERNELS_STAGE_TEAM_BLOCK_CUH
#define DISTILE_CUDA_KERNELS_STAGE_TEAM_BLOCK_CUH

#include "kernels/tensor_core/ptx.cuh"
#include "runtime/cuda/kernels/stage_channels.cuh"
#include "runtime/cuda/kernels/stage_team.h"

namespace distile {

constexpr uint32_t most_weight_slots = 8;
constexpr uint32_t mapped_extent = most_team_extent + 2;  ///< Maps of pixels have a border of 1.

/** What is a block's of a team, and where it lies in shared memory. */
template<uint32_t Blocks, bool clusters> struct TeamPart {
    static constexpr uint32_t blocks = Blocks, shares = team_shares / Blocks;
    static constexpr uint32_t inner = inner_of_share * shares, outer = outer_of_share * shares;
    static constexpr uint32_t inner_bytes = inner * 2, outer_bytes = outer * 2;  ///< A pixel's.
    static constexpr uint32_t slot_bytes = team_unit * shares, slots = clusters ? 8 : 6;
    static constexpr uint32_t tiles = clusters ? 6 : memory_team_tiles;  ///< The most tiles of 16 rows at once.
    static constexpr uint32_t buffer_bytes = tiles * 16 * team_inner * 2;
    static constexpr uint32_t scores_bytes = (most_team_pixels + 3) / 4 * 16;  ///< What a block sends of scores.

    static constexpr uint32_t image_at = 0;
    static constexpr uint32_t weights_at = (most_team_pixels * outer_bytes + 1023) / 1024 * 1024;
    static constexpr uint32_t received_at = weights_at + slots * slot_bytes;
    static constexpr uint32_t reduced_at = received_at + (clusters ? 2 : 1) * buffer_bytes;
    static constexpr uint32_t control_at = (reduced_at + (most_team_pixels + 1) * inner_bytes + 127) / 128 * 128;
    static_assert(slots <= most_weight_slots && Blocks * scores_bytes <= buffer_bytes);
};

/** A residual block, with the block's own numbers for each channel. */
template<class Part> struct DescribedBlock {
    TeamBlock block;
    alignas(16) float reduce_bias[Part::inner], middle_bias[Part::inner];
    alignas(16) float expand_bias[Part::outer], scores[Part::outer];
};

/** The pixels of a residual block's mask, and those around that the 3x3 convolution reads. */
struct TeamRows {
    static constexpr uint32_t zero_row = most_team_pixels;  ///< Where the first convolution's results have zeros.
    uint32_t active[most_team_pixels / 32 + 2], needed[most_team_pixels / 32 + 2];  ///< A bit for each pixel, in order.
    uint8_t needed_pixels[most_team_pixels + 28], active_pixels[most_team_pixels + 28];
    uint8_t mapped[most_team_pixels + 28];       ///< The active pixels' places in the map.
    uint8_t map[mapped_extent * mapped_extent];  ///< A pixel's row among the needed ones.
    uint32_t num_needed, num_active;
};

template<class Part> struct TeamControl {
    uint64_t weights_full[most_weight_slots], weights_empty[most_weight_slots];
    uint64_t received[2];
    uint64_t described[2], done[2];  ///< A residual block is described; all have done with it.
    uint64_t listed;                 ///< Its pixels are counted.
    DescribedBlock<Part> described_blocks[2];
    TeamRows rows;
};

template<class Part> constexpr uint32_t team_shared_bytes = Part::control_at + sizeof(TeamControl<Part>);

template<class Part> struct TeamShared {
    uint32_t image, weights, received, reduced;  ///< Shared addresses.
    TeamControl<Part> &control;
};

__device__ inline uint4 load_shared(uint32_t from) {
    uint4 value;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
                 : "r"(from)
                 : "memory");
    return value;
}
__device__ inline void store_shared(uint32_t to, const uint4 &value) {
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(value.x), "r"(value.y), "r"(value.z),
                 "r"(value.w)
                 : "memory");
}
__device__ inline void store_shared(uint32_t to, const uint2 &value) {
    asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(to), "r"(value.x), "r"(value.y) : "memory");
}

/** How often the rows of a mask are gone through, and how many tiles of 16 rows each time has. Every mask is gone
 * through once, if only to use up the weights that have been fetched before anybody knew. */
template<class Part> struct TeamPasses {
    uint32_t all, tiles;

    __device__ explicit TeamPasses(uint32_t rows)
        : all(max((rows + Part::tiles * 16 - 1) / (Part::tiles * 16), 1u)), tiles((rows + 15) / 16) {
    }
    __device__ uint32_t tiles_of(uint32_t pass) const {
        return tiles / all + (pass < tiles % all ? 1 : 0);
    }
};

/** Calls visit(image) for each image of the team. */
template<class Part, class Visit>
__device__ __forceinline__ void for_each_team_image(const TeamProgram &program, Visit &&visit) {
    for (uint32_t image = blockIdx.x / Part::blocks; image < program.images; image += gridDim.x / Part::blocks) {
        visit(image);
    }
}

/** Fetches weights, as one thread. */
template<class Part>
__device__ void fetch_team_weights(const TeamProgram &program, const TeamShared<Part> &shared, uint32_t rank) {
    TeamControl<Part> &control = shared.control;
    uint32_t use = 0, listed = 0;
    const auto fetch = [&](const char *weights, uint32_t units) {
        const char *const own = weights + size_t{rank * Part::shares} * units * team_unit;
        for (uint32_t unit = 0; unit < units; unit++, use++) {
            const uint32_t slot = use % Part::slots, barrier = tc::shared_address(control.weights_full + slot);
            if (use >= Part::slots) {
                tc::wait(tc::shared_address(control.weights_empty + slot), (use / Part::slots - 1) & 1);
            }
            tc::arrive_and_expect(barrier, Part::slot_bytes);
            for (uint32_t share = 0; share < Part::shares; share++) {
                tc::copy_bulk(shared.weights + slot * Part::slot_bytes + share * team_unit,
                              own + (share * units + unit) * team_unit, team_unit, barrier);
            }
        }
    };
    for_each_team_image<Part>(program, [&](uint32_t) {
        for (uint32_t number = 0; number < program.num_blocks; number++) {
            const TeamBlock &block = program.blocks[number];
            fetch(block.reduce.weights, reducing_units);  // Whatever the mask is.
            tc::wait(tc::shared_address(&control.listed), listed++ & 1);
            const TeamPasses<Part> needed(control.rows.num_needed), active(control.rows.num_active);
            for (uint32_t pass = 1; pass < needed.all; pass++) {
                fetch(block.reduce.weights, reducing_units);
            }
            for (uint32_t pass = 0; pass < active.all; pass++) {
                fetch(block.middle.weights, middle_units);
                fetch(block.expand.weights, expanding_units);
            }
        }
    });
}

/** Brings what describes residual blocks, as one warp. */
template<class Part>
__device__ void describe_team_blocks(const TeamProgram &program, const TeamShared<Part> &shared, uint32_t rank) {
    TeamControl<Part> &control = shared.control;
    uint32_t use = 0;
    for_each_team_image<Part>(program, [&](uint32_t) {
        for (uint32_t number = 0; number < program.num_blocks; number++, use++) {
            const TeamBlock &from = program.blocks[number];
            DescribedBlock<Part> &to = control.described_blocks[use % 2];
            if (use >= 2) {
                tc::wait(tc::shared_address(control.done + use % 2), (use / 2 - 1) & 1);
            }
            for (uint32_t word = lane(); word < sizeof(TeamBlock) / sizeof(uint32_t); word += 32) {
                reinterpret_cast<uint32_t *>(&to.block)[word] = reinterpret_cast<const uint32_t *>(&from)[word];
            }
            const auto bring = [&](const float *numbers, uint32_t count, float *to) {
                for (uint32_t i = lane(); i < count; i += 32) {
                    to[i] = numbers ? __ldg(numbers + rank * count + i) : 0;
                }
            };
            bring(from.reduce.bias, Part::inner, to.reduce_bias);
            bring(from.middle.bias, Part::inner, to.middle_bias);
            bring(from.expand.bias, Part::outer, to.expand_bias);
            bring(from.scores, Part::outer, to.scores);
            __syncwarp();
            if (lane() == 0) {
                tc::arrive(tc::shared_address(control.described + use % 2));
            }
        }
    });
}

}  // namespace distile

#endif
