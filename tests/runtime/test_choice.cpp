// The choice by time tables: the formula that a GPU shares with the host, and the variants that it can choose at all.
#include "runtime/dispatch/possible_variants.h"
#include "runtime/dispatch/time_table.h"
#include "tests/support/catch.h"
#include <algorithm>
#include <random>
#include <vector>

using namespace distile;

namespace {

/** A variant with its own times. */
struct StoredVariant {
    int32_t tile_h, tile_w, dense;
    std::vector<TimePoint> points;

    TimedVariant timed() const {
        return {points.data(), static_cast<int32_t>(points.size()), tile_h, tile_w, dense};
    }
};

std::vector<TimedVariant> timed(const std::vector<StoredVariant> &variants) {
    std::vector<TimedVariant> views;
    views.reserve(variants.size());
    for (const StoredVariant &variant : variants) {
        views.push_back(variant.timed());
    }
    return views;
}

/** The time by its definition. */
double plain_time(const std::vector<TimePoint> &points, int64_t tiles) {
    if (tiles <= points.front().tiles) {
        return points.front().microseconds;
    }
    const TimePoint &last = points.back();
    if (tiles > last.tiles) {
        return last.microseconds * static_cast<double>(tiles) / static_cast<double>(std::max<int64_t>(last.tiles, 1));
    }
    size_t next = 0;
    while (points[next].tiles < tiles) {
        next++;
    }
    const TimePoint &below = points[next - 1], &above = points[next];
    const double part = static_cast<double>(tiles - below.tiles) / static_cast<double>(above.tiles - below.tiles);
    return below.microseconds + part * (above.microseconds - below.microseconds);
}

/** The choice by its definition: the least time of those that have times; without any, the fewest pixels, of equal ones
 * the first dense one, else the first. */
size_t plain_choice(const std::vector<StoredVariant> &variants, const std::vector<int64_t> &tiles) {
    const bool known =
        std::any_of(variants.begin(), variants.end(), [](const StoredVariant &v) { return !v.points.empty(); });
    std::vector<double> costs;
    double least = -1;
    for (size_t i = 0; i < variants.size(); i++) {
        const StoredVariant &variant = variants[i];
        const bool counts = !known || !variant.points.empty();
        const double cost = !counts ? -1
                            : known ? plain_time(variant.points, tiles[i])
                                    : static_cast<double>(tiles[i] * variant.tile_h * variant.tile_w);
        costs.push_back(cost);
        least = counts && (least < 0 || cost < least) ? cost : least;
    }
    for (size_t i = 0; i < variants.size() && !known; i++) {
        if (variants[i].dense != 0 && costs[i] == least) {
            return i;
        }
    }
    return static_cast<size_t>(std::find(costs.begin(), costs.end(), least) - costs.begin());
}

/** The choice as the host and the GPU make it. */
size_t shared_choice(const std::vector<StoredVariant> &variants, const std::vector<int64_t> &tiles) {
    size_t best = 0;
    Cost least{};
    for (size_t i = 0; i < variants.size(); i++) {
        const Cost cost = cost_of(variants[i].timed(), tiles[i]);
        if (i == 0 || is_better(cost, least)) {
            best = i;
            least = cost;
        }
    }
    return best;
}

/** Numbers that are often equal, so that there are ties. */
class Drawing {
public:
    int64_t number(int64_t least, int64_t most) {
        return std::uniform_int_distribution<int64_t>(least, most)(random_);
    }
    std::vector<TimePoint> points(int64_t most_tiles) {
        std::vector<TimePoint> drawn(static_cast<size_t>(number(1, 5)));
        for (TimePoint &point : drawn) {
            const int64_t coarse = number(1, 12);
            point = {number(0, most_tiles), number(0, 1) == 0 ? static_cast<double>(coarse)
                                                              : std::uniform_real_distribution<double>(1, 12)(random_)};
        }
        std::sort(drawn.begin(), drawn.end(), [](const TimePoint &a, const TimePoint &b) { return a.tiles < b.tiles; });
        return drawn;
    }
    std::vector<StoredVariant> variants(const std::vector<Granularity> &granularities, int64_t most_tiles) {
        std::vector<StoredVariant> drawn(static_cast<size_t>(number(1, 7)));
        const bool none_known = number(0, 3) == 0;
        for (StoredVariant &variant : drawn) {
            const Granularity granularity = granularities[number(0, static_cast<int64_t>(granularities.size()) - 1)];
            variant = {granularity.h, granularity.w, number(0, 3) == 0 ? 1 : 0, {}};
            if (!none_known && number(0, 4) != 0) {
                variant.points = points(most_tiles);
            }
        }
        return drawn;
    }
    std::vector<uint8_t> mask(const MaskShape &shape) {
        std::vector<uint8_t> bytes(static_cast<size_t>(shape.num_pixels()));
        // Blocks of pixels, so that coarse tiles are full too.
        const int64_t odds = number(0, 10), block = number(1, 4);
        for (int64_t first = 0; first < shape.num_pixels(); first += block) {
            const bool active = number(0, 9) < odds;
            std::fill(bytes.begin() + first, bytes.begin() + std::min(first + block, shape.num_pixels()),
                      active ? 1 : 0);
        }
        return bytes;
    }

private:
    std::mt19937_64 random_{7};
};

int64_t active_tiles(const std::vector<uint8_t> &mask, const MaskShape &shape, const Granularity &granularity) {
    const int64_t columns = (shape.width + granularity.w - 1) / granularity.w;
    const int64_t rows = (shape.height + granularity.h - 1) / granularity.h;
    std::vector<bool> active(static_cast<size_t>(shape.batch * rows * columns));
    for (int64_t pixel = 0; pixel < shape.num_pixels(); pixel++) {
        const int64_t x = pixel % shape.width, y = pixel / shape.width % shape.height;
        const int64_t image = pixel / shape.width / shape.height;
        if (mask[pixel] != 0) {
            active[(image * rows + y / granularity.h) * columns + x / granularity.w] = true;
        }
    }
    return std::count(active.begin(), active.end(), true);
}

}  // namespace

TEST_CASE("The choice that hosts and GPUs share is the table's, bit for bit", "[choice]") {
    Drawing drawing;
    for (int round = 0; round < 20000; round++) {
        const std::vector<StoredVariant> variants = drawing.variants({{1, 1}, {2, 2}, {1, 3}}, 40);
        std::vector<int64_t> tiles;
        for (const StoredVariant &variant : variants) {
            tiles.push_back(drawing.number(0, 60));
            if (!variant.points.empty()) {
                REQUIRE(cost_of(variant.timed(), tiles.back()).value == plain_time(variant.points, tiles.back()));
            }
        }
        REQUIRE(shared_choice(variants, tiles) == plain_choice(variants, tiles));
    }
    // A table of the runtime has the same times.
    const std::vector<distile_time_point> points = {{0, 4, 30, 3}, {0, 4, 10, 1.5}, {1, 4, 5, 2}, {0, 8, 10, 100}};
    const TimeTable table(points, 3, 4);
    CHECK(table.predict(0, 3) == 1.5);
    CHECK(table.predict(0, 20) == 2.25);
    CHECK(table.predict(0, 60) == 6);
    CHECK(table.predict(1, 10) == 4);
    CHECK(!table.knows(2));
}

TEST_CASE("Times for a number of threads lie between those of its neighbours", "[choice]") {
    Drawing drawing;
    for (int round = 0; round < 2000; round++) {
        const auto few = static_cast<int32_t>(drawing.number(1, 20)), many = few + 1 + int32_t(drawing.number(1, 20));
        const auto threads = static_cast<int32_t>(drawing.number(few, many));
        // Some work for one thread, the rest for all, at any number of tiles.
        const auto serial = static_cast<double>(drawing.number(0, 5)), rest = static_cast<double>(drawing.number(1, 9));
        const auto time = [&](int32_t count, int64_t tiles) {
            return (serial + rest / count) * static_cast<double>(tiles + 3);
        };
        std::vector<distile_time_point> points = {{0, 2 * many, 0, 1e6}, {0, 2 * many, 50, 1e6}, {1, threads, 9, 7}};
        // Each has tiles of its own.
        for (const int32_t count : {many, few}) {
            for (const int64_t tiles : {int64_t{0}, drawing.number(1, 49), int64_t{50}}) {
                points.push_back({0, count, tiles, time(count, tiles)});
            }
        }
        if (few > 1) {
            points.push_back({0, few - 1, 1, 1e6});
        }
        const TimeTable table(points, 2, threads);
        for (int64_t tiles = 0; tiles <= 50; tiles++) {
            CAPTURE(few, many, threads, tiles);
            REQUIRE(table.predict(0, tiles) == Approx(time(threads, tiles)));
        }
        CHECK(table.predict(0, 100) == Approx(2 * time(threads, 50)));
        CHECK(table.predict(1, 9) == 7);
        // Beyond all numbers of threads the nearest one stands.
        CHECK(TimeTable(points, 2, 1).predict(0, 50) == Approx(few > 1 ? 5e7 : time(1, 50)));
        CHECK(TimeTable(points, 2, 4096).predict(0, 50) == 1e6);
    }
}

TEST_CASE("No variant that some mask makes the fastest is left out", "[choice]") {
    Drawing drawing;
    const std::vector<std::vector<Granularity>> families = {
        {{1, 1}}, {{2, 3}}, {{1, 1}, {2, 2}, {4, 4}}, {{1, 2}, {2, 1}, {3, 2}}, {{8, 8}, {1, 1}}};
    for (int round = 0; round < 3000; round++) {
        const MaskShape shape = {static_cast<int32_t>(drawing.number(1, 2)), static_cast<int32_t>(drawing.number(1, 9)),
                                 static_cast<int32_t>(drawing.number(1, 9))};
        const std::vector<StoredVariant> variants =
            drawing.variants(families[round % families.size()], shape.num_pixels() + 5);
        const std::vector<int32_t> possible = possible_variants(timed(variants), shape);
        REQUIRE(std::is_sorted(possible.begin(), possible.end()));
        for (int draw = 0; draw < 40; draw++) {
            const std::vector<uint8_t> mask = drawing.mask(shape);
            std::vector<int64_t> tiles;
            for (const StoredVariant &variant : variants) {
                const Granularity granularity = {variant.tile_h, variant.tile_w};
                tiles.push_back(variant.dense != 0 ? num_tiles(shape, granularity)
                                                   : active_tiles(mask, shape, granularity));
            }
            const auto best = static_cast<int32_t>(shared_choice(variants, tiles));
            CAPTURE(round, draw, best);
            REQUIRE(std::count(possible.begin(), possible.end(), best) == 1);
        }
    }
}

TEST_CASE("With one granularity the possible variants are the lower envelope", "[choice]") {
    Drawing drawing;
    for (int round = 0; round < 3000; round++) {
        const MaskShape shape = {1, static_cast<int32_t>(drawing.number(1, 6)), 30};
        const int64_t most = shape.num_pixels();
        const std::vector<StoredVariant> variants = drawing.variants({{1, 1}}, most + 5);
        const std::vector<int32_t> possible = possible_variants(timed(variants), shape);
        const std::vector<ChoiceRange> ranges = choice_by_count(timed(variants), possible, shape);
        const bool any_sparse =
            std::any_of(possible.begin(), possible.end(), [&](int32_t i) { return variants[i].dense == 0; });
        REQUIRE(ranges.empty() == !any_sparse);
        auto range = ranges.begin();
        std::vector<bool> chosen(variants.size()), near(variants.size());
        for (int64_t count = 0; count <= most; count++) {
            std::vector<int64_t> tiles;
            for (const StoredVariant &variant : variants) {
                tiles.push_back(variant.dense != 0 ? most : count);
            }
            const size_t best = shared_choice(variants, tiles);
            chosen[best] = true;
            if (any_sparse) {
                CAPTURE(round, count, range - ranges.begin());
                REQUIRE(range != ranges.end());
                REQUIRE(range->variant == static_cast<int32_t>(best));
                REQUIRE(range->all_tiles == (variants[best].dense != 0 ? static_cast<uint32_t>(most) : 0));
                range += count == range->most ? 1 : 0;
            }
            const Cost least = cost_of(variants[best].timed(), tiles[best]);
            for (size_t i = 0; i < variants.size(); i++) {
                const Cost cost = cost_of(variants[i].timed(), tiles[i]);
                near[i] = near[i] || (cost.known == least.known && cost.value <= 1.001 * least.value);
            }
        }
        for (size_t i = 0; i < variants.size(); i++) {
            const bool kept = std::count(possible.begin(), possible.end(), static_cast<int32_t>(i)) == 1;
            CAPTURE(round, i);
            REQUIRE((kept || !chosen[i]));
            REQUIRE((near[i] || !kept));
        }
    }
}

TEST_CASE("Variants that save less than their launches cost are left out", "[choice]") {
    const MaskShape shape = {1, 10, 10};
    using Indices = std::vector<int32_t>;
    // On average the first takes 26.2, and the better of the first and the last 25.0; the second is never best.
    const std::vector<StoredVariant> variants = {
        {1, 1, 0, {{1, 1}, {100, 50}}}, {1, 1, 0, {{1, 21}, {100, 100}}}, {1, 1, 1, {{100, 40}}}};
    const auto worth = [&](const Indices &possible, const Indices &launches, double launch_us, double choice_us) {
        return worth_launching(timed(variants), possible, shape, {launches, launch_us, choice_us});
    };
    CHECK(worth({0, 1, 2}, {0, 0, 0}, 1e-3, 0) == Indices{0, 2});
    CHECK(worth({0, 2}, {0, 0, 0}, .5, 0) == Indices{0, 2});
    CHECK(worth({0, 2}, {0, 0, 0}, 2, 0) == Indices{0});
    // One variant alone needs no choice.
    CHECK(worth({0, 2}, {0, 0, 0}, .5, 2) == Indices{0});
    // Variants that share a launch cost no more.
    CHECK(worth({0, 2}, {1, 1, 1}, 100, 100) == Indices{0, 2});
    CHECK(worth({0, 1, 2}, {1, 2, 1}, 2, 0) == Indices{0, 2});
    CHECK(worth({1}, {0, 0, 0}, 100, 100) == Indices{1});
    CHECK(worth({}, {0, 0, 0}, 100, 100).empty());
    // Costs without times are no microseconds.
    const std::vector<StoredVariant> untimed = {{1, 1, 0, {}}, {1, 1, 1, {}}};
    CHECK(worth_launching(timed(untimed), {0, 1}, shape, {{0, 0}, 100, 100}) == Indices{0, 1});
}

TEST_CASE("Variants that cannot win are left out", "[choice]") {
    const MaskShape shape = {1, 10, 10};
    const auto possible = [&](const std::vector<StoredVariant> &variants) {
        return possible_variants(timed(variants), shape);
    };
    using Indices = std::vector<int32_t>;
    const StoredVariant steep = {1, 1, 0, {{1, 1}, {100, 100}}}, flat = {1, 1, 0, {{1, 20}, {100, 40}}};
    const StoredVariant dense = {1, 1, 1, {{100, 60}}}, fast_dense = {1, 1, 1, {{100, 30}}};
    CHECK(possible({steep, flat, dense}) == Indices{0, 1});
    CHECK(possible({flat, dense, steep, fast_dense}) == Indices{0, 2, 3});
    // It is beaten by one at few tiles, by the other at many, and by none alone.
    CHECK(possible({steep, {1, 1, 0, {{1, 25}, {100, 50}}}, fast_dense}) == Indices{0, 2});
    // Equal times go to the first.
    CHECK(possible({steep, steep, steep}) == Indices{0});
    // Its only points are above the image.
    CHECK(possible({steep, {1, 1, 0, {{1000, 101}}}}) == Indices{0});
    CHECK(possible({steep, {1, 1, 0, {{1000, 99}}}}) == Indices{0, 1});
    // Times win over none.
    CHECK(possible({{1, 1, 0, {}}, {2, 2, 0, {{1, 500}}}, {1, 1, 1, {}}}) == Indices{1});
    // Without any, only single pixels and, for a full mask, a dense one that computes no more.
    CHECK(possible({{1, 1, 0, {}}, {1, 1, 0, {}}, {2, 2, 0, {}}, {2, 2, 1, {}}, {3, 3, 1, {}}}) == Indices{0, 3});
    // Numbers of tiles at two granularities are no ranges of one.
    CHECK(choice_by_count(timed({steep, {2, 2, 0, {{1, 30}, {25, 31}}}}), {0, 1}, shape).empty());
    // Tiles of 2 x 2 are at least a quarter of the pixels, which bounds what they cost.
    CHECK(possible({steep, {2, 2, 0, {{1, 30}, {25, 31}}}}) == Indices{0, 1});
    CHECK(possible({{1, 1, 0, {{1, 10}}}, {2, 2, 0, {{1, 1500}, {25, 1500}}}}) == Indices{0});
    CHECK(possible({dense}) == Indices{0});
    CHECK(possible({dense, fast_dense}) == Indices{1});
}
