// What may fail under the runtime for GPUs, on a driver of our own.
#include "tests/cuda/cuda_setup.h"
#include "tests/cuda/tensor_core_operator.h"
#include "tests/support/allocations.h"
#include "tests/support/short_tests.h"
#include "tests/support/temporary_folder.h"
#include <algorithm>
#include <cmath>
#include <distile/layers.h>
#include <distile/layout.h>
#include <distile/mask_algebra.h>
#include <distile/planner.h>
#include <distile/tokens.h>
#include <distile/upsample.h>
#include <filesystem>

using namespace distile;

namespace {

namespace fs = std::filesystem;

/** Functions of the driver that the runtime calls and that can fail. */
const char *const fallible[] = {"cuInit",
                                "cuDriverGetVersion",
                                "cuDeviceGetCount",
                                "cuDeviceGet",
                                "cuDeviceGetAttribute",
                                "cuDevicePrimaryCtxRetain",
                                "cuCtxPushCurrent",
                                "cuCtxGetDevice",
                                "cuModuleLoadData",
                                "cuModuleGetFunction",
                                "cuFuncGetAttribute",
                                "cuStreamCreate",
                                "cuEventCreate",
                                "cuStreamIsCapturing",
                                "cuMemAlloc",
                                "cuMemAllocHost",
                                "cuMemcpyHtoD",
                                "cuMemcpyDtoHAsync",
                                "cuMemcpyDtoDAsync",
                                "cuMemsetD8Async",
                                "cuCtxSynchronize",
                                "cuStreamSynchronize",
                                "cuStreamWaitEvent",
                                "cuEventRecord",
                                "cuPointerGetAttribute",
                                "cuLaunchKernel",
                                "cuLaunchKernelEx",
                                "cuTensorMapEncodeTiled"};

/** An upsampling by 1 x 1 of the residual to the output. */
distile_upsample_args upsampling_of(const Setup &setup, distile_mask *mask) {
    distile_upsample_args args{};
    args.input = &setup.residual;
    args.output = &setup.output;
    args.mask = mask;
    args.scale_h = args.scale_w = 1;
    return args;
}

/** A layer norm of the residual into the output. */
distile_normalize_args normalization_of(const Setup &setup, distile_mask *mask) {
    distile_normalize_args args{};
    args.input = &setup.residual;
    args.output = &setup.output;
    args.mask = mask;
    args.inactive = DISTILE_ZERO;
    return args;
}

/** A pooling, a global pooling, an addition and a group norm of the residual. */
struct Layers {
    Layers(const Setup &setup, distile_mask *mask) : pixel(setup.output) {
        pool.input = global.input = combine.input = combine.other = norm.input = &setup.residual;
        pool.output = combine.output = norm.output = &setup.output;
        pool.mask = global.mask = combine.mask = norm.mask = mask;
        pool.window = {1, 1, 1, 1, 1, 1, 0, 0, DISTILE_WINDOW_CONV};
        pool.inactive = combine.inactive = DISTILE_ZERO;
        pixel.height = pixel.width = 1;
        global.output = &pixel;
        combine.combination = DISTILE_ADD;
        norm.groups = 1;
    }
    Layers(const Layers &) = delete;
    Layers &operator=(const Layers &) = delete;

    distile_tensor pixel;
    distile_pool_args pool{};
    distile_global_pool_args global{};
    distile_combine_args combine{};
    distile_group_norm_args norm{};
};

/** As many elements as the output has, in planes that begin where the input does. */
distile_nchw planes_of(const Setup &setup) {
    return distile_nchw_make(setup.input.data, setup.conv.out_channels, setup.out_height, setup.out_width);
}

}  // namespace

TEST_CASE("A driver that lacks a function is too old", "[.old_driver]") {
    distile_context *context = nullptr;
    CHECK(name_of(distile_cuda_context_create(nullptr, nullptr, &context)) == "DISTILE_ERROR_OLD_DRIVER");
    CHECK(contains(distile_context_message(nullptr), "cuGetErrorName"));
    CHECK(context == nullptr);
}

TEST_CASE("What is wrong with the machine is said when a GPU is opened", "[.fake_driver]") {
    const auto refuse = [&](const char *what, int64_t value, int64_t before, const char *status,
                            const std::vector<std::string> &words) {
        const FakeSetting setting(what, value, before);
        distile_context *context = nullptr;
        const distile_status found = distile_cuda_context_create(nullptr, nullptr, &context);
        CAPTURE(what, distile_context_message(nullptr));
        CHECK(name_of(found) == status);
        // The tests that need a GPU are skipped for want of one, and for nothing else.
        CHECK(lacks_gpu(found) == (found != DISTILE_ERROR_UNSUPPORTED_DEVICE));
        for (const std::string &word : words) {
            CHECK(contains(distile_context_message(nullptr), word));
        }
        CHECK(count_fake("alive") == 0);
    };
    refuse("version", 11040, CUDA_VERSION, "DISTILE_ERROR_OLD_DRIVER", {"11.4"});
    refuse("devices", 0, 1, "DISTILE_ERROR_NO_GPU", {"no GPU 0"});
    refuse("major", 6, 9, "DISTILE_ERROR_UNSUPPORTED_DEVICE", {"6.0", "7."});
    fail_fake("cuInit", CUDA_ERROR_NO_DEVICE);
    refuse("devices", 1, 1, "DISTILE_ERROR_NO_GPU", {"cuInit"});
    fail_fake("cuInit", 0);
    fail_fake("cuModuleLoadData", CUDA_ERROR_NO_BINARY_FOR_GPU);
    refuse("minor", 0, 0, "DISTILE_ERROR_UNSUPPORTED_DEVICE", {"9.0", std::to_string(CUDA_VERSION / 1000)});
    fail_fake("cuModuleLoadData", 0);
}

TEST_CASE("Any function of the driver may fail, and nothing is left behind", "[.fake_driver]") {
    for (const char *function : fallible) {
        int refused = 0;
        {
            fail_fake(function, CUDA_ERROR_NOT_PERMITTED);
            distile_context *context = nullptr;
            const distile_status status = distile_cuda_context_create(nullptr, nullptr, &context);
            CHECK(!lacks_gpu(status));
            refused += status != DISTILE_OK ? 1 : 0;
            CHECK((context == nullptr) == (refused == 1));
            distile_context_destroy(context);
            fail_fake(function, 0);
            const Context opened = make_cuda_context();
            fail_fake(function, CUDA_ERROR_NOT_PERMITTED);
            distile_kernel *kernel = nullptr;
            refused += distile_kernel_create(opened.get(), &test_odd_cuda, &kernel) != DISTILE_OK ? 1 : 0;
            distile_kernel_destroy(kernel);
            fail_fake(function, 0);
        }
        {
            const TensorCoreOperator op(DISTILE_FLOAT16);
            Setup setup, boxes(op.polykernel);
            boxes.set_mask();
            setup.args.inactive = DISTILE_ZERO;
            const distile_upsample_args upsampling = upsampling_of(setup, setup.mask.get());
            const distile_normalize_args normalization = normalization_of(setup, setup.mask.get());
            const Layers layers(setup, setup.mask.get());
            const distile_nchw planes = planes_of(setup);
            const auto calls = [&] {
                distile_tile_list list{};
                const int32_t *lengths = nullptr;
                int failures = 0;
                for (distile_status status :
                     {distile_mask_set_bytes(setup.mask.get(), setup.mask_memory->data(), 2, setup.out_height,
                                             setup.out_width, int64_t{setup.out_height} * setup.out_width,
                                             setup.out_width),
                      distile_mask_tiles(setup.mask.get(), 3, 3, &list),
                      distile_mask_dilate(setup.mask.get(), setup.mask.get(), 1, 1),
                      distile_upsample_nearest(setup.context.get(), &upsampling),
                      distile_normalize(setup.context.get(), &normalization),
                      distile_pool(setup.context.get(), &layers.pool),
                      distile_global_pool(setup.context.get(), &layers.global),
                      distile_combine(setup.context.get(), &layers.combine),
                      distile_group_norm(setup.context.get(), &layers.norm),
                      distile_pack(setup.context.get(), &setup.residual, setup.mask.get(), &setup.output),
                      distile_unpack(setup.context.get(), &setup.residual, setup.mask.get(), &setup.output,
                                     DISTILE_ZERO),
                      distile_mask_cumulative_lengths(setup.mask.get(), &lengths),
                      distile_from_nchw(setup.context.get(), &planes, &setup.output),
                      distile_run(setup.kernel.get(), &setup.args)}) {
                    failures += status != DISTILE_OK ? 1 : 0;
                }
                for (Setup *with : {&setup, &boxes}) {
                    for (const std::string &variant : variants_of(*with)) {
                        with->args.variant = variant.c_str();
                        failures += distile_run(with->kernel.get(), &with->args) != DISTILE_OK ? 1 : 0;
                    }
                    with->args.variant = nullptr;
                }
                distile_weights *weights = nullptr;
                failures += distile_weights_pack(setup.kernel.get(), &setup.source, &weights) != DISTILE_OK ? 1 : 0;
                distile_weights_destroy(weights);
                return failures;
            };
            fail_fake(function, CUDA_ERROR_NOT_PERMITTED);
            refused += calls();
            fail_fake(function, 0);
            CAPTURE(function, setup.message());
            CHECK(calls() == 0);
        }
        CAPTURE(function);
        CHECK(refused > 0);
        CHECK(count_fake("alive") == 0);
    }
}

TEST_CASE("Code for tensor cores may fail too, and nothing is left behind", "[.fake_driver]") {
    const TensorCoreOperator op(DISTILE_FLOAT16);
    {
        Setup setup(op.polykernel);
        setup.args.variant = "fine";
        setup.set_mask();
        const int64_t alive = count_fake("alive");
        fail_fake("cuFuncSetAttribute", CUDA_ERROR_NOT_PERMITTED);
        distile_kernel *kernel = nullptr;
        setup.refuse(distile_kernel_create(setup.context.get(), &op.polykernel, &kernel), DISTILE_ERROR_KERNEL,
                     {"fine", "cuFuncSetAttribute"});
        fail_fake("cuFuncSetAttribute", 0);
        CHECK(count_fake("alive") == alive);
        fail_fake("cuOccupancyMaxActiveClusters", CUDA_ERROR_NOT_PERMITTED);
        setup.refuse(distile_kernel_create(setup.context.get(), &op.polykernel, &kernel), DISTILE_ERROR_KERNEL,
                     {"fine", "cuOccupancyMaxActiveClusters"});
        fail_fake("cuOccupancyMaxActiveClusters", 0);
        CHECK(count_fake("alive") == alive);
        // The code of another GPU.
        fail_fake("cuModuleLoadData", CUDA_ERROR_NO_BINARY_FOR_GPU);
        setup.refuse(distile_kernel_create(setup.context.get(), &op.polykernel, &kernel),
                     DISTILE_ERROR_UNSUPPORTED_DEVICE, {"fine", "compute capability 9.0"});
        fail_fake("cuModuleLoadData", 0);
        CHECK(count_fake("alive") == alive);
        fail_fake("cuLaunchKernelEx", CUDA_ERROR_NOT_PERMITTED);
        setup.refuse_run(DISTILE_ERROR_KERNEL, {"fine", "cuLaunchKernelEx"});
        fail_fake("cuLaunchKernelEx", 0);
        setup.run();
    }
    CHECK(count_fake("alive") == 0);
}

TEST_CASE("A context that was lost gives that status from every call", "[.fake_driver]") {
    {
        const Setup setup;
        setup.set_mask();
        distile_tile_list list{};
        distile_kernel *kernel = nullptr;
        distile_mask *mask = nullptr;
        distile_weights *weights = nullptr;
        for (int error : {CUDA_ERROR_ILLEGAL_ADDRESS, CUDA_ERROR_LAUNCH_FAILED, CUDA_ERROR_CONTEXT_IS_DESTROYED}) {
            fail_fake("*", error);
            setup.refuse_run(DISTILE_ERROR_DEVICE_LOST, {});
            setup.refuse(distile_mask_tiles(setup.mask.get(), 5, 5, &list), DISTILE_ERROR_DEVICE_LOST, {});
            setup.refuse(distile_mask_create(setup.context.get(), &mask), DISTILE_ERROR_DEVICE_LOST, {});
            setup.refuse(distile_kernel_create(setup.context.get(), &test_odd_cuda, &kernel), DISTILE_ERROR_DEVICE_LOST,
                         {});
            setup.refuse(distile_weights_pack(setup.kernel.get(), &setup.source, &weights), DISTILE_ERROR_DEVICE_LOST,
                         {});
            distile_context *second = nullptr;
            CHECK(distile_cuda_context_create(nullptr, nullptr, &second) == DISTILE_ERROR_DEVICE_LOST);
        }
    }
    fail_fake("*", 0);
    CHECK(count_fake("alive") == 0);
}

namespace {

/** A use of the library on the fake driver, in which something may fail. A call that failed is made again, and then
 * succeeds. */
class FaultySession {
public:
    FaultySession(const Setup &setup, distile_clearing clearing, bool cached)
        : setup_(setup), args_(setup.args), clearing_(clearing), cached_(cached) {
    }
    FaultySession(const FaultySession &) = delete;
    FaultySession &operator=(const FaultySession &) = delete;
    ~FaultySession() {
        for (const auto &file : fs::directory_iterator(folder_.path())) {
            CHECK(file.path().extension() == ".cubin");
        }
    }

    void create() {
        distile_cuda_options options{};
        const std::string path = folder_.path();
        options.cache_folder = cached_ ? path.c_str() : nullptr;
        make(context_, [&](distile_context **out) { return distile_cuda_context_create(nullptr, &options, out); });
        make(kernel_,
             [&](distile_kernel **out) { return distile_kernel_create(context_.get(), setup_.polykernel, out); });
        make(weights_, [&](distile_weights **out) { return distile_weights_pack(kernel_.get(), &setup_.source, out); });
        for (Mask *mask : {&mask_, &other_}) {
            make(*mask, [&](distile_mask **out) { return distile_mask_create(context_.get(), out); });
        }
        const distile_planner_options planner{2, clearing_, {}};
        make(planner_, [&](distile_planner **out) { return distile_planner_create(context_.get(), &planner, out); });
        args_.weights = weights_.get();
        args_.mask = mask_.get();
        args_.inactive = DISTILE_ZERO;
    }

    void use(int32_t channels) {
        distile_mask *mask = mask_.get(), *other = other_.get();
        const int32_t height = setup_.out_height, width = setup_.out_width;
        step(0, [&] {
            return distile_mask_set_bytes(mask, setup_.mask_memory->data(), setup_.output.batch, height, width,
                                          int64_t{height} * width, width);
        });
        distile_tile_list list{};
        step(0, [&] { return distile_mask_tiles(mask, 3, 7, &list); });
        step(0, [&] { return distile_mask_set_difference(other, &setup_.output, &setup_.residual, 0.5f); });
        const auto *numbers = reinterpret_cast<const int32_t *>(setup_.mask_memory->data());
        step(0,
             [&] { return distile_mask_set_indices(other, numbers, numbers, setup_.output.batch, height, width, 5); });
        step(0, [&] {
            return distile_mask_set_bits(other, reinterpret_cast<const uint32_t *>(numbers), setup_.output.batch,
                                         height, width, 4);
        });
        auto *const bytes = static_cast<uint8_t *>(setup_.output.data);
        step(0, [&] { return distile_mask_get_bytes(mask, bytes, int64_t{height} * width, width); });
        const distile_upsample_args upsampling = upsampling_of(setup_, mask);
        step(0, [&] { return distile_upsample_nearest(context_.get(), &upsampling); });
        const distile_normalize_args normalization = normalization_of(setup_, mask);
        step(0, [&] { return distile_normalize(context_.get(), &normalization); });
        const Layers layers(setup_, mask);
        step(0, [&] { return distile_pool(context_.get(), &layers.pool); });
        step(0, [&] { return distile_global_pool(context_.get(), &layers.global); });
        step(0, [&] { return distile_combine(context_.get(), &layers.combine); });
        step(0, [&] { return distile_group_norm(context_.get(), &layers.norm); });
        step(0, [&] { return distile_mask_set_scores(other, &setup_.residual, nullptr, 0, 0.5f); });
        step(0, [&] { return distile_pack(context_.get(), &setup_.residual, mask, &setup_.output); });
        step(0, [&] { return distile_unpack(context_.get(), &setup_.residual, mask, &setup_.output, DISTILE_ZERO); });
        const int32_t *lengths = nullptr;
        step(0, [&] { return distile_mask_cumulative_lengths(mask, &lengths); });
        const distile_nchw planes = planes_of(setup_);
        step(0, [&] { return distile_to_nchw(context_.get(), &setup_.output, &planes); });
        // Where the GPU fails in it, the mask holds nothing: it is another one's again.
        step(0, [&] {
            const distile_status status = distile_mask_invert(other, mask);
            return status != DISTILE_OK ? status : distile_mask_dilate(other, other, 1, 1);
        });
        for (int32_t i = -1; i < distile_kernel_num_variants(kernel_.get()); i++) {
            args_.variant = distile_kernel_variant_name(kernel_.get(), i);
            step(0, [&] { return distile_run(kernel_.get(), &args_); });
        }
        const distile_output_spec spec{setup_.output.batch, height, width, channels, 1, 1, 1, 1, DISTILE_FLOAT32};
        for (int i = 0; i < 3; i++) {
            distile_tensor tensor{};
            // What clears the next buffer runs beside what follows, and nothing else does.
            step(clearing_ == DISTILE_CLEAR_BACKGROUND ? 1 : 0,
                 [&] { return distile_planner_next(planner_.get(), &spec, mask, DISTILE_STORE_EXACT, &tensor); });
            float *values = static_cast<float *>(tensor.data) - tensor.stride_h - tensor.stride_w;
            float *end = values + spec.batch * tensor.stride_n;
            REQUIRE(std::all_of(values, end, [](float value) { return value == 0; }));
            if (clearing_ == DISTILE_CLEAR_ALL) {
                // The others are cleared by kernels, which this driver does not run.
                std::fill(values, end, 1.0f);
            }
        }
        step(1, [&] { return distile_cuda_planner_join(planner_.get()); });
        run_switch();
        REQUIRE(count_fake("beside") == 0);
    }

private:
    void run_switch() {
        void *graphs[] = {this, this};
        const void *masks[] = {setup_.output.data};
        const int64_t bytes[] = {16};
        distile_cuda_switch_args args{};
        args.graphs = graphs;
        args.num_graphs = 2;
        args.masks = masks;
        args.mask_bytes = bytes;
        args.num_masks = 1;
        make(switch_,
             [&](distile_cuda_switch **out) { return distile_cuda_switch_create(context_.get(), &args, out); });
        distile_cuda_switch_info info{};
        step(0, [&] { return distile_cuda_switch_launch(switch_.get()); });
        step(0, [&] { return distile_cuda_switch_set(switch_.get(), DISTILE_WAY_SETTLED); });
        step(0, [&] { return distile_cuda_switch_get_info(switch_.get(), &info); });
        REQUIRE(info.num_graphs == 2);
    }

    /** A call, and how many launches may go on beside what follows it, be it a success or not. */
    template<typename Call> void step(int64_t beside, const Call &call) {
        const int64_t failed = count_fake("failed"), refused = allocations.failures;
        distile_status status = DISTILE_OK;
        {
            const Watch watch;
            status = call();
        }
        INFO(distile_context_message(context_.get()));
        REQUIRE(count_fake("beside") <= beside);
        if (status == DISTILE_OK) {
            return;
        }
        const bool by_driver = count_fake("failed") > failed;
        REQUIRE((by_driver || allocations.failures > refused));
        REQUIRE(name_of(status) == (by_driver ? "DISTILE_ERROR_KERNEL" : "DISTILE_ERROR_OUT_OF_MEMORY"));
        REQUIRE(name_of(call()) == "DISTILE_OK");
        REQUIRE(count_fake("beside") <= beside);
    }

    template<typename Object, typename Make>
    void make(std::unique_ptr<Object, Destroy> &owner, const Make &make_object) {
        Object *made = nullptr;
        step(0, [&] {
            const distile_status status = make_object(&made);
            return status != DISTILE_OK && made ? DISTILE_ERROR_BAD_VALUE : status;
        });
        owner.reset(made);
    }

    const Setup &setup_;
    distile_run_args args_;
    distile_clearing clearing_;
    bool cached_;
    TemporaryFolder folder_;
    Context context_;
    Kernel kernel_;
    Weights weights_;
    Mask mask_, other_;
    Planner planner_;
    CudaSwitch switch_;
};

/** With few variants, because sessions are many. */
distile_polykernel few_variants() {
    distile_polykernel polykernel = test_odd_cuda;
    polykernel.num_variants = 2;
    polykernel.num_times = 0;
    return polykernel;
}

/** Returns how many calls of the driver it took. */
int64_t run_faulty_session(const Setup &setup, distile_clearing clearing, bool cached) {
    const int64_t calls = count_fake("*"), alive = count_fake("alive");
    allocations.count = 0;
    {
        FaultySession session(setup, clearing, cached);
        session.create();
        session.use(8);
        session.use(12);
    }
    REQUIRE(count_fake("alive") == alive);
    return count_fake("*") - calls;
}

/** Runs a session once for each of its calls of the driver, which then fails; short tests leave out three quarters. */
template<typename Session> void fail_each_call(int64_t calls, const Session &run) {
    for (int64_t call = 0; call < calls; call++) {
        if (left_out(static_cast<int>(call))) {
            continue;
        }
        CAPTURE(call);
        const int64_t failed = count_fake("failed");
        fail_fake_once(call, CUDA_ERROR_NOT_PERMITTED);
        run();
        CHECK(count_fake("failed") == failed + 1);
    }
}

}  // namespace

TEST_CASE("Any one call of the driver may fail, and the next try succeeds", "[.fake_driver]") {
    const distile_polykernel polykernel = few_variants();
    const Setup setup(polykernel);
    const FakeSetting count("count", 7, 0);
    for (const distile_clearing clearing : {DISTILE_CLEAR_WRITTEN, DISTILE_CLEAR_ALL, DISTILE_CLEAR_BACKGROUND}) {
        // Once is enough, because it takes most of the time.
        const bool cached = clearing == DISTILE_CLEAR_WRITTEN;
        CAPTURE(clearing);
        fail_each_call(run_faulty_session(setup, clearing, cached),
                       [&] { run_faulty_session(setup, clearing, cached); });
    }
}

TEST_CASE("Any one call of the driver for tensor cores may fail, and the next try succeeds", "[.fake_driver]") {
    const TensorCoreOperator op(DISTILE_FLOAT32);
    const Setup setup(op.polykernel);
    const FakeSetting count("count", 7, 0);
    fail_each_call(run_faulty_session(setup, DISTILE_CLEAR_WRITTEN, true),
                   [&] { run_faulty_session(setup, DISTILE_CLEAR_WRITTEN, true); });
}

TEST_CASE("Any one allocation of the host may fail, and the next try succeeds", "[.fake_driver]") {
    const distile_polykernel polykernel = few_variants();
    const Setup setup(polykernel);
    const FakeSetting count("count", 7, 0);
    run_faulty_session(setup, DISTILE_CLEAR_BACKGROUND, true);
    const int64_t all = allocations.count;
    CHECK(all > 100);
    for (int64_t index = 0; index < all; index++) {
        if (left_out(static_cast<int>(index))) {
            continue;
        }
        CAPTURE(index);
        allocations.failures = 0;
        allocations.first = allocations.last = index;
        run_faulty_session(setup, DISTILE_CLEAR_BACKGROUND, true);
        CHECK(allocations.failures == 1);
    }
    allocations.last = -1;
}
