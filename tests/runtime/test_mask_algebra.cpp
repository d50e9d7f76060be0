#include "runtime/base/types.h"
#include "runtime/cpu/bit_rows.h"
#include "tests/support/catch.h"
#include <algorithm>
#include <cmath>
#include <cstring>
#include <distile/distile.hpp>
#include <distile/mask_algebra.h>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

using namespace distile;

namespace {

/** A mask, a byte a pixel. */
struct Pixels {
    int32_t batch, height, width;
    std::vector<uint8_t> bytes;

    Pixels(int32_t n, int32_t h, int32_t w) : batch(n), height(h), width(w), bytes(static_cast<size_t>(n) * h * w) {
    }
    uint8_t &at(int32_t n, int32_t y, int32_t x) {
        return bytes[(static_cast<size_t>(n) * height + y) * width + x];
    }
    bool active(int32_t n, int64_t y, int64_t x) const {
        return y >= 0 && y < height && x >= 0 && x < width &&
               bytes[(static_cast<size_t>(n) * height + y) * width + x] != 0;
    }
};

Pixels random_pixels(int32_t n, int32_t h, int32_t w, double density, std::mt19937 &random) {
    Pixels pixels(n, h, w);
    std::bernoulli_distribution active(density);
    std::generate(pixels.bytes.begin(), pixels.bytes.end(), [&] { return active(random); });
    return pixels;
}

/** A context with a few masks. */
struct Masks {
    Context context = make_context();
    Mask a = make_mask(context), b = make_mask(context), result = make_mask(context);

    void set(const Mask &mask, const Pixels &pixels) const {
        check(context, distile_mask_set_bytes(mask.get(), pixels.bytes.data(), pixels.batch, pixels.height,
                                              pixels.width, int64_t{pixels.height} * pixels.width, pixels.width));
    }
};

/** Fails unless a mask has exactly these pixels, and zeros beyond its width. */
void check_pixels(const Mask &mask, const Pixels &expected) {
    const uint32_t *words = nullptr;
    int32_t words_per_row = 0;
    REQUIRE(distile_mask_bits(mask.get(), &words, &words_per_row) == DISTILE_OK);
    REQUIRE(words_per_row == (expected.width + 63) / 64 * 2);
    int64_t active = 0, wrong = 0;
    for (int32_t n = 0; n < expected.batch; n++) {
        for (int32_t y = 0; y < expected.height; y++) {
            const uint32_t *row = words + (int64_t{n} * expected.height + y) * words_per_row;
            for (int32_t x = 0; x < 32 * words_per_row; x++) {
                const bool set = (row[x / 32] >> (x % 32) & 1) != 0;
                wrong += set != (x < expected.width && expected.active(n, y, x)) ? 1 : 0;
                active += set ? 1 : 0;
            }
        }
    }
    CHECK(wrong == 0);
    int64_t counted = -1;
    REQUIRE(distile_mask_active_pixels(mask.get(), &counted) == DISTILE_OK);
    CHECK(counted == active);
    // Counts and lists are those of the new mask.
    REQUIRE(distile_mask_count_tiles(mask.get(), 1, 1, &counted) == DISTILE_OK);
    CHECK(counted == active);
}

/** Calls read(i) for the inputs that output o reads along one axis. */
template<typename Read> void for_each_read(const distile_window &window, bool columns, int32_t o, const Read &read) {
    const int64_t kernel = columns ? window.kernel_w : window.kernel_h;
    const int64_t stride = columns ? window.stride_w : window.stride_h;
    const int64_t dilation = columns ? window.dilation_w : window.dilation_h;
    const int64_t pad = columns ? window.pad_left : window.pad_top;
    for (int64_t i = 0; i < kernel; i++) {
        if (window.kind == DISTILE_WINDOW_CONV) {
            read(o * stride - pad + i * dilation);
        } else if (window.kind == DISTILE_WINDOW_UPSAMPLED) {
            read(static_cast<int64_t>(std::floor(static_cast<double>(o - pad + i * dilation) / stride)));
        } else if ((o + pad - i * dilation) % stride == 0) {
            read((o + pad - i * dilation) / stride);
        }
    }
}

/** Calls read(y, x) for the input pixels that an output pixel reads. */
template<typename Read> void for_each_read(const distile_window &window, int32_t y, int32_t x, const Read &read) {
    for_each_read(window, false, y, [&](int64_t v) { for_each_read(window, true, x, [&](int64_t u) { read(v, u); }); });
}

Pixels needed_input(const Pixels &output, const distile_window &window, int32_t height, int32_t width) {
    Pixels needed(output.batch, height, width);
    for (int32_t n = 0; n < output.batch; n++) {
        for (int32_t y = 0; y < output.height; y++) {
            for (int32_t x = 0; x < output.width; x++) {
                if (output.active(n, y, x)) {
                    for_each_read(window, y, x, [&](int64_t v, int64_t u) {
                        if (v >= 0 && v < height && u >= 0 && u < width) {
                            needed.at(n, static_cast<int32_t>(v), static_cast<int32_t>(u)) = 1;
                        }
                    });
                }
            }
        }
    }
    return needed;
}

Pixels affected_output(const Pixels &input, const distile_window &window, int32_t height, int32_t width) {
    Pixels affected(input.batch, height, width);
    for (int32_t n = 0; n < input.batch; n++) {
        for (int32_t y = 0; y < height; y++) {
            for (int32_t x = 0; x < width; x++) {
                for_each_read(window, y, x, [&](int64_t v, int64_t u) {
                    if (input.active(n, v, u)) {
                        affected.at(n, y, x) = 1;
                    }
                });
            }
        }
    }
    return affected;
}

/** Windows of a kind. */
std::vector<distile_window> windows_of(distile_window_kind kind) {
    const int32_t extents[][8] = {
        {1, 1, 1, 1, 1, 1, 0, 0},   {3, 3, 1, 1, 1, 1, 1, 1},       {3, 3, 2, 2, 1, 1, 1, 1},
        {3, 3, 2, 2, 1, 1, 0, 0},   {1, 1, 2, 2, 1, 1, 0, 0},       {7, 7, 2, 2, 1, 1, 3, 3},
        {5, 2, 1, 1, 1, 1, 0, 1},   {3, 3, 1, 1, 2, 3, 2, 3},       {2, 2, 2, 2, 1, 1, 0, 0},
        {3, 3, 3, 3, 1, 1, 0, 0},   {1, 3, 3, 2, 1, 5, 7, 2},       {4, 70, 1, 1, 1, 1, 3, 69},
        {2, 3, 5, 7, 9, 31, 4, 64}, {1, 2, 70, 65, 1, 64, 0, 1},    {3, 3, 1, 1, 40, 70, 40, 70},
        {4, 4, 2, 2, 1, 1, 1, 1},   {9, 130, 2, 64, 1, 1, 100, 200}};
    std::vector<distile_window> windows;
    for (const auto &e : extents) {
        windows.push_back({e[0], e[1], e[2], e[3], e[4], e[5], e[6], e[7], kind});
    }
    return windows;
}

constexpr distile_window_kind kinds[] = {DISTILE_WINDOW_CONV, DISTILE_WINDOW_TRANSPOSED, DISTILE_WINDOW_UPSAMPLED};

std::vector<distile_window> all_windows() {
    std::vector<distile_window> windows;
    for (distile_window_kind kind : kinds) {
        const std::vector<distile_window> more = windows_of(kind);
        windows.insert(windows.end(), more.begin(), more.end());
    }
    return windows;
}

}  // namespace

TEST_CASE("Needed inputs and affected outputs are what every pixel's definition says", "[mask_algebra]") {
    std::mt19937 random(1);
    const Masks masks;
    const int32_t sizes[][2] = {{1, 1}, {1, 64}, {5, 63}, {7, 65}, {17, 13}, {20, 40}, {9, 130}, {3, 200}};
    for (const distile_window &window : all_windows()) {
        for (const auto &from : sizes) {
            for (double density : {0.0, 0.02, 0.3, 1.0}) {
                const Pixels pixels = random_pixels(2, from[0], from[1], density, random);
                masks.set(masks.a, pixels);
                // What the window gives for some padding behind, and sizes that have nothing to do with it.
                const int32_t to[][2] = {{(from[0] + window.stride_h - 1) / window.stride_h,
                                          (from[1] + window.stride_w - 1) / window.stride_w},
                                         {from[0] * window.stride_h, from[1] * window.stride_w},
                                         {11, 129}};
                for (const auto &size : to) {
                    // The definition would take too long, or the input be too large.
                    const int64_t reads = int64_t{size[0]} * size[1] * window.kernel_h * window.kernel_w;
                    if (reads > 2000000 || (window.kind != DISTILE_WINDOW_CONV && size[1] > 2000)) {
                        continue;
                    }
                    CAPTURE(window.kernel_h, window.kernel_w, window.stride_h, window.stride_w, window.dilation_h,
                            window.dilation_w, window.pad_top, window.pad_left, window.kind, from[0], from[1], size[0],
                            size[1]);
                    REQUIRE(distile_mask_needed_input(masks.result.get(), masks.a.get(), &window, size[0], size[1]) ==
                            DISTILE_OK);
                    check_pixels(masks.result, needed_input(pixels, window, size[0], size[1]));
                    REQUIRE(distile_mask_affected_output(masks.result.get(), masks.a.get(), &window, size[0],
                                                         size[1]) == DISTILE_OK);
                    check_pixels(masks.result, affected_output(pixels, window, size[0], size[1]));
                }
            }
        }
    }
}

TEST_CASE("A chain of operators needs what a search from the output finds", "[mask_algebra]") {
    // An output pixel changes exactly if a needed input does: the two functions are each other's transpose.
    std::mt19937 random(2);
    const Masks masks;
    for (const distile_window &window : all_windows()) {
        const int32_t height = 12, width = 90, out_height = 7, out_width = 66;
        for (int32_t trial = 0; trial < 3; trial++) {
            const Pixels input = random_pixels(1, height, width, 0.02, random);
            const Pixels output = random_pixels(1, out_height, out_width, 0.02, random);
            masks.set(masks.a, input);
            masks.set(masks.b, output);
            REQUIRE(distile_mask_affected_output(masks.a.get(), masks.a.get(), &window, out_height, out_width) ==
                    DISTILE_OK);
            REQUIRE(distile_mask_intersect(masks.a.get(), masks.a.get(), masks.b.get()) == DISTILE_OK);
            int64_t reached = 0, needed = 0;
            REQUIRE(distile_mask_active_pixels(masks.a.get(), &reached) == DISTILE_OK);
            masks.set(masks.a, input);
            REQUIRE(distile_mask_needed_input(masks.b.get(), masks.b.get(), &window, height, width) == DISTILE_OK);
            REQUIRE(distile_mask_intersect(masks.b.get(), masks.b.get(), masks.a.get()) == DISTILE_OK);
            REQUIRE(distile_mask_active_pixels(masks.b.get(), &needed) == DISTILE_OK);
            CHECK((reached > 0) == (needed > 0));
        }
    }
}

TEST_CASE("Dilation and pooling", "[mask_algebra]") {
    std::mt19937 random(3);
    const Masks masks;
    const int32_t sizes[][2] = {{1, 1}, {6, 64}, {13, 65}, {40, 40}, {21, 131}};
    for (const auto &size : sizes) {
        const Pixels pixels = random_pixels(2, size[0], size[1], 0.05, random);
        masks.set(masks.a, pixels);
        for (int32_t radius_h : {0, 1, 3, 50}) {
            for (int32_t radius_w : {0, 1, 2, 31, 200}) {
                CAPTURE(size[0], size[1], radius_h, radius_w);
                Pixels expected(2, size[0], size[1]);
                for (int32_t n = 0; n < 2; n++) {
                    for (int32_t y = 0; y < size[0]; y++) {
                        for (int32_t x = 0; x < size[1]; x++) {
                            for (int32_t v = std::max(y - radius_h, 0); v <= std::min(y + radius_h, size[0] - 1); v++) {
                                for (int32_t u = std::max(x - radius_w, 0); u <= std::min(x + radius_w, size[1] - 1);
                                     u++) {
                                    expected.at(n, y, x) |= pixels.active(n, v, u) ? 1 : 0;
                                }
                            }
                        }
                    }
                }
                REQUIRE(distile_mask_dilate(masks.result.get(), masks.a.get(), radius_h, radius_w) == DISTILE_OK);
                check_pixels(masks.result, expected);
            }
        }
        for (int32_t factor_h : {1, 2, 3, 64}) {
            for (int32_t factor_w : {1, 2, 3, 5, 64, 100}) {
                CAPTURE(size[0], size[1], factor_h, factor_w);
                Pixels expected(2, (size[0] + factor_h - 1) / factor_h, (size[1] + factor_w - 1) / factor_w);
                for (int32_t n = 0; n < 2; n++) {
                    for (int32_t y = 0; y < size[0]; y++) {
                        for (int32_t x = 0; x < size[1]; x++) {
                            expected.at(n, y / factor_h, x / factor_w) |= pixels.active(n, y, x) ? 1 : 0;
                        }
                    }
                }
                REQUIRE(distile_mask_pool(masks.result.get(), masks.a.get(), factor_h, factor_w) == DISTILE_OK);
                check_pixels(masks.result, expected);
            }
        }
    }
}

TEST_CASE("Masks of one shape combine pixel by pixel", "[mask_algebra]") {
    std::mt19937 random(4);
    const Masks masks;
    for (int32_t width : {1, 63, 64, 65, 200}) {
        const Pixels a = random_pixels(2, 5, width, 0.4, random), b = random_pixels(2, 5, width, 0.6, random);
        const auto expected = [&](const std::function<bool(bool, bool)> &combine) {
            Pixels pixels(2, 5, width);
            std::transform(a.bytes.begin(), a.bytes.end(), b.bytes.begin(), pixels.bytes.begin(),
                           [&](uint8_t x, uint8_t y) { return combine(x != 0, y != 0); });
            return pixels;
        };
        masks.set(masks.a, a);
        masks.set(masks.b, b);
        distile_mask *const x = masks.a.get(), *const y = masks.b.get(), *const result = masks.result.get();
        REQUIRE(distile_mask_unite(result, x, y) == DISTILE_OK);
        check_pixels(masks.result, expected([](bool p, bool q) { return p || q; }));
        REQUIRE(distile_mask_intersect(result, x, y) == DISTILE_OK);
        check_pixels(masks.result, expected([](bool p, bool q) { return p && q; }));
        REQUIRE(distile_mask_subtract(result, x, y) == DISTILE_OK);
        check_pixels(masks.result, expected([](bool p, bool q) { return p && !q; }));
        REQUIRE(distile_mask_invert(result, x) == DISTILE_OK);
        check_pixels(masks.result, expected([](bool p, bool) { return !p; }));
        // Into an operand.
        REQUIRE(distile_mask_subtract(y, x, y) == DISTILE_OK);
        check_pixels(masks.b, expected([](bool p, bool q) { return p && !q; }));
        REQUIRE(distile_mask_invert(x, x) == DISTILE_OK);
        check_pixels(masks.a, expected([](bool p, bool) { return !p; }));
    }
}

TEST_CASE("A difference of tensors is a mask", "[mask_algebra]") {
    std::mt19937 random(5);
    std::uniform_real_distribution<float> number(-1, 1);
    const Masks masks;
    const float nan = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();
    for (int32_t width : {1, 64, 65, 511, 513, 1100}) {
        for (int32_t channels : {1, 2, 3, 4, 64, 65}) {
            for (int32_t gap : {0, 5}) {
                const int32_t batch = 2, height = 3;
                CAPTURE(width, channels, gap);
                distile_tensor a = distile_tensor_make(nullptr, batch, height, width, channels);
                a.stride_w = channels + gap;
                a.stride_h = a.stride_w * width + gap;
                a.stride_n = a.stride_h * height + gap;
                std::vector<float> values(static_cast<size_t>(a.stride_n) * batch);
                std::generate(values.begin(), values.end(), [&] { return number(random); });
                std::vector<float> changed = values;
                // Elements of gaps differ too, and must not be seen.
                for (float &value : changed) {
                    switch (random() % (20 * channels)) {
                    case 0:
                        value += 0.5f;
                        break;
                    case 1:
                        value -= 0.5f;
                        break;
                    case 2:
                        value += 0.01f;
                        break;
                    case 3:
                        value = nan;
                        break;
                    case 4:
                        value = infinity;
                        break;
                    default:
                        break;
                    }
                }
                distile_tensor b = a;
                a.data = values.data();
                b.data = changed.data();
                for (float threshold : {0.0f, 0.1f}) {
                    Pixels expected(batch, height, width);
                    for (int32_t n = 0; n < batch; n++) {
                        for (int32_t y = 0; y < height; y++) {
                            for (int32_t x = 0; x < width; x++) {
                                const int64_t at = n * a.stride_n + y * a.stride_h + x * a.stride_w;
                                for (int32_t c = 0; c < channels; c++) {
                                    const float difference = std::fabs(values[at + c] - changed[at + c]);
                                    expected.at(n, y, x) |= difference > threshold || std::isnan(difference) ? 1 : 0;
                                }
                            }
                        }
                    }
                    REQUIRE(distile_mask_set_difference(masks.result.get(), &a, &b, threshold) == DISTILE_OK);
                    check_pixels(masks.result, expected);
                }
            }
        }
    }
}

TEST_CASE("A difference of tensors of narrow types is that of their values", "[mask_algebra]") {
    std::mt19937 random(15);
    std::uniform_real_distribution<float> number(-8, 8);
    const Masks masks;
    for (distile_dtype dtype : {DISTILE_FLOAT16, DISTILE_BFLOAT16, DISTILE_FLOAT8_E4M3FN, DISTILE_FLOAT8_E5M2}) {
        const Type &type = *find_type(dtype);
        for (int32_t width : {1, 65, 513, 1100}) {
            for (int32_t channels : {1, 3, 16, 17, 65}) {
                for (int32_t gap : {0, 5}) {
                    const int32_t batch = 2, height = 3;
                    CAPTURE(type.name, width, channels, gap);
                    distile_tensor a = distile_tensor_make(nullptr, batch, height, width, channels);
                    a.dtype = dtype;
                    a.stride_w = channels + gap;
                    a.stride_h = a.stride_w * width + gap;
                    a.stride_n = a.stride_h * height + gap;
                    // Numbers, of which a few differ in the last bit or become any, NaN and infinities among them.
                    std::vector<uint8_t> bits[2];
                    std::vector<float> values[2];
                    values[0].resize(static_cast<size_t>(a.stride_n) * batch);
                    std::generate(values[0].begin(), values[0].end(), [&] { return number(random); });
                    const size_t elements = values[0].size(), bytes = type.bytes;
                    bits[0].resize(elements * bytes);
                    type.from_float(values[0].data(), bits[0].data(), elements);
                    bits[1] = bits[0];
                    for (size_t i = 0; i < elements; i++) {
                        if (random() % static_cast<uint32_t>(10 * channels) == 0) {
                            bits[1][i * bytes] ^= 1;
                            const bool any = random() % 4 == 0;
                            for (size_t byte = 0; byte < bytes && any; byte++) {
                                bits[1][i * bytes + byte] = static_cast<uint8_t>(random());
                            }
                        }
                    }
                    for (int i = 0; i < 2; i++) {
                        values[i].resize(elements);
                        type.to_float(bits[i].data(), values[i].data(), elements);
                    }
                    distile_tensor b = a;
                    a.data = bits[0].data();
                    b.data = bits[1].data();
                    for (float threshold : {0.0f, 1.0f}) {
                        Pixels expected(batch, height, width);
                        for (int32_t n = 0; n < batch; n++) {
                            for (int32_t y = 0; y < height; y++) {
                                for (int32_t x = 0; x < width; x++) {
                                    const int64_t at = n * a.stride_n + y * a.stride_h + x * a.stride_w;
                                    for (int32_t c = 0; c < channels; c++) {
                                        const float difference = std::fabs(values[0][at + c] - values[1][at + c]);
                                        expected.at(n, y, x) |= !(difference <= threshold) ? 1 : 0;
                                    }
                                }
                            }
                        }
                        REQUIRE(distile_mask_set_difference(masks.result.get(), &a, &b, threshold) == DISTILE_OK);
                        check_pixels(masks.result, expected);
                    }
                }
            }
        }
    }
    std::vector<uint16_t> elements(24);
    distile_tensor half = distile_tensor_make(elements.data(), 1, 2, 4, 3), other = half;
    half.dtype = DISTILE_FLOAT16;
    other.dtype = DISTILE_BFLOAT16;
    CHECK(distile_mask_set_difference(masks.result.get(), &half, &other, 0) == DISTILE_ERROR_BAD_TYPE);
    other.dtype = DISTILE_FLOAT16;
    other.data = reinterpret_cast<char *>(elements.data()) + 1;
    CHECK(distile_mask_set_difference(masks.result.get(), &half, &other, 0) == DISTILE_ERROR_BAD_ALIGNMENT);
}

TEST_CASE("Every level of the processor gives the same bits", "[mask_algebra]") {
    std::mt19937_64 random(6);
    for (const distile_window &window : windows_of(DISTILE_WINDOW_CONV)) {
        const WindowAxis axis{window.kernel_w, window.stride_w, window.pad_left, window.dilation_w};
        for (int32_t in_width : {1, 64, 200}) {
            for (int32_t out_width : {1, 65, 300}) {
                std::vector<uint64_t> in((in_width + 63) / 64), out((out_width + 63) / 64);
                std::generate(in.begin(), in.end(), random);
                std::generate(out.begin(), out.end(), random);
                in.back() &= ~uint64_t{0} >> (64 * in.size() - in_width);
                out.back() &= ~uint64_t{0} >> (64 * out.size() - out_width);
                std::vector<uint64_t> first_gathered, first_scattered;
                for (const SimdLevel &level : supported_simd_levels()) {
                    CAPTURE(level.name, axis.kernel, axis.stride, axis.pad, axis.dilation, in_width, out_width);
                    RowMemory memory(HostMemory(distile_context_options{}));
                    RowWindow row(axis, in_width, out_width, memory, level);
                    std::vector<uint64_t> gathered(out.size(), ~uint64_t{0}), scattered(in.size(), ~uint64_t{0});
                    row.gather(in.data(), gathered.data());
                    row.scatter(out.data(), scattered.data());
                    if (first_gathered.empty()) {
                        first_gathered = gathered;
                        first_scattered = scattered;
                    }
                    CHECK(gathered == first_gathered);
                    CHECK(scattered == first_scattered);
                }
            }
        }
    }
    std::mt19937 small(7);
    std::vector<float> a(300), b(300);
    std::generate(a.begin(), a.end(), [&] { return static_cast<float>(small() % 8); });
    std::generate(b.begin(), b.end(), [&] { return static_cast<float>(small() % 8); });
    b[70] = std::numeric_limits<float>::quiet_NaN();
    for (int64_t count : {1, 63, 64, 65, 128, 300}) {
        std::vector<uint64_t> first;
        for (const SimdLevel &level : supported_simd_levels()) {
            CAPTURE(level.name, count);
            std::vector<uint64_t> bits((count + 63) / 64, ~uint64_t{0});
            level.compare(a.data(), b.data(), count, 2.0f, bits.data());
            if (first.empty()) {
                first = bits;
            }
            CHECK(bits == first);
        }
    }
}

TEST_CASE("The largest windows are as good as any", "[mask_algebra]") {
    std::mt19937 random(8);
    const Masks masks;
    const Pixels pixels = random_pixels(1, 3, 70, 0.1, random);
    masks.set(masks.a, pixels);
    const int32_t most = 65535;
    distile_window window{most, most, most, most, most, most, most, most, DISTILE_WINDOW_CONV};
    REQUIRE(distile_mask_needed_input(masks.result.get(), masks.a.get(), &window, 80, 90) == DISTILE_OK);
    // Output 0 reads from -65535 in steps of 65535: input 0 is its second tap, and the first of output 1.
    Pixels expected(1, 80, 90);
    for (int32_t y : {0, 1}) {
        for (int32_t x : {0, 1}) {
            expected.at(0, 0, 0) |= pixels.active(0, y, x) ? 1 : 0;
        }
    }
    check_pixels(masks.result, expected);
    REQUIRE(distile_mask_affected_output(masks.result.get(), masks.a.get(), &window, most, most) == DISTILE_OK);
    int64_t active = -1;
    REQUIRE(distile_mask_active_pixels(masks.result.get(), &active) == DISTILE_OK);
    CHECK(active == (pixels.active(0, 0, 0) ? 4 : 0));
    // A transposed convolution is the reverse.
    window.kind = DISTILE_WINDOW_TRANSPOSED;
    REQUIRE(distile_mask_affected_output(masks.result.get(), masks.a.get(), &window, 80, 90) == DISTILE_OK);
    check_pixels(masks.result, expected);
    // Nearest upsampling of one pixel: the outputs from 0 to 65534 read it through the second position of the kernel.
    window.kind = DISTILE_WINDOW_UPSAMPLED;
    Pixels one(1, 1, 1);
    one.at(0, 0, 0) = 1;
    masks.set(masks.b, one);
    REQUIRE(distile_mask_affected_output(masks.result.get(), masks.b.get(), &window, 3, most) == DISTILE_OK);
    REQUIRE(distile_mask_active_pixels(masks.result.get(), &active) == DISTILE_OK);
    CHECK(active == int64_t{3} * most);
    REQUIRE(distile_mask_needed_input(masks.result.get(), masks.result.get(), &window, 1, 1) == DISTILE_OK);
    check_pixels(masks.result, one);
    REQUIRE(distile_mask_dilate(masks.result.get(), masks.a.get(), 32767, 32767) == DISTILE_OK);
    REQUIRE(distile_mask_active_pixels(masks.result.get(), &active) == DISTILE_OK);
    CHECK(active == 3 * 70);
}

TEST_CASE("Mask algebra refuses what makes no sense, and leaves the result", "[mask_algebra]") {
    const Masks masks, others;
    const Mask unset = make_mask(masks.context);
    Pixels pixels(1, 4, 70);
    pixels.at(0, 2, 65) = 1;
    masks.set(masks.a, pixels);
    masks.set(masks.result, pixels);
    others.set(others.a, pixels);
    masks.set(masks.b, Pixels(1, 4, 71));
    distile_mask *const result = masks.result.get(), *const a = masks.a.get(), *const b = masks.b.get();
    const distile_window good{3, 3, 1, 1, 1, 1, 1, 1, DISTILE_WINDOW_CONV};

    CHECK(distile_mask_needed_input(nullptr, a, &good, 4, 70) == DISTILE_ERROR_NULL_POINTER);
    CHECK(distile_mask_needed_input(result, nullptr, &good, 4, 70) == DISTILE_ERROR_NULL_POINTER);
    CHECK(distile_mask_needed_input(result, a, nullptr, 4, 70) == DISTILE_ERROR_NULL_POINTER);
    CHECK(distile_mask_needed_input(result, unset.get(), &good, 4, 70) == DISTILE_ERROR_BAD_MASK);
    CHECK(distile_mask_needed_input(result, others.a.get(), &good, 4, 70) == DISTILE_ERROR_BAD_MASK);
    for (int32_t extent : {0, -1, 65536}) {
        CHECK(distile_mask_needed_input(result, a, &good, extent, 70) == DISTILE_ERROR_BAD_SHAPE);
        CHECK(distile_mask_affected_output(result, a, &good, 4, extent) == DISTILE_ERROR_BAD_SHAPE);
        for (int32_t distile_window::*member :
             {&distile_window::kernel_h, &distile_window::kernel_w, &distile_window::stride_h,
              &distile_window::stride_w, &distile_window::dilation_h, &distile_window::dilation_w}) {
            distile_window bad = good;
            bad.*member = extent;
            CHECK(distile_mask_affected_output(result, a, &bad, 4, 70) == DISTILE_ERROR_BAD_VALUE);
        }
    }
    for (int32_t distile_window::*member : {&distile_window::pad_top, &distile_window::pad_left}) {
        for (int32_t pad : {-1, 65536}) {
            distile_window bad = good;
            bad.*member = pad;
            CHECK(distile_mask_needed_input(result, a, &bad, 4, 70) == DISTILE_ERROR_BAD_VALUE);
        }
    }
    for (int32_t kind : {-1, 3}) {
        distile_window bad = good;
        std::memcpy(&bad.kind, &kind, sizeof(kind));
        CHECK(distile_mask_affected_output(result, a, &bad, 4, 70) == DISTILE_ERROR_BAD_VALUE);
    }
    // 2 x 65535 enlarged columns are the most that there may be.
    distile_window enlarged = good;
    enlarged.kind = DISTILE_WINDOW_UPSAMPLED;
    enlarged.stride_w = 1873;
    CHECK(distile_mask_affected_output(result, a, &enlarged, 4, 70) == DISTILE_ERROR_BAD_SHAPE);
    CHECK(distile_mask_needed_input(result, a, &enlarged, 4, 70) == DISTILE_ERROR_BAD_SHAPE);
    enlarged.stride_h = 65535;
    CHECK(distile_mask_needed_input(result, a, &enlarged, 4, 1) == DISTILE_ERROR_BAD_SHAPE);
    CHECK(distile_mask_unite(result, a, b) == DISTILE_ERROR_BAD_SHAPE);
    CHECK(std::string(distile_context_message(masks.context.get())).find("1 x 4 x 71") != std::string::npos);
    CHECK(distile_mask_intersect(result, a, nullptr) == DISTILE_ERROR_NULL_POINTER);
    CHECK(distile_mask_subtract(nullptr, a, a) == DISTILE_ERROR_NULL_POINTER);
    CHECK(distile_mask_invert(result, unset.get()) == DISTILE_ERROR_BAD_MASK);
    CHECK(distile_mask_dilate(result, a, -1, 0) == DISTILE_ERROR_BAD_VALUE);
    CHECK(distile_mask_dilate(result, a, 0, 32768) == DISTILE_ERROR_BAD_VALUE);
    CHECK(distile_mask_pool(result, a, 0, 1) == DISTILE_ERROR_BAD_VALUE);
    CHECK(distile_mask_pool(result, a, 1, 65536) == DISTILE_ERROR_BAD_VALUE);

    float values[24] = {};
    const distile_tensor tensor = distile_tensor_make(values, 1, 2, 4, 3);
    distile_tensor other = tensor;
    CHECK(distile_mask_set_difference(nullptr, &tensor, &tensor, 0) == DISTILE_ERROR_NULL_POINTER);
    CHECK(distile_mask_set_difference(result, nullptr, &tensor, 0) == DISTILE_ERROR_NULL_POINTER);
    CHECK(distile_mask_set_difference(result, &tensor, nullptr, 0) == DISTILE_ERROR_NULL_POINTER);
    CHECK(distile_mask_set_difference(result, &tensor, &tensor, -1) == DISTILE_ERROR_BAD_VALUE);
    CHECK(distile_mask_set_difference(result, &tensor, &tensor, std::nanf("")) == DISTILE_ERROR_BAD_VALUE);
    other.channels = 2;
    CHECK(distile_mask_set_difference(result, &tensor, &other, 0) == DISTILE_ERROR_BAD_SHAPE);
    other.channels = 0;
    CHECK(distile_mask_set_difference(result, &tensor, &other, 0) == DISTILE_ERROR_BAD_CHANNELS);
    other = tensor;
    other.stride_w = 2;
    CHECK(distile_mask_set_difference(result, &tensor, &other, 0) == DISTILE_ERROR_BAD_STRIDE);
    other = tensor;
    other.data = nullptr;
    CHECK(distile_mask_set_difference(result, &other, &tensor, 0) == DISTILE_ERROR_NULL_POINTER);

    check_pixels(masks.result, pixels);
}

TEST_CASE("Masks of masks work in steady state without allocating, in any order of sizes", "[mask_algebra]") {
    std::mt19937 random(9);
    const Masks masks;
    const distile_window window{3, 3, 2, 2, 1, 1, 1, 1, DISTILE_WINDOW_CONV};
    for (int32_t step = 0; step < 50; step++) {
        const auto height = static_cast<int32_t>(1 + random() % 40), width = static_cast<int32_t>(1 + random() % 150);
        const Pixels pixels = random_pixels(1, height, width, 0.2, random);
        masks.set(masks.a, pixels);
        // In place, through a smaller image and back.
        REQUIRE(distile_mask_affected_output(masks.a.get(), masks.a.get(), &window, (height + 1) / 2,
                                             (width + 1) / 2) == DISTILE_OK);
        const Pixels small = affected_output(pixels, window, (height + 1) / 2, (width + 1) / 2);
        check_pixels(masks.a, small);
        REQUIRE(distile_mask_needed_input(masks.a.get(), masks.a.get(), &window, height, width) == DISTILE_OK);
        check_pixels(masks.a, needed_input(small, window, height, width));
    }
}
