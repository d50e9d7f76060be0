// What only OpenCL has: addresses of buffers, queues and events.
#include "gpu_polykernels.h"
#include "tests/opencl/gpu_session.h"
#include <distile/mask_algebra.h>

using namespace distile;

TEST_CASE("An address of a buffer names its byte, until it is taken back", "[opencl]") {
    const Gpu gpu;
    if (!gpu) {
        return;
    }
    DeviceArray<uint8_t> bytes(1000);
    void *buffer = nullptr;
    size_t offset = 0;
    gpu.check(distile_opencl_buffer(gpu.context.get(), bytes.data() + 123, &buffer, &offset));
    CHECK(offset == 123);
    void *again = nullptr;
    gpu.check(distile_opencl_map(gpu.context.get(), buffer, &again));
    CHECK(again != bytes.data());
    gpu.check(distile_opencl_unmap(gpu.context.get(), again));
    CHECK(distile_opencl_unmap(gpu.context.get(), again) == DISTILE_ERROR_BAD_VALUE);
    CHECK(distile_opencl_buffer(gpu.context.get(), again, &buffer, &offset) == DISTILE_ERROR_NOT_DEVICE_MEMORY);
    CHECK(distile_opencl_buffer(gpu.context.get(), &offset, &buffer, &offset) == DISTILE_ERROR_NOT_DEVICE_MEMORY);
}

TEST_CASE("Work on an out-of-order queue of the caller's gives the same", "[opencl]") {
    const Gpu first;
    if (!first) {
        return;
    }
    constexpr int32_t height = 17, width = 40, in_channels = 48, out_channels = 16;
    constexpr size_t pixels = size_t{height} * width;
    const OpenClQueue queue(first.context.get());
    cl_device_id device = nullptr;
    cl_int result = CL_SUCCESS;
    check_opencl(queue->clGetCommandQueueInfo(queue.get(), CL_QUEUE_DEVICE, sizeof(cl_device_id), &device, nullptr),
                 "clGetCommandQueueInfo");
    cl_command_queue unordered =
        queue->clCreateCommandQueue(queue.owner(), device, CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE, &result);
    check_opencl(result, "clCreateCommandQueue");
    std::vector<std::vector<float>> outputs;
    for (cl_command_queue used : {queue.get(), unordered}) {
        distile_opencl_options options{};
        options.queue = used;
        const Gpu gpu(options);
        const Kernel kernel = gpu.make_kernel(GPU_POLYKERNEL(test_conv3_48_16_residual));
        const Mask mask = gpu.make_mask(), dilated = gpu.make_mask();
        std::vector<float> filter(size_t{3} * 3 * in_channels * out_channels), values(pixels * in_channels);
        for (size_t i = 0; i < filter.size(); i++) {
            filter[i] = static_cast<float>(i % 13) - 6;
        }
        for (size_t i = 0; i < values.size(); i++) {
            values[i] = static_cast<float>(i % 7) - 3;
        }
        std::vector<uint8_t> active(pixels);
        for (size_t i = 0; i < pixels; i += 11) {
            active[i] = 1;
        }
        distile_weights_source source{};
        source.filter = filter.data();
        source.order = DISTILE_HWIO;
        const Weights weights = pack_weights(gpu.context, kernel, source);
        const DeviceArray<float> input(values), output(std::vector<float>(pixels * out_channels, 5));
        const DeviceArray<uint8_t> bytes(active);
        const distile_tensor in = distile_tensor_make(input.data(), 1, height, width, in_channels);
        const distile_tensor out = distile_tensor_make(output.data(), 1, height, width, out_channels);
        distile_run_args args{};
        args.input = &in;
        args.output = args.residual = &out;
        args.weights = weights.get();
        args.mask = dilated.get();
        args.inactive = DISTILE_ZERO;
        for (int32_t variant = 0; variant < distile_kernel_num_variants(kernel.get()); variant++) {
            args.variant = distile_kernel_variant_name(kernel.get(), variant);
            gpu.check(distile_mask_set_bytes(mask.get(), bytes.data(), 1, height, width, pixels, width));
            gpu.check(distile_mask_dilate(dilated.get(), mask.get(), 1, 0));
            gpu.check(distile_run(kernel.get(), &args));
        }
        outputs.push_back(output.get());
    }
    check_opencl(queue->clReleaseCommandQueue(unordered), "clReleaseCommandQueue");
    CHECK(outputs[0] == outputs[1]);
}
