// Quantized operators of every kind by dot products on the GPU, against integer sums in plain loops, to the bit.
#include "kernels/dot_products.h"
#include "tests/cuda/gpu_session.h"
#include "tests/cuda/quantized_call.h"
#include "tests/gpu/every_polykernel.h"
#include "tests/support/catch.h"
#include "tests/support/dot_product_kernel.h"
#include "tests/support/quantized_cases.h"
#include "tests/support/quantized_model.h"
#include <algorithm>
#include <random>
#include <utility>
#include <vector>

using namespace distile;

namespace {

const InstructionSet dp4a = {"dp4a", "sm_75", distile_call_dp4a, {{32, 16}, {128, 64}, {32, 64}}, true, DISTILE_CUDA};

/** Where tensors may begin: pixels at multiples of 16 bytes if their channels fill them; others anywhere. */
std::vector<int32_t> alignments_of(const QuantizedCase &of) {
    const int32_t out_bytes = of.conv.out_channels * (of.output == DISTILE_FLOAT32 ? 4 : 1);
    const bool fills = of.conv.in_channels % 16 == 0 || out_bytes % 16 == 0;
    return fills ? std::vector<int32_t>{16} : std::vector<int32_t>{4, 1};
}

bool runs_dp4a(const Gpu &gpu) {
    return can_run(gpu, DotProductKernel(dp4a, quantized_operator_of(quantized_cases[0], "cuda-k64")).polykernel());
}

}  // namespace

TEST_CASE("Quantized operators by dot products on GPUs compute what integer sums give", "[gpu_int8]") {
    const Gpu gpu;
    if (!gpu || !runs_dp4a(gpu)) {
        return;
    }
    std::mt19937 random(1);
    QuantizedRuns runs;
    for (const QuantizedCase &one : quantized_cases) {
        DYNAMIC_SECTION(one.name) {
            const DotProductKernel polykernel(dp4a, quantized_operator_of(one, "cuda-k64"));
            const Kernel kernel = gpu.make_kernel(polykernel.polykernel());
            for (const auto &[halves, dtype] :
                 {std::pair(false, DISTILE_INT8), {true, DISTILE_INT8}, {false, DISTILE_INT4}}) {
                const QuantizedModel model(one, halves, random, dtype);
                const Weights weights = model.pack(gpu.context, kernel);
                for (const int32_t alignment : alignments_of(one)) {
                    for (int number = 0; number < 6; number++) {
                        for (int32_t variant = 0; variant < InstructionSet::num_variants; variant++) {
                            INFO("variant " << variant << (halves ? ", halves" : "") << ", type of the filter " << dtype
                                            << ", alignment " << alignment);
                            distile_variant_info info{};
                            gpu.check(distile_kernel_get_variant(kernel.get(), variant, &info));
                            check_quantized_run(
                                model, runs.next(one, alignment), kernel, info, random,
                                [&](const QuantizedCall &call) { run_on_device(gpu, kernel, weights, variant, call); });
                        }
                    }
                }
            }
        }
    }
}
