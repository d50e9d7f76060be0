#include "bench/peers/onednn/onednn_conv2d.h"
#include "reference/conv2d_reference.h"
#include "tests/support/catch.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

using namespace distile;

namespace {

std::vector<float> random_values(size_t count, uint32_t seed) {
    std::mt19937 random(seed);
    std::uniform_real_distribution<float> value(-1, 1);
    std::vector<float> values(count);
    std::generate(values.begin(), values.end(), [&] { return value(random); });
    return values;
}

/** A tensor with its memory: contiguous except for a border and, optionally, a gap behind every row. */
struct TestTensor {
    TestTensor(int32_t batch, int32_t height, int32_t width, int32_t channels, int32_t border = 0, int32_t gap = 0)
        : memory(static_cast<size_t>(batch) * (height + 2 * border) * (width + 2 * border + gap) * channels) {
        tensor = distile_tensor_make(nullptr, batch, height, width, channels);
        tensor.stride_h = int64_t{width + 2 * border + gap} * channels;
        tensor.stride_n = tensor.stride_h * (height + 2 * border);
        tensor.data = memory.data() + border * (tensor.stride_h + channels);
        tensor.border_top = tensor.border_bottom = tensor.border_left = tensor.border_right = border;
    }

    void fill(uint32_t seed) const {
        const std::vector<float> values = random_values(memory.size(), seed);
        size_t i = 0;
        for (int32_t n = 0; n < tensor.batch; n++) {
            for (int32_t y = 0; y < tensor.height; y++) {
                for (int32_t x = 0; x < tensor.width; x++) {
                    for (int32_t c = 0; c < tensor.channels; c++) {
                        at(n, y, x)[c] = values[i++];
                    }
                }
            }
        }
    }

    float *at(int32_t n, int32_t y, int32_t x) const {
        return static_cast<float *>(tensor.data) + n * tensor.stride_n + y * tensor.stride_h + x * tensor.stride_w;
    }

    std::vector<float> memory;
    distile_tensor tensor{};
};

distile_conv2d conv3x3(int32_t in, int32_t out) {
    distile_conv2d conv{};
    conv.in_channels = in;
    conv.groups = 1;
    conv.out_channels = out;
    conv.kernel_h = conv.kernel_w = 3;
    conv.stride_h = conv.stride_w = 1;
    conv.pad_top = conv.pad_bottom = conv.pad_left = conv.pad_right = 1;
    conv.dilation_h = conv.dilation_w = 1;
    return conv;
}

struct Case {
    distile_conv2d conv;
    int32_t batch, height, width;
    int32_t border = 0, gap = 0;
    bool residual_is_output = false, batch_norm = false;
    distile_operator_kind kind = DISTILE_MASKED_CONV2D;
};

/** Runs a case twice, so that the second call takes the cached primitive, and compares every value. */
void check_case(const Case &test, OneDnnMath math = OneDnnMath::strict, double tolerance = 1e-4) {
    const distile_conv2d &conv = test.conv;
    TestTensor input(test.batch, test.height, test.width, conv.in_channels, test.border, test.gap);
    input.fill(1);
    const int32_t height = reference_output_height(conv, test.height, test.kind);
    const int32_t width = reference_output_width(conv, test.width, test.kind);
    TestTensor output(test.batch, height, width, conv.out_channels);
    TestTensor residual(test.batch, height, width, conv.out_channels);
    residual.fill(2);

    const std::vector<float> filter = random_values(filter_size(conv), 3);
    const std::vector<float> bias = random_values(conv.out_channels, 4), mean = random_values(conv.out_channels, 5);
    const std::vector<float> variance(conv.out_channels, 0.25f);
    distile_weights_source source{};
    source.filter = filter.data();
    source.order = DISTILE_OIHW;
    source.bias = bias.data();
    const float slope = 0.3f;
    source.slope = &slope;
    if (test.batch_norm) {
        source.bn_mean = mean.data();
        source.bn_variance = variance.data();
    }

    OneDnnConv2d dense(OneDnnEngine(), conv, source, math, test.kind);
    const distile_tensor *addend = nullptr;
    if (conv.residual != 0) {
        addend = test.residual_is_output ? &output.tensor : &residual.tensor;
    }
    for (int repeat = 0; repeat < 2; repeat++) {
        if (test.residual_is_output) {
            output.memory = residual.memory;
            output.tensor.data = output.memory.data();
        }
        dense.run(input.tensor, addend, output.tensor);
    }

    const Conv2dReference reference(conv, source, test.kind);
    double worst = 0;
    std::vector<double> sums;
    for (int32_t n = 0; n < test.batch; n++) {
        for (int32_t y = 0; y < height; y++) {
            for (int32_t x = 0; x < width; x++) {
                reference.sums(input.tensor, conv.residual != 0 ? &residual.tensor : nullptr, n, y, x, sums);
                for (int32_t o = 0; o < conv.out_channels; o++) {
                    worst = std::max(worst,
                                     std::abs(apply_epilogue(conv.epilogue, sums[o], slope) - output.at(n, y, x)[o]));
                }
            }
        }
    }
    CHECK(worst < tolerance);
}

}  // namespace

TEST_CASE("oneDNN computes convolutions of every geometry", "[onednn]") {
    Case test{conv3x3(16, 32), 1, 9, 11};
    SECTION("3x3") {
    }
    SECTION("a batch") {
        test.batch = 3;
    }
    SECTION("channels that are no multiple of a vector") {
        test.conv.in_channels = 5;
        test.conv.out_channels = 19;
    }
    SECTION("stride 2 with asymmetric padding") {
        test.conv.stride_h = test.conv.stride_w = 2;
        test.conv.pad_top = test.conv.pad_left = 0;
    }
    SECTION("dilation") {
        test.conv.dilation_h = test.conv.dilation_w = 2;
        test.conv.pad_top = test.conv.pad_bottom = test.conv.pad_left = test.conv.pad_right = 2;
    }
    SECTION("1x1 without padding") {
        test.conv.kernel_h = test.conv.kernel_w = 1;
        test.conv.pad_top = test.conv.pad_bottom = test.conv.pad_left = test.conv.pad_right = 0;
    }
    SECTION("groups") {
        test.conv.groups = 4;
        test.batch_norm = true;
    }
    SECTION("groups of odd channels") {
        test.conv.in_channels = 15;
        test.conv.out_channels = 21;
        test.conv.groups = 3;
    }
    SECTION("depthwise") {
        test.conv.in_channels = test.conv.out_channels = test.conv.groups = 24;
        test.batch_norm = true;
    }
    SECTION("batch normalisation") {
        test.batch_norm = true;
    }
    check_case(test);
}

TEST_CASE("oneDNN computes transposed convolutions and those after upsampling", "[onednn]") {
    Case test{conv3x3(16, 32), 2, 5, 7};
    test.kind = GENERATE(DISTILE_MASKED_CONV_TRANSPOSE2D, DISTILE_MASKED_UPSAMPLE_CONV2D);
    test.conv.epilogue = DISTILE_ACTIVATION_RELU;
    test.conv.stride_h = 2;
    test.conv.stride_w = 3;
    SECTION("with asymmetric padding and a residual") {
        test.conv.pad_top = test.conv.pad_right = 0;
        test.conv.residual = 1;
    }
    SECTION("with dilation") {
        test.conv.dilation_h = 2;
    }
    SECTION("with batch normalisation, and a border that they leave alone") {
        test.batch_norm = true;
        test.border = 1;
    }
    check_case(test);
}

TEST_CASE("oneDNN reads borders and gaps in place", "[onednn]") {
    Case test{conv3x3(16, 16), 2, 8, 10};
    SECTION("a border as wide as the padding") {
        test.border = 1;
    }
    SECTION("a border wider than the padding") {
        test.border = 3;
    }
    SECTION("a border narrower than the padding") {
        test.conv.dilation_h = test.conv.dilation_w = 2;
        test.conv.pad_top = test.conv.pad_bottom = test.conv.pad_left = test.conv.pad_right = 2;
        test.border = 1;
    }
    SECTION("a border and stride 2") {
        test.border = 1;
        test.conv.stride_h = test.conv.stride_w = 2;
    }
    SECTION("rows with a gap") {
        test.gap = 4;
    }
    check_case(test);
}

TEST_CASE("oneDNN applies epilogues and residuals in our order", "[onednn]") {
    Case test{conv3x3(16, 16), 1, 7, 7};
    test.conv.epilogue = GENERATE(DISTILE_ACTIVATION_NONE, DISTILE_ACTIVATION_RELU, DISTILE_ACTIVATION_RELU6,
                                  DISTILE_ACTIVATION_SILU, DISTILE_ACTIVATION_LEAKY_RELU);
    SECTION("no residual") {
    }
    SECTION("a residual of its own") {
        test.conv.residual = 1;
    }
    SECTION("the output as the residual") {
        test.conv.residual = 1;
        test.residual_is_output = true;
    }
    check_case(test);
}

TEST_CASE("oneDNN may round to bfloat16 when allowed to", "[onednn]") {
    check_case({conv3x3(64, 64), 1, 16, 16}, OneDnnMath::any, 0.5);
}

TEST_CASE("oneDNN takes every order of the weights", "[onednn]") {
    const distile_conv2d conv = conv3x3(4, 6);
    const std::vector<float> oihw = random_values(size_t{6} * 4 * 9, 7);
    const distile_weights_order order = GENERATE(DISTILE_OHWI, DISTILE_HWIO, DISTILE_IOHW);
    std::vector<float> filter(oihw.size());
    for (int o = 0, from = 0; o < 6; o++) {
        for (int i = 0; i < 4; i++) {
            for (int tap = 0; tap < 9; tap++, from++) {
                const int to = order == DISTILE_OHWI   ? (o * 9 + tap) * 4 + i
                               : order == DISTILE_HWIO ? (tap * 4 + i) * 6 + o
                                                       : (i * 6 + o) * 9 + tap;
                filter[to] = oihw[from];
            }
        }
    }
    TestTensor input(1, 6, 6, 4), first(1, 6, 6, 6), second(1, 6, 6, 6);
    input.fill(8);
    distile_weights_source source{};
    source.filter = oihw.data();
    source.order = DISTILE_OIHW;
    const OneDnnEngine engine;
    OneDnnConv2d(engine, conv, source).run(input.tensor, nullptr, first.tensor);
    source.filter = filter.data();
    source.order = order;
    OneDnnConv2d(engine, conv, source).run(input.tensor, nullptr, second.tensor);
    for (size_t i = 0; i < first.memory.size(); i++) {
        REQUIRE(std::abs(first.memory[i] - second.memory[i]) < 1e-5f);
    }
}

TEST_CASE("oneDNN's wrapper keeps the primitives of several shapes", "[onednn]") {
    const distile_conv2d conv = conv3x3(8, 8);
    const std::vector<float> filter(size_t{8} * 8 * 9, 0.5f);
    distile_weights_source source{};
    source.filter = filter.data();
    source.order = DISTILE_OIHW;
    OneDnnConv2d dense(OneDnnEngine(), conv, source);
    for (int round = 0; round < 2; round++) {
        // More shapes than are kept, so that old ones are made again.
        for (int32_t size = 3; size < 24; size++) {
            TestTensor input(1, size, size, 8), output(1, size, size, 8);
            std::fill(input.memory.begin(), input.memory.end(), 1.0f);
            dense.run(input.tensor, nullptr, output.tensor);
            REQUIRE(output.at(0, 1, 1)[0] == 36.0f);
            REQUIRE(output.at(0, 0, 0)[7] == 16.0f);
        }
    }
}

TEST_CASE("oneDNN's wrapper refuses what does not fit", "[onednn]") {
    const distile_conv2d conv = conv3x3(8, 8);
    const std::vector<float> filter(size_t{8} * 8 * 9, 0.5f);
    distile_weights_source source{};
    source.order = DISTILE_OIHW;
    const OneDnnEngine engine;
    CHECK_THROWS_AS(OneDnnConv2d(engine, conv, source), std::runtime_error);
    source.filter = filter.data();
    source.order = static_cast<distile_weights_order>(9);
    CHECK_THROWS_AS(OneDnnConv2d(engine, conv, source), std::runtime_error);
    source.order = DISTILE_OIHW;
    OneDnnConv2d dense(engine, conv, source);
    TestTensor input(1, 6, 6, 8), output(1, 6, 6, 8), small(1, 5, 6, 8), wide(1, 6, 6, 9);
    CHECK_THROWS_AS(dense.run(input.tensor, nullptr, small.tensor), std::runtime_error);
    CHECK_THROWS_AS(dense.run(wide.tensor, nullptr, output.tensor), std::runtime_error);
    CHECK_THROWS_AS(dense.run(input.tensor, &output.tensor, output.tensor), std::runtime_error);
    distile_tensor empty = output.tensor;
    empty.data = nullptr;
    CHECK_THROWS_AS(dense.run(input.tensor, nullptr, empty), std::runtime_error);
}

TEST_CASE("oneDNN says what it is and what it runs", "[onednn]") {
    CHECK(OneDnnEngine::version().find('.') != std::string::npos);
    const std::vector<float> filter(size_t{16} * 16 * 9, 0.5f);
    distile_weights_source source{};
    source.filter = filter.data();
    source.order = DISTILE_OIHW;
    OneDnnConv2d dense(OneDnnEngine(), conv3x3(16, 16), source);
    TestTensor input(2, 8, 8, 16, 1), output(2, 8, 8, 16);
    // A bordered input is contiguous to oneDNN, so it must not fall to the reference code.
    const std::string name = dense.implementation(input.tensor, nullptr, output.tensor);
    CHECK(!name.empty());
    CHECK(name.find("ref") == std::string::npos);
}
