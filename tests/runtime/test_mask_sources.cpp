// Masks from bits and from lists of indices, against masks from bytes.
#include "tests/support/catch.h"
#include <algorithm>
#include <cstdint>
#include <distile/distile.hpp>
#include <distile/layers.h>
#include <distile/mask_algebra.h>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

using namespace distile;

namespace {

/** What a mask holds: all that the API says of it. */
struct Contents {
    std::vector<uint32_t> words;
    int64_t active = 0, tiles = 0;
    std::vector<uint32_t> xy, image;

    bool operator==(const Contents &other) const {
        return words == other.words && active == other.active && tiles == other.tiles && xy == other.xy &&
               image == other.image;
    }
};

struct Shape {
    int32_t batch, height, width;
};

class MasksOfBytes {
public:
    Contents of(const Mask &mask, const Shape &shape) const {
        Contents contents;
        const uint32_t *words = nullptr;
        int32_t words_per_row = 0;
        check(context, distile_mask_bits(mask.get(), &words, &words_per_row));
        contents.words.assign(words, words + int64_t{shape.batch} * shape.height * words_per_row);
        check(context, distile_mask_active_pixels(mask.get(), &contents.active));
        check(context, distile_mask_count_tiles(mask.get(), 2, 3, &contents.tiles));
        distile_tile_list list{};
        check(context, distile_mask_tiles(mask.get(), 2, 3, &list));
        contents.xy.assign(list.xy, list.xy + list.count);
        contents.image.assign(list.image, list.image + list.count);
        return contents;
    }
    /** What the mask of these bytes holds. */
    Contents of_bytes(const std::vector<uint8_t> &bytes, const Shape &shape) const {
        check(context, distile_mask_set_bytes(due.get(), bytes.data(), shape.batch, shape.height, shape.width,
                                              int64_t{shape.height} * shape.width, shape.width));
        return of(due, shape);
    }

    Context context = make_context();
    Mask mask = make_mask(context), due = make_mask(context);
};

std::vector<uint8_t> draw_bytes(const Shape &shape, std::mt19937 &random) {
    std::vector<uint8_t> bytes(static_cast<size_t>(shape.batch) * shape.height * shape.width);
    const uint32_t one_of = 1 + random() % 5;
    std::generate(bytes.begin(), bytes.end(), [&] { return static_cast<uint8_t>(random() % one_of == 0); });
    return bytes;
}

constexpr int32_t widths[] = {1, 31, 32, 33, 63, 64, 65, 95, 96, 97, 127, 128, 129, 200};

}  // namespace

TEST_CASE("A mask from bits is that from bytes, whatever lies beyond the width", "[mask_sources]") {
    std::mt19937 random(31);
    const MasksOfBytes masks;
    for (int32_t width : widths) {
        for (const Shape shape : {Shape{1, 1, width}, Shape{3, 5, width}}) {
            const std::vector<uint8_t> bytes = draw_bytes(shape, random);
            const Contents due = masks.of_bytes(bytes, shape);
            const int32_t least = (width + 31) / 32;
            for (int64_t words_per_row : {least, least + 1, least + 7}) {
                for (uint32_t garbage : {0u, ~0u}) {
                    CAPTURE(shape.height, width, words_per_row, garbage);
                    // No word behind the last one that is needed: sanitizers see what is read beyond.
                    const int64_t rows = int64_t{shape.batch} * shape.height;
                    std::vector<uint32_t> words((rows - 1) * words_per_row + least, garbage);
                    for (int64_t row = 0; row < rows; row++) {
                        for (int32_t x = 0; x < width; x++) {
                            uint32_t &word = words[row * words_per_row + x / 32];
                            const uint32_t bit = uint32_t{1} << (x % 32);
                            word = bytes[row * width + x] != 0 ? word | bit : word & ~bit;
                        }
                    }
                    words.shrink_to_fit();
                    REQUIRE(distile_mask_set_bits(masks.mask.get(), words.data(), shape.batch, shape.height, width,
                                                  words_per_row) == DISTILE_OK);
                    CHECK((masks.of(masks.mask, shape) == due));
                }
            }
        }
    }
}

TEST_CASE("The bits of a mask set another one", "[mask_sources]") {
    std::mt19937 random(32);
    const MasksOfBytes masks;
    for (int32_t width : widths) {
        const Shape shape{2, 7, width};
        const Contents due = masks.of_bytes(draw_bytes(shape, random), shape);
        const uint32_t *words = nullptr;
        int32_t words_per_row = 0;
        check(masks.context, distile_mask_bits(masks.due.get(), &words, &words_per_row));
        REQUIRE(distile_mask_set_bits(masks.mask.get(), words, 2, 7, width, words_per_row) == DISTILE_OK);
        CHECK((masks.of(masks.mask, shape) == due));
    }
}

TEST_CASE("A mask is written as bytes, and nothing between its rows", "[mask_sources]") {
    std::mt19937 random(34);
    const MasksOfBytes masks;
    constexpr uint8_t untouched = 7;
    for (int32_t width : widths) {
        const Shape shape{3, 5, width};
        const std::vector<uint8_t> bytes = draw_bytes(shape, random);
        masks.of_bytes(bytes, shape);
        for (const int64_t gap : {0, 1, 70}) {
            // No byte behind the last one that is needed: sanitizers see what is written beyond.
            const int64_t row = width + gap, image = row * shape.height + gap;
            std::vector<uint8_t> due((shape.batch - 1) * image + (shape.height - 1) * row + width, untouched);
            std::vector<uint8_t> written = due;
            written.shrink_to_fit();
            for (int64_t line = 0; line < int64_t{shape.batch} * shape.height; line++) {
                std::copy_n(bytes.begin() + line * width, width,
                            due.begin() + line / shape.height * image + line % shape.height * row);
            }
            CAPTURE(width, gap);
            REQUIRE(distile_mask_get_bytes(masks.due.get(), written.data(), image, row) == DISTILE_OK);
            CHECK(written == due);
        }
    }
}

TEST_CASE("A mirror has the bytes of every mask that is set, and nothing between its rows", "[mask_sources]") {
    std::mt19937 random(35);
    const MasksOfBytes masks;
    const Mask other = make_mask(masks.context);
    distile_mask *const mask = masks.mask.get();
    const distile_window window = {3, 2, 1, 1, 1, 1, 1, 0, DISTILE_WINDOW_CONV};
    for (int32_t width : widths) {
        const Shape shape{2, 5, width};
        const std::vector<uint8_t> bytes = draw_bytes(shape, random);
        const int64_t packed = int64_t{shape.height} * width;
        masks.of_bytes(bytes, shape);
        check(masks.context, distile_mask_needed_input(other.get(), masks.due.get(), &window, shape.height, width));
        const uint32_t *words = nullptr;
        int32_t words_per_row = 0;
        check(masks.context, distile_mask_bits(masks.due.get(), &words, &words_per_row));
        const std::vector<int32_t> indices = {0, width - 1, 4 * width, 0, 0, 2 * width};
        std::vector<float> numbers(bytes.begin(), bytes.end()), zeros(bytes.size());
        const distile_tensor tensor = distile_tensor_make(numbers.data(), 2, 5, width, 1);
        const distile_tensor zero = distile_tensor_make(zeros.data(), 2, 5, width, 1);
        const std::function<distile_status()> setters[] = {
            [&] { return distile_mask_set_bytes(mask, bytes.data(), 2, 5, width, packed, width); },
            [&] { return distile_mask_set_bits(mask, words, 2, 5, width, words_per_row); },
            [&] { return distile_mask_set_indices(mask, indices.data(), nullptr, 2, 5, width, 0); },
            [&] { return distile_mask_set_indices(mask, indices.data(), nullptr, 2, 5, width, 3); },
            [&] { return distile_mask_needed_input(mask, masks.due.get(), &window, 5, width); },
            [&] { return distile_mask_affected_output(mask, masks.due.get(), &window, 5, width); },
            [&] { return distile_mask_dilate(mask, masks.due.get(), 1, 2); },
            [&] { return distile_mask_pool(mask, masks.due.get(), 1, 1); },
            [&] { return distile_mask_unite(mask, masks.due.get(), other.get()); },
            [&] { return distile_mask_invert(mask, masks.due.get()); },
            [&] { return distile_mask_set_difference(mask, &tensor, &zero, 0); },
            [&] { return distile_mask_set_scores(mask, &tensor, nullptr, 0, 0.5f); }};
        const int64_t row = width + 3, image = row * shape.height + 1;
        std::vector<uint8_t> written(image + (shape.height - 1) * row + width);
        for (const auto &set : setters) {
            CAPTURE(width, &set - setters);
            constexpr uint8_t untouched = 7;
            std::fill(written.begin(), written.end(), untouched);
            REQUIRE(distile_mask_mirror(mask, written.data(), image, row) == DISTILE_OK);
            REQUIRE(set() == DISTILE_OK);
            std::vector<uint8_t> due(written.size(), untouched);
            REQUIRE(distile_mask_get_bytes(mask, due.data(), image, row) == DISTILE_OK);
            CHECK(written == due);
            // Without a mirror, later calls leave the memory alone.
            REQUIRE(distile_mask_mirror(mask, nullptr, 0, 0) == DISTILE_OK);
            std::fill(written.begin(), written.end(), untouched);
            REQUIRE(set() == DISTILE_OK);
            CHECK(std::count(written.begin(), written.end(), untouched) == static_cast<int64_t>(written.size()));
        }
    }
}

TEST_CASE("The bytes of one image serve a batch", "[mask_sources]") {
    std::mt19937 random(41);
    const MasksOfBytes masks;
    const std::vector<uint8_t> one = draw_bytes({1, 5, 70}, random);
    std::vector<uint8_t> all;
    for (int n = 0; n < 3; n++) {
        all.insert(all.end(), one.begin(), one.end());
    }
    REQUIRE(distile_mask_set_bytes(masks.mask.get(), one.data(), 3, 5, 70, 0, 70) == DISTILE_OK);
    CHECK(masks.of(masks.mask, {3, 5, 70}) == masks.of_bytes(all, {3, 5, 70}));
    CHECK(distile_mask_set_bytes(masks.mask.get(), one.data(), 3, 5, 70, 0, 69) == DISTILE_ERROR_BAD_STRIDE);
}

TEST_CASE("A mask keeps its contents if its mirror is too small for others", "[mask_sources]") {
    std::mt19937 random(36);
    const MasksOfBytes masks;
    const Shape shape{2, 5, 9};
    const std::vector<uint8_t> bytes = draw_bytes(shape, random);
    REQUIRE(distile_mask_set_bytes(masks.mask.get(), bytes.data(), 2, 5, 9, 45, 9) == DISTILE_OK);
    const Contents before = masks.of(masks.mask, shape);
    const std::vector<uint8_t> others(90, 1);
    std::vector<uint8_t> written(90, 7);
    const std::vector<uint8_t> untouched = written;
    for (const auto &[image, row] : {std::pair(45, 8), {44, 9}, {-45, 9}, {45, -9}, {0, 0}}) {
        CAPTURE(image, row);
        REQUIRE(distile_mask_mirror(masks.mask.get(), written.data(), image, row) == DISTILE_OK);
        REQUIRE(distile_mask_set_bytes(masks.mask.get(), others.data(), 2, 5, 9, 45, 9) == DISTILE_ERROR_BAD_STRIDE);
        REQUIRE(distile_mask_invert(masks.mask.get(), masks.mask.get()) == DISTILE_ERROR_BAD_STRIDE);
        CHECK((masks.of(masks.mask, shape) == before));
        CHECK(written == untouched);
    }
}

TEST_CASE("A mask from indices is that from bytes, in any order and with repeats", "[mask_sources]") {
    std::mt19937 random(33);
    const MasksOfBytes masks;
    for (int32_t width : widths) {
        for (const Shape shape : {Shape{1, 1, width}, Shape{3, 5, width}}) {
            const int32_t pixels = shape.height * width;
            for (int64_t stride : {int64_t{0}, int64_t{1}, int64_t{pixels}, int64_t{3} * pixels}) {
                for (const bool counted : {true, false}) {
                    CAPTURE(shape.batch, shape.height, width, stride, counted);
                    std::vector<uint8_t> bytes(static_cast<size_t>(shape.batch) * pixels);
                    std::vector<int32_t> indices(std::max<int64_t>(shape.batch * stride, 1), -5), counts(shape.batch);
                    for (int32_t n = 0; n < shape.batch; n++) {
                        // What lies behind the count may be anything.
                        counts[n] =
                            counted ? static_cast<int32_t>(random() % (stride + 1)) : static_cast<int32_t>(stride);
                        counts[n] = counted && n == 0 ? static_cast<int32_t>(stride) : counts[n];
                        for (int32_t i = 0; i < counts[n]; i++) {
                            const auto index = static_cast<int32_t>(random() % pixels);
                            indices[n * stride + i] = index;
                            bytes[static_cast<size_t>(n) * pixels + index] = 1;
                        }
                    }
                    REQUIRE(distile_mask_set_indices(masks.mask.get(), indices.data(),
                                                     counted ? counts.data() : nullptr, shape.batch, shape.height,
                                                     width, stride) == DISTILE_OK);
                    CHECK((masks.of(masks.mask, shape) == masks.of_bytes(bytes, shape)));
                }
            }
        }
    }
}

TEST_CASE("Indices and counts out of range are refused, and the mask stays", "[mask_sources]") {
    std::mt19937 random(34);
    const MasksOfBytes masks;
    const Shape shape{2, 3, 70};
    const std::vector<uint8_t> bytes = draw_bytes(shape, random);
    const Contents due = masks.of_bytes(bytes, shape);
    const auto set = [&](const std::vector<int32_t> &indices, const std::vector<int32_t> &counts, int32_t batch,
                         int32_t height, int32_t width) {
        return distile_mask_set_indices(masks.due.get(), indices.data(), counts.empty() ? nullptr : counts.data(),
                                        batch, height, width, static_cast<int64_t>(indices.size()) / batch);
    };
    const auto message = [&] { return std::string(distile_context_message(masks.context.get())); };
    for (int32_t bad : {-1, 210, 211, std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max()}) {
        for (size_t place = 0; place < 8; place++) {
            std::vector<int32_t> indices = {0, 209, 5, 5, 7, 209, 1, 0};
            indices[place] = bad;
            CAPTURE(bad, place);
            CHECK(set(indices, {}, 2, 3, 70) == DISTILE_ERROR_BAD_VALUE);
            CHECK(message().find(std::to_string(bad)) != std::string::npos);
            CHECK(message().find("image " + std::to_string(place / 4)) != std::string::npos);
            // Masks of other shapes, in which the index is legal or not, refuse it too.
            if (bad >= 0 && bad < 1000) {
                CHECK(set(indices, {}, 2, 1, 200) == DISTILE_ERROR_BAD_VALUE);
            }
            // Beyond the count it is not read.
            const int32_t counts[] = {4, 3};
            CHECK(distile_mask_set_indices(masks.mask.get(), indices.data(), counts, 2, 3, 70, 4) ==
                  (place == 7 ? DISTILE_OK : DISTILE_ERROR_BAD_VALUE));
            CHECK((masks.of(masks.due, shape) == due));
        }
    }
    for (int32_t bad : {-1, 5, std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max()}) {
        for (int32_t image : {0, 1}) {
            std::vector<int32_t> counts = {4, 4};
            counts[image] = bad;
            CHECK(set({0, 1, 2, 3, 4, 5, 6, 7}, counts, 2, 3, 70) == DISTILE_ERROR_BAD_VALUE);
            CHECK(message().find(std::to_string(bad)) != std::string::npos);
            CHECK((masks.of(masks.due, shape) == due));
        }
    }
    // An image whose pixels no index of 32 bits reaches.
    CHECK(set({0}, {}, 1, 65535, 65535) == DISTILE_ERROR_BAD_SHAPE);
    CHECK((masks.of(masks.due, shape) == due));
}

TEST_CASE("Rows of bits that are too short or too long are refused, and the mask stays", "[mask_sources]") {
    std::mt19937 random(35);
    const MasksOfBytes masks;
    const Shape shape{1, 2, 65};
    const Contents due = masks.of_bytes(draw_bytes(shape, random), shape);
    const std::vector<uint32_t> words(100, ~0u);
    for (int64_t bad : {int64_t{0}, int64_t{-3}, int64_t{2}, (int64_t{1} << 31) + 1,
                        std::numeric_limits<int64_t>::max(), std::numeric_limits<int64_t>::min()}) {
        CHECK(distile_mask_set_bits(masks.due.get(), words.data(), 1, 2, 65, bad) == DISTILE_ERROR_BAD_STRIDE);
        CHECK(std::string(distile_context_message(masks.context.get())).find(std::to_string(bad)) != std::string::npos);
        CHECK((masks.of(masks.due, shape) == due));
    }
}
