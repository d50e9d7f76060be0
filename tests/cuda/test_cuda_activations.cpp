// Every row of the table of activations as kernels for NVIDIA GPUs compute it, without an operator around it.
#include "activation_tests.h"
#include "activations_ptx.h"
#include "gpu_session.h"

using namespace distile;

namespace {

/** The kernels of activations.cu. */
class Kernels {
public:
    Kernels() {
        CU(cuModuleLoadData, &module_, static_cast<const void *>(distile_activations_ptx));
    }
    ~Kernels() {
        try {
            CU(cuModuleUnload, module_);
        } catch (const std::exception &) {
            // The test has failed before.
        }
    }
    Kernels(const Kernels &) = delete;
    Kernels &operator=(const Kernels &) = delete;

    std::vector<float> run(const char *name, distile_activation activation, const std::vector<float> &values) const {
        CUfunction kernel = nullptr;
        CU(cuModuleGetFunction, &kernel, module_, name);
        const DeviceArray<float> from(values), to(values.size());
        int number = activation;
        auto count = static_cast<int>(values.size());
        const float *source = from.data();
        float *results = to.data();
        void *arguments[] = {&number, &source, &results, &count};
        const auto blocks = static_cast<unsigned>(count + 127) / 128;
        CU(cuLaunchKernel, kernel, blocks, 1u, 1u, 128u, 1u, 1u, 0u, CUstream{}, arguments,
           static_cast<void **>(nullptr));
        return to.get();
    }

private:
    CUmodule module_ = nullptr;
};

}  // namespace

TEST_CASE("Every activation on a GPU is that of the reference", "[gpu_layers]") {
    const Gpu gpu;
    if (!gpu) {
        return;
    }
    const Kernels kernels;
    const auto check = [&](const char *name, double most) {
        CAPTURE(name);
        check_activations([&](distile_activation activation,
                              const std::vector<float> &values) { return kernels.run(name, activation, values); },
                          most);
    };
    check("activate_values", 5e-7);
    // A GELU may be off by 5e-7 of the input before it is rounded.
    check("activate_for_tensor_cores", 6e-7);
}
