#include "schedules/tensor_core_space.h"
#include "schedules/attention_space.h"
#include "schedules/multiprocessor.h"
#include "schedules/tile_knobs.h"
#include <algorithm>

namespace distile {

namespace {

bool is_quantized(const OperatorFacts &op) {
    return op.bytes_per_element == 1;
}

/** Shared memory that leaves no room for a second block on a multiprocessor of 9.0. Blocks of a cluster take it: else
 * two would share a multiprocessor while others are idle. */
constexpr int64_t lone_bytes = 116 << 10;

template<TensorCores cores, bool quantized> std::string describe_tensor_core(const Theta &theta) {
    const int64_t blocks = tensor_core_block(cores, theta, quantized).per_multiprocessor;
    return "tiles of " + extents_of(theta, "tile_h", "tile_w") + "; tensor cores, blocks of " +
           count_of(theta, "block_pixels", "pixel") + " x " + count_of(theta, "block_channels", "channel") + ", " +
           count_of(theta, "stages", "stage") + "; reduction in " + count_of(theta, "splits", "part") +
           (value_of(theta, "balanced") != 0 ? "; balanced; " : "; ") + std::to_string(blocks) + " block" +
           (blocks == 1 ? "" : "s") + " a multiprocessor";
}

/** Steps of the reduction, of 128 bytes of each channel. */
int64_t reduction_steps(const Problem &problem) {
    const int64_t elements = int64_t{problem.kernel_h} * problem.kernel_w * group_panels(problem).inputs;
    return (elements * problem.bytes_per_element + 127) / 128;
}

template<bool quantized> Space make_space(TensorCores cores) {
    const bool sm90 = cores == TensorCores::Sm90;
    using Values = std::vector<int>;
    const int64_t most_bytes = all_shared_bytes(cores) - reserved_bytes;
    Space space{
        {
            tile_height(),
            tile_width(),
            {"block_pixels", "output pixels per block", sm90 ? Values{64, 128, 256} : Values{32, 64, 128}},
            {"block_channels", "output channels per block",
             sm90 ? Values{32, 64, 96, 128, 192, 256} : Values{32, 64, 128}},
            {"stages", "steps of the reduction in flight", {2, 3, 4, 5, 6, 7, 8}},
            {"splits", "blocks that share every reduction, as a cluster", sm90 ? Values{1, 2, 4, 8} : Values{1}},
            {"balanced", "1: blocks share the reductions of the last items", sm90 ? Values{0, 1} : Values{0}},
        },
        {
            tile_of_at_most_4096_pixels(),
            {"block_channels that leave no block beyond the channels",
             [](const Theta &theta, const Problem &problem) {
                 return theta.at("block_channels") <= round_up(group_panels(problem).outputs, 32);
             },
             {"block_channels"}},
            {"splits that leave each block as many steps of the reduction as it has stages",
             [](const Theta &theta, const Problem &problem) {
                 return theta.at("splits") == 1 || reduction_steps(problem) / theta.at("splits") >= theta.at("stages");
             },
             {"splits", "stages"}},
            {"splits of reductions or a balance, not both",
             [](const Theta &theta, const Problem &) { return theta.at("splits") == 1 || theta.at("balanced") == 0; },
             {"splits", "balanced"}},
            {"block_pixels of at most 128 with splits, and with more than 128 block_channels",
             [](const Theta &theta, const Problem &) {
                 return theta.at("block_pixels") <= 128 ||
                        (theta.at("splits") == 1 && theta.at("block_channels") <= 128);
             },
             {"block_pixels", "block_channels", "splits"}},
            {"stages that hold the sums of a block with splits",
             [](const Theta &theta, const Problem &) {
                 return theta.at("splits") == 1 ||
                        int64_t{theta.at("block_pixels")} * (theta.at("block_channels") + 8) * 4 <=
                            int64_t{theta.at("stages")} * (theta.at("block_pixels") + theta.at("block_channels")) * 128;
             },
             {"block_pixels", "block_channels", "stages", "splits"}},
            {"block_channels of at least 64 if block_pixels are 32",
             [](const Theta &theta, const Problem &) {
                 return theta.at("block_pixels") != 32 || theta.at("block_channels") >= 64;
             },
             {"block_pixels", "block_channels"}},
            {"stages that fit " + std::to_string(most_bytes >> 10) + " KB of shared memory",
             [cores, most_bytes](const Theta &theta, const Problem &) {
                 return tensor_core_block(cores, theta, quantized).shared_bytes <= most_bytes;
             },
             {"block_pixels", "block_channels", "stages", "splits"}},
        },
        sm90 ? describe_tensor_core<TensorCores::Sm90, quantized> : describe_tensor_core<TensorCores::Sm80, quantized>,
        {}};
    for (const Knob &knob : space.knobs) {
        if (knob.name.rfind("tile_", 0) != 0) {
            space.constraints.insert(space.constraints.begin(), one_of(knob));
        }
    }
    return space;
}

}  // namespace

GroupPanels group_panels(const OperatorFacts &op) {
    return {op.groups, op.in_channels, op.out_channels / op.groups, is_quantized(op)};
}

int64_t channel_blocks(const OperatorFacts &op, int block_channels) {
    const GroupPanels panels = group_panels(op);
    const int channels = std::max(block_channels, 1);
    return int64_t{panels.count} * (round_up(panels.outputs, channels) / channels);
}

bool runs_on_tensor_cores(const OperatorFacts &op) {
    return !op.depthwise && group_panels(op).fit && op.phases() == 1 && op.kernel_h <= 16 && op.kernel_w <= 16;
}

bool has_boxes(TensorCores cores, const Theta &theta, const OperatorFacts &op) {
    constexpr int most_extent = 16, most_stride = 8, fewest_pixels = 16;
    const int tile_h = value_of(theta, "tile_h"), tile_w = value_of(theta, "tile_w"), pixels = tile_h * tile_w;
    // Boxes have zeros beyond the input, not zero points.
    return cores == TensorCores::Sm90 && !is_quantized(op) && tile_h <= most_extent && tile_w <= most_extent &&
           pixels >= fewest_pixels && pixels % 8 == 0 && value_of(theta, "block_pixels") % pixels == 0 &&
           op.stride_h <= most_stride && op.stride_w <= most_stride &&
           group_panels(op).inputs * op.bytes_per_element % 128 == 0;
}

const Space &tensor_core_space(TensorCores cores, bool quantized) {
    static const Space sm80 = make_space<false>(TensorCores::Sm80), sm90 = make_space<false>(TensorCores::Sm90),
                       quantized_sm80 = make_space<true>(TensorCores::Sm80),
                       quantized_sm90 = make_space<true>(TensorCores::Sm90);
    if (quantized) {
        return cores == TensorCores::Sm90 ? quantized_sm90 : quantized_sm80;
    }
    return cores == TensorCores::Sm90 ? sm90 : sm80;
}

const Space &tensor_core_space(TensorCores cores, const OperatorFacts &op) {
    return op.product != TokenProduct::None ? attention_space(cores) : tensor_core_space(cores, is_quantized(op));
}

TensorCoreBlock tensor_core_block(TensorCores cores, const Theta &theta, bool quantized) {
    const int64_t pixels = value_of(theta, "block_pixels"), channels = value_of(theta, "block_channels"),
                  stages = value_of(theta, "stages"), splits = value_of(theta, "splits");
    TensorCoreBlock block{};
    // Stages of 128 bytes a row, and what lists the pixels of a small mask.
    block.shared_bytes = stages * (pixels + channels) * 128 + 8320;
    if (cores == TensorCores::Sm90) {
        // Alignment, barriers, sources of rows, the bias, or three numbers of each channel, for each 64 rows or more,
        // and the sums and the places of rows that the blocks of a cluster exchange.
        block.shared_bytes += 1024 + 16 * stages + 16 * pixels + 8;
        block.shared_bytes += 8 * channels * (quantized ? 3 : 1) * (pixels >= 128 ? 2 : 1);
        if (splits > 1) {
            block.shared_bytes += (splits - 1) * (pixels / splits) * (channels + 8) * 4 + 16 + 8 * pixels;
            block.shared_bytes = std::max(block.shared_bytes, lone_bytes);
        }
        // Four warps copy, and four or eight multiply.
        block.threads = pixels == 64 && channels <= 128 ? 256 : 384;
    } else {
        block.threads = pixels == 128 ? 256 : 128;
    }
    const bool two_fit = 2 * (block.shared_bytes + reserved_bytes) <= all_shared_bytes(cores);
    block.per_multiprocessor = cores == TensorCores::Sm90 && pixels == 64 && channels <= 128 && two_fit ? 2 : 1;
    return block;
}

}  // namespace distile
