// Every row of the table of activations as kernels for NVIDIA GPUs compute it, without an operator around it.
#include "activations_ptx.h"
#include "tests/cuda/gpu_session.h"
#include "tests/support/activation_tests.h"

using namespace distile;

namespace {

/** What a kernel of activations.cu makes of values. */
std::vector<float> run(CUfunction kernel, const Activation &activation, const std::vector<float> &values) {
    const DeviceArray<float> from(values), to(values.size());
    int number = activation.function;
    float slope = activation.slope;
    auto count = static_cast<int>(values.size());
    const float *source = from.data();
    float *results = to.data();
    void *arguments[] = {&number, &slope, &source, &results, &count};
    const auto blocks = static_cast<unsigned>(count + 127) / 128;
    CU(cuLaunchKernel, kernel, blocks, 1u, 1u, 128u, 1u, 1u, 0u, CUstream{}, arguments, static_cast<void **>(nullptr));
    return to.get();
}

}  // namespace

TEST_CASE("Every activation on a GPU is that of the reference", "[gpu_layers]") {
    const Gpu gpu;
    if (!gpu) {
        return;
    }
    const Module kernels(distile_activations_ptx);
    const auto check = [&](const char *name, double most) {
        CAPTURE(name);
        CUfunction kernel = kernels.find(name);
        check_activations([&](const Activation &activation,
                              const std::vector<float> &values) { return run(kernel, activation, values); },
                          most);
    };
    check("activate_values", 5e-7);
    // A GELU may be off by 5e-7 of the input before it is rounded.
    check("activate_for_tensor_cores", 6e-7);
}
