// Covers of mixed granularity: which tiles they have, and how near their times are to those of the best cover.
#include "masks/mask_families.h"
#include "runtime/choice/cover.h"
#include "tests/support/catch.h"
#include <algorithm>
#include <array>
#include <functional>
#include <limits>
#include <random>
#include <set>
#include <vector>

using namespace distile;

namespace {

/** Variants with times of their own. */
struct CoverVariants {
    std::vector<std::vector<TimePoint>> points;
    std::vector<TimedVariant> variants;

    void add(int32_t tile_h, int32_t tile_w, int32_t dense, std::vector<TimePoint> times) {
        points.push_back(std::move(times));
        variants.push_back({nullptr, 0, tile_h, tile_w, dense});
        for (size_t i = 0; i < variants.size(); i++) {
            variants[i].points = points[i].data();
            variants[i].num_points = static_cast<int32_t>(points[i].size());
        }
    }
    /** A size whose first tile takes `first` more than each. */
    void add_line(int32_t edge, double first, double each) {
        add(edge, edge, 0, {{1, first + each}, {1 << 20, first + each * (1 << 20)}});
    }
    double us(size_t variant, int64_t tiles) const {
        return tiles == 0 ? 0
                          : predict_time(points[variant].data(), static_cast<int32_t>(points[variant].size()), tiles);
    }
};

std::vector<uint64_t> words_of(const ByteMask &mask) {
    std::vector<uint64_t> words(static_cast<size_t>(mask.batch) * mask.height * ((mask.width + 63) / 64));
    pack_bitmask(mask.bytes.data(), int64_t{mask.height} * mask.width, mask.width, mask.batch, mask.height, mask.width,
                 words.data());
    return words;
}

/** A large solid part with a ragged rim, and speckle. */
ByteMask mixed_mask(int32_t height, int32_t width, double speckle, uint32_t seed) {
    std::mt19937 random(seed);
    std::uniform_real_distribution<double> uniform(0, 1);
    ByteMask mask;
    mask.height = height;
    mask.width = width;
    mask.bytes.resize(static_cast<size_t>(height) * width);
    for (int32_t y = 0; y < height; y++) {
        for (int32_t x = 0; x < width; x++) {
            const double dy = (y - height * .4) / (height * .37), dx = (x - width * .45) / (width * .4);
            const double distance = dy * dy + dx * dx + .15 * (uniform(random) - .5);
            mask.bytes[static_cast<size_t>(y) * width + x] = distance < 1 || uniform(random) < speckle ? 1 : 0;
        }
    }
    return mask;
}

/** The time of the best cover of one image by squares of an edge of a power of two, whatever the times are: a dynamic
 * program over the numbers of tiles of each size that a node can have. */
class BestCover {
public:
    using Counts = std::array<int32_t, 5>;

    BestCover(const ByteMask &mask, const CoverVariants &variants) : mask_(mask), variants_(variants) {
        for (size_t i = 0; i < variants.variants.size(); i++) {
            const TimedVariant &variant = variants.variants[i];
            if (variant.dense == 0) {
                levels_.emplace_back(static_cast<size_t>(__builtin_ctz(static_cast<unsigned>(variant.tile_h))), i);
                top_ = std::max(top_, levels_.back().first);
            }
        }
    }

    double us() const {
        std::set<Counts> all{{}};
        const int32_t edge = 1 << top_;
        for (int32_t y = 0; y < mask_.height; y += edge) {
            for (int32_t x = 0; x < mask_.width; x += edge) {
                all = sums(all, node(top_, y, x));
            }
        }
        double best = std::numeric_limits<double>::infinity();
        for (const Counts &counts : all) {
            double us = 0;
            for (const auto &[level, variant] : levels_) {
                us += variants_.us(variant, counts[level]);
            }
            best = std::min(best, us);
        }
        return best;
    }

private:
    static std::set<Counts> sums(const std::set<Counts> &some, const std::set<Counts> &others) {
        std::set<Counts> all;
        for (const Counts &a : some) {
            for (const Counts &b : others) {
                Counts sum{};
                for (size_t i = 0; i < sum.size(); i++) {
                    sum[i] = a[i] + b[i];
                }
                all.insert(sum);
            }
        }
        // Without those that have as many tiles of each size as another, or more.
        std::set<Counts> kept;
        for (const Counts &one : all) {
            const bool worse = std::any_of(kept.begin(), kept.end(), [&](const Counts &other) {
                return std::equal(other.begin(), other.end(), one.begin(), [](int32_t a, int32_t b) { return a <= b; });
            });
            if (!worse) {
                kept.insert(one);
            }
        }
        return kept;
    }

    bool is_active(int32_t y, int32_t x, int32_t edge) const {
        for (int32_t i = y; i < std::min(y + edge, mask_.height); i++) {
            for (int32_t j = x; j < std::min(x + edge, mask_.width); j++) {
                if (mask_.bytes[static_cast<size_t>(i) * mask_.width + j] != 0) {
                    return true;
                }
            }
        }
        return false;
    }

    std::set<Counts> node(size_t level, int32_t y, int32_t x) const {
        const int32_t edge = 1 << level;
        if (!is_active(y, x, edge)) {
            return {{}};
        }
        std::set<Counts> ways;
        if (level > 0) {
            ways.insert(Counts{});
            for (int32_t part = 0; part < 4; part++) {
                ways = sums(ways, node(level - 1, y + part / 2 * edge / 2, x + part % 2 * edge / 2));
            }
        }
        for (const auto &[size, variant] : levels_) {
            if (size == level) {
                Counts one{};
                one[level] = 1;
                ways.insert(one);
            }
        }
        return ways;
    }

    const ByteMask &mask_;
    const CoverVariants &variants_;
    std::vector<std::pair<size_t, size_t>> levels_;  ///< The level and the variant of each size.
    size_t top_ = 0;
};

/** Checks that each active pixel has one owner, each tile a pixel, and the time is that of the tiles. */
void check_cover(const ByteMask &mask, const CoverVariants &variants, const Cover &cover) {
    std::vector<int32_t> owners(mask.bytes.size());
    double us = 0;
    int64_t area = std::numeric_limits<int64_t>::max();
    for (const CoverTiles &tiles : cover.sizes) {
        const TimedVariant &variant = variants.variants[static_cast<size_t>(tiles.variant)];
        const int64_t own_area = int64_t{variant.tile_h} * variant.tile_w;
        CHECK(own_area < area);
        area = own_area;
        if (variant.dense != 0) {
            REQUIRE(cover.sizes.size() == 1);
            const MaskShape shape{mask.batch, mask.height, mask.width};
            CHECK(cover.us == Approx(variants.us(static_cast<size_t>(tiles.variant),
                                                 num_tiles(shape, {variant.tile_h, variant.tile_w}))));
            return;
        }
        REQUIRE(tiles.xy.size() == tiles.image.size());
        us += variants.us(static_cast<size_t>(tiles.variant), static_cast<int64_t>(tiles.xy.size()));
        for (size_t i = 0; i < tiles.xy.size(); i++) {
            const auto x = static_cast<int32_t>(tiles.xy[i] & 0xffff), y = static_cast<int32_t>(tiles.xy[i] >> 16);
            REQUIRE((x % variant.tile_w == 0 && y % variant.tile_h == 0));
            bool any = false;
            for (int32_t row = y; row < std::min(y + variant.tile_h, mask.height); row++) {
                for (int32_t column = x; column < std::min(x + variant.tile_w, mask.width); column++) {
                    const size_t pixel =
                        (static_cast<size_t>(tiles.image[i]) * mask.height + row) * mask.width + column;
                    owners[pixel]++;
                    any = any || mask.bytes[pixel] != 0;
                }
            }
            REQUIRE(any);
        }
    }
    for (size_t i = 0; i < owners.size(); i++) {
        REQUIRE((owners[i] == 1 || (owners[i] == 0 && mask.bytes[i] == 0)));
    }
    CHECK(cover.us == Approx(us));
}

Cover cover_of(const ByteMask &mask, const CoverVariants &variants, CellOrder order = CellOrder::Hilbert) {
    const std::vector<uint64_t> words = words_of(mask);
    return plan_cover({words.data(), mask.batch, mask.height, mask.width}, variants.variants, order);
}

/** Sizes whose tiles of many pixels are faster a pixel. */
CoverVariants usual_sizes(double first) {
    CoverVariants variants;
    variants.add_line(1, first, 1);
    variants.add_line(4, first, 6);
    variants.add_line(16, first, 70);
    return variants;
}

}  // namespace

TEST_CASE("Covers combine sizes that divide each other", "[cover]") {
    CoverVariants variants;
    variants.add(1, 2, 0, {{1, 1}});
    variants.add(4, 8, 0, {{1, 1}, {100, 50}});
    variants.add(4, 8, 0, {{1, 1}, {100, 40}});
    variants.add(3, 6, 0, {{1, 1}});
    variants.add(8, 8, 0, {{1, 1}});
    variants.add(16, 32, 0, {});
    variants.add(8, 16, 1, {{1, 1}});
    variants.add(8, 16, 0, {{1, 1}});
    CHECK(cover_sizes(variants.variants) == std::vector<std::vector<int32_t>>{{0}, {1, 2}, {7}});
    CHECK(cover_sizes({}).empty());
}

TEST_CASE("Each active pixel of a cover has one owner, in any order", "[cover]") {
    CoverVariants wide;
    wide.add_line(2, 3, 1);
    wide.add(4, 4, 0, {{1, 3}, {100, 200}});
    wide.add(8, 8, 0, {{5, 30}, {100, 500}, {1000, 5000}});
    for (const CoverVariants &variants : {usual_sizes(5), wide}) {
        for (const double density : {0.0, .01, .3, .9, 1.0}) {
            for (const char *family : {"random", "blob"}) {
                const ByteMask mask = draw_mask(family, 2, 45, 83, density, 3);
                INFO(family << " " << density);
                std::vector<std::vector<std::set<std::pair<uint32_t, uint32_t>>>> found;
                for (const CellOrder order : {CellOrder::RowMajor, CellOrder::Morton, CellOrder::Hilbert}) {
                    const Cover cover = cover_of(mask, variants, order);
                    check_cover(mask, variants, cover);
                    found.emplace_back();
                    for (const CoverTiles &tiles : cover.sizes) {
                        found.back().emplace_back();
                        for (size_t i = 0; i < tiles.xy.size(); i++) {
                            found.back().back().emplace(tiles.image[i], tiles.xy[i]);
                            const bool ordered =
                                i == 0 || tiles.image[i - 1] < tiles.image[i] ||
                                (tiles.image[i - 1] == tiles.image[i] && tiles.xy[i - 1] < tiles.xy[i]);
                            REQUIRE((ordered || order != CellOrder::RowMajor));
                        }
                    }
                }
                CHECK(found[0] == found[1]);
                CHECK(found[0] == found[2]);
            }
        }
    }
}

TEST_CASE("Covers are within 3 % of the best cover", "[cover]") {
    std::mt19937 random(5);
    const auto draw = [&](double low, double high) {
        return std::uniform_real_distribution<double>(low, high)(random);
    };
    double worst = 1;
    for (int round = 0; round < 60; round++) {
        CoverVariants variants;
        double pixel = 1;
        for (int32_t edge = 1; edge <= 16; edge *= round % 2 == 0 ? 4 : 2) {
            const double first = round % 3 == 0 ? 0 : draw(0, 40), each = pixel * edge * edge;
            if (round % 5 == 4) {
                // A curve: the first tiles are dearer, as on a device that is not full.
                variants.add(edge, edge, 0,
                             {{1, first + 2 * each}, {16, first + 20 * each}, {256, first + 256 * each}});
            } else {
                variants.add_line(edge, first, each);
            }
            pixel *= draw(.3, 1.05);
        }
        const ByteMask mask =
            round % 4 == 0   ? mixed_mask(16, 16, .05, static_cast<uint32_t>(round))
            : round % 4 == 1 ? draw_mask("blob", 1, 14, 15, draw(.1, .9), 7 + static_cast<uint64_t>(round))
            : round % 4 == 2 ? draw_mask("random", 1, 16, 13, draw(.1, .9), static_cast<uint64_t>(round))
                             : mixed_mask(16, 32, .02, static_cast<uint32_t>(round));
        const Cover cover = cover_of(mask, variants);
        check_cover(mask, variants, cover);
        const double best = BestCover(mask, variants).us();
        INFO("round " << round << ": " << cover.us << " us, the best " << best << " us");
        CHECK(cover.us >= best * (1 - 1e-6));
        CHECK(cover.us <= best * 1.03);
        worst = std::max(worst, cover.us / best);
    }
    CHECK(worst < 1.03);
}

TEST_CASE("Covers of mixed masks gain over one size, and never lose", "[cover]") {
    const CoverVariants variants = usual_sizes(20);
    const auto uniform_us = [&](const ByteMask &mask) {
        double best = std::numeric_limits<double>::infinity();
        for (size_t i = 0; i < variants.variants.size(); i++) {
            CoverVariants one;
            const TimedVariant &variant = variants.variants[i];
            one.add(variant.tile_h, variant.tile_w, 0, variants.points[i]);
            best = std::min(best, cover_of(mask, one).us);
        }
        return best;
    };
    const ByteMask mixed = mixed_mask(256, 256, .02, 9);
    CHECK(uniform_us(mixed) >= 1.15 * cover_of(mixed, variants).us);
    for (const double density : {.001, .02, .3, .6, 1.0}) {
        for (const char *family : {"random", "blob"}) {
            const ByteMask mask = draw_mask(family, 1, 128, 100, density, 4);
            CHECK(cover_of(mask, variants).us <= uniform_us(mask) * (1 + 1e-9));
        }
    }
    // A dense variant that is faster than all tiles is the cover.
    CoverVariants with_dense = usual_sizes(20);
    with_dense.add(1, 1, 1, {{1, 100}, {1 << 20, 100}});
    const Cover dense = cover_of(mixed, with_dense);
    REQUIRE(dense.sizes.size() == 1);
    CHECK(dense.sizes[0].variant == 3);
    CHECK(dense.us == Approx(100));
    check_cover(mixed, with_dense, dense);
    // Two variants of a size: each where it is faster.
    CoverVariants two = usual_sizes(20);
    two.add_line(1, 0, 3);
    ByteMask few = draw_mask("random", 1, 64, 64, 0, 1);
    few.bytes[77] = 1;
    REQUIRE(cover_of(few, two).sizes.size() == 1);
    CHECK(cover_of(few, two).sizes[0].variant == 3);
    CHECK(cover_of(few, two).us == Approx(3));
    const Cover none = cover_of(draw_mask("random", 1, 20, 20, 0, 1), with_dense);
    CHECK((none.sizes.empty() && none.us == 0));
}

TEST_CASE("Covers of masks that follow each other are those of new planners", "[cover]") {
    CoverVariants wide;
    wide.add_line(2, 3, 1);
    wide.add(4, 4, 0, {{1, 3}, {100, 200}});
    wide.add(8, 8, 0, {{5, 30}, {100, 500}, {1000, 5000}});
    CoverVariants with_dense = usual_sizes(20);
    with_dense.add(1, 1, 1, {{1, 2000}, {1 << 20, 2000}});
    CoverVariants alone;
    alone.add(2, 2, 1, {{1, 7}});
    std::mt19937 random(11);
    const auto below = [&](int32_t end) { return std::uniform_int_distribution<int32_t>(0, end - 1)(random); };
    for (const CoverVariants &variants : {usual_sizes(5), wide, with_dense, alone}) {
        for (const CellOrder order : {CellOrder::RowMajor, CellOrder::Morton, CellOrder::Hilbert}) {
            CoverPlanner planner(variants.variants, order);
            ByteMask mask;
            int64_t kept = 0;
            for (int step = 0; step < 80; step++) {
                // Other shapes and other masks now and then; else few pixels, a box, or nothing changes.
                const int32_t what = step == 0 ? 0 : below(8);
                if (what == 0) {
                    mask = draw_mask(below(2) == 0 ? "blob" : "random", 1 + below(2), 1 + below(70), 1 + below(150),
                                     below(11) / 10.0, static_cast<uint64_t>(step));
                } else if (what == 1) {
                    mask.bytes = draw_mask("blob", mask.batch, mask.height, mask.width, below(11) / 10.0,
                                           static_cast<uint64_t>(step))
                                     .bytes;
                } else if (what < 5) {
                    for (int32_t i = below(4); i > 0; i--) {
                        uint8_t &pixel =
                            mask.bytes[static_cast<size_t>(below(static_cast<int32_t>(mask.bytes.size())))];
                        pixel = pixel == 0 ? 1 : 0;
                    }
                } else if (what < 7) {
                    const int32_t top = below(mask.height), left = below(mask.width);
                    for (int32_t y = top; y < std::min(top + 9, mask.height); y++) {
                        for (int32_t x = left; x < std::min(left + 20, mask.width); x++) {
                            mask.bytes[static_cast<size_t>(y) * mask.width + x] = what == 5 ? 1 : 0;
                        }
                    }
                }
                const std::vector<uint64_t> words = words_of(mask);
                const Bitmask bits{words.data(), mask.batch, mask.height, mask.width};
                const Cover &found = planner.plan(bits);
                const Cover expected = plan_cover(bits, variants.variants, order);
                INFO("step " << step << ": " << mask.batch << " x " << mask.height << " x " << mask.width);
                REQUIRE(found.us == expected.us);
                REQUIRE(found.sizes.size() == expected.sizes.size());
                for (size_t i = 0; i < found.sizes.size(); i++) {
                    REQUIRE(found.sizes[i].variant == expected.sizes[i].variant);
                    REQUIRE(found.sizes[i].xy == expected.sizes[i].xy);
                    REQUIRE(found.sizes[i].image == expected.sizes[i].image);
                }
                check_cover(mask, variants, found);
                CoverPlanner fresh(variants.variants, order);
                fresh.plan(bits);
                REQUIRE(planner.changed_nodes() <= fresh.changed_nodes());
                kept += fresh.changed_nodes() - planner.changed_nodes();
            }
            CHECK((kept > 0 || variants.variants.size() == 1));
        }
    }
}

TEST_CASE("Planners of covers decide the nodes that changed", "[cover]") {
    const CoverVariants variants = usual_sizes(5);
    ByteMask mask = draw_mask("blob", 2, 64, 100, .3, 1);
    CoverPlanner planner(variants.variants, CellOrder::RowMajor);
    const auto changed = [&] {
        const std::vector<uint64_t> words = words_of(mask);
        planner.plan({words.data(), mask.batch, mask.height, mask.width});
        return planner.changed_nodes();
    };
    const auto flip = [&](int32_t n, int32_t y, int32_t x) {
        uint8_t &pixel = mask.bytes[(static_cast<size_t>(n) * mask.height + y) * mask.width + x];
        pixel = pixel == 0 ? 1 : 0;
    };
    CHECK(changed() == 2 * 4 * 7);
    CHECK(changed() == 0);
    flip(0, 0, 0);
    flip(0, 15, 15);
    CHECK(changed() == 1);
    flip(1, 63, 99);
    flip(1, 16, 63);
    flip(1, 16, 64);
    CHECK(changed() == 3);
}
