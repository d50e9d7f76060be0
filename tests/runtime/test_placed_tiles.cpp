// Tiles that lie anywhere: who owns which pixel, and how many there are.
#include "masks/mask_families.h"
#include "runtime/choice/placed_tiles.h"
#include "tests/support/catch.h"
#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <vector>

using namespace distile;

namespace {

/** A mask and its words. */
struct PackedMask {
    explicit PackedMask(ByteMask of) : bytes(std::move(of)) {
        words.resize(static_cast<size_t>(bytes.batch) * bytes.height * ((bytes.width + 63) / 64));
        pack_bitmask(bytes.bytes.data(), int64_t{bytes.height} * bytes.width, bytes.width, bytes.batch, bytes.height,
                     bytes.width, words.data());
    }
    Bitmask bits() const {
        return {words.data(), bytes.batch, bytes.height, bytes.width};
    }
    bool is_active(int32_t n, int32_t y, int32_t x) const {
        return y >= 0 && y < bytes.height && x >= 0 && x < bytes.width && bytes.bytes[index(n, y, x)] != 0;
    }
    size_t index(int32_t n, int32_t y, int32_t x) const {
        return (static_cast<size_t>(n) * bytes.height + y) * bytes.width + x;
    }

    ByteMask bytes;
    std::vector<uint64_t> words;
};

/** A mask of one image by rows of characters, of which '#' is active. */
PackedMask drawn(const std::vector<std::string> &rows) {
    ByteMask mask;
    mask.height = static_cast<int32_t>(rows.size());
    mask.width = static_cast<int32_t>(rows[0].size());
    for (const std::string &row : rows) {
        for (const char pixel : row) {
            mask.bytes.push_back(pixel == '#' ? 1 : 0);
        }
    }
    return PackedMask(std::move(mask));
}

/** Each active pixel has one owner, within its tile, and each tile a pixel. */
void check_owners(const PackedMask &mask, const Granularity &tile, const std::vector<PlacedTile> &tiles) {
    std::vector<int32_t> owners(mask.bytes.bytes.size());
    for (const PlacedTile &placed : tiles) {
        REQUIRE(placed.owned != 0);
        for (int32_t bit = 0; bit < most_placed_pixels; bit++) {
            if ((placed.owned >> bit & 1) != 0) {
                REQUIRE(bit < tile.h * tile.w);
                const int32_t y = placed.y + bit / tile.w, x = placed.x + bit % tile.w;
                REQUIRE(mask.is_active(placed.image, y, x));
                owners[mask.index(placed.image, y, x)]++;
            }
        }
    }
    for (size_t i = 0; i < owners.size(); i++) {
        REQUIRE(owners[i] == (mask.bytes.bytes[i] != 0 ? 1 : 0));
    }
}

/** The tiles of components by flood fill: of each, the places in its grid with a pixel. */
std::set<std::tuple<int32_t, int32_t, int32_t, size_t>> flooded_tiles(const PackedMask &mask, const Granularity &tile) {
    std::set<std::tuple<int32_t, int32_t, int32_t, size_t>> tiles;
    std::vector<bool> seen(mask.bytes.bytes.size());
    size_t component = 0;
    for (int32_t n = 0; n < mask.bytes.batch; n++) {
        for (int32_t y = 0; y < mask.bytes.height; y++) {
            for (int32_t x = 0; x < mask.bytes.width; x++) {
                if (!mask.is_active(n, y, x) || seen[mask.index(n, y, x)]) {
                    continue;
                }
                std::vector<std::pair<int32_t, int32_t>> pixels = {{y, x}};
                seen[mask.index(n, y, x)] = true;
                int32_t top = y, left = x;
                for (size_t i = 0; i < pixels.size(); i++) {
                    const auto [row, column] = pixels[i];
                    top = std::min(top, row);
                    left = std::min(left, column);
                    for (int32_t j = row - 1; j <= row + 1; j++) {
                        for (int32_t k = column - 1; k <= column + 1; k++) {
                            if (mask.is_active(n, j, k) && !seen[mask.index(n, j, k)]) {
                                seen[mask.index(n, j, k)] = true;
                                pixels.emplace_back(j, k);
                            }
                        }
                    }
                }
                for (const auto &[row, column] : pixels) {
                    tiles.emplace(n, top + (row - top) / tile.h * tile.h, left + (column - left) / tile.w * tile.w,
                                  component);
                }
                component++;
            }
        }
    }
    return tiles;
}

/** The fewest intervals of a width that cover the active pixels of each row, wherever they begin. */
int64_t fewest_in_rows(const PackedMask &mask, int32_t width) {
    int64_t all = 0;
    for (int32_t n = 0; n < mask.bytes.batch; n++) {
        for (int32_t y = 0; y < mask.bytes.height; y++) {
            // least[x]: for the pixels from x on.
            std::vector<int64_t> least(static_cast<size_t>(mask.bytes.width + width) + 1);
            for (int32_t x = mask.bytes.width - 1; x >= 0; x--) {
                int64_t best = least[x + 1] + (mask.is_active(n, y, x) ? mask.bytes.width : 0);
                for (int32_t begin = std::max(0, x - width + 1); mask.is_active(n, y, x) && begin <= x; begin++) {
                    best = std::min(best, 1 + least[begin + width]);
                }
                least[x] = best;
            }
            all += least[0];
        }
    }
    return all;
}

const std::vector<Granularity> tiles_of_tests = {{1, 1}, {1, 2}, {1, 4}, {1, 64}, {2, 2},
                                                 {4, 4}, {3, 5}, {8, 8}, {64, 1}};

}  // namespace

TEST_CASE("Each active pixel is owned by one placed tile", "[placed_tiles]") {
    for (const auto &[height, width] : {std::pair{1, 1}, {1, 200}, {37, 1}, {45, 83}, {20, 64}, {9, 130}}) {
        for (const double density : {0.0, .02, .3, .7, 1.0}) {
            for (const char *family : {"random", "blob"}) {
                const PackedMask mask(draw_mask(family, 2, height, width, density, 3));
                for (const Granularity &tile : tiles_of_tests) {
                    INFO(family << " " << density << " " << height << " x " << width << ", " << tile.h << " x "
                                << tile.w);
                    const std::vector<PlacedTile> by_component = place_by_component(mask.bits(), tile);
                    check_owners(mask, tile, by_component);
                    const auto flooded = flooded_tiles(mask, tile);
                    REQUIRE(by_component.size() == flooded.size());
                    std::multiset<std::tuple<int32_t, int32_t, int32_t>> expected, found;
                    for (const auto &[n, y, x, component] : flooded) {
                        expected.emplace(n, y, x);
                    }
                    for (const PlacedTile &placed : by_component) {
                        found.emplace(placed.image, placed.y, placed.x);
                    }
                    REQUIRE(found == expected);

                    const std::vector<PlacedTile> by_row = place_by_row(mask.bits(), tile);
                    check_owners(mask, tile, by_row);
                    if (tile.h == 1) {
                        REQUIRE(static_cast<int64_t>(by_row.size()) == fewest_in_rows(mask, tile.w));
                    }
                }
            }
        }
    }
}

TEST_CASE("Tiles placed by row do not overlap", "[placed_tiles]") {
    const PackedMask mask(draw_mask("blob", 3, 61, 90, .4, 5));
    for (const Granularity &tile : tiles_of_tests) {
        std::vector<int32_t> covers(mask.bytes.bytes.size());
        for (const PlacedTile &placed : place_by_row(mask.bits(), tile)) {
            for (int32_t y = placed.y; y < std::min(placed.y + tile.h, mask.bytes.height); y++) {
                for (int32_t x = placed.x; x < std::min(placed.x + tile.w, mask.bytes.width); x++) {
                    covers[mask.index(placed.image, y, x)]++;
                }
            }
        }
        CHECK(*std::max_element(covers.begin(), covers.end()) == 1);
    }
}

TEST_CASE("Placed tiles follow their pixels", "[placed_tiles]") {
    const PackedMask mask = drawn({"..........",  //
                                   ".##....##.",  //
                                   ".##....##.",  //
                                   "...#......",  //
                                   "....#...#."});
    const Granularity tile{2, 2};
    // Two components touch at corners only, and are one.
    const std::vector<PlacedTile> by_component = place_by_component(mask.bits(), tile);
    REQUIRE(by_component.size() == 4);
    const auto is = [](const PlacedTile &placed, int32_t y, int32_t x, uint64_t owned) {
        return placed.image == 0 && placed.y == y && placed.x == x && placed.owned == owned;
    };
    CHECK(is(by_component[0], 1, 1, 0b1111));
    CHECK(is(by_component[1], 3, 3, 0b1001));
    CHECK(is(by_component[2], 1, 7, 0b1111));
    CHECK(is(by_component[3], 4, 8, 0b0001));
    const std::vector<PlacedTile> by_row = place_by_row(mask.bits(), tile);
    REQUIRE(by_row.size() == 4);
    CHECK(is(by_row[0], 1, 1, 0b1111));
    CHECK(is(by_row[1], 1, 7, 0b1111));
    CHECK(is(by_row[2], 3, 3, 0b1001));
    CHECK(is(by_row[3], 3, 8, 0b0100));
}

TEST_CASE("Tiles of components that overlap share no pixel", "[placed_tiles]") {
    // The tile at (0, 0) reaches the pixel of the other component.
    const PackedMask mask = drawn({"#..#",  //
                                   "....",  //
                                   "#..."});
    const std::vector<PlacedTile> tiles = place_by_component(mask.bits(), {4, 4});
    REQUIRE(tiles.size() == 3);
    CHECK((tiles[0].x == 0 && tiles[0].owned == 1));
    CHECK((tiles[1].x == 3 && tiles[1].owned == 1));
    CHECK((tiles[2].y == 2 && tiles[2].owned == 1));
}
