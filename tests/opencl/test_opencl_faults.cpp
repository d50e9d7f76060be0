// What the runtime asks of OpenCL, and what it says when that fails: on a loader of our own, which computes nothing.
#include "gpu_polykernels.h"
#include "tests/opencl/fake_session.h"
#include "tests/opencl/gpu_session.h"
#include "tests/support/temporary_folder.h"
#include <algorithm>
#include <distile/layers.h>
#include <distile/mask_algebra.h>
#include <distile/tokens.h>

using namespace distile;

namespace {

const OpenClLibrary &opencl_library() {
    LibraryFailure failure{};
    const OpenClLibrary *library = load_opencl(failure);
    INFO(failure.message);
    REQUIRE(library);
    return *library;
}

/** A status, and some words of the context's message, or of the thread's without one. */
void check_refusal(distile_status status, distile_status due, const distile_context *context,
                   const std::vector<std::string> &words) {
    const std::string message = distile_context_message(context);
    CHECK(distile_status_name(status) == std::string(distile_status_name(due)));
    for (const std::string &word : words) {
        INFO("the message is: " << message);
        CHECK(message.find(word) != std::string::npos);
    }
}

void refuse_context(distile_status due, const std::vector<std::string> &words,
                    const distile_opencl_options &options = {}) {
    distile_context *context = nullptr;
    check_refusal(distile_opencl_context_create(nullptr, &options, &context), due, nullptr, words);
    CHECK(!context);
    distile_context_destroy(context);
}

const distile_polykernel &polykernel = GPU_POLYKERNEL(test_conv3_48_16_residual);

/** An operator with all that a call takes. */
struct Setup {
    Setup() {
        filter.resize(size_t{3} * 3 * 48 * 16);
        source.filter = filter.data();
        source.order = DISTILE_HWIO;
        weights = pack_weights(gpu.context, kernel, source);
        args.input = &input;
        args.residual = &residual;
        args.output = &output;
        args.weights = weights.get();
        args.mask = mask.get();
    }
    distile_status set_mask() const {
        return distile_mask_set_bytes(mask.get(), bytes.data(), 1, 8, 8, 64, 8);
    }
    std::string message() const {
        return distile_context_message(gpu.context.get());
    }
    /** Calls of every kind; how many of them fail. */
    int calls() {
        distile_weights *packed = nullptr;
        distile_tensor planned{};
        const distile_output_spec spec{1, 8, 8, 16, 1, 1, 1, 1, DISTILE_FLOAT32};
        distile_planner *planner = nullptr;
        int64_t active = 0;
        const int32_t *lengths = nullptr;
        distile_normalize_args normalization{};
        normalization.input = &residual;
        normalization.output = &output;
        normalization.mask = mask.get();
        normalization.inactive = DISTILE_ZERO;
        distile_combine_args addition{};
        addition.input = addition.other = &residual;
        addition.output = &output;
        addition.mask = mask.get();
        addition.combination = DISTILE_ADD;
        distile_tensor pixel = output;
        pixel.height = pixel.width = 1;
        distile_global_pool_args pooling{};
        pooling.input = &residual;
        pooling.output = &pixel;
        pooling.mask = mask.get();
        distile_group_norm_args norm{};
        norm.input = &residual;
        norm.output = &output;
        norm.mask = mask.get();
        norm.groups = 1;
        args.inactive = DISTILE_ZERO;
        args.variant = distile_kernel_variant_name(kernel.get(), 1);
        std::vector<distile_status> statuses = {
            set_mask(),
            distile_mask_dilate(mask.get(), mask.get(), 1, 1),
            distile_mask_set_difference(mask.get(), &output, &residual, 0),
            distile_mask_active_pixels(mask.get(), &active),
            distile_mask_get_bytes(mask.get(), static_cast<uint8_t *>(output.data),
                                   int64_t{output.height} * output.width, output.width),
            distile_run(kernel.get(), &args),
            distile_normalize(gpu.context.get(), &normalization),
            distile_combine(gpu.context.get(), &addition),
            distile_global_pool(gpu.context.get(), &pooling),
            distile_group_norm(gpu.context.get(), &norm),
            distile_mask_set_scores(mask.get(), &residual, nullptr, 0, 0.5f),
            distile_pack(gpu.context.get(), &residual, mask.get(), &output),
            distile_unpack(gpu.context.get(), &residual, mask.get(), &output, DISTILE_ZERO),
            distile_mask_cumulative_lengths(mask.get(), &lengths),
            distile_weights_pack(kernel.get(), &source, &packed),
            distile_planner_create(gpu.context.get(), nullptr, &planner)};
        if (planner) {
            statuses.push_back(distile_planner_next(planner, &spec, mask.get(), DISTILE_STORE_EXACT, &planned));
        }
        distile_planner_destroy(planner);
        distile_weights_destroy(packed);
        return static_cast<int>(std::count_if(statuses.begin(), statuses.end(),
                                              [](distile_status status) { return status != DISTILE_OK; }));
    }

    Gpu gpu;
    Kernel kernel = gpu.make_kernel(polykernel);
    Mask mask = gpu.make_mask();
    std::vector<float> filter;
    distile_weights_source source{};
    Weights weights;
    DeviceArray<float> input_memory{size_t{64} * 48}, output_memory{size_t{64} * 16}, residual_memory{size_t{64} * 16};
    DeviceArray<uint8_t> bytes{64};
    distile_tensor input = distile_tensor_make(input_memory.data(), 1, 8, 8, 48),
                   output = distile_tensor_make(output_memory.data(), 1, 8, 8, 16),
                   residual = distile_tensor_make(residual_memory.data(), 1, 8, 8, 16);
    distile_run_args args{};
};

}  // namespace

TEST_CASE("A machine without OpenCL says so", "[.no_opencl]") {
    refuse_context(DISTILE_ERROR_NO_DRIVER, {"cannot load the OpenCL loader", "libOpenCL"});
}

TEST_CASE("A machine without a driver, a device or a new enough one says so", "[.fake_opencl]") {
    {
        const FakeSetting none("platforms", 0, 1);
        refuse_context(DISTILE_ERROR_NO_DRIVER, {"finds no driver", "/etc/OpenCL/vendors"});
    }
    {
        const FakeSetting none("devices", 0, 1);
        refuse_context(DISTILE_ERROR_NO_GPU, {"no OpenCL device 0", "have 0"});
    }
    {
        const FakeSetting old("minor", 1, 2);
        refuse_context(DISTILE_ERROR_OLD_DRIVER, {"OpenCL 1.1", "1.2"});
    }
    {
        const FakeSetting small("items", 32, 1024);
        refuse_context(DISTILE_ERROR_UNSUPPORTED_DEVICE, {"work-groups", "32", "64"});
    }
    distile_opencl_options options{};
    options.device = 1;
    refuse_context(DISTILE_ERROR_NO_GPU, {"no OpenCL device 1", "have 1"}, options);
    options = {};
    options.reserved[1] = 1;
    refuse_context(DISTILE_ERROR_BAD_VALUE, {"reserved"}, options);
    options = {};
    const Context cpu = make_context();
    options.shared = cpu.get();
    refuse_context(DISTILE_ERROR_OTHER_DEVICE, {"shared"}, options);
    CHECK(count_fake("alive") == 0);
}

TEST_CASE("Devices are counted GPUs first", "[.fake_opencl]") {
    const FakeSetting two("devices", 2, 1), second("gpu", 2, 1);
    for (const int32_t number : {0, 1}) {
        distile_opencl_options options{};
        options.device = number;
        const Gpu opened(options);
        REQUIRE(opened);
        CHECK(count_fake("opened") == 2 - number);
    }
}

TEST_CASE("What the compiler rejects is told with its log", "[.fake_opencl]") {
    {
        const FakeFailure failure("clBuildProgram", CL_BUILD_PROGRAM_FAILURE);
        refuse_context(DISTILE_ERROR_UNSUPPORTED_DEVICE, {"compiler rejected", "line 7: no such thing"});
    }
    {
        const Gpu gpu;
        const FakeFailure failure("clBuildProgram", CL_BUILD_PROGRAM_FAILURE);
        distile_kernel *kernel = nullptr;
        check_refusal(distile_kernel_create(gpu.context.get(), &polykernel, &kernel), DISTILE_ERROR_UNSUPPORTED_DEVICE,
                      gpu.context.get(), {polykernel.name, "line 7: no such thing"});
    }
    CHECK(count_fake("alive") == 0);
}

TEST_CASE("A device without what a kernel needs is told what that is", "[.fake_opencl]") {
    {
        const auto refuse_kernel = [](const distile_polykernel &needy, const std::vector<std::string> &words) {
            const Gpu gpu;
            distile_kernel *kernel = nullptr;
            check_refusal(distile_kernel_create(gpu.context.get(), &needy, &kernel), DISTILE_ERROR_UNSUPPORTED_DEVICE,
                          gpu.context.get(), words);
        };
        {
            const FakeSetting small("local", 64, 32 << 10);
            refuse_kernel(polykernel, {"bytes of local memory", "64"});
        }
        {
            const FakeSetting small("kernel_items", 16, 1024);
            refuse_kernel(polykernel, {"work-groups", "16"});
        }
        distile_polykernel needy = polykernel;
        needy.features = "opencl_1.2 cl_khr_fp16";
        refuse_kernel(needy, {"cl_khr_fp16"});
        needy.features = "opencl_3.0";
        refuse_kernel(needy, {"opencl_3.0"});
    }
    CHECK(count_fake("alive") == 0);
}

TEST_CASE("Buffers that do not fit give a status", "[.fake_opencl]") {
    {
        Setup setup;
        {
            const FakeFailure failure("clCreateBuffer", CL_MEM_OBJECT_ALLOCATION_FAILURE);
            distile_weights *weights = nullptr;
            check_refusal(distile_weights_pack(setup.kernel.get(), &setup.source, &weights),
                          DISTILE_ERROR_OUT_OF_DEVICE_MEMORY, setup.gpu.context.get(), {"clCreateBuffer"});
        }
        {
            const FakeSetting small("largest", 8192, int64_t{1} << 32);
            const Gpu gpu;
            const Kernel kernel = gpu.make_kernel(polykernel);
            distile_weights *weights = nullptr;
            check_refusal(distile_weights_pack(kernel.get(), &setup.source, &weights),
                          DISTILE_ERROR_OUT_OF_DEVICE_MEMORY, gpu.context.get(), {"exceeds", "8192"});
            current_context() = setup.gpu.context.get();
        }
        CHECK(setup.calls() == 0);
    }
    CHECK(count_fake("alive") == 0);
}

TEST_CASE("Tensors and masks must lie in their buffers", "[.fake_opencl]") {
    {
        Setup setup;
        REQUIRE(setup.set_mask() == DISTILE_OK);
        const auto refuse = [&](distile_status due, const std::vector<std::string> &words) {
            check_refusal(distile_run(setup.kernel.get(), &setup.args), due, setup.gpu.context.get(), words);
        };
        const distile_tensor input = setup.input;
        setup.input.data = setup.filter.data();
        refuse(DISTILE_ERROR_NOT_DEVICE_MEMORY, {"input", "distile_opencl_map"});
        setup.input = input;
        setup.input.data = setup.input_memory.data() + 48;
        refuse(DISTILE_ERROR_NOT_DEVICE_MEMORY, {"input", "beyond its buffer"});
        // Its first row of zeros lies before the buffer.
        setup.input = input;
        setup.input.height = 6;
        setup.input.border_top = 1;
        setup.output.height = setup.residual.height = 6;
        REQUIRE(distile_mask_set_bytes(setup.mask.get(), setup.bytes.data(), 1, 6, 8, 48, 8) == DISTILE_OK);
        refuse(DISTILE_ERROR_NOT_DEVICE_MEMORY, {"input", "beyond its buffer"});
        setup.output.height = setup.residual.height = 8;
        REQUIRE(setup.set_mask() == DISTILE_OK);
        setup.input = input;
        check_refusal(distile_mask_set_bytes(setup.mask.get(), setup.bytes.data() + 1, 1, 8, 8, 64, 8),
                      DISTILE_ERROR_NOT_DEVICE_MEMORY, setup.gpu.context.get(), {"mask's bytes", "64", "63"});
        CHECK(setup.calls() == 0);
    }
    CHECK(count_fake("alive") == 0);
}

TEST_CASE("Any function of OpenCL may fail, and nothing is left behind", "[.fake_opencl]") {
#define DISTILE_NAME(name) #name,
    const std::vector<const char *> functions = {DISTILE_OPENCL_FUNCTIONS(DISTILE_NAME)};
#undef DISTILE_NAME
    for (const char *function : functions) {
        CAPTURE(function);
        {
            Setup setup;
            distile_context *context = nullptr;
            {
                const FakeFailure failure(function, CL_INVALID_OPERATION);
                (void)distile_opencl_context_create(nullptr, nullptr, &context);
                distile_kernel *kernel = nullptr;
                if (distile_kernel_create(setup.gpu.context.get(), &polykernel, &kernel) == DISTILE_OK) {
                    distile_kernel_destroy(kernel);
                }
                (void)setup.calls();
            }
            distile_context_destroy(context);
            INFO(setup.message());
            CHECK(setup.calls() == 0);
        }
        CHECK(count_fake("alive") == 0);
    }
}

TEST_CASE("A device that was lost gives that status from every call", "[.fake_opencl]") {
    {
        Setup setup;
        REQUIRE(setup.calls() == 0);
        for (cl_int error : {CL_DEVICE_NOT_AVAILABLE, CL_INVALID_CONTEXT, CL_INVALID_COMMAND_QUEUE}) {
            REQUIRE(setup.set_mask() == DISTILE_OK);
            const FakeFailure lost("*", error);
            distile_kernel *kernel = nullptr;
            distile_weights *weights = nullptr;
            for (distile_status status : {distile_run(setup.kernel.get(), &setup.args), setup.set_mask(),
                                          distile_kernel_create(setup.gpu.context.get(), &polykernel, &kernel),
                                          distile_weights_pack(setup.kernel.get(), &setup.source, &weights)}) {
                INFO(setup.message());
                CHECK(distile_status_name(status) == std::string("DISTILE_ERROR_DEVICE_LOST"));
            }
        }
    }
    CHECK(count_fake("alive") == 0);
}

TEST_CASE("Programs are compiled once, and kept in the caller's folder", "[.fake_opencl]") {
    const TemporaryFolder folder;
    const std::string path = folder.path() + "/new";
    distile_opencl_options options{};
    options.cache_folder = path.c_str();
    int64_t first = 0;
    for (int32_t round = 0; round < 2; round++) {
        const int64_t compiled = count_fake("clCreateProgramWithSource");
        const int64_t taken = count_fake("clCreateProgramWithBinary");
        const Gpu gpu(options);
        const Kernel kernel = gpu.make_kernel(polykernel);
        const int64_t now = count_fake("clCreateProgramWithSource") - compiled;
        if (round == 0) {
            first = now;
            CHECK(first > 1);
        } else {
            CHECK(now == 0);
            CHECK(count_fake("clCreateProgramWithBinary") - taken == first);
        }
    }
    CHECK(count_fake("alive") == 0);
}

TEST_CASE("Contexts of a cl_context share addresses and weights on request", "[.fake_opencl]") {
    {
        Setup setup;
        distile_opencl_options options{};
        options.queue = distile_opencl_queue(setup.gpu.context.get());
        options.shared = setup.gpu.context.get();
        distile_context *context = nullptr;
        REQUIRE(distile_opencl_context_create(nullptr, &options, &context) == DISTILE_OK);
        const Context sharing(context);
        const Kernel kernel = make_kernel(sharing, polykernel);
        const Mask mask = make_mask(sharing);
        REQUIRE(distile_mask_set_bytes(mask.get(), setup.bytes.data(), 1, 8, 8, 64, 8) == DISTILE_OK);
        setup.args.mask = mask.get();
        setup.args.variant = distile_kernel_variant_name(kernel.get(), 0);
        CHECK(distile_run(kernel.get(), &setup.args) == DISTILE_OK);
        // Without that they have other weights.
        options.shared = nullptr;
        REQUIRE(distile_opencl_context_create(nullptr, &options, &context) == DISTILE_OK);
        const Context alone(context);
        CHECK(distile_mask_set_bytes(mask.get(), setup.bytes.data(), 1, 8, 8, 64, 8) == DISTILE_OK);
        const Kernel other = make_kernel(alone, polykernel);
        const Mask own = make_mask(alone);
        setup.args.mask = own.get();
        CHECK(distile_run(other.get(), &setup.args) != DISTILE_OK);
    }
    CHECK(count_fake("alive") == 0);
}

TEST_CASE("Work on an out-of-order queue stands between barriers", "[.fake_opencl]") {
    {
        const OpenClLibrary &library = opencl_library();
        cl_int result = CL_SUCCESS;
        cl_context used = library.clCreateContext(nullptr, 1, nullptr, nullptr, nullptr, &result);
        for (cl_command_queue_properties properties : {0, CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE}) {
            cl_command_queue queue = library.clCreateCommandQueue(used, nullptr, properties, &result);
            distile_opencl_options options{};
            options.queue = queue;
            const Gpu gpu(options);
            CHECK(distile_opencl_queue(gpu.context.get()) == queue);
            library.clReleaseCommandQueue(queue);
            const Mask mask = gpu.make_mask();
            const DeviceArray<uint8_t> bytes(64);
            const int64_t launches = count_fake("clEnqueueNDRangeKernel");
            const int64_t barriers = count_fake("clEnqueueBarrierWithWaitList");
            gpu.check(distile_mask_set_bytes(mask.get(), bytes.data(), 1, 8, 8, 64, 8));
            CHECK(count_fake("clEnqueueNDRangeKernel") == launches + 1);
            CHECK(count_fake("clEnqueueBarrierWithWaitList") == barriers + (properties != 0 ? 2 : 0));
            // The caller's events.
            void *event = nullptr;
            gpu.check(distile_opencl_signal(gpu.context.get(), &event));
            CHECK(event);
            gpu.check(distile_opencl_wait(gpu.context.get(), &event, 1));
            CHECK(distile_opencl_wait(gpu.context.get(), &event, 0) == DISTILE_ERROR_BAD_VALUE);
            CHECK(distile_opencl_wait(gpu.context.get(), nullptr, 1) == DISTILE_ERROR_NULL_POINTER);
        }
        library.clReleaseContext(used);
    }
    CHECK(count_fake("alive") == 0);
}

TEST_CASE("Functions of OpenCL refuse other contexts and null pointers", "[.fake_opencl]") {
    const Context cpu = make_context();
    void *address = nullptr;
    size_t offset = 0;
    CHECK(distile_opencl_map(cpu.get(), &address, &address) == DISTILE_ERROR_OTHER_DEVICE);
    CHECK(distile_opencl_map(nullptr, &address, &address) == DISTILE_ERROR_NULL_POINTER);
    CHECK(distile_opencl_unmap(cpu.get(), nullptr) == DISTILE_ERROR_OTHER_DEVICE);
    CHECK(distile_opencl_buffer(cpu.get(), &offset, &address, &offset) == DISTILE_ERROR_OTHER_DEVICE);
    CHECK(distile_opencl_signal(cpu.get(), &address) == DISTILE_ERROR_OTHER_DEVICE);
    CHECK(distile_opencl_wait(cpu.get(), &address, 1) == DISTILE_ERROR_OTHER_DEVICE);
    CHECK(!distile_opencl_queue(cpu.get()));
    CHECK(!distile_opencl_queue(nullptr));
    const Gpu gpu;
    CHECK(distile_opencl_map(gpu.context.get(), nullptr, &address) == DISTILE_ERROR_NULL_POINTER);
    CHECK(distile_opencl_map(gpu.context.get(), &address, nullptr) == DISTILE_ERROR_NULL_POINTER);
    CHECK(distile_opencl_map(gpu.context.get(), &address, &address) == DISTILE_ERROR_BAD_VALUE);
    CHECK(distile_opencl_unmap(gpu.context.get(), nullptr) == DISTILE_OK);
    CHECK(distile_opencl_signal(gpu.context.get(), nullptr) == DISTILE_ERROR_NULL_POINTER);
}
