// The parts of images that several devices compute: orders of cells, cuts, and what a chain of layers exchanges.
#include "masks/mask_families.h"
#include "runtime/group/chain_plan.h"
#include "tests/support/catch.h"
#include <algorithm>
#include <array>
#include <cstdlib>
#include <set>
#include <string>

using namespace distile;

namespace {

BitImage packed_bits(const ByteMask &mask) {
    BitImage bits({mask.batch, mask.height, mask.width});
    pack_bitmask(mask.bytes.data(), int64_t{mask.height} * mask.width, mask.width, mask.batch, mask.height, mask.width,
                 bits.words.data());
    return bits;
}

bool has_bit(const BitImage &image, int32_t n, int32_t y, int32_t x) {
    return count_bits(image.row(n, y), x, x + 1) == 1;
}

PlannedLayer planned(const Axis &axis, double work = 1) {
    PlannedLayer layer{};
    layer.rows = layer.columns = axis;
    layer.residual = -1;
    layer.work = work;
    layer.pixel_bytes = 64;
    return layer;
}

/** Three 3x3 convolutions whose outputs have one mask. */
const std::vector<PlannedLayer> &three_layers() {
    static const std::vector<PlannedLayer> layers(3, planned({3, 1, 1, 1, 1}));
    return layers;
}

double imbalance_now(const Partition &partition, const std::vector<CostedMask> &costs, const MaskShape &shape,
                     const std::vector<DeviceTime> &devices) {
    return imbalance_of(partition, count_cells_of(partition, costs, shape), devices);
}

/** Checks a plan pixel by pixel: who computes a pixel, and where each that a window reads comes from. */
void check_plan(const std::vector<PlannedLayer> &layers, const std::vector<const BitImage *> &masks,
                const ChainPlan &plan) {
    for (size_t i = 0; i < layers.size(); i++) {
        const MaskShape &shape = plan.shapes[i + 1], &before = plan.shapes[i];
        // The pixels of this layer's input that each part has.
        std::vector<std::set<std::array<int32_t, 3>>> has(plan.parts.size());
        BitImage computed(shape);
        for (size_t number = 0; number < plan.parts.size(); number++) {
            const Part &part = plan.parts[number];
            if (part.is_empty) {
                continue;
            }
            const auto add = [&](const auto &spans, const BitImage *owner, const PixelBox *box) {
                for (const Span &span : spans) {
                    for (int32_t x = span.first; x < span.last; x++) {
                        has[number].insert({span.image, span.y, x});
                        REQUIRE((!owner || has_bit(*owner, span.image - box->image, span.y - box->y, x - box->x)));
                    }
                }
            };
            if (i == 0) {
                add(part.input, nullptr, nullptr);
            } else {
                const PixelBox &box = part.boxes[i];
                const BitImage &own = part.layers[i - 1].own;
                for (int32_t n = 0; n < own.shape.batch; n++) {
                    for (int32_t y = 0; y < own.shape.height; y++) {
                        for_each_run(own.row(n, y), own.shape.width, [&](int32_t first, int32_t last) {
                            add(std::vector<Span>{{box.image + n, box.y + y, box.x + first, box.x + last}}, nullptr,
                                nullptr);
                        });
                    }
                }
                for (const Fetch &fetch : part.fetches[i - 1]) {
                    const Part &owner = plan.parts[static_cast<size_t>(fetch.from)];
                    CHECK(part.neighbours[static_cast<size_t>(fetch.from)]);
                    CHECK(owner.neighbours[number]);
                    add(fetch.spans, &owner.layers[i - 1].rim, &owner.boxes[i]);
                }
            }
        }
        for (size_t number = 0; number < plan.parts.size(); number++) {
            const Part &part = plan.parts[number];
            if (part.is_empty) {
                continue;
            }
            const PixelBox &box = part.boxes[i + 1], &input = part.boxes[i];
            const PartOutput &output = part.layers[i];
            REQUIRE(box.y + box.shape.height <= shape.height);
            REQUIRE(box.x + box.shape.width <= shape.width);
            REQUIRE(box.shape.height == conv_output_extent(layers[i].rows, input.shape.height));
            REQUIRE(box.shape.width == conv_output_extent(layers[i].columns, input.shape.width));
            CHECK(output.own.count() == output.pixels);
            CHECK(output.rim.count() + output.interior.count() == output.pixels);
            for (int32_t n = 0; n < box.shape.batch; n++) {
                for (int32_t y = 0; y < box.shape.height; y++) {
                    for (int32_t x = 0; x < box.shape.width; x++) {
                        if (!has_bit(output.own, n, y, x)) {
                            continue;
                        }
                        const int32_t image = box.image + n, row = box.y + y, column = box.x + x;
                        REQUIRE(!has_bit(computed, image, row, column));
                        computed.set(image, row, column, column + 1);
                        const Axis &rows = layers[i].rows, &columns = layers[i].columns;
                        for (int32_t k = 0; k < rows.kernel * columns.kernel; k++) {
                            const int32_t in_y =
                                row * rows.stride - rows.pad_before + k / columns.kernel * rows.dilation;
                            const int32_t in_x =
                                column * columns.stride - columns.pad_before + k % columns.kernel * columns.dilation;
                            const bool inside = in_y >= 0 && in_x >= 0 && in_y < before.height && in_x < before.width;
                            // The box must treat it as the whole image does.
                            const int32_t box_y = in_y - input.y, box_x = in_x - input.x;
                            const bool in_box =
                                box_y >= 0 && box_x >= 0 && box_y < input.shape.height && box_x < input.shape.width;
                            REQUIRE(inside == in_box);
                            if (inside && (i == 0 || has_bit(*masks[i - 1], image, in_y, in_x))) {
                                REQUIRE(has[number].count({image, in_y, in_x}) == 1);
                            }
                        }
                    }
                }
            }
        }
        CHECK(computed.words == masks[i]->words);
    }
}

}  // namespace

TEST_CASE("Orders of cells visit each cell of a grid once", "[partition]") {
    for (int32_t height = 1; height <= 20; height++) {
        for (int32_t width = 1; width <= 20; width++) {
            for (const CellOrder order : {CellOrder::RowMajor, CellOrder::Morton, CellOrder::Hilbert}) {
                INFO(height << " x " << width << ", order " << static_cast<int>(order));
                std::vector<int32_t> cells = order_cells(order, height, width);
                int32_t longest = 0, diagonal = 0;
                for (size_t i = 1; i < cells.size(); i++) {
                    const int32_t dy = std::abs(cells[i] / width - cells[i - 1] / width),
                                  dx = std::abs(cells[i] % width - cells[i - 1] % width);
                    longest = std::max({longest, dy, dx});
                    diagonal += dy + dx > 1 ? 1 : 0;
                }
                if (order == CellOrder::Hilbert) {
                    CHECK(longest <= 1);
                    CHECK(diagonal <= (height % 2 == 0 && width % 2 == 0 ? 0 : 1));
                }
                std::sort(cells.begin(), cells.end());
                REQUIRE(cells.size() == static_cast<size_t>(height) * static_cast<size_t>(width));
                for (size_t i = 0; i < cells.size(); i++) {
                    REQUIRE(cells[i] == static_cast<int32_t>(i));
                }
            }
        }
    }
    CHECK(order_cells(CellOrder::Morton, 2, 4) == std::vector<int32_t>{0, 1, 4, 5, 2, 3, 6, 7});
    CHECK(order_cells(CellOrder::Hilbert, 2, 2) == std::vector<int32_t>{0, 2, 3, 1});
}

TEST_CASE("The ideal time of unequal devices", "[partition]") {
    CHECK(ideal_time(0, {{1, 1}}) == 0);
    CHECK(ideal_time(12, {{0, 1}, {0, 1}, {0, 1}}) == Approx(4));
    // Devices of rates 1 and 2.
    CHECK(ideal_time(12, {{0, 1}, {0, .5}}) == Approx(4));
    // One that takes longer to begin than the others take for all.
    CHECK(ideal_time(12, {{0, 1}, {100, 1}, {0, 1}}) == Approx(6));
    CHECK(ideal_time(12, {{1, 1}, {3, 1}}) == Approx(8));
}

TEST_CASE("Parts balance, and exchange no more than bands of rows", "[partition]") {
    std::vector<std::pair<std::string, ByteMask>> cases;
    for (const std::string &name : real_masks()) {
        const ByteMask mask = read_real_mask(name);
        for (const int32_t size : {256, 1024}) {
            cases.emplace_back(name, scale_mask(mask, size, mask.width > mask.height ? 2 * size : size));
        }
    }
    for (const int32_t size : {256, 512}) {
        for (const char *family : {"blob", "random"}) {
            for (const double density : {.02, .1, .3, .9, 1.0}) {
                cases.emplace_back(family + std::to_string(density), draw_mask(family, 1, size, size, density, 7));
            }
        }
    }
    cases.emplace_back("large", scale_mask(draw_mask("blob", 1, 512, 512, .3, 8), 4096, 4096));
    cases.emplace_back("all", draw_mask("random", 1, 4096, 4096, 1, 8));
    // Images of one batch with unequal masks.
    ByteMask batch;
    batch.batch = 16;
    batch.height = batch.width = 96;
    for (int32_t i = 0; i < 16; i++) {
        const ByteMask one = draw_mask("blob", 1, 96, 96, .02 + .055 * i, 9 + static_cast<uint64_t>(i));
        batch.bytes.insert(batch.bytes.end(), one.bytes.begin(), one.bytes.end());
    }
    cases.emplace_back("batch", batch);
    for (const auto &[name, mask] : cases) {
        const BitImage bits = packed_bits(mask);
        const std::vector<const BitImage *> masks(3, &bits);
        const std::vector<CostedMask> costs = costs_of(three_layers(), masks);
        for (const int32_t parts : {2, 4, 8}) {
            INFO(name << " " << mask.height << " x " << mask.width << ", " << parts << " parts");
            const std::vector<DeviceTime> devices(static_cast<size_t>(parts));
            const Partition partition = partition_chain(three_layers(), bits.shape, masks, devices);
            CHECK(imbalance_now(partition, costs, bits.shape, devices) < .03);
            const Partition rows = partition_rows(costs, bits.shape, devices, 1);
            const bool rows_balance = imbalance_now(rows, costs, bits.shape, devices) < .03;
            if (rows_balance) {
                CHECK(halo_bytes_of(three_layers(), bits.shape, masks, partition, parts) <=
                      halo_bytes_of(three_layers(), bits.shape, masks, rows, parts));
            }
        }
    }
}

TEST_CASE("Curves cut a full image into compact parts", "[partition]") {
    const BitImage bits = packed_bits(draw_mask("random", 1, 256, 256, 1, 1));
    const std::vector<const BitImage *> masks(3, &bits);
    const std::vector<CostedMask> costs = costs_of(three_layers(), masks);
    const Partition quarters = partition_along({}, costs, bits.shape, std::vector<DeviceTime>(4), {});
    // Two cuts across the image, both sides, for two tensors, and the four corners of each.
    CHECK(halo_bytes_of(three_layers(), bits.shape, masks, quarters, 4) == 64 * (2 * 2 * 2 * 256 + 2 * 4));
    const Partition rows = partition_rows(costs, bits.shape, std::vector<DeviceTime>(4), 1);
    CHECK(halo_bytes_of(three_layers(), bits.shape, masks, rows, 4) == 64 * (2 * 2 * 3 * 256));
}

TEST_CASE("Plans of chains compute each active pixel once, from pixels that the part has", "[partition]") {
    struct Chain {
        std::vector<PlannedLayer> layers;
        MaskShape input;
    };
    const Axis same3{3, 1, 1, 1, 1}, same5{5, 1, 1, 2, 2}, point{1, 1, 1, 0, 0}, dilated{3, 1, 2, 2, 2},
        half{3, 2, 1, 1, 1}, valid{3, 1, 1, 0, 0}, wide{1, 1, 1, 2, 1};
    const std::vector<Chain> chains = {
        {{planned(same3), planned(same5), planned(point)}, {1, 37, 41}},
        {{planned(same3), planned(dilated), planned(same3), planned(same5)}, {2, 23, 70}},
        {{planned(half), planned(same3), planned(half), planned(same3)}, {1, 45, 67}},
        {{planned(valid), planned(valid), planned(same3), planned(valid)}, {1, 30, 19}},
        {{planned(wide), planned(same3), planned(wide)}, {1, 9, 11}},
        {{planned(same3)}, {3, 1, 1}},
        {{planned(same3), planned(same3)}, {1, 1, 130}},
    };
    for (size_t c = 0; c < chains.size(); c++) {
        const Chain &chain = chains[c];
        const std::vector<MaskShape> shapes = shapes_of(chain.layers, chain.input);
        for (const double density : {0.0, .05, .5, 1.0}) {
            std::vector<BitImage> bits;
            for (size_t i = 0; i < chain.layers.size(); i++) {
                const MaskShape &shape = shapes[i + 1];
                bits.push_back(
                    packed_bits(draw_mask("random", shape.batch, shape.height, shape.width, density, 3 * c + i)));
            }
            std::vector<const BitImage *> masks;
            for (const BitImage &image : bits) {
                masks.push_back(&image);
            }
            for (const int32_t parts : {1, 2, 3, 7}) {
                INFO("chain " << c << ", density " << density << ", " << parts << " parts");
                std::vector<DeviceTime> devices(static_cast<size_t>(parts));
                devices.back().per_work = 2.5;
                const Partition partition = partition_chain(chain.layers, chain.input, masks, devices);
                const ChainPlan plan = plan_chain(chain.layers, chain.input, masks, partition, parts);
                check_plan(chain.layers, masks, plan);
                CHECK(plan.halo_bytes == halo_bytes_of(chain.layers, chain.input, masks, partition, parts));
            }
        }
    }
}

TEST_CASE("Devices that take long to begin get no pixels, and there may be more devices than pixels", "[partition]") {
    const BitImage bits = packed_bits(draw_mask("random", 1, 16, 16, 1, 1));
    const std::vector<const BitImage *> masks(3, &bits);
    std::vector<DeviceTime> devices(3);
    devices[1].fixed = 1e6;
    ChainPlan plan =
        plan_chain(three_layers(), bits.shape, masks, partition_chain(three_layers(), bits.shape, masks, devices), 3);
    CHECK(plan.parts[1].is_empty);
    CHECK(plan.parts[0].layers[0].pixels == 128);
    const BitImage few = packed_bits(draw_mask("random", 1, 2, 2, 1, 1));
    const std::vector<const BitImage *> few_masks(3, &few);
    devices.assign(9, {});
    plan = plan_chain(three_layers(), few.shape, few_masks,
                      partition_chain(three_layers(), few.shape, few_masks, devices), 9);
    CHECK(std::count_if(plan.parts.begin(), plan.parts.end(), [](const Part &part) { return !part.is_empty; }) == 4);
    check_plan(three_layers(), few_masks, plan);
}

TEST_CASE("A partition stays while masks change little", "[partition]") {
    const std::vector<DeviceTime> devices(4);
    Partition partition;
    const auto renew = [&](const ByteMask &mask) {
        const BitImage bits = packed_bits(mask);
        const std::vector<const BitImage *> masks(3, &bits);
        const bool is_new = renew_partition(partition, three_layers(), bits.shape, masks, devices, .1);
        CHECK(imbalance_now(partition, costs_of(three_layers(), masks), bits.shape, devices) < .1);
        return is_new;
    };
    ByteMask mask = draw_mask("blob", 1, 128, 128, .4, 3);
    CHECK(renew(mask));
    CHECK(!renew(mask));
    const Partition first = partition;
    // A few pixels more.
    for (int32_t x = 0; x < 60; x++) {
        mask.bytes[static_cast<size_t>(64) * 128 + x] = 1;
    }
    CHECK(!renew(mask));
    CHECK(moved_pixels(first, partition, {1, 128, 128}) == 0);
    CHECK(renew(draw_mask("blob", 1, 128, 128, .4, 4)));
    const int64_t moved = moved_pixels(first, partition, {1, 128, 128});
    CHECK((moved > 0 && moved <= 128 * 128));
    CHECK(renew(draw_mask("blob", 1, 96, 128, .4, 3)));
}
