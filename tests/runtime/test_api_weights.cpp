// Packed weights of the C API, its scratch memory, and what it says of the last call.
#include "kernels/call.h"
#include "tests/support/api_call.h"
#include "tests/support/callers.h"
#include "tests/support/catch.h"
#include "tests/support/descriptors.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <distile/distile.hpp>
#include <distile/polykernel.h>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <thread>
#include <vector>

using namespace distile;

TEST_CASE("The orders of a filter's dimensions mean the same weights", "[api]") {
    const distile_polykernel *polykernel =
        GENERATE(&plain_kernel, &test_groups2_32_32_avx2, &test_depthwise3_24_avx2, &test_multiplier_8_24_avx2);
    CAPTURE(polykernel->name);
    Call call(*polykernel);
    const distile_conv2d &conv = call.conv;
    const size_t o_count = conv.out_channels, i_count = conv.in_channels / conv.groups, h_count = conv.kernel_h,
                 w_count = conv.kernel_w;
    std::vector<float> oihw(call.reference.filter.size()), ohwi(oihw.size());
    for (size_t o = 0; o < o_count; o++) {
        for (size_t i = 0; i < i_count; i++) {
            for (size_t h = 0; h < h_count; h++) {
                for (size_t w = 0; w < w_count; w++) {
                    const float value = call.reference.filter[((h * w_count + w) * i_count + i) * o_count + o];
                    oihw[((o * i_count + i) * h_count + h) * w_count + w] = value;
                    ohwi[((o * h_count + h) * w_count + w) * i_count + i] = value;
                }
            }
        }
    }
    for (const auto &[filter, order] : {std::pair{&oihw, DISTILE_OIHW}, std::pair{&ohwi, DISTILE_OHWI}}) {
        distile_weights_source source{};
        source.filter = filter->data();
        source.order = order;
        source.bias = call.reference.bias.data();
        const Weights weights = pack_weights(call.context, call.kernel, source);
        call.args.weights = weights.get();
        call.accept();
    }
}

TEST_CASE("Packed weights do not need their source, and serve every kernel of the operator", "[api]") {
    Call call;
    Call again;
    const std::vector<float> filter = call.reference.filter;
    std::fill(call.reference.filter.begin(), call.reference.filter.end(), 9.0f);
    std::vector<float> bias(call.conv.out_channels, 9.0f);
    bias.swap(call.reference.bias);
    call.reference.filter = filter;
    call.reference.bias = bias;
    call.accept();
    const Kernel second = make_kernel(call.context, plain_kernel);
    call.kernel.reset();
    REQUIRE(distile_run(second.get(), &call.args) == DISTILE_OK);
}

TEST_CASE("Batch normalisation is folded into the weights", "[api]") {
    Call call(timed_kernel);
    std::mt19937 random(5);
    call.input.draw(Values::Floats, random);
    const size_t channels = call.conv.out_channels;
    call.reference.filter = draw(Values::Floats, call.reference.filter.size(), random);
    const std::vector<float> bias = draw(Values::Floats, channels, random);
    const std::vector<float> gamma = draw(Values::Floats, channels, random),
                             beta = draw(Values::Floats, channels, random);
    const std::vector<float> mean = draw(Values::Floats, channels, random);
    std::vector<float> variance = draw(Values::Floats, channels, random);
    for (float &value : variance) {
        value = value * value;
    }
    variance[3] = 0;  // The epsilon alone.
    for (int parts = 0; parts < 8; parts++) {
        CAPTURE(parts);
        distile_weights_source source{};
        source.filter = call.reference.filter.data();
        source.order = DISTILE_HWIO;
        source.bias = parts & 1 ? bias.data() : nullptr;
        source.bn_gamma = parts & 2 ? gamma.data() : nullptr;
        source.bn_beta = parts & 4 ? beta.data() : nullptr;
        source.bn_mean = mean.data();
        source.bn_variance = variance.data();
        source.bn_epsilon = 1e-3f;
        const Weights weights = pack_weights(call.context, call.kernel, source);
        call.args.weights = weights.get();

        call.reference.bias = parts & 1 ? bias : std::vector<float>();
        ReferenceOutput expected = reference_masked_conv2d(call.reference);
        double largest = 0;
        for (size_t i = 0; i < expected.values.size(); i++) {
            const size_t o = i % channels;
            if (expected.states[i / channels] == PixelState::Computed) {
                const double scale = (parts & 2 ? gamma[o] : 1) / std::sqrt(double{variance[o]} + 1e-3f);
                expected.values[i] =
                    static_cast<float>(scale * (double{expected.values[i]} - mean[o]) + (parts & 4 ? beta[o] : 0));
                largest = std::max(largest, std::abs(double{expected.values[i]}));
            }
        }
        const auto before = call.output.snapshot();
        REQUIRE(distile_run(call.kernel.get(), &call.args) == DISTILE_OK);
        CHECK(call.output.difference(before, expected, 1e-5 * largest) == "");
    }

    distile_weights *weights = nullptr;
    distile_weights_source source{};
    source.filter = call.reference.filter.data();
    source.order = DISTILE_HWIO;
    const float *distile_weights_source::*const members[] = {
        &distile_weights_source::bn_gamma, &distile_weights_source::bn_beta, &distile_weights_source::bn_mean,
        &distile_weights_source::bn_variance};
    for (const auto member : members) {
        distile_weights_source alone = source;
        alone.*member = mean.data();
        CHECK(distile_weights_pack(call.kernel.get(), &alone, &weights) == DISTILE_ERROR_BAD_VALUE);
        CHECK(contains(call.message(), "mean and variance"));
    }
    source.bn_mean = mean.data();
    source.bn_variance = variance.data();
    CHECK(distile_weights_pack(call.kernel.get(), &source, &weights) == DISTILE_ERROR_BAD_VALUE);
    CHECK(contains(call.message(), "output channel 3"));
    CHECK(weights == nullptr);
}

TEST_CASE("An allocator that returns null ends a call that needs scratch memory", "[api]") {
    for (int32_t threads : {1, 3}) {
        CallersAllocator allocator;
        {
            distile_context_options options{};
            options.threads = threads;
            allocator.use_in(options);
            // Every pixel of a row reads beyond the image, so that no tile can be read in place.
            Call call(plain_kernel, options, 1, 1, 9);
            const int64_t made = allocator.calls();
            allocator.run_out();
            call.refuse(DISTILE_ERROR_OUT_OF_MEMORY, {});
            CHECK(allocator.calls() > made);
            call.args.variant = "dense";
            call.refuse(DISTILE_ERROR_OUT_OF_MEMORY, {});
            allocator.refill();
            call.accept_variant("dense");
            call.args.variant = nullptr;
            call.accept();
            // From now on the blocks are kept, and nothing is allocated.
            const int64_t calls = allocator.calls();
            allocator.run_out();
            if (threads == 1) {
                call.accept();
                call.accept_variant("dense");
                CHECK(allocator.calls() == calls);
            }
        }
        CHECK(allocator.blocks_in_use() == 0);
        CHECK(allocator.mistakes() == 0);
    }
}

TEST_CASE("A kernel that gets no scratch memory says so", "[api]") {
    CallersAllocator allocator;
    distile_context_options options{};
    allocator.use_in(options);
    Descriptor hungry(plain_kernel);
    hungry.run_only("hungry", [](const distile_kernel_call *call) {
        void *memory = call->hooks->allocate(call->hooks, 1000);
        if (!memory) {
            return DISTILE_CALL_OUT_OF_MEMORY;
        }
        call->hooks->deallocate(call->hooks, memory);
        return 0;
    });
    Call call(hungry.polykernel, options);
    // The first call makes the lists of the mask, so that only the kernel's memory is left to fail.
    REQUIRE(distile_run(call.kernel.get(), &call.args) == DISTILE_OK);
    const int64_t calls = allocator.calls();
    REQUIRE(distile_run(call.kernel.get(), &call.args) == DISTILE_OK);
    CHECK(allocator.calls() == calls);
    hungry.variants[0].run = [](const distile_kernel_call *given) {
        void *memory = given->hooks->allocate(given->hooks, 100000);
        return memory ? 0 : DISTILE_CALL_OUT_OF_MEMORY;
    };
    call.kernel = make_kernel(call.context, hungry.polykernel);
    allocator.run_out();
    call.refuse(DISTILE_ERROR_OUT_OF_MEMORY, {"'hungry'", plain_kernel.name});
}

TEST_CASE("A bordered input needs no scratch memory", "[api]") {
    CallersAllocator allocator;
    distile_context_options options{};
    allocator.use_in(options);
    Call call(plain_kernel, options);
    TestTensor bordered(2, 6, 7, 16, {0, 0, 0, 1, 1, 1, 1});
    bordered.draw(Values::Integers, call.random);
    call.input_view = bordered.view();
    call.reference.input = bordered.view();
    // The mask's lists, once.
    call.accept();
    allocator.run_out();
    const int64_t calls = allocator.calls();
    for (int round = 0; round < 3; round++) {
        call.accept();
    }
    CHECK(allocator.calls() == calls);
    // Without the border the input is copied, which needs memory.
    const Kernel fresh = make_kernel(call.context, plain_kernel);
    call.input_view = call.input.view();
    CHECK(distile_run(fresh.get(), &call.args) == DISTILE_ERROR_OUT_OF_MEMORY);
}

TEST_CASE("The caller's thread pool runs the loops", "[api]") {
    CallersPool pool;
    distile_context_options options{};
    pool.use_in(options);
    Call call(plain_kernel, options);
    call.accept();
    CHECK(pool.loops() > 0);
}

TEST_CASE("Packed weights do not need the PolyKernel that they were packed for", "[api]") {
    Call call;
    std::string layout = plain_kernel.variants[0].layout;
    Descriptor copy(plain_kernel);
    for (distile_variant &variant : copy.variants) {
        variant.layout = layout.c_str();
    }
    distile_weights_source source{};
    source.filter = call.reference.filter.data();
    source.order = DISTILE_HWIO;
    source.bias = call.reference.bias.data();
    const Weights weights = pack_weights(call.context, make_kernel(call.context, copy.polykernel), source);
    std::fill(layout.begin(), layout.end(), '?');
    call.args.weights = weights.get();
    call.accept();
}

TEST_CASE("The message is that of the last call that failed", "[api]") {
    int code = 0;
    Call call;
    const distile_dense_candidate candidate{
        "mine", [](void *user, void *, const distile_run_args *) { return *static_cast<int *>(user); }, &code};
    REQUIRE(distile_kernel_add_dense(call.kernel.get(), &candidate) == DISTILE_OK);
    REQUIRE(distile_kernel_add_time(call.kernel.get(), "nobody", 1, 1) == DISTILE_ERROR_BAD_VALUE);
    const std::string message = call.message();
    REQUIRE(contains(message, "nobody"));
    call.accept();
    CHECK(call.message() == message);
    call.args.variant = "mine";
    REQUIRE(distile_run(call.kernel.get(), &call.args) == DISTILE_OK);
    CHECK(call.message() == message);
    // It is no reason for what fails next. The number is a PolyKernel's for a lack of memory, but the candidate is
    // none.
    for (const int failure : {DISTILE_CALL_OUT_OF_MEMORY, -11}) {
        code = failure;
        call.refuse(DISTILE_ERROR_KERNEL, {"'mine'", "code " + std::to_string(failure)});
        CHECK_FALSE(contains(call.message(), "nobody"));
    }
}

TEST_CASE("What a kernel reports reaches the caller", "[api]") {
    Descriptor broken(plain_kernel);
    broken.run_only("broken", [](const distile_kernel_call *call) {
        call->hooks->report(call->hooks, "the moon is full");
        call->hooks->report(call->hooks, "and so are the stars");
        return -12345;
    });
    Call call(broken.polykernel);
    call.refuse(DISTILE_ERROR_KERNEL, {"'broken'", plain_kernel.name, "-12345", "the moon is full"});
}
