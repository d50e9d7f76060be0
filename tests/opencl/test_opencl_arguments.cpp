// The functions of the C API on an OpenCL device with every argument wrong in turn, on a loader of our own.
#include "gpu_polykernels.h"
#include "tests/opencl/fake_session.h"
#include "tests/opencl/gpu_session.h"
#include "tests/support/shared_arguments.h"
#include <climits>

using namespace distile;

TEST_CASE("Every function of opencl.h refuses every argument that is wrong", "[.fake_opencl]") {
    {
        const Gpu gpu;
        const Context &context = gpu.context, cpu = make_context();
        const DeviceArray<uint8_t> bytes(64);
        void *buffer = nullptr, *address = nullptr, *event = nullptr;
        size_t offset = 0;
        gpu.check(distile_opencl_buffer(context.get(), bytes.data(), &buffer, &offset));
        gpu.check(distile_opencl_signal(context.get(), &event));
        WrongArguments all([&] { return std::string(distile_context_message(context.get())); },
                           [&] {
                               const Mask mask = make_mask(context);
                               (void)distile_mask_set_bytes(mask.get(), nullptr, 1, 1, 1, 1, 1);
                           });
        const distile_context_options options{};
        const distile_opencl_options opencl{};
        distile_context *made = nullptr;
        auto create = all.of("distile_opencl_context_create", distile_opencl_context_create, &options, &opencl, &made);
        create.without_message()
            .then([&] {
                distile_context_destroy(made);
                made = nullptr;
            })
            .any<1>({nullptr})
            .wrong<1>(DISTILE_ERROR_NO_GPU, &distile_opencl_options::device, {-1, 1, INT_MIN, INT_MAX})
            .wrong<1>(DISTILE_ERROR_OTHER_DEVICE, &distile_opencl_options::shared, {cpu.get(), context.get()})
            .reserved<1>(&distile_opencl_options::reserved)
            .wrong<2>(DISTILE_ERROR_NULL_POINTER, {nullptr});
        refuse_context_options(create);
        all.of("distile_opencl_map", distile_opencl_map, context.get(), buffer, &address)
            .then([&] { gpu.check(distile_opencl_unmap(context.get(), address)); })
            .wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
            .wrong<0>(DISTILE_ERROR_OTHER_DEVICE, {cpu.get()})
            .wrong<1>(DISTILE_ERROR_NULL_POINTER, {nullptr})
            .wrong<1>(DISTILE_ERROR_BAD_VALUE, {&offset})
            .wrong<2>(DISTILE_ERROR_NULL_POINTER, {nullptr});
        all.of("distile_opencl_unmap", distile_opencl_unmap, context.get(), nullptr)
            .wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
            .wrong<0>(DISTILE_ERROR_OTHER_DEVICE, {cpu.get()})
            .wrong<1>(DISTILE_ERROR_BAD_VALUE, {&offset, bytes.data() + 1});
        all.of("distile_opencl_buffer", distile_opencl_buffer, context.get(), bytes.data(), &buffer, &offset)
            .wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
            .wrong<0>(DISTILE_ERROR_OTHER_DEVICE, {cpu.get()})
            .wrong<1>(DISTILE_ERROR_NULL_POINTER, {nullptr})
            .wrong<1>(DISTILE_ERROR_NOT_DEVICE_MEMORY, {&offset, bytes.data() + 64})
            .wrong<2>(DISTILE_ERROR_NULL_POINTER, {nullptr})
            .wrong<3>(DISTILE_ERROR_NULL_POINTER, {nullptr});
        all.of("distile_opencl_wait", distile_opencl_wait, context.get(), &event, 1)
            .wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
            .wrong<0>(DISTILE_ERROR_OTHER_DEVICE, {cpu.get()})
            .wrong<1>(DISTILE_ERROR_NULL_POINTER, {nullptr})
            .wrong<2>(DISTILE_ERROR_BAD_VALUE, {0, -1, INT_MIN});
        all.of("distile_opencl_signal", distile_opencl_signal, context.get(), &event)
            .wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
            .wrong<0>(DISTILE_ERROR_OTHER_DEVICE, {cpu.get()})
            .wrong<1>(DISTILE_ERROR_NULL_POINTER, {nullptr});
        CHECK(distile_opencl_queue(context.get()));
        CHECK(!distile_opencl_queue(cpu.get()));
        CHECK(!distile_opencl_queue(nullptr));
        all.note("distile_opencl_queue");
        CHECK(all.tested() == declared_functions(DISTILE_INCLUDE_FOLDER, {"opencl.h"}));
        CHECK(all.undocumented(DISTILE_INCLUDE_FOLDER, {"opencl.h"}) == "");
    }
    CHECK(count_fake("alive") == 0);
}

TEST_CASE("On an OpenCL device, functions refuse every argument that is wrong", "[.fake_opencl]") {
    const auto copy = [](const void *bytes, size_t count) {
        const auto *first = static_cast<const uint8_t *>(bytes);
        const auto array = std::make_shared<DeviceArray<uint8_t>>(std::vector<uint8_t>(first, first + count));
        return std::shared_ptr<void>(array, array->data());
    };
    // The second context shares the addresses of the first, like contexts of an NVIDIA GPU.
    distile_context *first = nullptr;
    const auto make = [&] {
        distile_opencl_options options{};
        options.queue = distile_opencl_queue(first);
        options.shared = first;
        distile_context *context = nullptr;
        const distile_status status = distile_opencl_context_create(nullptr, &options, &context);
        first = current_context() = first ? first : context;
        return take_context(status, context);
    };
    refuse_wrong_arguments({make,
                            copy,
                            false,
                            GPU_POLYKERNEL(test_conv3_48_16_residual),
                            GPU_POLYKERNEL(test_point_17_48),
                            {"none_such", "cl_khr_fp16", "opencl_9.0"},
                            DISTILE_CPU},
                           DISTILE_INCLUDE_FOLDER);
    CHECK(count_fake("alive") == 0);
}
