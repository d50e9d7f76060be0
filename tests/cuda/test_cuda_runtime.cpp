// What the runtime for GPUs asks of a driver, and what it refuses, on a driver of our own.
#include "runtime/cuda/kernels/common.h"
#include "tests/cuda/cuda_setup.h"
#include "tests/cuda/tensor_core_operator.h"
#include "tests/support/allocations.h"
#include "tests/support/temporary_folder.h"
#include <chrono>
#include <cstring>
#include <distile/mask_algebra.h>
#include <distile/planner.h>
#include <distile/tokens.h>
#include <functional>

using namespace distile;

namespace {

int32_t variant_index(const std::string &name) {
    int32_t index = 0;
    while (test_odd_cuda.variants[index].name != name) {
        index++;
    }
    return index;
}

}  // namespace

TEST_CASE("Division by a multiplication is exact below 2^31", "[cuda]") {
    for (uint32_t value : {1u, 2u, 3u, 5u, 7u, 10u, 40u, 641u, 1000u, 1024u, 4095u, 65535u, 65536u, 6700417u,
                           (1u << 30) - 1, 1u << 30, (1u << 30) + 1, (1u << 31) - 1}) {
        const Divisor divisor = make_divisor(value);
        const auto divide = [&](uint32_t number) {
            return divisor.value == 1
                       ? number
                       : static_cast<uint32_t>(uint64_t{number} * divisor.multiplier >> 32) >> divisor.shift;
        };
        constexpr uint32_t last = (1u << 31) - 1;
        for (uint32_t multiple : {0u, 1u, 2u, 3u, 1000u, last / value / 2, last / value - 1, last / value}) {
            for (int32_t step = -1; step <= 1; step++) {
                const int64_t number = int64_t{multiple} * value + step;
                if (number >= 0 && number <= last) {
                    CAPTURE(value, number);
                    CHECK(divide(static_cast<uint32_t>(number)) == static_cast<uint32_t>(number) / value);
                }
            }
        }
        CHECK(divide(last) == last / value);
    }
}

TEST_CASE("A mask whose setting failed holds nothing", "[.fake_driver]") {
    Setup setup;
    setup.set_mask();
    setup.run();
    fail_fake("cuLaunchKernelEx", CUDA_ERROR_NOT_PERMITTED);
    CHECK(distile_mask_set_bytes(setup.mask.get(), setup.mask_memory->data(), 2, setup.out_height, setup.out_width,
                                 int64_t{setup.out_height} * setup.out_width, setup.out_width) == DISTILE_ERROR_KERNEL);
    fail_fake("cuLaunchKernelEx", 0);
    setup.refuse_run(DISTILE_ERROR_BAD_MASK, {"never set"});
    setup.set_mask();
    setup.run();
}

TEST_CASE("No tile is no launch of the operator", "[.fake_driver]") {
    const Setup setup;
    setup.set_mask();
    setup.run();
    const int64_t launches = count_fake("launches");
    setup.run();
    CHECK(count_fake("launches") == launches);
}

TEST_CASE("A mask takes one launch from its bytes or bits to its list of pixels", "[.fake_driver]") {
    const Setup setup;
    distile_tile_list list{};
    setup.set_mask();
    check(setup.context, distile_mask_tiles(setup.mask.get(), 1, 1, &list));
    const DeviceArray<uint32_t> words(1000);
    const FakeSetting count("count", 7, 0);
    for (int round = 0; round < 4; round++) {
        const int64_t launches = count_fake("launches"), fills = count_fake("cuMemsetD8Async");
        if (round % 2 == 0) {
            setup.set_mask();
        } else {
            check(setup.context, distile_mask_set_bits(setup.mask.get(), words.data(), setup.output.batch,
                                                       setup.out_height, setup.out_width, 2));
        }
        // In the third round, what was asked in the second: only their number.
        int64_t active = 0;
        if (round > 0) {
            check(setup.context, distile_mask_active_pixels(setup.mask.get(), &active));
            CHECK(active == 7);
        }
        if (round != 1) {
            const int64_t before = count_fake("launches");
            check(setup.context, distile_mask_tiles(setup.mask.get(), 1, 1, &list));
            CHECK(count_fake("launches") == before + (round == 2 ? 1 : 0));
        }
        CHECK(count_fake("launches") == launches + (round == 2 ? 2 : 1));
        CHECK(count_fake("cuMemsetD8Async") == fills);
    }
}

TEST_CASE("The kernels of masks and of pixels start early where their code waits", "[.fake_driver]") {
    // Kernels of pixels: five families for three types, by vectors and by elements.
    constexpr int64_t of_masks = 8, of_pixels = 5 * 3 * 2;
    for (const bool waits : {true, false}) {
        CAPTURE(waits);
        const FakeSetting major("major", waits ? 9 : 8, 9);
        const int64_t before = count_fake("waits"), kernels = count_fake("waiting");
        const Setup setup;
        // Every kernel that waits does so in one place.
        CHECK(count_fake("waits") == before + (waits ? of_masks + of_pixels : 0));
        CHECK(count_fake("waiting") == kernels + (waits ? of_masks + of_pixels : 0));
        const int64_t extended = count_fake("cuLaunchKernelEx");
        const auto check_early = [&](distile_status status, bool due) {
            check(setup.context, status);
            CHECK(count_fake("early") == (due ? 1 : 0));
        };
        distile_mask *const mask = setup.mask.get();
        const DeviceArray<uint32_t> words(1000);
        const DeviceArray<float> numbers(8000);
        distile_tile_list list{};
        for (int round = 0; round < 2; round++) {
            setup.set_mask();
            check_early(distile_mask_tiles(mask, 3, 3, &list), waits);
            check_early(distile_mask_set_bits(mask, words.data(), 2, 20, 25, 1), waits);
            check_early(distile_mask_set_indices(mask, reinterpret_cast<const int32_t *>(words.data()), nullptr, 2, 20,
                                                 25, 500),
                        waits);
            check_early(distile_mask_invert(mask, mask), waits);
            const distile_tensor tensor = distile_tensor_make(numbers.data(), 2, 20, 25, 8);
            // It does not wait.
            check_early(distile_mask_set_difference(mask, &tensor, &tensor, 0), false);
            distile_normalize_args normalization{};
            normalization.input = normalization.output = &tensor;
            normalization.mask = mask;
            check_early(distile_normalize(setup.context.get(), &normalization), waits);
        }
        CHECK((count_fake("cuLaunchKernelEx") > extended) == waits);
    }
}

TEST_CASE("A mask takes two launches from its bytes to its lists", "[.fake_driver]") {
    const Setup setup;
    distile_tile_list list{};
    for (int round = 0; round < 3; round++) {
        const int64_t launches = count_fake("launches");
        setup.set_mask();
        for (int32_t tile : {1, 2, 4, 8}) {
            check(setup.context, distile_mask_tiles(setup.mask.get(), tile, tile, &list));
        }
        // The first time each is made when it is asked for.
        CHECK(count_fake("launches") == launches + (round == 0 ? 5 : 2));
    }
    for (int32_t tile = 9; tile < 70; tile++) {
        check(setup.context, distile_mask_tiles(setup.mask.get(), tile, 1, &list));
    }
    setup.refuse(distile_mask_tiles(setup.mask.get(), 70, 1, &list), DISTILE_ERROR_BAD_VALUE, {"at most 65"});
    setup.set_mask();
    check(setup.context, distile_mask_tiles(setup.mask.get(), 60, 1, &list));
}

TEST_CASE("The path without a wait calls nothing that a capture forbids", "[.fake_driver]") {
    Setup setup;
    setup.args.inactive = DISTILE_ZERO;
    const std::vector<std::string> variants = variants_of(setup);
    for (const std::string &variant : variants) {
        setup.args.variant = variant.c_str();
        setup.set_mask();
        setup.run();
    }
    const FakeSetting capturing("capturing", 1, 0);
    setup.set_mask();
    for (const std::string &variant : variants) {
        setup.args.variant = variant.c_str();
        setup.run();
    }
    CHECK(count_fake("forbidden") == 0);
    distile_choice choice{};
    setup.refuse(distile_kernel_choose(setup.kernel.get(), setup.mask.get(), &choice), DISTILE_ERROR_CAPTURING,
                 {"name a variant"});
    setup.refuse(distile_mask_set_bytes(setup.mask.get(), setup.mask_memory->data(), 1, 1, 1, 1, 1), DISTILE_OK, {});
    // A larger mask needs memory.
    const DeviceArray<uint8_t> *bytes = setup.mask_memory.get();
    setup.refuse(distile_mask_set_bytes(setup.mask.get(), bytes->data(), 1, 6000, 1, 6000, 1), DISTILE_ERROR_CAPTURING,
                 {"during graph capture"});
    distile_weights *weights = nullptr;
    setup.refuse(distile_weights_pack(setup.kernel.get(), &setup.source, &weights), DISTILE_ERROR_CAPTURING,
                 {"during graph capture"});
    CHECK(count_fake("forbidden") == 0);
}

TEST_CASE("What a graph reads of a dense variant stays when its kernel meets other shapes", "[.fake_driver]") {
    Setup setup;
    setup.args.variant = "dense";
    const auto run = [&](int32_t height) {
        setup.input.height = height;
        setup.out_height = reference_output_height(setup.conv, height);
        setup.output.height = setup.residual.height = setup.out_height;
        for (distile_tensor *tensor : {&setup.input, &setup.output, &setup.residual}) {
            tensor->stride_n = tensor->stride_h * tensor->height;
        }
        setup.set_mask();
        setup.run();
    };
    run(11);
    run(7);
    {
        const FakeSetting capturing("capturing", 1, 0);
        run(11);
        run(7);
        CHECK(count_fake("forbidden") == 0);
    }
    // A kernel keeps some of the shapes that are in no graph.
    for (int32_t height = 98; height > 60; height -= 2) {
        run(height);
    }
    const int64_t alive = count_fake("alive");
    for (int32_t height = 60; height > 20; height -= 2) {
        run(height);
    }
    CHECK(count_fake("alive") == alive);
    // A full mask is filled and listed when its shape is new.
    const auto calls_of = [&](int32_t height) {
        const int64_t before = count_fake("cuMemsetD8Async");
        run(height);
        return count_fake("cuMemsetD8Async") - before;
    };
    CHECK(calls_of(11) == 0);
    CHECK(calls_of(7) == 0);
    CHECK(calls_of(22) == 0);
    CHECK(calls_of(98) > 0);
}

TEST_CASE("A list that is made outside of the graph that sets its mask is made every time", "[.fake_driver]") {
    const Setup setup;
    distile_tile_list list{};
    const auto launches_of_list = [&] {
        const int64_t before = count_fake("launches");
        check(setup.context, distile_mask_tiles(setup.mask.get(), 3, 3, &list));
        return count_fake("launches") - before;
    };
    setup.set_mask();
    {
        const FakeSetting capturing("capturing", 1, 0);
        setup.set_mask();
    }
    for (int round = 0; round < 3; round++) {
        CHECK(launches_of_list() == 1);
    }
    {
        const FakeSetting capturing("capturing", 1, 0);
        setup.set_mask();
        CHECK(launches_of_list() == 0);
    }
    // That graph makes it.
    CHECK(launches_of_list() == 0);
    setup.set_mask();
    CHECK(launches_of_list() == 0);
}

TEST_CASE("A small mask is not listed for code that reads its bits", "[.fake_driver]") {
    const TensorCoreOperator op(DISTILE_FLOAT16);
    const auto launches_of = [](Setup &setup, const char *variant) {
        const int64_t before = count_fake("launches");
        setup.args.variant = variant;
        setup.set_mask();
        setup.run();
        return count_fake("launches") - before;
    };
    {
        Setup setup(op.polykernel);
        for (int round = 0; round < 3; round++) {
            CHECK(launches_of(setup, "fine") == 2);
        }
        const FakeSetting capturing("capturing", 1, 0);
        // Nothing of the mask changes, so it need not be set in the graph.
        setup.run();
        CHECK(count_fake("forbidden") == 0);
    }
    {
        // The tiles of other variants are listed.
        Setup setup(op.polykernel);
        CHECK(launches_of(setup, "coarse") == 3);
        CHECK(launches_of(setup, "fine") == 3);
        CHECK(launches_of(setup, "fine") == 2);
        // All tiles of a dense one, which are set and listed once.
        CHECK(launches_of(setup, "dense") == 4);
        CHECK(launches_of(setup, "dense") == 2);
    }
    // 4096 pixels are few, more are not.
    Setup most(op.polykernel, 1, 64, 64), more(op.polykernel, 1, 65, 64);
    CHECK(launches_of(most, "fine") == 2);
    CHECK(launches_of(more, "fine") == 3);
    // From the second time on, setting a mask also lists it.
    CHECK(launches_of(more, "fine") == 2);
}

TEST_CASE("A context computes in TF32 only what it allows", "[.fake_driver]") {
    const TensorCoreOperator op(DISTILE_FLOAT32);
    const distile_linear geometry{64, 24, DISTILE_ACTIVATION_NONE, 1};
    distile_polykernel conv = op.polykernel, linear = op.polykernel;
    conv.fallback = &test_odd_cuda;
    linear.kind = DISTILE_MASKED_LINEAR;
    linear.op = &geometry;
    linear.fallback = &test_linear_24_40_gelu_cuda;
    const auto math_of = [](const Context &context, const distile_polykernel &polykernel) {
        distile_kernel_info info{};
        check(context, distile_kernel_get_info(make_kernel(context, polykernel).get(), &info));
        CHECK((info.features == std::string("sm_90a")) == (info.math == DISTILE_MATH_TF32));
        return info.math;
    };
    struct Allowed {
        distile_math option, conv, linear;
    };
    for (const Allowed &allowed : {Allowed{DISTILE_MATH_DEFAULT, DISTILE_MATH_TF32, DISTILE_MATH_FLOAT32},
                                   {DISTILE_MATH_FLOAT32, DISTILE_MATH_FLOAT32, DISTILE_MATH_FLOAT32},
                                   {DISTILE_MATH_TF32, DISTILE_MATH_TF32, DISTILE_MATH_TF32}}) {
        distile_context_options options{};
        options.math = allowed.option;
        const Context context = make_cuda_context({}, options);
        CHECK(math_of(context, conv) == allowed.conv);
        CHECK(math_of(context, linear) == allowed.linear);
        // 16-bit types are multiplied exactly.
        CHECK(math_of(context, test_conv3_16_48_f16_cuda) == DISTILE_MATH_FLOAT32);
    }
    const Setup setup;
    distile_kernel *kernel = nullptr;
    linear.fallback = nullptr;
    setup.refuse(distile_kernel_create(setup.context.get(), &linear, &kernel), DISTILE_ERROR_UNSUPPORTED_DEVICE,
                 {"TF32", "math", "tensor_core_operator"});
    // A GPU of another architecture takes the next PolyKernel.
    const FakeSetting major("major", 10, 9);
    const Context newer = make_cuda_context();
    CHECK(math_of(newer, conv) == DISTILE_MATH_FLOAT32);
    CHECK(distile_kernel_create(newer.get(), &op.polykernel, &kernel) == DISTILE_ERROR_UNSUPPORTED_DEVICE);
    CHECK(contains(distile_context_message(newer.get()), "sm_90a"));
    CHECK(contains(distile_context_message(newer.get()), "sm_100"));
    REQUIRE(kernel == nullptr);
}

TEST_CASE("Weights for tensor cores have the input's type and whole steps", "[.fake_driver]") {
    // 9 positions of 64 channels are 9 steps in 16 bits and 18 in 32; 24 output channels need no padding.
    for (const auto &[dtype, steps] : {std::pair(DISTILE_FLOAT16, 9), {DISTILE_BFLOAT16, 9}, {DISTILE_FLOAT32, 18}}) {
        const TensorCoreOperator op(dtype);
        Setup setup(op.polykernel);
        CHECK(distile_weights_bytes(setup.weights.get()) == steps * 24 * 128 + 24 * 4);
        setup.set_mask();
        setup.run();
        // Weights of the same shape in another layout or type are refused.
        const TensorCoreOperator other(dtype == DISTILE_FLOAT16 ? DISTILE_BFLOAT16 : DISTILE_FLOAT16);
        const Kernel kernel = make_kernel(setup.context, other.polykernel);
        setup.input.dtype = setup.output.dtype = setup.residual.dtype = other.operands[0].dtype;
        setup.refuse(distile_run(kernel.get(), &setup.args), DISTILE_ERROR_BAD_WEIGHTS, {"the weights"});
    }
    // Other operators have no such weights.
    const Setup setup;
    distile_kernel *made = nullptr;
    TensorCoreOperator op(DISTILE_FLOAT16);
    op.conv.groups = 8;
    setup.refuse(distile_kernel_create(setup.context.get(), &op.polykernel, &made), DISTILE_ERROR_VERSION,
                 {"fine", "cuda-k16", "masked_conv2d"});
    op.conv.groups = 1;
    op.polykernel.kind = DISTILE_MASKED_UPSAMPLE_CONV2D;
    setup.refuse(distile_kernel_create(setup.context.get(), &op.polykernel, &made), DISTILE_ERROR_VERSION,
                 {"fine", "cuda-k16", "masked_upsample_conv2d"});
}

TEST_CASE("Every wrong argument of a run is refused before anything is launched", "[.fake_driver]") {
    for (const distile_polykernel *polykernel :
         {static_cast<const distile_polykernel *>(&test_odd_cuda), gpu_polykernels[0]}) {
        Setup setup(*polykernel);
        setup.refuse_run(DISTILE_ERROR_BAD_MASK, {"never set"});
        setup.set_mask();
        const distile_run_args good = setup.args;
        const int64_t launches = count_fake("launches");
        distile_tensor tensor{};
        const auto refuse = [&](const distile_tensor *distile_run_args::*member, distile_status status,
                                const std::vector<std::string> &words,
                                const std::function<void(distile_tensor &)> &spoil) {
            setup.args = good;
            const distile_tensor *view = good.*member;
            tensor = view ? *view : distile_tensor{};
            spoil(tensor);
            setup.args.*member = &tensor;
            setup.refuse_run(status, words);
            setup.args = good;
        };
        std::vector<std::pair<const distile_tensor * distile_run_args::*, std::string>> members = {
            {&distile_run_args::input, "input"}, {&distile_run_args::output, "output"}};
        if (setup.conv.residual != 0) {
            members.emplace_back(&distile_run_args::residual, "residual");
        }
        float on_host = 0;
        for (const auto &[member, name] : members) {
            CAPTURE(name);
            setup.args.*member = nullptr;
            setup.refuse_run(DISTILE_ERROR_NULL_POINTER, {name});
            setup.args = good;
            refuse(member, DISTILE_ERROR_NULL_POINTER, {name}, [](distile_tensor &t) { t.data = nullptr; });
            refuse(member, DISTILE_ERROR_BAD_TYPE, {name}, [](distile_tensor &t) { std::memset(&t.dtype, 9, 1); });
            refuse(member, DISTILE_ERROR_BAD_SHAPE, {name}, [](distile_tensor &t) { t.batch = 0; });
            refuse(member, DISTILE_ERROR_BAD_SHAPE, {name}, [](distile_tensor &t) { t.width = 65536; });
            refuse(member, DISTILE_ERROR_BAD_SHAPE, {}, [](distile_tensor &t) { t.height -= 2; });
            refuse(member, DISTILE_ERROR_BAD_CHANNELS, {name}, [](distile_tensor &t) { t.channels--; });
            refuse(member, DISTILE_ERROR_BAD_STRIDE, {name}, [](distile_tensor &t) { t.stride_w = t.channels - 1; });
            refuse(member, DISTILE_ERROR_BAD_STRIDE, {name}, [](distile_tensor &t) { t.stride_h--; });
            refuse(member, DISTILE_ERROR_BAD_STRIDE, {name}, [](distile_tensor &t) { t.stride_n = int64_t{1} << 40; });
            // Two images of 2^30 elements are 2^31.
            refuse(member, DISTILE_ERROR_BAD_STRIDE, {name, "2^31"},
                   [](distile_tensor &t) { t.stride_n = int64_t{1} << 30; });
            refuse(member, DISTILE_ERROR_NOT_DEVICE_MEMORY, {name, "GPU 0"},
                   [&](distile_tensor &t) { t.data = &on_host; });
            if ((good.*member)->channels % 4 == 0) {
                refuse(member, DISTILE_ERROR_BAD_ALIGNMENT, {name, "16 bytes"},
                       [](distile_tensor &t) { t.data = static_cast<float *>(t.data) + 1; });
                refuse(member, DISTILE_ERROR_BAD_ALIGNMENT, {name, "multiples of 4"}, [](distile_tensor &t) {
                    t.stride_h += 1;
                    t.stride_n += t.height;
                });
            }
            const FakeSetting ordinal("ordinal", 1, 0);
            refuse(member, DISTILE_ERROR_NOT_DEVICE_MEMORY, {"GPU 0"}, [](distile_tensor &) {});
        }
        refuse(&distile_run_args::output, DISTILE_ERROR_ALIASING, {"input overlaps"},
               [&](distile_tensor &t) { t.data = setup.input.data; });
        setup.args.weights = nullptr;
        setup.refuse_run(DISTILE_ERROR_NULL_POINTER, {"weights"});
        setup.args = good;
        setup.args.mask = nullptr;
        setup.refuse_run(DISTILE_ERROR_NULL_POINTER, {"mask"});
        setup.args = good;
        std::memset(&setup.args.inactive, 7, 1);
        setup.refuse_run(DISTILE_ERROR_BAD_VALUE, {"inactive"});
        setup.args = good;
        std::memset(&setup.args.store, 7, 1);
        setup.refuse_run(DISTILE_ERROR_BAD_VALUE, {"store"});
        setup.args = good;
        setup.args.variant = "none";
        setup.refuse_run(DISTILE_ERROR_BAD_VALUE, {"no variant 'none'"});
        setup.args = good;
        if (setup.conv.residual == 0) {
            setup.args.residual = &setup.output;
            setup.refuse_run(DISTILE_ERROR_BAD_VALUE, {"takes no residual"});
            setup.args = good;
        } else {
            refuse(&distile_run_args::residual, DISTILE_ERROR_ALIASING, {"residual overlaps"},
                   [&](distile_tensor &t) { t.data = static_cast<float *>(setup.output.data) + 1; });
        }
        const Setup other(*gpu_polykernels[1]);
        setup.args.weights = other.weights.get();
        setup.refuse_run(DISTILE_ERROR_BAD_WEIGHTS, {"weights"});
        setup.args = good;
        other.set_mask();
        setup.args.mask = other.mask.get();
        setup.refuse_run(DISTILE_ERROR_BAD_MASK, {"another context"});
        setup.args = good;
        CHECK(count_fake("launches") == launches + 1);
        check(setup.context, distile_mask_set_bytes(setup.mask.get(), setup.mask_memory->data(), 1, 3, 3, 9, 3));
        setup.refuse_run(DISTILE_ERROR_BAD_MASK, {"1 x 3 x 3"});
        setup.refuse(distile_run(setup.kernel.get(), nullptr), DISTILE_ERROR_NULL_POINTER, {"arguments"});
    }
    CHECK(count_fake("alive") == 0);
}

TEST_CASE("What is wrong with an argument is said", "[.fake_driver]") {
    Setup setup;
    const auto set = [&](const uint8_t *bytes, int32_t batch, int32_t height, int32_t width, int64_t stride_n,
                         int64_t stride_h) {
        return distile_mask_set_bytes(setup.mask.get(), bytes, batch, height, width, stride_n, stride_h);
    };
    const uint8_t *bytes = setup.mask_memory->data(), on_host = 0;
    const uint32_t *words = nullptr;
    distile_tile_list list{};
    int32_t words_per_row = 0;
    setup.refuse(distile_mask_create(setup.context.get(), nullptr), DISTILE_ERROR_NULL_POINTER, {"mask"});
    setup.refuse(distile_mask_bits(setup.mask.get(), &words, &words_per_row), DISTILE_ERROR_BAD_MASK, {"never set"});
    setup.refuse(distile_mask_tiles(setup.mask.get(), 1, 1, &list), DISTILE_ERROR_BAD_MASK, {"never set"});
    setup.refuse(set(nullptr, 1, 1, 1, 1, 1), DISTILE_ERROR_NULL_POINTER, {"bytes"});
    setup.refuse(set(&on_host, 1, 1, 1, 1, 1), DISTILE_ERROR_NOT_DEVICE_MEMORY, {"mask", "GPU 0"});
    for (const auto &[batch, height, width] :
         {std::tuple(0, 1, 1), {1, 0, 1}, {1, 1, 0}, {65536, 1, 1}, {1, 65536, 1}, {1, 1, 65536}}) {
        setup.refuse(set(bytes, batch, height, width, int64_t{1} << 40, 65536), DISTILE_ERROR_BAD_SHAPE, {"65535"});
    }
    setup.refuse(set(bytes, 65535, 65535, 1, int64_t{1} << 40, 65536), DISTILE_ERROR_BAD_SHAPE, {"2^31"});
    setup.refuse(set(bytes, 1, 2, 2, 4, 1), DISTILE_ERROR_BAD_STRIDE, {"stride_h 1"});
    setup.refuse(set(bytes, 2, 2, 2, 3, 2), DISTILE_ERROR_BAD_STRIDE, {"stride_n 3"});
    setup.set_mask();
    setup.refuse(distile_mask_tiles(setup.mask.get(), 0, 1, &list), DISTILE_ERROR_BAD_VALUE, {"0 x 1"});
    setup.refuse(distile_mask_tiles(setup.mask.get(), 1, 65536, &list), DISTILE_ERROR_BAD_VALUE, {"65536"});

    distile_kernel *kernel = nullptr;
    distile_polykernel polykernel = test_odd_cuda;
    const auto create = [&](distile_status due, const std::vector<std::string> &wanted) {
        setup.refuse(distile_kernel_create(setup.context.get(), &polykernel, &kernel), due, wanted);
    };
    polykernel.version++;
    create(DISTILE_ERROR_VERSION, {"version"});
    polykernel = test_odd_cuda;
    polykernel.device = DISTILE_CPU;
    create(DISTILE_ERROR_OTHER_DEVICE, {"test_odd_cuda"});
    polykernel = test_odd_cuda;
    for (const char *features : {"sm_103", "sm_80a", "avx2 fma", "sm_", ""}) {
        polykernel.features = features;
        create(DISTILE_ERROR_UNSUPPORTED_DEVICE, {features, "sm_90"});
    }
    for (const char *features : {"sm_80", "sm_90", "sm_90a"}) {
        polykernel.features = features;
        check(setup.context, distile_kernel_create(setup.context.get(), &polykernel, &kernel));
        distile_kernel_destroy(kernel);
    }

    distile_weights *weights = nullptr;
    distile_weights_source source = setup.source;
    source.bn_gamma = source.bias;
    setup.refuse(distile_weights_pack(setup.kernel.get(), &source, &weights), DISTILE_ERROR_BAD_VALUE,
                 {"distile_weights_pack", "variance"});

    const void *written = nullptr;
    const distile_dense_candidate dense{"t1x1", write_nothing, &written};
    setup.refuse(distile_kernel_add_dense(setup.kernel.get(), &dense), DISTILE_ERROR_BAD_VALUE, {"already", "t1x1"});
}

TEST_CASE("Sizes beyond what can be addressed or held give a status", "[.fake_driver]") {
    Setup setup;
    const FakeSetting memory("memory", int64_t{1} << 34, int64_t{1} << 36);
    const auto *bytes = setup.mask_memory->data();
    const auto set = [&](int32_t batch, int32_t height, int32_t width) {
        return distile_mask_set_bytes(setup.mask.get(), bytes, batch, height, width, int64_t{height} * width, width);
    };
    distile_tile_list list{};
    setup.set_mask();
    // Its words fit, its list of twice that does not.
    check(setup.context, set(32767, 65535, 1));
    setup.refuse(distile_mask_tiles(setup.mask.get(), 1, 1, &list), DISTILE_ERROR_OUT_OF_DEVICE_MEMORY, {"cuMemAlloc"});
    const Mask second = make_mask(setup.context);
    set_fake("memory", 1 << 20);
    setup.refuse(set(32767, 65535, 1), DISTILE_OK, {});
    setup.refuse(distile_mask_set_bytes(second.get(), bytes, 1, 65535, 1, 65535, 1), DISTILE_ERROR_OUT_OF_DEVICE_MEMORY,
                 {});
    const uint32_t *words = nullptr;
    setup.refuse(distile_mask_bits(second.get(), &words, &setup.out_width), DISTILE_ERROR_BAD_MASK, {"never set"});

    // The partial sums of a split reduction, and the output of a dense candidate.
    set_fake("memory", int64_t{1} << 34);
    setup.set_mask();
    const void *written = nullptr;
    const distile_dense_candidate dense{"mine", write_nothing, &written};
    check(setup.context, distile_kernel_add_dense(setup.kernel.get(), &dense));
    for (const char *variant : {"t1x1s2", "mine"}) {
        setup.args.variant = variant;
        setup.args.inactive = DISTILE_KEEP;
        check(setup.context, distile_mask_tiles(setup.mask.get(), 1, 1, &list));
        set_fake("memory", 0);
        setup.refuse_run(DISTILE_ERROR_OUT_OF_DEVICE_MEMORY, {});
        set_fake("memory", int64_t{1} << 34);
        setup.run();
    }

    // 1000 images of 32768 x 1 pixels are 6.6 million tiles of 5 x 40, that is 1.3e9 pixels.
    const DeviceArray<float> input(1), output(1);
    setup.input.batch = setup.output.batch = setup.residual.batch = 100;
    setup.input.height = 65534;
    setup.input.width = setup.out_width = 1 + setup.conv.dilation_w * (setup.conv.kernel_w - 1) - setup.conv.pad_left;
    setup.output.height = reference_output_height(setup.conv, 65534);
    setup.output.width = reference_output_width(setup.conv, setup.input.width);
    REQUIRE(setup.output.width == 1);
    const auto pack_strides = [](distile_tensor &tensor) {
        tensor.stride_w = tensor.channels;
        tensor.stride_h = tensor.stride_w * tensor.width;
        tensor.stride_n = tensor.stride_h * tensor.height;
    };
    setup.input.data = input.data();
    setup.output.data = output.data();
    pack_strides(setup.input);
    pack_strides(setup.output);
    setup.args.residual = &setup.output;
    check(setup.context, set(100, setup.output.height, 1));
    for (const auto &[variant, due] : {std::pair("t1x1", DISTILE_OK), {"t5x40", DISTILE_OK}}) {
        setup.args.variant = variant;
        setup.refuse_run(due, {});
    }
    setup.input.batch = setup.output.batch = 1000;
    check(setup.context, set(1000, setup.output.height, 1));
    setup.args.variant = "t5x40";
    setup.refuse_run(DISTILE_ERROR_BAD_SHAPE, {"1073741823"});
    setup.args.variant = "t1x1";
    setup.run();
}

TEST_CASE("A kernel's times are those of its context's multiprocessors", "[.fake_driver]") {
    // The counts that are read back: 1600 tiles of every granularity.
    const FakeSetting tiles("count", 1600, 0);
    const DeviceArray<uint8_t> bytes(1600);
    for (int green : {16, 132}) {
        const FakeSetting setting("green", green, 132);
        const distile_time_point times[] = {{variant_index("t1x1"), 16, 1600, 1.0},
                                            {variant_index("t2x2"), 16, 1600, 2.0},
                                            {variant_index("t1x1"), 132, 1600, 4.0},
                                            {variant_index("t2x2"), 132, 1600, 3.0}};
        distile_polykernel polykernel = test_odd_cuda;
        polykernel.times = times;
        polykernel.num_times = 4;
        const Setup setup(polykernel);
        CHECK(distile_context_threads(setup.context.get()) == green);
        const Mask mask = make_mask(setup.context);
        check(setup.context, distile_mask_set_bytes(mask.get(), bytes.data(), 1, 40, 40, 1600, 40));
        distile_choice choice{};
        check(setup.context, distile_kernel_choose(setup.kernel.get(), mask.get(), &choice));
        CHECK(choice.variant == std::string(green == 16 ? "t1x1" : "t2x2"));
        // A point that is added is one of this context's.
        check(setup.context, distile_kernel_add_time(setup.kernel.get(), "t3x2s2", 1600, 0.25));
        check(setup.context, distile_kernel_choose(setup.kernel.get(), mask.get(), &choice));
        CHECK(choice.variant == std::string("t3x2s2"));
    }
    // A driver that cannot say has no such contexts.
    fail_fake("cuCtxGetDevResource", CUDA_ERROR_NOT_SUPPORTED);
    const FakeSetting setting("multiprocessors", 99, 132);
    CHECK(distile_context_threads(make_cuda_context().get()) == 99);
    fail_fake("cuCtxGetDevResource", 0);
}

TEST_CASE("Weights are shared by the contexts of a GPU, and outlive them", "[.fake_driver]") {
    {
        Weights weights;
        {
            const Setup packing;
            distile_weights *packed = nullptr;
            check(packing.context, distile_weights_pack(packing.kernel.get(), &packing.source, &packed));
            weights.reset(packed);
            CHECK(distile_weights_bytes(packed) > 0);
        }
        Setup setup;
        setup.set_mask();
        setup.args.weights = weights.get();
        setup.run();
    }
    CHECK(count_fake("alive") == 0);
    // Weights alone keep the GPU's context.
    Weights weights = std::move(Setup().weights);
    CHECK(count_fake("alive") > 0);
    weights.reset();
    CHECK(count_fake("alive") == 0);
}

TEST_CASE("Masks from bits and lists take as many launches as those from bytes", "[.fake_driver]") {
    const Setup setup;
    distile_tile_list list{};
    const DeviceArray<uint32_t> words(1000);
    const auto *numbers = reinterpret_cast<const int32_t *>(words.data());
    for (int round = 0; round < 3; round++) {
        const int64_t launches = count_fake("launches");
        check(setup.context, distile_mask_set_bits(setup.mask.get(), words.data(), 2, 20, 25, 1));
        check(setup.context, distile_mask_tiles(setup.mask.get(), 2, 2, &list));
        check(setup.context, distile_mask_set_indices(setup.mask.get(), numbers, nullptr, 2, 20, 25, 500));
        check(setup.context, distile_mask_tiles(setup.mask.get(), 2, 2, &list));
        CHECK(count_fake("launches") == launches + 4);
        CHECK(list.count == -1);
        CHECK(list.device_count != nullptr);
    }
    // A graph takes them, too.
    const FakeSetting capturing("capturing", 1, 0);
    check(setup.context, distile_mask_set_bits(setup.mask.get(), words.data(), 2, 20, 25, 1));
    check(setup.context, distile_mask_set_indices(setup.mask.get(), numbers, numbers, 2, 20, 25, 500));
    check(setup.context, distile_mask_tiles(setup.mask.get(), 2, 2, &list));
    int64_t count = 0;
    setup.refuse(distile_mask_active_pixels(setup.mask.get(), &count), DISTILE_ERROR_CAPTURING, {"graph"});
    CHECK(count_fake("forbidden") == 0);
}

TEST_CASE("The time in a trace is without the wait for the counts", "[.fake_driver]") {
    const Setup setup;
    setup.set_mask();
    constexpr int64_t wait = 20000;
    const FakeSetting waiting("wait", wait, 0);
    using Clock = std::chrono::steady_clock;
    const Clock::time_point start = Clock::now();
    setup.run();
    const double whole = std::chrono::duration<double, std::micro>(Clock::now() - start).count();
    CHECK(setup.traced.elapsed_us > 0);
    CHECK(setup.traced.elapsed_us <= whole - static_cast<double>(wait));
}

TEST_CASE("Calls of a shape that a GPU met before allocate nothing", "[.fake_driver]") {
    Setup setup;
    const void *written = nullptr;
    const distile_dense_candidate dense{"mine", write_nothing, &written};
    check(setup.context, distile_kernel_add_dense(setup.kernel.get(), &dense));
    std::vector<std::string> names = variants_of(setup);
    const Mask dilated = make_mask(setup.context);
    const Planner planner = make_planner(setup.context, {2, DISTILE_CLEAR_BACKGROUND, {}});
    const distile_output_spec spec{2, setup.out_height, setup.out_width, 8, 1, 1, 1, 1, DISTILE_FLOAT32};
    const auto use = [&] {
        setup.set_mask();
        for (distile_inactive inactive : {DISTILE_KEEP, DISTILE_ZERO}) {
            setup.args.inactive = inactive;
            setup.args.variant = nullptr;
            setup.run();
            for (const std::string &name : names) {
                setup.args.variant = name.c_str();
                setup.run();
            }
        }
        distile_tile_list list{};
        check(setup.context, distile_mask_tiles(setup.mask.get(), 3, 7, &list));
        check(setup.context, distile_mask_dilate(dilated.get(), setup.mask.get(), 1, 1));
        check(setup.context, distile_mask_set_difference(dilated.get(), &setup.output, &setup.residual, 0.5f));
        distile_tensor output{};
        check(setup.context,
              distile_planner_next(planner.get(), &spec, setup.mask.get(), DISTILE_STORE_EXACT, &output));
    };
    const FakeSetting count("count", 7, 0);
    use();
    use();
    allocations.count = 0;
    const Watch watch;
    for (int i = 0; i < 5; i++) {
        use();
    }
    CHECK(allocations.count == 0);
    // The counter counts.
    names.emplace_back(100, 'x');
    CHECK(allocations.count > 0);
}

TEST_CASE("A dense candidate writes into the output only where that is right", "[.fake_driver]") {
    Setup setup;
    const void *written = nullptr;
    const distile_dense_candidate dense{"mine", write_nothing, &written};
    check(setup.context, distile_kernel_add_dense(setup.kernel.get(), &dense));
    CHECK(variants_of(setup).back() == "mine");
    setup.set_mask();
    for (bool named : {true, false}) {
        check(setup.context, distile_kernel_add_time(setup.kernel.get(), "mine", 1, 1e-3));
        setup.args.variant = named ? "mine" : nullptr;
        for (bool aliased : {false, true}) {
            for (distile_inactive inactive : {DISTILE_KEEP, DISTILE_ZERO}) {
                for (distile_store store : {DISTILE_STORE_EXACT, DISTILE_STORE_TILES}) {
                    CAPTURE(named, aliased, inactive, store);
                    setup.args.residual = aliased ? &setup.output : &setup.residual;
                    setup.args.inactive = inactive;
                    setup.args.store = store;
                    written = nullptr;
                    setup.run();
                    REQUIRE(written != nullptr);
                    const bool direct = !aliased && (inactive == DISTILE_ZERO || store == DISTILE_STORE_TILES);
                    CHECK((written == setup.output.data) == direct);
                }
            }
        }
    }
    const distile_dense_candidate failing{"failing", [](void *, void *, const distile_run_args *) { return 5; },
                                          nullptr};
    check(setup.context, distile_kernel_add_dense(setup.kernel.get(), &failing));
    setup.args.variant = "no such variant";
    setup.refuse_run(DISTILE_ERROR_BAD_VALUE, {"no such variant"});
    setup.args.variant = nullptr;
    setup.run();
    // What was wrong can be asked for until something else goes wrong, of which it is then no part.
    CHECK(contains(setup.message(), "no such variant"));
    setup.args.variant = "failing";
    setup.refuse_run(DISTILE_ERROR_KERNEL, {"failing", "code 5"});
    CHECK(!contains(setup.message(), "no such variant"));
}
