// NaN, infinity and overflow on a GPU: test_special_values.cpp for every PolyKernel for GPUs.
#include "tests/gpu/device_tensor.h"
#include "tests/gpu/every_polykernel.h"
#include "tests/gpu/gpu_session.h"
#include "tests/support/special_values.h"

using namespace distile;

namespace {

/** Runs every variant on a call. */
void check_call(const Gpu &gpu, const Kernel &kernel, distile_math math, const Mask &mask, const SpecialCalls &calls,
                const SpecialCall &call) {
    INFO(call.name);
    distile_weights_source source{};
    source.filter = call.filter.data();
    source.order = DISTILE_HWIO;
    source.bias = call.bias.data();
    const Weights weights = pack_weights(gpu.context, kernel, source);
    const DeviceTensor input(*call.input, false);
    std::unique_ptr<DeviceTensor> residual;
    if (call.residual) {
        residual = std::make_unique<DeviceTensor>(*call.residual, false);
    }
    for (int32_t i = 0; i < distile_kernel_num_variants(kernel.get()); i++) {
        TestTensor output = calls.output();
        const auto before = output.snapshot();
        DeviceTensor device_output(output, false);
        distile_run_args args{};
        args.input = &input.view();
        args.residual = residual ? &residual->view() : nullptr;
        args.output = &device_output.view();
        args.weights = weights.get();
        args.mask = mask.get();
        args.variant = distile_kernel_variant_name(kernel.get(), i);
        INFO("variant " << args.variant);
        gpu.check(distile_run(kernel.get(), &args));
        gpu.finish();
        REQUIRE(device_output.download());
        CHECK(output.difference(before, call.expected, math) == "");
    }
}

}  // namespace

TEST_CASE("NaN, infinity and overflow on a GPU reach the outputs that read them, and no others",
          "[gpu_special_values]") {
    const Gpu gpu;
    if (!gpu) {
        return;
    }
    for (const TestedPolykernel &tested : every_polykernel()) {
        const distile_polykernel *const polykernel = tested.polykernel;
        DYNAMIC_SECTION(polykernel->name) {
            if (!can_run(gpu, *polykernel)) {
                continue;
            }
            // Code that skips zeros does not multiply them with what is special.
            const SpecialCalls calls(*polykernel, polykernel->nonzeros == 0);
            const Kernel kernel = gpu.make_kernel(*polykernel);
            const Mask mask = gpu.make_mask();
            const DeviceArray<uint8_t> bytes(calls.mask());
            gpu.check(distile_mask_set_bytes(mask.get(), bytes.data(), 1, calls.height(), calls.width(),
                                             int64_t{calls.height()} * calls.width(), calls.width()));
            const ValueClasses classes = calls.visit(
                [&](const SpecialCall &call) { check_call(gpu, kernel, math_of(*polykernel), mask, calls, call); });
            CHECK(classes.nan > 0);
            CHECK(classes.finite > 0);
        }
    }
}
