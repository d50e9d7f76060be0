#include "schedules/dot_product_space.h"
#include "schedules/tile_knobs.h"
#include <cstdint>
#include <map>

namespace distile {

namespace {

constexpr int vector_channels = 16;

/** The blocks of an instruction set. */
struct Blocks {
    bool tiles;         /**< Sums are held in tiles of 16 pixels, up to two. */
    int most_channels;  /**< The most channels of a block. */
    int most_pixels[4]; /**< With 1, 2, 3 and 4 vectors of channels, so that the sums fit the registers. */
    std::vector<int> pixels, channels; /**< What a search tries. */
    bool on_gpu = false;               /**< There is code for these values alone. */
};

Blocks blocks_of(DotProducts instructions) {
    switch (instructions) {
    case DotProducts::AmxBf16:
    case DotProducts::AmxFp16:
    case DotProducts::AmxSplitFp16:
    case DotProducts::AmxInt8:
        return {true, 32, {32, 32, 0, 0}, {16, 32}, {16, 32}};
    case DotProducts::Avx512Bf16:
    case DotProducts::Avx512Vnni:
        return {false, 64, {14, 14, 9, 6}, {4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14}, {16, 32, 48, 64}};
    case DotProducts::AvxVnni:
        return {false, 64, {6, 2, 1, 1}, {1, 2, 3, 4, 5, 6}, {16, 32}};
    case DotProducts::Dp4a:
        return {false, 64, {}, {32, 128}, {16, 64}, true};
    case DotProducts::Avx2Int8:
    case DotProducts::PortableInt8:
        break;
    }
    return {false, 64, {4, 2, 1, 1}, {1, 2, 3, 4}, {16, 32}};
}

std::string describe_dot_product(const Theta &theta) {
    return "tiles of " + extents_of(theta, "tile_h", "tile_w") + "; dot products, blocks of " +
           count_of(theta, "pixels", "pixel") + " x " + count_of(theta, "channels", "channel") + "; " +
           std::to_string(value_of(theta, "staged")) + " of them staged a task; output channels in " +
           count_of(theta, "channel_splits", "part");
}

Space make_space(DotProducts instructions) {
    const Blocks blocks = blocks_of(instructions);
    const auto of_tasks = [&](const std::vector<int> &values) { return blocks.on_gpu ? std::vector<int>{1} : values; };
    Space space{{
                    {"tile_h", "height of a tile in output pixels", {1, 2, 4, 8}},
                    {"tile_w", "width of a tile in output pixels", {1, 2, 4, 8, 16}},
                    {"pixels", "output pixels in a block", blocks.pixels},
                    {"channels", "output channels in a block", blocks.channels},
                    {"staged", "blocks that a task stages at a time", of_tasks({1, 2, 4, 6, 8, 12, 16, 24, 32})},
                    {"channel_splits", "least parts into which the output channels are split for the threads",
                     of_tasks({1, 2, 4, 8, 16})},
                },
                {
                    {"channels that are whole vectors of 16 and no more than 64, or 32 for AMX",
                     [blocks](const Theta &theta, const Problem &) {
                         const int channels = theta.at("channels");
                         return channels > 0 && channels % vector_channels == 0 && channels <= blocks.most_channels;
                     },
                     {"channels"}},
                    {"channels that leave no block beyond the output channels, or those of a group",
                     [](const Theta &theta, const Problem &problem) {
                         return theta.at("channels") <= channel_sections(problem).padded_outputs();
                     },
                     {"channels"}},
                    {"at most 512 staged blocks",
                     [](const Theta &theta, const Problem &) { return theta.at("staged") <= 512; },
                     {"staged"}},
                    tile_of_at_most_4096_pixels(),
                },
                describe_dot_product,
                {}};
    if (blocks.on_gpu) {
        space.constraints.push_back({"blocks of 32 or 128 pixels and 16 or 64 channels, one staged, in one part",
                                     [](const Theta &theta, const Problem &) {
                                         const int pixels = theta.at("pixels"), channels = theta.at("channels");
                                         return (pixels == 32 || pixels == 128) && (channels == 16 || channels == 64) &&
                                                theta.at("staged") == 1 && theta.at("channel_splits") == 1;
                                     },
                                     {"pixels", "channels", "staged", "channel_splits"}});
        space.distinct.push_back({"the smallest blocks of a depthwise convolution, whose threads have no blocks",
                                  [](const Theta &theta, const Problem &problem) {
                                      return !is_depthwise_product(problem) ||
                                             (theta.at("pixels") == 32 && theta.at("channels") == 16);
                                  },
                                  {"pixels", "channels"}});
    } else if (blocks.tiles) {
        space.constraints.push_back(
            {"pixels of one tile of 16 rows or of two",
             [](const Theta &theta, const Problem &) { return theta.at("pixels") == 16 || theta.at("pixels") == 32; },
             {"pixels"}});
    } else {
        space.constraints.push_back({"pixels times channels that fit the vector registers",
                                     [blocks](const Theta &theta, const Problem &) {
                                         const int vectors = theta.at("channels") / vector_channels;
                                         return vectors >= 1 && vectors <= 4 &&
                                                theta.at("pixels") <= blocks.most_pixels[vectors - 1];
                                     },
                                     {"pixels", "channels"}});
    }
    return space;
}

}  // namespace

bool runs_on_dot_products(const OperatorFacts &op) {
    constexpr int few_channels = 8;
    return op.product == TokenProduct::None &&
           (op.groups == 1 || op.in_channels >= few_channels || channel_sections(op).apart() > 1);
}

bool is_depthwise_product(const OperatorFacts &op) {
    return channel_sections(op).is_depthwise();
}

bool needs_vectors(const OperatorFacts &op) {
    return is_depthwise_product(op) || (op.bytes_per_element > 1 && channel_sections(op).apart() > 1);
}

const Space &dot_product_space(DotProducts instructions) {
    static const std::map<DotProducts, Space> spaces = [] {
        std::map<DotProducts, Space> made;
        for (const DotProducts each :
             {DotProducts::Avx512Bf16, DotProducts::AmxBf16, DotProducts::AmxFp16, DotProducts::AmxSplitFp16,
              DotProducts::Avx512Vnni, DotProducts::AmxInt8, DotProducts::AvxVnni, DotProducts::Avx2Int8,
              DotProducts::PortableInt8, DotProducts::Dp4a}) {
            made.emplace(each, make_space(each));
        }
        return made;
    }();
    return spaces.at(instructions);
}

}  // namespace distile
