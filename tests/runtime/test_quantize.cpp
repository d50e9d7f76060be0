// Scales from models, and tensors from and to quantized ones, against plain definitions.
#include "reference/conv2d_reference.h"
#include "tests/support/catch.h"
#include "tests/support/test_tensor.h"
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <distile/distile.hpp>
#include <distile/layers.h>
#include <distile/quantize.h>
#include <limits>
#include <random>
#include <string>
#include <vector>

using namespace distile;

namespace {

constexpr distile_dtype quantized_types[] = {DISTILE_UINT8, DISTILE_INT8};
constexpr int32_t batch = 2, height = 5, width = 67, channels = 3;

Mask draw_mask(const Context &context, std::vector<uint8_t> &bytes, std::mt19937 &random) {
    bytes.resize(size_t{batch} * height * width);
    std::generate(bytes.begin(), bytes.end(), [&] { return static_cast<uint8_t>(random() % 3 == 0); });
    Mask mask = make_mask(context);
    check(context, distile_mask_set_bytes(mask.get(), bytes.data(), batch, height, width, height * width, width));
    return mask;
}

/** Calls visit(image, row, column, channel, whether the pixel is active). */
template<typename Visit> void for_each_element(const std::vector<uint8_t> &active, const Visit &visit) {
    for (int32_t n = 0; n < batch; n++) {
        for (int32_t y = 0; y < height; y++) {
            for (int32_t x = 0; x < width; x++) {
                for (int32_t c = 0; c < channels; c++) {
                    visit(n, y, x, c, active.empty() || active[(size_t{1} * n * height + y) * width + x] != 0);
                }
            }
        }
    }
}

/** QuantizeLinear by definition. */
int32_t quantized(float value, distile_scale scale, distile_dtype dtype) {
    const int32_t least = dtype == DISTILE_INT8 ? -128 : 0;
    if (std::isnan(value)) {
        return scale.zero_point;
    }
    const double rounded = std::nearbyint(static_cast<double>(value / scale.scale)) + scale.zero_point;
    return static_cast<int32_t>(std::clamp<double>(rounded, least, least + 255));
}

distile_scale calibrated(const Context &context, const std::vector<float> &values, distile_dtype dtype,
                         double percentile, bool symmetric) {
    std::vector<float> copy = values;
    const distile_tensor tensor = distile_tokens_make(copy.data(), 1, static_cast<int32_t>(copy.size()), 1);
    distile_calibration calibration{};
    calibration.percentile = percentile;
    calibration.symmetric = symmetric ? 1 : 0;
    distile_scale scale{};
    check(context, distile_calibrate(context.get(), &tensor, nullptr, 1, dtype, &calibration, &scale));
    return scale;
}

}  // namespace

TEST_CASE("Active pixels become quantized as ONNX defines it, and back", "[quantize]") {
    std::mt19937 random(1);
    for (const int32_t threads : {1, 3}) {
        distile_context_options options{};
        options.threads = threads;
        const Context context = make_context(options);
        for (const distile_dtype from : float_types) {
            for (const distile_dtype to : quantized_types) {
                for (const bool masked : {false, true}) {
                    const distile_scale scale = {masked ? .125f : .037f, to == DISTILE_INT8 ? -9 : 117};
                    const TensorLayout gaps = {2, 3, 5};
                    const TestTensor real(batch, height, width, channels, gaps, Flush::Back, from);
                    real.draw(Values::Floats, random);
                    for (int32_t x = 0; x < width; x++) {
                        // Also halves, what saturates, and special values.
                        real.set(1, 2, x, 1, (static_cast<float>(x) - 30.5f) * .125f);
                    }
                    real.set(0, 0, 0, 0, NAN);
                    real.set(0, 0, 1, 0, INFINITY);
                    real.set(0, 0, 2, 0, -INFINITY);
                    const TestTensor stored(batch, height, width, channels, gaps, Flush::Front, to);
                    std::vector<uint8_t> active;
                    const Mask mask = masked ? draw_mask(context, active, random) : nullptr;
                    for_each_element(
                        active, [&](int32_t n, int32_t y, int32_t x, int32_t c, bool) { stored.set(n, y, x, c, 77); });
                    check(context, distile_quantize(context.get(), &real.view(), mask.get(), scale, &stored.view()));
                    int mistakes = 0;
                    for_each_element(active, [&](int32_t n, int32_t y, int32_t x, int32_t c, bool is_active) {
                        const int32_t due = is_active ? quantized(real.get(n, y, x, c), scale, to) : 77;
                        mistakes += static_cast<int32_t>(stored.get(n, y, x, c)) != due ? 1 : 0;
                    });
                    CHECK(mistakes == 0);

                    const TestTensor back(batch, height, width, channels, gaps, Flush::Back, from);
                    for_each_element(
                        active, [&](int32_t n, int32_t y, int32_t x, int32_t c, bool) { back.set(n, y, x, c, 5); });
                    check(context, distile_dequantize(context.get(), &stored.view(), mask.get(), scale, &back.view()));
                    for_each_element(active, [&](int32_t n, int32_t y, int32_t x, int32_t c, bool is_active) {
                        const float number = stored.get(n, y, x, c) - static_cast<float>(scale.zero_point);
                        const float due = is_active ? round_to(from, number * scale.scale) : 5;
                        mistakes += back.get(n, y, x, c) != due ? 1 : 0;
                    });
                    CHECK(mistakes == 0);
                }
            }
        }
    }
}

TEST_CASE("Calibration finds ranges", "[quantize]") {
    const Context context = make_context();
    const std::vector<float> values = {-1, .5f, 3, 2, 0};
    const distile_scale wide = calibrated(context, values, DISTILE_UINT8, 100, false);
    CHECK(wide.scale == Approx(4.0 / 255));
    CHECK(wide.zero_point == 64);
    const distile_scale of_int8 = calibrated(context, values, DISTILE_INT8, 100, false);
    CHECK(of_int8.scale == wide.scale);
    CHECK(of_int8.zero_point == -64);
    const distile_scale symmetric = calibrated(context, values, DISTILE_INT8, 100, true);
    CHECK(symmetric.scale == Approx(3.0 / 127));
    CHECK(symmetric.zero_point == 0);
    CHECK(calibrated(context, values, DISTILE_UINT8, 100, true).zero_point == 128);
    // The range includes 0, the ends are stored exactly enough, and 0 exactly.
    const distile_scale positive = calibrated(context, {2, 5}, DISTILE_UINT8, 100, false);
    CHECK(positive.scale == Approx(5.0 / 255));
    CHECK(positive.zero_point == 0);
    CHECK(calibrated(context, {-2, -5}, DISTILE_UINT8, 100, false).zero_point == 255);
    CHECK(calibrated(context, {0, 0}, DISTILE_UINT8, 100, false).scale == 1);
    CHECK(calibrated(context, {1e-44f}, DISTILE_UINT8, 100, false).scale > 0);
    CHECK(std::isfinite(calibrated(context, {3e38f, -3e38f}, DISTILE_UINT8, 100, false).scale));

    // A percent of the values at each end is left out.
    std::vector<float> many(1000);
    for (int i = 0; i < 1000; i++) {
        many[i] = static_cast<float>(i * 7 % 1000) - 500;
    }
    const distile_scale cut = calibrated(context, many, DISTILE_UINT8, 98, false);
    CHECK(cut.scale == Approx((489.0 + 490.0) / 255));

    // Calibration reads several tensors, and only their active pixels.
    std::mt19937 random(2);
    std::vector<uint8_t> active;
    const Mask mask = draw_mask(context, active, random);
    const TestTensor first(batch, height, width, channels), second(batch, height, width, channels);
    float least = 0, most = 0;
    for_each_element(active, [&](int32_t n, int32_t y, int32_t x, int32_t c, bool is_active) {
        const float value = static_cast<float>(random() % 1000) / 100 - 5;
        first.set(n, y, x, c, is_active ? value : 1e9f);
        second.set(n, y, x, c, value / 2 + 4);
        least = std::min({least, is_active ? value : 0, value / 2 + 4});
        most = std::max({most, is_active ? value : 0, value / 2 + 4});
    });
    const distile_tensor tensors[] = {first.view(), second.view()};
    distile_mask *const masks[] = {mask.get(), nullptr};
    distile_calibration calibration{};
    calibration.percentile = 100;
    distile_scale scale{};
    check(context, distile_calibrate(context.get(), tensors, masks, 2, DISTILE_INT8, &calibration, &scale));
    CHECK(scale.scale == Approx((most - least) / 255));

    const auto refuses = [&](distile_status status, int32_t count, distile_dtype dtype, double percentile) {
        distile_calibration bad{};
        bad.percentile = percentile;
        const distile_scale before = scale;
        CHECK(distile_calibrate(context.get(), tensors, masks, count, dtype, &bad, &scale) == status);
        CHECK(scale.scale == before.scale);
    };
    refuses(DISTILE_ERROR_BAD_VALUE, 0, DISTILE_INT8, 100);
    refuses(DISTILE_ERROR_BAD_TYPE, 1, DISTILE_FLOAT16, 100);
    refuses(DISTILE_ERROR_BAD_VALUE, 1, DISTILE_INT8, 50);
    refuses(DISTILE_ERROR_BAD_VALUE, 1, DISTILE_INT8, NAN);
    second.set(0, 0, 0, 0, INFINITY);
    refuses(DISTILE_ERROR_BAD_VALUE, 2, DISTILE_INT8, 100);
}

TEST_CASE("A filter is quantized by its largest weights, after folding", "[quantize]") {
    const Context context = make_context();
    std::mt19937 random(3);
    constexpr distile_filter_extents extents = {5, 4, 3, 2};
    constexpr size_t of_channel = 4 * 3 * 2;
    std::vector<float> filter = draw(Values::Floats, 5 * of_channel, random), bias = draw(Values::Floats, 5, random),
                       mean = draw(Values::Floats, 5, random), variance = {1, 2, .5f, 3, 4};
    std::fill_n(filter.begin() + 2 * of_channel, of_channel, 0.0f);
    distile_weights_source source{};
    source.filter = filter.data();
    source.order = DISTILE_OIHW;
    source.bias = bias.data();
    source.bn_mean = mean.data();
    source.bn_variance = variance.data();
    std::vector<int8_t> quantized(filter.size());
    std::vector<float> scales(5), folded(5);
    for (const distile_dtype dtype : {DISTILE_INT4, DISTILE_INT8}) {
        const bool int4 = dtype == DISTILE_INT4;
        std::fill(quantized.begin(), quantized.end(), 99);
        check(context, distile_quantize_filter(context.get(), &source, &extents, dtype, quantized.data(), scales.data(),
                                               folded.data()));
        // Two a byte.
        const auto second = quantized.begin() + static_cast<std::ptrdiff_t>(quantized.size() / 2);
        CHECK(std::all_of(second, quantized.end(), [](int8_t byte) { return byte == 99; }) == int4);
        for (int o = 0; o < 5; o++) {
            const float factor = 1 / std::sqrt(variance[o]);
            CHECK(folded[o] == Approx((bias[o] - mean[o]) * factor));
            float least = 0, most = 0;
            for (size_t i = 0; i < of_channel; i++) {
                least = std::min(least, filter[o * of_channel + i] * factor);
                most = std::max(most, filter[o * of_channel + i] * factor);
            }
            const float needed = int4 ? std::max(least / -8, most / 7) : std::max(-least, most) / 127;
            CHECK(scales[o] == Approx(o == 2 ? 1 : needed));
            float lowest = 0, highest = 0;
            for (int h = 0; h < 3; h++) {
                for (int w = 0; w < 2; w++) {
                    for (int i = 0; i < 4; i++) {
                        const int place = ((o * 3 + h) * 2 + w) * 4 + i;
                        const int8_t byte = quantized[int4 ? place / 2 : place];
                        const int half = place % 2 == 0 ? byte & 15 : byte >> 4 & 15;
                        const auto stored = static_cast<float>(!int4 ? byte : half < 8 ? half : half - 16);
                        const float real = filter[((o * 4 + i) * 3 + h) * 2 + w] * factor;
                        CHECK(std::abs(stored * scales[o] - real) <= scales[o] * .5001f);
                        lowest = std::min(lowest, stored);
                        highest = std::max(highest, stored);
                    }
                }
            }
            const bool saturates = int4 ? lowest == -8 || highest == 7 : std::max(-lowest, highest) == 127;
            CHECK(saturates == (o != 2));
            CHECK(lowest >= (int4 ? -8 : -127));
        }
    }

    const std::vector<int8_t> before = quantized;
    const auto refuses = [&](distile_status status, const distile_weights_source &from,
                             const distile_filter_extents &of, float *to, distile_dtype dtype = DISTILE_INT8) {
        CHECK(distile_quantize_filter(context.get(), &from, &of, dtype, quantized.data(), scales.data(), to) == status);
        CHECK(quantized == before);
        CHECK(std::string(distile_context_message(context.get())).find("distile_quantize_filter: ") == 0);
    };
    refuses(DISTILE_ERROR_NULL_POINTER, source, extents, nullptr);
    refuses(DISTILE_ERROR_BAD_TYPE, source, extents, folded.data(), DISTILE_UINT8);
    refuses(DISTILE_ERROR_BAD_SHAPE, source, {5, 0, 3, 2}, folded.data());
    refuses(DISTILE_ERROR_BAD_SHAPE, source, {65536, 65536, 1, 1}, folded.data());
    distile_weights_source bad = source;
    bad.dtype = DISTILE_INT8;
    refuses(DISTILE_ERROR_BAD_TYPE, bad, extents, folded.data());
    bad = source;
    bad.bn_variance = nullptr;
    refuses(DISTILE_ERROR_BAD_VALUE, bad, extents, folded.data());
    const auto beside = [](const float *values) {
        return reinterpret_cast<const float *>(reinterpret_cast<const char *>(values) + 2);
    };
    bad = source;
    bad.filter = beside(filter.data());
    refuses(DISTILE_ERROR_BAD_ALIGNMENT, bad, extents, folded.data());
    bad = source;
    bad.bn_mean = beside(mean.data());
    refuses(DISTILE_ERROR_BAD_ALIGNMENT, bad, extents, folded.data());
    refuses(DISTILE_ERROR_BAD_ALIGNMENT, source, extents, const_cast<float *>(beside(folded.data())));
    variance[4] = -1;
    refuses(DISTILE_ERROR_BAD_VALUE, source, extents, folded.data());
    variance[4] = 1;
    filter.back() = INFINITY;
    refuses(DISTILE_ERROR_BAD_VALUE, source, extents, folded.data());
}

TEST_CASE("Conversions say what is wrong with their tensors", "[quantize]") {
    const Context context = make_context();
    std::vector<float> real(24);
    std::vector<uint8_t> stored(24);
    const distile_tensor from = distile_tensor_make(real.data(), 1, 2, 3, 4);
    distile_tensor to = distile_tensor_make(stored.data(), 1, 2, 3, 4);
    to.dtype = DISTILE_UINT8;
    const distile_scale scale = {1, 0};
    const auto quantize = [&](const distile_tensor *input, distile_scale with, const distile_tensor *output) {
        return distile_quantize(context.get(), input, nullptr, with, output);
    };
    CHECK(quantize(&from, scale, &to) == DISTILE_OK);
    CHECK(distile_quantize(nullptr, &from, nullptr, scale, &to) == DISTILE_ERROR_NULL_POINTER);
    CHECK(quantize(nullptr, scale, &to) == DISTILE_ERROR_NULL_POINTER);
    CHECK(quantize(&from, scale, nullptr) == DISTILE_ERROR_NULL_POINTER);
    CHECK(quantize(&to, scale, &to) == DISTILE_ERROR_BAD_TYPE);
    CHECK(quantize(&from, scale, &from) == DISTILE_ERROR_BAD_TYPE);
    CHECK(quantize(&from, {0, 0}, &to) == DISTILE_ERROR_BAD_VALUE);
    CHECK(quantize(&from, {1, 256}, &to) == DISTILE_ERROR_BAD_VALUE);
    distile_tensor bad = to;
    bad.height = 1;
    CHECK(quantize(&from, scale, &bad) == DISTILE_ERROR_BAD_SHAPE);
    bad = to;
    bad.channels = 3;
    CHECK(quantize(&from, scale, &bad) == DISTILE_ERROR_BAD_CHANNELS);
    bad = to;
    bad.data = real.data();
    CHECK(quantize(&from, scale, &bad) == DISTILE_ERROR_ALIASING);
    CHECK(distile_dequantize(context.get(), &from, nullptr, scale, &to) == DISTILE_ERROR_BAD_TYPE);
    CHECK(distile_dequantize(context.get(), &to, nullptr, scale, &from) == DISTILE_OK);
    const Mask unset = make_mask(context);
    CHECK(distile_quantize(context.get(), &from, unset.get(), scale, &to) == DISTILE_ERROR_BAD_MASK);
    // What computes in floating point does not take quantized tensors.
    distile_combine_args combine{};
    combine.input = &to;
    combine.output = &to;
    CHECK(distile_combine(context.get(), &combine) == DISTILE_ERROR_BAD_TYPE);
}
