// Orders of tiles: the lists in every order, and that no result depends on one.
#include "runtime/cpu/cpu_mask.h"
#include "runtime/mask/cell_order.h"
#include "test_conv3_16_48_avx2.h"
#include "tests/support/catch.h"
#include <algorithm>
#include <array>
#include <cstring>
#include <distile/distile.hpp>
#include <distile/polykernel.h>
#include <random>
#include <string>
#include <vector>

using namespace distile;

namespace {

std::vector<uint8_t> draw_mask(int32_t batch, int32_t height, int32_t width, double density, std::mt19937 &random) {
    std::vector<uint8_t> bytes(static_cast<size_t>(batch) * height * width);
    for (uint8_t &byte : bytes) {
        byte = std::bernoulli_distribution(density)(random) ? 1 : 0;
    }
    return bytes;
}

/** The tiles of a list: x, y and image. */
using Tiles = std::vector<std::array<uint32_t, 3>>;

Tiles tiles_of(const TileList &list) {
    Tiles tiles;
    for (int64_t i = 0; i < list.count; i++) {
        tiles.push_back({list.xy[i] & 0xffff, list.xy[i] >> 16, list.image[i]});
    }
    return tiles;
}

/** What a list shall have, by looking at every pixel. */
Tiles expected_tiles(const std::vector<uint8_t> &bytes, const MaskShape &shape, CellOrder order, Granularity tile,
                     const TileRect &interior) {
    const int32_t rows = (shape.height + tile.h - 1) / tile.h, columns = (shape.width + tile.w - 1) / tile.w;
    const std::vector<int32_t> walk = order_cells(order, rows, columns);
    Tiles tiles;
    for (const bool inside : {true, false}) {
        for (int32_t n = 0; n < shape.batch; n++) {
            for (const int32_t cell : walk) {
                const int32_t row = cell / columns, column = cell % columns;
                const bool is_inside =
                    row >= interior.y0 && row < interior.y1 && column >= interior.x0 && column < interior.x1;
                bool active = false;
                for (int32_t y = row * tile.h; y < std::min(shape.height, (row + 1) * tile.h); y++) {
                    for (int32_t x = column * tile.w; x < std::min(shape.width, (column + 1) * tile.w); x++) {
                        active = active || bytes[(static_cast<size_t>(n) * shape.height + y) * shape.width + x] != 0;
                    }
                }
                if (active && is_inside == inside) {
                    tiles.push_back({static_cast<uint32_t>(column * tile.w), static_cast<uint32_t>(row * tile.h),
                                     static_cast<uint32_t>(n)});
                }
            }
        }
    }
    return tiles;
}

}  // namespace

TEST_CASE("Tiles are listed in every order, the interior ones first", "[tile_order]") {
    std::mt19937 random(1);
    const Context context = make_context({});
    const Mask mask = make_mask(context);
    for (const MaskShape &shape :
         {MaskShape{1, 1, 1}, MaskShape{2, 17, 70}, MaskShape{3, 64, 64}, MaskShape{1, 5, 200}}) {
        for (const double density : {0.0, .1, .7, 1.0}) {
            const std::vector<uint8_t> bytes = draw_mask(shape.batch, shape.height, shape.width, density, random);
            check(context, distile_mask_set_bytes(mask.get(), bytes.data(), shape.batch, shape.height, shape.width,
                                                  int64_t{shape.height} * shape.width, shape.width));
            for (const Granularity &tile :
                 {Granularity{1, 1}, Granularity{1, 4}, Granularity{3, 5}, Granularity{8, 8}}) {
                for (const TileRect &interior :
                     {TileRect{0, 1000, 0, 1000}, TileRect{1, 4, 1, 3}, TileRect{0, 0, 0, 0}}) {
                    for (const CellOrder order : {CellOrder::Hilbert, CellOrder::RowMajor, CellOrder::Morton}) {
                        CAPTURE(shape.batch, shape.height, shape.width, density, tile.h, tile.w,
                                static_cast<int>(order));
                        const TileList list = mask.get()->list_in(order, tile, interior);
                        const Tiles expected = expected_tiles(bytes, shape, order, tile, interior);
                        if (order == CellOrder::RowMajor) {
                            CHECK(list.count == static_cast<int64_t>(expected.size()));
                        } else {
                            CHECK(tiles_of(list) == expected);
                        }
                        // The lists stay.
                        CHECK(mask.get()->list_in(order, tile, interior).xy == list.xy);
                    }
                }
            }
        }
    }
}

TEST_CASE("Masks of more shapes than a mask keeps walks for are listed", "[tile_order]") {
    std::mt19937 random(2);
    const Context context = make_context({});
    const Mask mask = make_mask(context);
    for (int32_t turn = 0; turn < 3; turn++) {
        for (int32_t size = 3; size < 20; size++) {
            const MaskShape shape{1, size, size + 2};
            const std::vector<uint8_t> bytes = draw_mask(1, shape.height, shape.width, .5, random);
            check(context,
                  distile_mask_set_bytes(mask.get(), bytes.data(), 1, shape.height, shape.width, 0, shape.width));
            const TileRect all{0, 100, 0, 100};
            CHECK(tiles_of(mask.get()->list_in(CellOrder::Hilbert, {1, 1}, all)) ==
                  expected_tiles(bytes, shape, CellOrder::Hilbert, {1, 1}, all));
        }
    }
}

TEST_CASE("Variants compute the same bits in every order of tiles", "[tile_order]") {
    std::mt19937 random(3);
    const Context context = make_context({});
    const distile_polykernel &built = test_conv3_16_48_avx2;
    constexpr int32_t batch = 2, height = 29, width = 41, in = 16, out = 48;
    std::vector<float> input(size_t{batch} * height * width * in), filter(size_t{out} * in * 9);
    for (std::vector<float> *values : {&input, &filter}) {
        for (float &value : *values) {
            value = std::uniform_real_distribution<float>(-1, 1)(random);
        }
    }
    const std::vector<uint8_t> bytes = draw_mask(batch, height, width, .4, random);
    const Mask mask = make_mask(context);
    check(context,
          distile_mask_set_bytes(mask.get(), bytes.data(), batch, height, width, int64_t{height} * width, width));
    std::vector<std::vector<float>> results;
    for (const distile_tile_order order :
         {DISTILE_TILES_BY_ROWS, DISTILE_TILES_ALONG_MORTON, DISTILE_TILES_ALONG_HILBERT}) {
        std::vector<distile_variant> variants(built.variants, built.variants + built.num_variants);
        for (distile_variant &variant : variants) {
            CHECK(variant.order == DISTILE_TILES_BY_ROWS);  // What plans do not name.
            variant.order = variant.dense != 0 ? 0 : order;
        }
        distile_polykernel ordered = built;
        ordered.variants = variants.data();
        const Kernel kernel = make_kernel(context, ordered);
        distile_weights_source source{};
        source.filter = filter.data();
        source.order = DISTILE_OIHW;
        const Weights weights = pack_weights(context, kernel, source);
        size_t number = 0;
        for (const distile_variant &variant : variants) {
            std::vector<float> output(size_t{batch} * height * width * out, -3);
            const distile_tensor from = distile_tensor_make(input.data(), batch, height, width, in),
                                 to = distile_tensor_make(output.data(), batch, height, width, out);
            distile_run_args args{};
            args.input = &from;
            args.output = &to;
            args.weights = weights.get();
            args.mask = mask.get();
            args.variant = variant.name;
            check(context, distile_run(kernel.get(), &args));
            if (order == DISTILE_TILES_BY_ROWS) {
                results.push_back(output);
            }
            CAPTURE(variant.name, static_cast<int>(order));
            CHECK(std::memcmp(output.data(), results[number].data(), output.size() * sizeof(float)) == 0);
            number++;
        }
    }
}
