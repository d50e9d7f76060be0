// Normalization, packing and cumulative lengths on a CPU, against plain loops.
#include "reference/plain_tokens.h"
#include "runtime/base/types.h"
#include "runtime/cpu/simd/simd_level.h"
#include "tests/support/callers.h"
#include "tests/support/catch.h"
#include "tests/support/conv2d_cases.h"
#include "tests/support/short_tests.h"
#include "tests/support/test_tensor.h"
#include <algorithm>
#include <cmath>
#include <cstring>
#include <distile/distile.hpp>
#include <distile/tokens.h>
#include <limits>
#include <random>
#include <string>
#include <vector>

using namespace distile;

namespace {

constexpr float no_number = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();

Context make_context_of(int32_t threads) {
    distile_context_options options{};
    options.threads = threads;
    return make_context(options);
}

/** A mask of a context, set from bytes. */
struct TokenMask {
    TokenMask(const Context &context, const std::vector<uint8_t> &bytes, int32_t batch, int32_t height, int32_t width)
        : mask(make_mask(context)) {
        check(context,
              distile_mask_set_bytes(mask.get(), bytes.data(), batch, height, width, int64_t{height} * width, width));
    }
    Mask mask;
};

std::vector<float> draw_around(float mean, float spread, size_t count, std::mt19937 &random) {
    std::normal_distribution<float> normal(mean, spread);
    std::vector<float> values(count);
    std::generate(values.begin(), values.end(), [&] { return normal(random); });
    return values;
}

/** Gaps between pixels, rows and images. */
constexpr TensorLayout layouts[] = {{}, {3, 0, 0}, {8, 16, 24}, {0, 5, 7}};

/** A call, its arguments in turns. */
struct NormalizeCase {
    distile_dtype dtype = DISTILE_FLOAT32;
    int32_t batch = 1, height = 1, width = 1, channels = 1;
    int number = 0;

    void run(const Context &context, std::mt19937 &random) const {
        if (left_out(number)) {
            return;
        }
        const char *name = mask_names[number % std::size(mask_names)];
        const TensorLayout &in_layout = layouts[number % std::size(layouts)];
        const TensorLayout &out_layout = layouts[number / 2 % std::size(layouts)];
        const bool in_place = number % 3 == 0;
        PlainNorm norm;
        norm.norm = number % 5 < 3 ? DISTILE_LAYER_NORM : DISTILE_RMS_NORM;
        norm.epsilon = number % 2 == 0 ? 1e-5f : 0.25f;
        if (number % 4 != 1) {
            norm.gamma = draw_around(1, 0.5f, channels, random);
        }
        if (number % 4 < 2) {
            norm.beta = draw_around(0, 1, channels, random);
        }
        const distile_inactive inactive = number / 3 % 2 == 0 ? DISTILE_KEEP : DISTILE_ZERO;
        CAPTURE(dtype, batch, height, width, channels, name, in_place, norm.norm, norm.epsilon, inactive, number);
        const std::vector<uint8_t> mask = distile::make_mask(name, batch, height, width, random);
        const TestTensor input(batch, height, width, channels, in_layout, Flush::Back, dtype);
        TestTensor other(batch, height, width, channels, out_layout, Flush::Front, dtype);
        // Inactive pixels are what a TestTensor begins with: NaN.
        for_each_pixel(input.view(), [&](size_t pixel, int32_t n, int32_t y, int32_t x) {
            for (int32_t c = 0; c < channels && mask[pixel] != 0; c++) {
                input.set(n, y, x, c, draw(Values::Floats, random));
            }
        });
        TestTensor &output = in_place ? const_cast<TestTensor &>(input) : other;
        const ReferenceOutput expected = plain_normalize(input.view(), mask, norm, inactive);
        const TokenMask token_mask(context, mask, batch, height, width);
        distile_normalize_args args{};
        args.input = &input.view();
        args.output = &output.view();
        args.mask = token_mask.mask.get();
        args.gamma = norm.gamma.empty() ? nullptr : norm.gamma.data();
        args.beta = norm.beta.empty() ? nullptr : norm.beta.data();
        args.norm = norm.norm;
        args.epsilon = norm.epsilon;
        args.inactive = inactive;
        const std::vector<uint32_t> before = output.snapshot(), input_before = input.snapshot();
        check(context, distile_normalize(context.get(), &args));
        REQUIRE(output.difference(before, expected) == "");
        REQUIRE((in_place || input.snapshot() == input_before));
    }
};

}  // namespace

TEST_CASE("Normalization computes what the plain loops do, and touches nothing else", "[tokens]") {
    std::mt19937 random(31);
    const int32_t shapes[][3] = {{1, 1, 1}, {2, 7, 9}, {3, 1, 33}, {1, 1, 197}, {2, 3, 130}};
    int cases = 0;
    for (int32_t threads : {1, 3}) {
        const Context context = make_context_of(threads);
        for (distile_dtype dtype : float_types) {
            for (int32_t channels : {1, 2, 3, 8, 17, 63, 64, 72, 130, 384}) {
                for (const auto &[batch, height, width] : shapes) {
                    NormalizeCase{dtype, batch, height, width, channels, cases++}.run(context, random);
                }
            }
        }
    }
}

TEST_CASE("Many tokens are normalized by several threads", "[tokens]") {
    std::mt19937 random(32);
    distile_context_options options{};
    CallersPool pool;
    pool.use_in(options);
    const Context context = make_context(options);
    for (int number = 0; number < 22; number++) {
        for (distile_dtype dtype : float_types) {
            NormalizeCase{dtype, 2, 1, 1500, 192, number}.run(context, random);
        }
    }
    CHECK(pool.loops() > (short_tests() ? 5 : 20));
}

TEST_CASE("A large mean or an outlier cancels nothing", "[tokens]") {
    std::mt19937 random(33);
    const Context context = make_context();
    constexpr int32_t tokens = 5;
    const std::vector<uint8_t> mask(tokens, 1);
    const TokenMask token_mask(context, mask, 1, 1, tokens);
    for (int32_t channels : {2, 16, 100, 1024, 65535}) {
        for (float mean : {0.0f, 100.0f, -1e4f, 1e6f}) {
            for (float spread : {1e-2f, 1.0f, 1e3f}) {
                for (bool outlier : {false, true}) {
                    CAPTURE(channels, mean, spread, outlier);
                    std::vector<float> values = draw_around(mean, spread, size_t{tokens} * channels, random);
                    for (int32_t i = 0; outlier && i < tokens; i++) {
                        values[static_cast<size_t>(i) * channels + (i % 2 == 0 ? 0 : channels - 1)] = 3e7f;
                    }
                    const distile_tensor tensor = distile_tokens_make(values.data(), 1, tokens, channels);
                    const ReferenceOutput expected = plain_normalize(tensor, mask, {}, DISTILE_KEEP);
                    distile_normalize_args args{};
                    args.input = args.output = &tensor;
                    args.mask = token_mask.mask.get();
                    check(context, distile_normalize(context.get(), &args));
                    double largest_error = 0;
                    for (size_t i = 0; i < values.size(); i++) {
                        // Without deviations 0 / 0 is NaN in both.
                        const bool both_nan = std::isnan(values[i]) && std::isnan(expected.exact[i]);
                        const double error = both_nan ? 0 : std::abs(values[i] - expected.exact[i]);
                        largest_error = std::max(largest_error, error);
                    }
                    // float32 sums of very many channels round more.
                    const double bound = channels > 10000 ? 1e-4 : 1e-5;
                    REQUIRE(largest_error <= bound * std::max(1.0, expected.largest));
                }
            }
        }
    }
}

TEST_CASE("NaN and infinity stay in their token", "[tokens]") {
    const Context context = make_context();
    constexpr int32_t tokens = 4, channels = 80;
    const TokenMask token_mask(context, std::vector<uint8_t>(tokens, 1), 1, 1, tokens);
    for (float special : {no_number, infinity, -infinity}) {
        for (int32_t place : {0, 7, channels - 1}) {
            for (distile_norm norm : {DISTILE_LAYER_NORM, DISTILE_RMS_NORM}) {
                std::vector<float> values(size_t{tokens} * channels);
                for (size_t i = 0; i < values.size(); i++) {
                    values[i] = static_cast<float>(i % 7);
                }
                values[2 * channels + place] = special;
                const distile_tensor tensor = distile_tokens_make(values.data(), 1, tokens, channels);
                distile_normalize_args args{};
                args.input = args.output = &tensor;
                args.mask = token_mask.mask.get();
                args.norm = norm;
                args.epsilon = 1e-5f;
                check(context, distile_normalize(context.get(), &args));
                CAPTURE(special, place, norm);
                for (int32_t i = 0; i < tokens * channels; i++) {
                    // An infinite mean of squares leaves zeros, except at the infinity itself.
                    const bool is_special = i / channels == 2, is_place = i == 2 * channels + place;
                    const bool all_nan = norm == DISTILE_LAYER_NORM || std::isnan(special);
                    REQUIRE(std::isnan(values[i]) == (is_special && (all_nan || is_place)));
                    if (is_special && !all_nan && !is_place) {
                        REQUIRE(values[i] == 0);
                    }
                }
            }
        }
    }
}

TEST_CASE("Every level sums and normalizes alike", "[tokens]") {
    std::mt19937 random(34);
    for (int64_t count : {1, 7, 8, 15, 16, 31, 63, 64, 65, 127, 128, 200, 384, 1000, 4097}) {
        const std::vector<float> values = draw_around(3, 2, count, random), gamma = draw_around(1, 1, count, random),
                                 beta = draw_around(0, 1, count, random);
        const RowNorm norm = {values[0], 0.125f, 1.75f, gamma.data(), beta.data()};
        std::vector<float> first;
        float differences = 0, squares = 0;
        for (const SimdLevel &level : supported_simd_levels()) {
            CAPTURE(level.name, count);
            const float sum = level.sum_differences(values.data(), count, norm.shift);
            const float of_squares = level.sum_squares(values.data(), count, norm.shift, norm.mean);
            std::vector<float> normalized(count + 1, 77), in_place = values;
            level.normalize(values.data(), count, norm, normalized.data());
            level.normalize(in_place.data(), count, norm, in_place.data());
            REQUIRE(normalized.back() == 77);
            normalized.pop_back();
            REQUIRE(normalized == in_place);
            if (first.empty()) {
                first = normalized;
                differences = sum;
                squares = of_squares;
                double exact = 0, exact_squares = 0;
                for (float value : values) {
                    exact += double{value} - double{norm.shift};
                    exact_squares += std::pow(double{value} - double{norm.shift} - double{norm.mean}, 2);
                }
                CHECK(std::abs(sum - exact) <= 1e-5 * static_cast<double>(count));
                CHECK(std::abs(of_squares - exact_squares) <= 1e-6 * exact_squares);
            }
            CHECK(sum == differences);
            CHECK(of_squares == squares);
            CHECK(normalized == first);
        }
    }
}

TEST_CASE("Every level rounds to 16 bits alike", "[tokens]") {
    std::mt19937 random(35);
    std::vector<float> values(100003);
    std::generate(values.begin(), values.end(), [&] {
        const auto bits = static_cast<uint32_t>(random());
        float value = 0;
        std::memcpy(&value, &bits, sizeof(value));
        return value;
    });
    // Numbers that float16 has, between them, beyond them, and what is no number.
    for (size_t i = 0; i < values.size(); i += 2) {
        values[i] = std::ldexp(static_cast<float>(random() % 8192) - 4096, static_cast<int>(random() % 40) - 36);
    }
    values[11] = no_number;
    values[12] = -no_number;
    values[13] = infinity;
    values[14] = -infinity;
    values[15] = 65520;
    values[16] = 65519.996f;
    for (distile_dtype dtype : {DISTILE_FLOAT16, DISTILE_BFLOAT16}) {
        std::vector<uint16_t> expected(values.size());
        find_type(dtype)->from_float(values.data(), expected.data(), values.size());
        for (const SimdLevel &level : supported_simd_levels()) {
            for (size_t count : {size_t{1}, size_t{7}, size_t{8}, size_t{19}, values.size()}) {
                CAPTURE(dtype, level.name, count);
                std::vector<uint16_t> narrowed(count + 1, 0x1234);
                level.conversions[float_type_place(dtype)].narrow(values.data(), narrowed.data(),
                                                                  static_cast<int64_t>(count));
                CHECK(std::equal(narrowed.begin(), narrowed.end() - 1, expected.begin()));
                CHECK(narrowed.back() == 0x1234);
            }
        }
    }
}

TEST_CASE("Pixels are packed in order and come back, and nothing else is touched", "[tokens]") {
    std::mt19937 random(36);
    const int32_t shapes[][3] = {{1, 1, 1}, {2, 7, 9}, {3, 1, 33}, {1, 1, 197}, {2, 3, 130}, {4, 1, 1100}};
    int cases = 0;
    const Context contexts[] = {make_context_of(1), make_context_of(3)};
    for (distile_dtype dtype : float_types) {
        for (int32_t channels : {1, 3, 8, 17, 96}) {
            for (const auto &[batch, height, width] : shapes) {
                for (const char *name : mask_names) {
                    const int number = cases++;
                    if (left_out(number)) {
                        continue;
                    }
                    const Context &context = contexts[number / 7 % 2];
                    const TensorLayout &layout = layouts[number % std::size(layouts)];
                    const TensorLayout &packed_layout = layouts[number / 3 % std::size(layouts)];
                    const distile_inactive inactive = number % 2 == 0 ? DISTILE_KEEP : DISTILE_ZERO;
                    CAPTURE(dtype, channels, batch, height, width, name, number);
                    const std::vector<uint8_t> mask = distile::make_mask(name, batch, height, width, random);
                    const auto active = static_cast<int32_t>(
                        std::count_if(mask.begin(), mask.end(), [](uint8_t byte) { return byte != 0; }));
                    const TokenMask token_mask(context, mask, batch, height, width);
                    TestTensor tensor(batch, height, width, channels, layout, Flush::Back, dtype);
                    tensor.draw(Values::Floats, random);
                    // One row of just enough pixels or more, or several images.
                    const int32_t room = std::max(active + number % 4 / 2 * 5, 1);
                    const bool one_row = number % 5 != 0;
                    TestTensor packed(one_row ? 1 : 2, one_row ? 1 : 3, one_row ? room : (room + 5) / 6, channels,
                                      packed_layout, Flush::Front, dtype);
                    const std::vector<uint32_t> tensor_before = tensor.snapshot();
                    const std::vector<uint32_t> packed_before = packed.snapshot();
                    const distile_tensor &into = packed.view();
                    const size_t capacity = size_t{1} * into.batch * into.height * into.width;
                    check(context, distile_pack(context.get(), &tensor.view(), token_mask.mask.get(), &packed.view()));
                    REQUIRE(packed.difference(packed_before, plain_pack(tensor.view(), mask, capacity), 0) == "");
                    REQUIRE((tensor.snapshot() == tensor_before));

                    packed.draw(Values::Floats, random);
                    check(context, distile_unpack(context.get(), &packed.view(), token_mask.mask.get(), &tensor.view(),
                                                  inactive));
                    REQUIRE(tensor.difference(tensor_before, plain_unpack(packed.view(), mask, inactive), 0) == "");
                }
            }
        }
    }
}

TEST_CASE("Cumulative lengths count the pixels before every image", "[tokens]") {
    std::mt19937 random(37);
    const Context context = make_context();
    const Mask mask = make_mask(context);
    const int32_t shapes[][3] = {{1, 1, 1}, {2, 7, 9}, {5, 1, 197}, {3, 40, 70}, {300, 1, 3}, {1, 1, 4096}};
    for (const auto &[batch, height, width] : shapes) {
        for (const char *name : mask_names) {
            CAPTURE(batch, height, width, name);
            const std::vector<uint8_t> bytes = distile::make_mask(name, batch, height, width, random);
            check(context, distile_mask_set_bytes(mask.get(), bytes.data(), batch, height, width,
                                                  int64_t{height} * width, width));
            for (int round = 0; round < 2; round++) {
                const int32_t *lengths = nullptr;
                check(context, distile_mask_cumulative_lengths(mask.get(), &lengths));
                REQUIRE(std::vector<int32_t>(lengths, lengths + batch + 1) == plain_lengths(bytes, batch));
            }
        }
    }
}

TEST_CASE("Calls on tokens refuse what makes no sense, in words", "[tokens]") {
    const Context context = make_context();
    constexpr int32_t tokens = 12, channels = 4;
    std::vector<float> values(size_t{2} * tokens * channels, 1), vector(channels, 1);
    const distile_tensor input = distile_tokens_make(values.data(), 1, tokens, channels);
    distile_tensor output = input;
    output.data = values.data() + size_t{tokens} * channels;
    std::vector<uint8_t> bytes(tokens, 1);
    bytes[3] = 0;
    const TokenMask token_mask(context, bytes, 1, 1, tokens);
    const TokenMask other_shape(context, bytes, 1, 2, tokens / 2);
    distile_mask *const mask = token_mask.mask.get();
    const auto refuse = [&](distile_status status, distile_status due, const std::vector<std::string> &words) {
        const std::string message = distile_context_message(context.get());
        INFO("the message is: " << message);
        CHECK(distile_status_name(status) == std::string(distile_status_name(due)));
        for (const std::string &word : words) {
            CHECK(message.find(word) != std::string::npos);
        }
        CHECK(values == std::vector<float>(values.size(), 1));
    };
    const auto refuse_norm = [&](distile_status due, const std::vector<std::string> &words, const auto &change) {
        distile_normalize_args args{};
        args.input = &input;
        args.output = &output;
        args.mask = mask;
        args.gamma = args.beta = vector.data();
        change(args);
        refuse(distile_normalize(context.get(), &args), due, words);
    };
    distile_tensor bad = output;
    const auto with_output = [&](distile_normalize_args &args) { args.output = &bad; };
    bad.width--;
    refuse_norm(DISTILE_ERROR_BAD_SHAPE, {"distile_normalize", "output is 1 x 1 x 11", "input is 1 x 1 x 12"},
                with_output);
    bad = output;
    bad.dtype = DISTILE_FLOAT16;
    refuse_norm(DISTILE_ERROR_BAD_TYPE, {"output has data type float16", "float32"}, with_output);
    bad = output;
    bad.channels = 3;
    refuse_norm(DISTILE_ERROR_BAD_CHANNELS, {"output has 3 channels", "4"}, with_output);
    bad = input;
    bad.data = values.data() + 2;
    refuse_norm(DISTILE_ERROR_ALIASING, {"input overlaps the output", "same view"}, with_output);
    refuse_norm(DISTILE_ERROR_ALIASING, {"beta overlaps the output"},
                [&](distile_normalize_args &args) { args.beta = values.data() + size_t{tokens} * channels + 1; });
    refuse_norm(DISTILE_ERROR_BAD_ALIGNMENT, {"gamma", "4 bytes"}, [&](distile_normalize_args &args) {
        args.gamma = reinterpret_cast<const float *>(reinterpret_cast<const char *>(vector.data()) + 2);
    });
    for (float epsilon : {-1e-30f, no_number, infinity}) {
        refuse_norm(DISTILE_ERROR_BAD_VALUE, {"epsilon", "at least 0"},
                    [&](distile_normalize_args &args) { args.epsilon = epsilon; });
    }
    refuse_norm(DISTILE_ERROR_BAD_MASK, {"mask is 1 x 2 x 6", "output is 1 x 1 x 12"},
                [&](distile_normalize_args &args) { args.mask = other_shape.mask.get(); });
    distile_tensor wide = distile_tokens_make(values.data(), 1, 1, 65536);
    refuse_norm(DISTILE_ERROR_BAD_CHANNELS, {"65536 channels", "65535"},
                [&](distile_normalize_args &args) { args.input = args.output = &wide; });

    distile_tensor small = output;
    small.width = 10;
    const auto pack = [&](const distile_tensor &packed, distile_mask *with) {
        return distile_pack(context.get(), &input, with, &packed);
    };
    refuse(pack(small, mask), DISTILE_ERROR_BAD_SHAPE,
           {"distile_pack", "packed tensor has 10 pixels", "11 are active"});
    refuse(distile_unpack(context.get(), &small, mask, &input, DISTILE_KEEP), DISTILE_ERROR_BAD_SHAPE,
           {"distile_unpack", "10", "11"});
    refuse(pack(input, mask), DISTILE_ERROR_ALIASING, {"packed tensor overlaps the tensor"});
    refuse(pack(output, other_shape.mask.get()), DISTILE_ERROR_BAD_MASK, {"mask is 1 x 2 x 6", "tensor is 1 x 1 x 12"});
    bad = output;
    bad.dtype = DISTILE_BFLOAT16;
    refuse(pack(bad, mask), DISTILE_ERROR_BAD_TYPE, {"packed tensor has data type bfloat16", "float32"});
    small.width = 11;
    CHECK(pack(small, mask) == DISTILE_OK);
}
