#include "runtime/cpu/bitmask.h"
#include "runtime/cpu/bitmask_levels.h"
#include "runtime/cpu/pixel_runs.h"
#include "tests/support/callers.h"
#include "tests/support/catch.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <distile/distile.hpp>
#include <limits>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

using namespace distile;

namespace {

/** A mask as bytes, with strides that leave gaps, and as bits. */
struct TestMask {
    int32_t batch, height, width;
    int64_t stride_n, stride_h;
    std::vector<uint8_t> bytes;
    std::vector<uint64_t> words;
    int64_t active_pixels = 0;

    /** The gaps between rows are filled with ones, which must not be taken for pixels. The words are made here,
     * pixel by pixel, so that the tests of tiles do not depend on pack_bitmask(). */
    TestMask(int32_t num_images, int32_t h, int32_t w, double density, std::mt19937 &random, int32_t gap = 0)
        : batch(num_images), height(h), width(w), stride_n(int64_t{h} * (w + gap) + 5 * gap), stride_h(w + gap),
          bytes(static_cast<size_t>(stride_n * num_images), 1) {
        std::bernoulli_distribution active(density);
        std::uniform_int_distribution<int> value(1, 255);
        words.resize(static_cast<size_t>(bits().words_per_row()) * height * batch);
        for (int32_t n = 0; n < batch; n++) {
            for (int32_t y = 0; y < height; y++) {
                for (int32_t x = 0; x < width; x++) {
                    const bool set = active(random);
                    bytes[n * stride_n + y * stride_h + x] = static_cast<uint8_t>(set ? value(random) : 0);
                    if (set) {
                        const int64_t row = int64_t{n} * height + y;
                        words[row * bits().words_per_row() + x / 64] |= uint64_t{1} << (x % 64);
                        active_pixels++;
                    }
                }
            }
        }
    }

    Bitmask bits() const {
        return {words.data(), batch, height, width};
    }

    bool active(int32_t n, int32_t y, int32_t x) const {
        return bytes[n * stride_n + y * stride_h + x] != 0;
    }
};

/** Image, row and column of a tile in its grid. */
using Tile = std::tuple<int32_t, int32_t, int32_t>;

std::vector<Tile> active_tiles(const TestMask &mask, Granularity granularity) {
    const int32_t grid_h = (mask.height + granularity.h - 1) / granularity.h;
    const int32_t grid_w = (mask.width + granularity.w - 1) / granularity.w;
    std::vector<char> active(static_cast<size_t>(mask.batch) * grid_h * grid_w);
    for (int32_t n = 0; n < mask.batch; n++) {
        for (int32_t y = 0; y < mask.height; y++) {
            for (int32_t x = 0; x < mask.width; x++) {
                if (mask.active(n, y, x)) {
                    active[(n * grid_h + y / granularity.h) * grid_w + x / granularity.w] = 1;
                }
            }
        }
    }
    std::vector<Tile> tiles;
    for (int32_t n = 0; n < mask.batch; n++) {
        for (int32_t y = 0; y < grid_h; y++) {
            for (int32_t x = 0; x < grid_w; x++) {
                if (active[(n * grid_h + y) * grid_w + x]) {
                    tiles.emplace_back(n, y, x);
                }
            }
        }
    }
    return tiles;
}

/** A buffer in which writes beyond `size` can be seen. */
template<typename T> class Guarded {
public:
    explicit Guarded(int64_t size) : size_(size), values_(static_cast<size_t>(size) + 64, canary) {
    }
    T *data() {
        return values_.data();
    }
    T operator[](int64_t index) const {
        return values_[static_cast<size_t>(index)];
    }
    bool intact() const {
        return std::all_of(values_.begin() + size_, values_.end(), [](T value) { return value == canary; });
    }

private:
    static constexpr T canary = static_cast<T>(0xa5a5a5a5a5a5a5a5);
    int64_t size_;
    std::vector<T> values_;
};

const std::vector<Granularity> test_granularities = {
    {1, 1},  {1, 2},  {2, 1},   {1, 3},  {3, 5},   {2, 2},   {4, 4},   {8, 8},   {5, 7},     {1, 32},
    {1, 64}, {7, 65}, {64, 64}, {2, 96}, {2, 128}, {3, 129}, {300, 1}, {1, 350}, {500, 500}, {65535, 65535}};

/** Calls `test` for masks of many sizes, batches and densities. */
template<typename Test> void for_each_mask(int32_t gap, Test test) {
    std::mt19937 random(20240611);
    const std::vector<std::pair<int32_t, int32_t>> sizes = {{1, 1},   {1, 64},    {64, 1},  {5, 63},
                                                            {5, 64},  {5, 65},    {17, 13}, {40, 40},
                                                            {63, 63}, {128, 128}, {9, 191}, {200, 333}};
    for (const auto &[height, width] : sizes) {
        for (int32_t batch = 1; batch <= 3; batch++) {
            for (double density : {0.0, 0.003, 0.05, 0.5, 0.95, 1.0}) {
                CAPTURE(batch, height, width, density);
                test(TestMask(batch, height, width, density, random, gap), random);
            }
        }
    }
}

void check_pack(const SimdLevel &level, const TestMask &mask) {
    Guarded<uint64_t> words(static_cast<int64_t>(mask.words.size()));
    const int64_t active = pack_bitmask(level, mask.bytes.data(), mask.stride_n, mask.stride_h, mask.batch, mask.height,
                                        mask.width, words.data());
    REQUIRE(active == mask.active_pixels);
    REQUIRE(std::equal(mask.words.begin(), mask.words.end(), words.data()));
    REQUIRE(words.intact());
}

void check_count(const SimdLevel &level, const TestMask &mask, const std::vector<Granularity> &granularities) {
    const auto num_granularities = static_cast<int32_t>(granularities.size());
    Guarded<uint64_t> scratch(tile_scratch_words(mask.bits()));
    Guarded<int64_t> counts(num_granularities);
    count_tiles(level, mask.bits(), granularities.data(), num_granularities, scratch.data(), counts.data());
    for (int32_t g = 0; g < num_granularities; g++) {
        CAPTURE(granularities[g].h, granularities[g].w);
        REQUIRE(counts[g] == static_cast<int64_t>(active_tiles(mask, granularities[g]).size()));
    }
    REQUIRE(counts.intact());
    REQUIRE(scratch.intact());
}

/** `tiles` are the active ones in order. */
void check_list(const SimdLevel &level, const TestMask &mask, Granularity granularity, const TileRect &interior,
                std::vector<Tile> tiles) {
    CAPTURE(granularity.h, granularity.w, interior.x0, interior.x1, interior.y0, interior.y1);
    const auto others = std::stable_partition(tiles.begin(), tiles.end(), [&](const Tile &tile) {
        const auto [n, y, x] = tile;
        return interior.y0 <= y && y < interior.y1 && interior.x0 <= x && x < interior.x1;
    });
    const auto count = static_cast<int64_t>(tiles.size());
    Guarded<uint64_t> scratch(tile_scratch_words(mask.bits()));
    Guarded<uint32_t> xy(count + tile_list_slack), image(count + tile_list_slack);
    const int64_t num_interior =
        list_tiles(level, mask.bits(), granularity, interior, scratch.data(), xy.data(), image.data());

    REQUIRE(num_interior == others - tiles.begin());
    int64_t wrong = 0;
    for (int64_t t = 0; t < count; t++) {
        const auto [n, y, x] = tiles[t];
        wrong += image[t] != static_cast<uint32_t>(n) || (xy[t] & 0xffff) != static_cast<uint32_t>(x * granularity.w) ||
                 xy[t] >> 16 != static_cast<uint32_t>(y * granularity.h);
    }
    REQUIRE(wrong == 0);
    REQUIRE(xy.intact());
    REQUIRE(image.intact());
    REQUIRE(scratch.intact());
}

}  // namespace

TEST_CASE("The portable level is always there, and the levels of the CPU come after it", "[bitmask]") {
    const SimdLevels supported = supported_simd_levels();
    REQUIRE(supported.size() >= 1);
    REQUIRE(std::string(supported[0].name) == "portable");
#if defined(__x86_64__)
    REQUIRE((supported.size() >= 2) == (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("popcnt")));
#elif defined(__aarch64__)
    REQUIRE(supported.size() == 2);
    REQUIRE(std::string(supported[1].name) == "neon");
#endif
}

TEST_CASE("Bytes are packed into bits", "[bitmask]") {
    for (const SimdLevel &level : supported_simd_levels()) {
        CAPTURE(level.name);
        for (int32_t gap : {0, 3}) {
            for_each_mask(gap, [&](const TestMask &mask, std::mt19937 &) { check_pack(level, mask); });
        }
    }
}

TEST_CASE("Every nonzero byte is active, in every position of a word", "[bitmask]") {
    for (const SimdLevel &level : supported_simd_levels()) {
        CAPTURE(level.name);
        int wrong = 0;
        for (int32_t x = 0; x < 64; x++) {
            for (int value = 0; value < 256; value++) {
                uint8_t bytes[64] = {};
                bytes[x] = static_cast<uint8_t>(value);
                uint64_t word = ~uint64_t{0};
                const int64_t active = pack_bitmask(level, bytes, 64, 64, 1, 1, 64, &word);
                wrong += word != uint64_t{value != 0} << x || active != (value != 0);
            }
        }
        REQUIRE(wrong == 0);
    }
}

TEST_CASE("Packing reads nothing beyond the last byte of a mask", "[bitmask]") {
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    void *pages = mmap(nullptr, 3 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(pages != MAP_FAILED);
    // Neither the page before the bytes nor the one after them can be read.
    auto *bytes = static_cast<uint8_t *>(pages) + page;
    REQUIRE(mprotect(pages, page, PROT_NONE) == 0);
    REQUIRE(mprotect(bytes + page, page, PROT_NONE) == 0);

    std::mt19937 random(1);
    for (const SimdLevel &level : supported_simd_levels()) {
        CAPTURE(level.name);
        for (int32_t width = 1; width <= 200; width++) {
            for (int32_t gap : {0, 100}) {
                CAPTURE(width, gap);
                TestMask mask(1, 3, width, 0.5, random, gap);
                // The last row ends with its last pixel, even where the rows are further apart.
                const auto size = static_cast<size_t>(2 * mask.stride_h + width);
                for (uint8_t *begin : {bytes, bytes + page - size}) {
                    memcpy(begin, mask.bytes.data(), size);
                    std::vector<uint64_t> words(mask.words.size());
                    const int64_t active =
                        pack_bitmask(level, begin, mask.stride_n, mask.stride_h, 1, 3, width, words.data());
                    REQUIRE(active == mask.active_pixels);
                    REQUIRE(words == mask.words);
                }
            }
        }
    }
    munmap(pages, 3 * page);
}

TEST_CASE("Tiles are counted", "[bitmask]") {
    for (const SimdLevel &level : supported_simd_levels()) {
        CAPTURE(level.name);
        for_each_mask(0, [&](const TestMask &mask, std::mt19937 &) { check_count(level, mask, test_granularities); });
    }
}

TEST_CASE("No granularities are counted", "[bitmask]") {
    std::mt19937 random(2);
    check_count(supported_simd_levels()[0], TestMask(1, 9, 9, 0.5, random), {});
}

TEST_CASE("Tiles are listed, the interior ones first", "[bitmask]") {
    constexpr int32_t lowest = std::numeric_limits<int32_t>::min(), highest = std::numeric_limits<int32_t>::max();
    for_each_mask(0, [&](const TestMask &mask, std::mt19937 &random) {
        for (Granularity granularity : test_granularities) {
            const std::vector<Tile> tiles = active_tiles(mask, granularity);
            // Empty ones and ones that reach over the edges of the grid are among the random rectangles.
            std::uniform_int_distribution<int32_t> x(-2, mask.width / granularity.w + 3);
            std::uniform_int_distribution<int32_t> y(-2, mask.height / granularity.h + 3);
            const TileRect interiors[] = {{0, 0, 0, 0},
                                          {lowest, highest, lowest, highest},
                                          {highest, lowest, highest, lowest},
                                          {1, mask.width / granularity.w, 1, mask.height / granularity.h},
                                          {x(random), x(random), y(random), y(random)},
                                          {x(random), x(random), y(random), y(random)}};
            for (const TileRect &interior : interiors) {
                for (const SimdLevel &level : supported_simd_levels()) {
                    CAPTURE(level.name);
                    check_list(level, mask, granularity, interior, tiles);
                }
            }
        }
    });
}

TEST_CASE("Any tile width is counted and listed", "[bitmask]") {
    std::mt19937 random(3);
    for (int32_t width : {40, 64, 130, 192}) {
        const TestMask mask(2, 4, width, 0.02, random);
        for (int32_t tile_w = 1; tile_w <= width + 2; tile_w++) {
            const Granularity granularity = {2, tile_w};
            const std::vector<Tile> tiles = active_tiles(mask, granularity);
            for (const SimdLevel &level : supported_simd_levels()) {
                CAPTURE(level.name, width);
                check_count(level, mask, {granularity});
                check_list(level, mask, granularity, {1, 3, 0, 1}, tiles);
            }
        }
    }
}

TEST_CASE("The largest extents fit", "[bitmask]") {
    std::mt19937 random(4);
    const std::vector<Granularity> granularities = {{1, 1}, {3, 7}, {64, 64}, {40000, 40000}, {65535, 65535}};
    for (const TestMask &mask : {TestMask(1, 2, 65535, 0.3, random), TestMask(1, 65535, 2, 0.3, random)}) {
        for (const SimdLevel &level : supported_simd_levels()) {
            CAPTURE(level.name, mask.height, mask.width);
            check_pack(level, mask);
            check_count(level, mask, granularities);
            for (Granularity granularity : granularities) {
                check_list(level, mask, granularity, {0, 40000, 0, 40000}, active_tiles(mask, granularity));
            }
        }
    }
}

TEST_CASE("The functions without a level give the same results", "[bitmask]") {
    std::mt19937 random(5);
    const TestMask mask(2, 40, 100, 0.3, random, 1);
    std::vector<uint64_t> words(mask.words.size());
    REQUIRE(pack_bitmask(mask.bytes.data(), mask.stride_n, mask.stride_h, mask.batch, mask.height, mask.width,
                         words.data()) == mask.active_pixels);
    REQUIRE(words == mask.words);

    const Granularity granularity = {2, 3};
    const std::vector<Tile> tiles = active_tiles(mask, granularity);
    std::vector<uint64_t> scratch(static_cast<size_t>(tile_scratch_words(mask.bits())));
    int64_t count = -1;
    count_tiles(mask.bits(), &granularity, 1, scratch.data(), &count);
    REQUIRE(count == static_cast<int64_t>(tiles.size()));

    std::vector<uint32_t> xy(tiles.size() + tile_list_slack), image(tiles.size() + tile_list_slack);
    REQUIRE(list_tiles(mask.bits(), granularity, {0, 1000, 0, 1000}, scratch.data(), xy.data(), image.data()) == count);
    std::vector<Tile> listed;
    for (int64_t t = 0; t < count; t++) {
        listed.emplace_back(image[t], (xy[t] >> 16) / 2, (xy[t] & 0xffff) / 3);
    }
    REQUIRE(listed == tiles);
}

TEST_CASE("Runs are the longest ranges of pixels that are active or not", "[bitmask]") {
    std::mt19937 random(7);
    for (int32_t width : {1, 2, 63, 64, 65, 128, 130, 200, 321}) {
        for (double density : {0.0, 0.02, 0.5, 0.98, 1.0}) {
            const TestMask mask(1, 1, width, density, random);
            for (const bool active : {true, false}) {
                CAPTURE(width, density, active);
                std::vector<std::pair<int32_t, int32_t>> runs, expected;
                for_each_run(mask.words.data(), width, active,
                             [&](int32_t begin, int32_t end) { runs.emplace_back(begin, end); });
                for (int32_t x = 0; x < width; x++) {
                    if (mask.active(0, 0, x) == active) {
                        if (x == 0 || mask.active(0, 0, x - 1) != active) {
                            expected.emplace_back(x, x);
                        }
                        expected.back().second = x + 1;
                    }
                }
                CHECK(runs == expected);
            }
        }
    }
}

TEST_CASE("Rows are visited once each, by as many threads as their bytes are worth", "[bitmask]") {
    for (int32_t threads : {1, 3}) {
        CallersPool pool;
        distile_context_options options{};
        pool.use_in(options);
        options.threads = threads;
        const Context context = make_context(options);
        for (int32_t height : {1, 2, 5, 100}) {
            for (int64_t bytes : {int64_t{0}, int64_t{40000}, int64_t{1} << 20, int64_t{1} << 40}) {
                CAPTURE(threads, height, bytes);
                const int64_t loops = pool.loops();
                std::vector<int32_t> visits(size_t{2} * height, 0);
                for_each_row(*context, distile_tensor_make(nullptr, 2, height, 1, 1), bytes,
                             [&](int64_t row) { visits[static_cast<size_t>(row)]++; });
                CHECK(visits == std::vector<int32_t>(visits.size(), 1));
                CHECK(pool.loops() - loops == (threads > 1 && bytes > 40000 ? 1 : 0));
            }
        }
    }
}
