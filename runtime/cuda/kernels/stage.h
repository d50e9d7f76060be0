/** \file
 * Shared by the host and stage.cu: a stage's steps, as one launch runs them.
 */
#ifndef DISTILE_CUDA_KERNELS_STAGE_H
#define DISTILE_CUDA_KERNELS_STAGE_H

#include "runtime/base/activation.h"
#include "runtime/cuda/kernels/common.h"
#include "runtime/stage/limits.h"
#include <distile/stage.h>

namespace distile {

constexpr uint32_t most_stage_steps = 416;   ///< The most steps of a launch.
constexpr uint32_t most_passed_steps = 102;  ///< As many as the arguments of a kernel can hold.
constexpr uint32_t stage_threads = 512;
/** Shared memory of a block on compute capability 9.0; of the code for 8.0 and later, with deep rings where a block may
 * have as much as on 8.0, and with shallow ones on 8.6, 8.9 and 12.0. */
constexpr int32_t stage_shared_bytes = 232448, stage_shared_bytes_deep = 166912, stage_shared_bytes_shallow = 101376;
constexpr uint32_t most_kept_words = DISTILE_STAGE_ATTENTION_WORDS;  ///< The most words of a mask that a block keeps.

/** How many rows of pixels and columns of channels a block computes at once. On 9.0, two warp groups share the
 * reduction in tiles of up to 64 rows; those of 128 have 64 for each. */
#define DISTILE_STAGE_TILES(ROW) ROW(16, 32) ROW(32, 32) ROW(32, 64) ROW(64, 64) ROW(128, 64) ROW(128, 128)

/** An image tensor. Strides are in elements. */
struct StageView {
    char *data;
    int32_t stride_n, stride_h, stride_w;
};

/** One direction of a window. */
struct StageWindow {
    int16_t kernel, stride, dilation, pad;
};

/** The pixels that a step computes: all, those of a mask, or those that the reader's windows read. */
struct StageRows {
    const uint32_t *words;  ///< Null: every pixel.
    /** What a step writes that counts: the words of the pixels that the reader's windows read, and then how many pixels
     * each chunk has of the mask, and each of these words. */
    uint32_t *counted;
    uint32_t height, width, words_per_row;  ///< The extents of the mask.
    StageWindow down, across;               ///< The reader's window.
    uint8_t grown;                          ///< There is a reader.
    uint8_t fits;  ///< The words of the mask and those of the output have room in shared memory.
};

enum class StageWork : uint8_t {
    Convolve,
    Channels,   ///< Takes each channel by itself.
    Normalize,  ///< Normalizes each pixel's channels.
    Attend,
    Score,   ///< Makes a mask from the scores of pixels, or with totals, of those that go on.
    Count,   ///< Counts the pixels of a mask that no block can keep, and finds those that the reader reads.
    Prepare  ///< Every block counts the pixels of a mask, and those that the reader reads, for the steps that follow.
};

/** What a step that takes each channel by itself makes of the pixels of a window. */
enum class WindowWork : uint8_t {
    Weigh,
    Largest,
    Mean,
    Repeat  ///< The window's strides are factors by which the image grows.
};

struct StageStep {
    StageView input, output, residual;  ///< The residual of attention is the key.
    const char *weights;                ///< The value of attention, with the strides of the key; the limits of totals.
    const float *bias;  ///< Null: 0. The factors of scores. What requantizes the sums of quantized steps.
    StageRows rows;
    /** Pixels of this mask keep their sums without activation. Null: none. With totals: pixels that may go on. Null:
     * all. */
    const uint32_t *later;
    uint32_t *made;                        ///< The words of a mask from scores.
    float *totals;                         ///< What scores add up to. Null: scores make a mask without them.
    MaskBytes mirror;                      ///< Where the mask also goes, byte by byte, if its bytes are not null.
    Divisor height, words_per_row, width;  ///< The output's.
    Divisor row_bytes;                     ///< The bytes of a row of a mask from scores.
    StageWindow down, across;
    Divisor channel_steps;  ///< Steps of the reduction in a pixel of a window.
    Divisor kernel_w;
    uint32_t reduction;        ///< Steps of the reduction that are not 0. With totals: columns of the output.
    uint32_t batch, channels;  ///< The output's; the input's channels for scores.
    Activation activation;
    float score_bias, threshold;
    float number;  ///< The epsilon of a norm, or the scale of attention with log2(e) in it.
    uint16_t heads, head_channels;
    StageWork work;
    uint8_t starts_level;  ///< Waits for all steps before.
    /** The pieces of 16 bytes that the last step of the reduction in a pixel has beyond the input's. */
    uint8_t missing;
    WindowWork window_work;
    uint8_t is_centred;  ///< A norm subtracts the mean.
    uint8_t all_keys;    ///< Pixels attend to every pixel of their image.
    /** The output and the residual of a quantized step are of float32. */
    uint8_t stores_floats;
};

/** What a tile costs, in clocks: its start, and in each step of its reduction each row and each column. */
struct StageCosts {
    float start, row, column;
};

/** What steps cost that take each channel by itself: an item, each pixel of a thread, and each tap of that. */
struct ChannelCosts {
    float start, pixel, tap;
};

/** What blocks of query rows cost: their start, and for each 64 keys their copies and each row. */
struct AttentionCosts {
    float start, step, row;
};

/** When an item of a block came to each point, in nanoseconds of the GPU's clock, and the number of its step. */
struct StageItemTimes {
    uint32_t step;
    uint32_t listed;      ///< Its pixels are known.
    uint32_t open;        ///< What it reads is there.
    uint32_t begun;       ///< Its first pixels and weights are there.
    uint32_t multiplied;  ///< Its products are done.
    uint32_t stored;      ///< Its result is stored.
    uint32_t told;        ///< Other blocks can know.
    uint32_t is_set;
};

/** What is the same for all steps. */
struct StageSettings {
    StageItemTimes *times;  ///< Room for each block's items, for a trace. Null: nobody wants them.
    uint32_t timed_items;   ///< How many items of a block have room.
    uint32_t num_steps;
    uint32_t tiles;  ///< The tiles that may be used, a bit each.
    Divisor blocks;  ///< The blocks of the launch.
    StageCosts costs;
    ChannelCosts channel_costs;
    AttentionCosts attention_costs;
};

/** Numbers of items: of images in the low half, of masks in the high half. */
using StageItems = uint64_t;
constexpr StageItems one_item_of_masks = StageItems{1} << 32;

/** Some steps as the host gives them, which a small kernel copies to memory: blocks that read arguments of a kernel
 * wait for each line of them, and arguments have room for few. */
struct StageProgram {
    StageStep steps[most_passed_steps];
    uint32_t first, num_steps;
};
static_assert(sizeof(StageProgram) <= 32764, "arguments of a kernel have no more bytes");
static_assert(sizeof(StageStep) % sizeof(uint32_t) == 0, "steps are copied in words");

/** What a launch keeps in memory. */
struct StageMemory {
    StageStep steps[most_stage_steps];
    uint64_t done;   ///< Counts the items that are done (StageItems); 0 at first.
    uint32_t began;  ///< When the launch began, in nanoseconds of the GPU's clock.
};

}  // namespace distile

#endif
