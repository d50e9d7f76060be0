// Quantized operators on tensor cores against integer sums in plain loops: every variant, to the bit.
#include "catch.h"
#include "conv2d_reference.h"
#include "every_polykernel.h"
#include "gpu_session.h"
#include "operator_kind.h"
#include "quantized_call.h"
#include "quantized_model.h"
#include "quantized_polykernels.h"
#include <iterator>
#include <random>
#include <vector>

using namespace distile;

namespace {

/** All variants of a PolyKernel. */
void check_variants(const Gpu &gpu, const distile_polykernel &polykernel, bool halves, std::mt19937 &random) {
    const QuantizedCase one = {polykernel.name, polykernel.kind, convolution_of(polykernel),
                               find_operand(polykernel, DISTILE_ROLE_INPUT)->dtype,
                               find_operand(polykernel, DISTILE_ROLE_OUTPUT)->dtype};
    const QuantizedModel model(one, halves, random);
    distile_polykernel alone = polykernel;
    alone.otherwise = nullptr;
    const Kernel kernel = gpu.make_kernel(alone);
    const Weights weights = model.pack(gpu.context, kernel);
    std::vector<QuantizedRun> runs(std::begin(quantized_runs), std::end(quantized_runs));
    // Too many pixels for code to find the active ones itself.
    runs.push_back({1, 130, 33, 7, 0, DISTILE_ZERO, DISTILE_STORE_EXACT});
    for (const QuantizedRun &run : runs) {
        for (int32_t variant = 0; variant < polykernel.num_variants; variant++) {
            INFO(polykernel.name << ", variant " << polykernel.variants[variant].name << ", run " << &run - runs.data()
                                 << (halves ? ", halves" : ""));
            distile_variant_info info{};
            gpu.check(distile_kernel_get_variant(kernel.get(), variant, &info));
            check_quantized_run(model, run, kernel, info, 16, random,
                                [&](const QuantizedCall &call) { run_on_device(gpu, kernel, weights, variant, call); });
        }
    }
    // In the exact mode, all variants store the same.
    distile_variant_info any{};
    any.tile_h = any.tile_w = 1;
    check_quantized_run(model, runs.front(), kernel, any, 16, random,
                        [&](const QuantizedCall &call) { run_on_device(gpu, kernel, weights, -1, call); });
}

}  // namespace

TEST_CASE("Quantized operators on tensor cores compute what integer sums give", "[gpu_int8]") {
    const Gpu gpu;
    if (!gpu) {
        return;
    }
    std::mt19937 random(1);
    for (const auto &linked : linked_polykernels) {
        for (const distile_polykernel *each = linked.polykernel; each; each = each->otherwise) {
            DYNAMIC_SECTION(each->name) {
                if (can_run(gpu, *each)) {
                    check_variants(gpu, *each, false, random);
                    check_variants(gpu, *each, true, random);
                }
            }
        }
    }
}
