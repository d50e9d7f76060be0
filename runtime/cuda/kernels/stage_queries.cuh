/** \file
 * Which rows of a step with attention are queries of a block, and which pixels they attend to: those of their image.
 */
#ifndef DISTILE_CUDA_KERNELS_STAGE_QUERIES_CUH
#define DISTILE_CUDA_KERNELS_STAGE_QUERIES_CUH

#include "runtime/cuda/kernels/stage_block.cuh"
#include "runtime/cuda/kernels/stage_pieces.cuh"

namespace distile {

constexpr uint32_t keys_at_once = 64;  ///< A slot of pixels has as many keys or values, of a step's channels.
constexpr uint32_t least_query_rows = 32, most_query_rows = 128;

/** The slots of a head, of a step's channels each. */
template<class Element> __device__ uint32_t head_slots(const StageStep &step) {
    return (step.head_channels + step_channels<Element> - 1) / step_channels<Element>;
}
/** The slots of a block's queries, for 64 rows each. */
inline __device__ uint32_t query_slots(uint32_t rows) {
    return rows > 64 ? rows / 64 : 1;
}

/** Some rows of an image, behind those before them. */
struct QueryBlock {
    uint32_t image, first, count;  ///< The first is counted within the image.
    uint32_t rows, before;         ///< Rows of the whole image, and of those before it.
};

/** The rows of images, whose blocks have rows of one image each. Called by whole warps. */
class ImageRows {
public:
    __device__ ImageRows(const StageStep &step, const KeptRows &kept)
        : step_(step), kept_(kept), words_of_image_(step.height.value * step.words_per_row.value),
          pixels_of_image_(step.height.value * step.width.value) {
    }

    /** The blocks of all images. */
    __device__ uint32_t count_blocks(uint32_t block_rows) const {
        uint32_t blocks = 0;
        for (uint32_t image = lane(); image < step_.batch; image += 32) {
            blocks += blocks_of(before(image + 1) - before(image), block_rows);
        }
        return warp_sum(blocks);
    }

    __device__ QueryBlock find_block(uint32_t number, uint32_t block_rows) const {
        uint32_t seen = 0;
#pragma unroll 1
        for (uint32_t begin = 0;; begin += 32) {
            const uint32_t image = begin + lane();
            const uint32_t start = image < step_.batch ? before(image) : 0;
            const uint32_t rows = image < step_.batch ? before(image + 1) - start : 0;
            const uint32_t to_here = sum_to_lane(blocks_of(rows, block_rows));
            const uint32_t all = __shfl_sync(all_lanes, to_here, 31);
            if (number < seen + all) {
                const uint32_t owner = __ffs(__ballot_sync(all_lanes, number < seen + to_here)) - 1;
                const uint32_t rows_there = __shfl_sync(all_lanes, rows, owner);
                const uint32_t blocks_there = blocks_of(rows_there, block_rows);
                const uint32_t first =
                    (number - (seen + __shfl_sync(all_lanes, to_here, owner) - blocks_there)) * block_rows;
                return {begin + owner, first, min(block_rows, rows_there - first), rows_there,
                        __shfl_sync(all_lanes, start, owner)};
            }
            seen += all;
        }
    }

    __device__ uint32_t count_keys(const QueryBlock &block) const {
        return step_.all_keys != 0 ? pixels_of_image_ : block.rows;
    }

    /** The pixel of a row of a block's image. */
    __device__ StagePixel query(const QueryBlock &block, uint32_t row) const {
        if (!step_.rows.words) {
            return dense_pixel(step_, block.image * pixels_of_image_ + row);
        }
        const uint32_t first = block.image * words_of_image_;
        return MaskedRows(step_, kept_).find(block.before + row, first, first + words_of_image_);
    }
    /** The pixel of a key of a block. */
    __device__ StagePixel key(const QueryBlock &block, uint32_t number) const {
        return step_.all_keys != 0 ? dense_pixel(step_, block.image * pixels_of_image_ + number) : query(block, number);
    }

private:
    /** The rows of the images before one. */
    __device__ uint32_t before(uint32_t image) const {
        return step_.rows.words ? MaskedRows(step_, kept_).before(image * words_of_image_) : image * pixels_of_image_;
    }
    __device__ static uint32_t blocks_of(uint32_t rows, uint32_t block_rows) {
        return (rows + block_rows - 1) >> (__ffs(block_rows) - 1);
    }

    const StageStep &step_;
    const KeptRows &kept_;
    const uint32_t words_of_image_, pixels_of_image_;
};

/** The rows of blocks of queries that should take least time. */
template<class Element> __device__ uint32_t choose_query_rows(const StageSettings &settings, const StageStep &step,
                                                              const ImageRows &rows, uint32_t all_rows) {
    const AttentionCosts &costs = settings.attention_costs;
    const uint32_t keys = step.all_keys != 0 ? step.height.value * step.width.value : all_rows / step.batch;
    const uint32_t steps = (keys + keys_at_once - 1) / keys_at_once * head_slots<Element>(step);
    uint32_t best = least_query_rows;
    float least = 3e38f;
#pragma unroll 1
    for (uint32_t of_block = least_query_rows; of_block <= most_query_rows; of_block *= 2) {
        const uint32_t items = rows.count_blocks(of_block) * step.heads;
        const uint32_t waves = divide(items + settings.blocks.value - 1, settings.blocks);
        const float clocks = waves * (costs.start + steps * (costs.step + costs.row * of_block));
        if (clocks < least) {
            least = clocks;
            best = of_block;
        }
    }
    return best;
}

}  // namespace distile

#endif
