// What the runtime for GPUs refuses, on a driver of our own.
#include "tests/cuda/cuda_setup.h"
#include "tests/cuda/tensor_core_operator.h"
#include "tests/support/temporary_folder.h"

#include <cstring>
#include <distile/mask_algebra.h>
#include <distile/planner.h>
#include <distile/tokens.h>
#include <functional>

using namespace distile;

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
