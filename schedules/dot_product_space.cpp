#include "dot_product_space.h"
#include <cstdint>

namespace distile {

namespace {

constexpr int vector_channels = 16;

/** The pixels whose sums fit the 32 vector registers beside the weights and a pixel's pair, as avx512_bf16.cpp has
 * them. */
int most_pixels(int vectors) {
    return vectors <= 2 ? 14 : vectors == 3 ? 9 : 6;
}

std::string describe(const Theta &theta) {
    return "tiles of " + extents_of(theta, "tile_h", "tile_w") + "; dot products, blocks of " +
           count_of(theta, "pixels", "pixel") + " x " + count_of(theta, "channels", "channel") + "; " +
           std::to_string(value_of(theta, "staged")) + " of them staged a task; output channels in " +
           count_of(theta, "channel_splits", "part");
}

Space make_space(DotProducts instructions) {
    const bool tiles = instructions == DotProducts::AmxBf16;
    using Values = std::vector<int>;
    Space space{
        {
            {"tile_h", "height of a tile in output pixels", {1, 2, 4, 8}},
            {"tile_w", "width of a tile in output pixels", {1, 2, 4, 8, 16}},
            {"pixels", "output pixels in a block",
             tiles ? Values{16, 32} : Values{4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14}},
            {"channels", "output channels in a block", tiles ? Values{16, 32} : Values{16, 32, 48, 64}},
            {"staged", "blocks that a task stages at a time", {1, 2, 4, 6, 8, 12, 16, 24, 32}},
            {"channel_splits", "parts into which the output channels are split for the threads", {1, 2, 4, 8, 16}},
        },
        {
            {"channels that are whole vectors of 16 and no more than 64, or 32 for AMX",
             [tiles](const Theta &theta, const Problem &) {
                 return theta.at("channels") % vector_channels == 0 && theta.at("channels") <= (tiles ? 32 : 64);
             },
             {"channels"}},
            {"channels that leave no block beyond the output channels",
             [](const Theta &theta, const Problem &problem) {
                 return theta.at("channels") <= round_up(problem.out_channels, vector_channels);
             },
             {"channels"}},
            {"at most 512 staged blocks",
             [](const Theta &theta, const Problem &) { return theta.at("staged") <= 512; },
             {"staged"}},
            {"tiles of at most 4096 pixels",
             [](const Theta &theta, const Problem &) {
                 return int64_t{theta.at("tile_h")} * theta.at("tile_w") <= 4096;
             },
             {"tile_h", "tile_w"}},
        },
        describe,
        {}};
    if (tiles) {
        space.constraints.push_back(
            {"pixels of one tile of 16 rows or of two",
             [](const Theta &theta, const Problem &) { return theta.at("pixels") == 16 || theta.at("pixels") == 32; },
             {"pixels"}});
    } else {
        space.constraints.push_back({"pixels times channels that fit the vector registers",
                                     [](const Theta &theta, const Problem &) {
                                         return theta.at("pixels") <=
                                                most_pixels(theta.at("channels") / vector_channels);
                                     },
                                     {"pixels", "channels"}});
    }
    return space;
}

}  // namespace

bool runs_on_dot_products(const OperatorFacts &op) {
    return !op.depthwise && op.groups == 1 && op.product == TokenProduct::None;
}

const Space &dot_product_space(DotProducts instructions) {
    static const Space avx512 = make_space(DotProducts::Avx512Bf16), amx = make_space(DotProducts::AmxBf16);
    return instructions == DotProducts::AmxBf16 ? amx : avx512;
}

}  // namespace distile
