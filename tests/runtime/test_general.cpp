// PolyKernels that nobody compiled: general code for any shape, with the code of each instruction set.
#include "runtime/cpu/architectures/cpu_architecture.h"
#include "runtime/cpu/cpu_features.h"
#include "tests/support/catch.h"
#include "tests/support/operator_test.h"
#include "tests/support/short_tests.h"
#include <cstring>
#include <memory>
#include <string>

#include <distile/general.h>

using namespace distile;

namespace {

distile_conv2d conv2d(int32_t in, int32_t out, int32_t kernel, int32_t stride, int32_t dilation,
                      distile_activation epilogue, bool residual) {
    distile_conv2d conv{};
    conv.in_channels = in;
    conv.out_channels = out;
    conv.groups = 1;
    conv.kernel_h = conv.kernel_w = kernel;
    conv.stride_h = conv.stride_w = stride;
    conv.dilation_h = conv.dilation_w = dilation;
    conv.pad_top = conv.pad_left = dilation * (kernel - 1) / 2;
    conv.pad_bottom = conv.pad_right = conv.pad_top;
    conv.epilogue = epilogue;
    conv.residual = residual ? 1 : 0;
    return conv;
}

using General = std::unique_ptr<const distile_polykernel, decltype(&distile_general_polykernel_destroy)>;

General make_general(const Context &context, distile_operator_kind kind, const void *op,
                     distile_dtype weights = DISTILE_FLOAT32) {
    const distile_polykernel *made = nullptr;
    const distile_status status =
        distile_general_polykernel_create(context.get(), kind, op, DISTILE_FLOAT32, weights, &made);
    INFO(distile_context_message(context.get()));
    REQUIRE(status == DISTILE_OK);
    return {made, distile_general_polykernel_destroy};
}

/** Tests it with the code of each instruction set that this CPU has. */
void test_each_code(const distile_polykernel &general) {
    for (const PixelProducts *products : known_pixel_products()) {
        if (missing_cpu_feature(products->features).empty()) {
            INFO("features " << products->features);
            test_operator(general, 0, products->features);
        }
    }
}

}  // namespace

TEST_CASE("General code computes convolutions of any shape", "[general]") {
    const Context context = make_context();
    const distile_conv2d shapes[] = {conv2d(16, 48, 3, 1, 1, DISTILE_ACTIVATION_RELU, false),
                                     conv2d(17, 5, 1, 1, 1, DISTILE_ACTIVATION_NONE, true),
                                     conv2d(3, 70, 7, 2, 1, DISTILE_ACTIVATION_SILU, false),
                                     conv2d(40, 33, 3, 1, 2, DISTILE_ACTIVATION_LEAKY_RELU, true)};
    for (const distile_conv2d &shape : shapes) {
        for (const distile_dtype weights : {DISTILE_FLOAT32, DISTILE_BFLOAT16}) {
            const General general = make_general(context, DISTILE_MASKED_CONV2D, &shape, weights);
            test_each_code(*general);
        }
    }
    const General general = make_general(context, DISTILE_MASKED_CONV2D, &shapes[0]);
    test_large_edges(*general);
}

TEST_CASE("General code computes depthwise convolutions of any shape", "[general]") {
    const Context context = make_context();
    // Whole panels and one that is not whole; pixels of a row that share inputs, and others.
    const distile_conv2d shapes[] = {conv2d(32, 32, 3, 1, 1, DISTILE_ACTIVATION_RELU6, false),
                                     conv2d(5, 5, 3, 2, 1, DISTILE_ACTIVATION_NONE, true),
                                     conv2d(80, 80, 3, 1, 1, DISTILE_ACTIVATION_NONE, true),
                                     conv2d(55, 55, 5, 1, 1, DISTILE_ACTIVATION_RELU, false),
                                     conv2d(34, 34, 7, 1, 1, DISTILE_ACTIVATION_NONE, false),
                                     conv2d(75, 75, 5, 1, 2, DISTILE_ACTIVATION_HARDSWISH, true),
                                     conv2d(132, 132, 3, 1, 1, DISTILE_ACTIVATION_SILU, false),
                                     conv2d(17, 17, 9, 1, 1, DISTILE_ACTIVATION_NONE, false)};
    for (distile_conv2d shape : shapes) {
        shape.groups = shape.in_channels;
        for (const distile_dtype weights : {DISTILE_FLOAT32, DISTILE_BFLOAT16}) {
            const General general = make_general(context, DISTILE_MASKED_CONV2D, &shape, weights);
            test_each_code(*general);
        }
    }
}

TEST_CASE("General code computes convolutions with groups", "[general]") {
    const Context context = make_context();
    // Groups of whole panels, of less and of more than one; more groups than threads share out; and narrow ones, whose
    // weights lie by diagonals, of whole panels, in part and of several parts of the kernel.
    const std::pair<int32_t, distile_conv2d> shapes[] = {
        {2, conv2d(32, 64, 3, 1, 1, DISTILE_ACTIVATION_RELU, true)},
        {3, conv2d(12, 60, 3, 2, 1, DISTILE_ACTIVATION_NONE, false)},
        {2, conv2d(48, 24, 1, 1, 1, DISTILE_ACTIVATION_SILU, true)},
        {10, conv2d(20, 10, 3, 1, 2, DISTILE_ACTIVATION_RELU6, false)},
        {5, conv2d(80, 80, 3, 1, 1, DISTILE_ACTIVATION_RELU, false)},
        {16, conv2d(32, 32, 3, 1, 1, DISTILE_ACTIVATION_RELU, true)},
        {5, conv2d(20, 20, 3, 2, 1, DISTILE_ACTIVATION_HARDSWISH, false)},
        {19, conv2d(152, 152, 3, 1, 1, DISTILE_ACTIVATION_NONE, false)},
        {2, conv2d(8, 8, 21, 1, 1, DISTILE_ACTIVATION_RELU6, false)}};
    int number = 0;
    for (const auto &[groups, plain] : shapes) {
        distile_conv2d shape = plain;
        shape.groups = groups;
        for (const distile_dtype weights : {DISTILE_FLOAT32, DISTILE_BFLOAT16}) {
            if (left_out(number++)) {
                continue;
            }
            INFO(groups << " groups of " << shape.in_channels << " -> " << shape.out_channels << " channels");
            const General general = make_general(context, DISTILE_MASKED_CONV2D, &shape, weights);
            test_each_code(*general);
        }
    }
}

TEST_CASE("General code computes linear layers of any shape", "[general]") {
    const Context context = make_context();
    for (const bool residual : {false, true}) {
        distile_linear linear{};
        linear.in_channels = 24;
        linear.out_channels = 50;
        linear.epilogue = DISTILE_ACTIVATION_GELU;
        linear.residual = residual ? 1 : 0;
        const General general = make_general(context, DISTILE_MASKED_LINEAR, &linear);
        test_operator(*general);
    }
}

TEST_CASE("What has no general code is refused", "[general]") {
    const Context context = make_context();
    const distile_conv2d conv = conv2d(8, 8, 3, 1, 1, DISTILE_ACTIVATION_NONE, false);
    const distile_polykernel *made = nullptr;
    const auto create = [&](distile_operator_kind kind, const void *op, distile_dtype types, distile_dtype weights) {
        return distile_general_polykernel_create(context.get(), kind, op, types, weights, &made);
    };
    CHECK(distile_general_polykernel_create(nullptr, DISTILE_MASKED_CONV2D, &conv, DISTILE_FLOAT32, DISTILE_FLOAT32,
                                            &made) == DISTILE_ERROR_NULL_POINTER);
    CHECK(create(DISTILE_MASKED_CONV2D, nullptr, DISTILE_FLOAT32, DISTILE_FLOAT32) == DISTILE_ERROR_NULL_POINTER);
    CHECK(create(DISTILE_MASKED_CONV_TRANSPOSE2D, &conv, DISTILE_FLOAT32, DISTILE_FLOAT32) == DISTILE_ERROR_BAD_VALUE);
    CHECK(create(DISTILE_MASKED_CONV2D, &conv, DISTILE_FLOAT16, DISTILE_FLOAT32) == DISTILE_ERROR_BAD_TYPE);
    CHECK(create(DISTILE_MASKED_CONV2D, &conv, DISTILE_FLOAT32, DISTILE_INT8) == DISTILE_ERROR_BAD_TYPE);
    distile_conv2d groups = conv;
    groups.groups = 3;
    CHECK(create(DISTILE_MASKED_CONV2D, &groups, DISTILE_FLOAT32, DISTILE_FLOAT32) == DISTILE_ERROR_BAD_CHANNELS);
    distile_conv2d illegal = conv;
    illegal.stride_w = 0;
    CHECK(create(DISTILE_MASKED_CONV2D, &illegal, DISTILE_FLOAT32, DISTILE_FLOAT32) == DISTILE_ERROR_BAD_VALUE);
    distile_conv2d unknown = conv;
    const int number = 99;
    std::memcpy(&unknown.epilogue, &number, sizeof(number));
    CHECK(create(DISTILE_MASKED_CONV2D, &unknown, DISTILE_FLOAT32, DISTILE_FLOAT32) == DISTILE_ERROR_BAD_VALUE);
    distile_linear linear{};
    linear.in_channels = linear.out_channels = 8;
    std::memcpy(&linear.epilogue, &number, sizeof(number));
    CHECK(create(DISTILE_MASKED_LINEAR, &linear, DISTILE_FLOAT32, DISTILE_FLOAT32) == DISTILE_ERROR_BAD_VALUE);
    distile_general_polykernel_destroy(nullptr);
}
