// Quantized operators on tensor cores against integer sums in plain loops: every variant, to the bit.
#include "quantized_polykernels.h"
#include "reference/conv2d_reference.h"
#include "runtime/kinds/operator_kind.h"
#include "tests/cuda/gpu_session.h"
#include "tests/cuda/quantized_call.h"
#include "tests/gpu/every_polykernel.h"
#include "tests/support/catch.h"
#include "tests/support/quantized_model.h"
#include <random>

using namespace distile;

namespace {

constexpr int32_t alignment = 16;

/** All variants of a PolyKernel. */
void check_variants(const Gpu &gpu, const distile_polykernel &polykernel, bool halves, distile_dtype filter,
                    QuantizedRuns &runs, std::mt19937 &random) {
    const QuantizedCase one = {polykernel.name, polykernel.kind, convolution_of(polykernel),
                               find_operand(polykernel, DISTILE_ROLE_INPUT)->dtype,
                               find_operand(polykernel, DISTILE_ROLE_OUTPUT)->dtype};
    const QuantizedModel model(one, halves, random, filter);
    distile_polykernel alone = polykernel;
    alone.fallback = nullptr;
    const Kernel kernel = gpu.make_kernel(alone);
    const Weights weights = model.pack(gpu.context, kernel);
    INFO(polykernel.name << (halves ? ", halves" : "") << ", type of the filter " << filter);
    // Too many pixels for code to find the active ones itself.
    QuantizedRun large = runs.next(one, alignment);
    large.batch = 1;
    large.height = one.kind == DISTILE_MASKED_LINEAR ? 1 : 130;
    large.width = one.kind == DISTILE_MASKED_LINEAR ? 4290 : 33;
    for (int32_t variant = 0; variant < polykernel.num_variants; variant++) {
        INFO("variant " << polykernel.variants[variant].name);
        distile_variant_info info{};
        gpu.check(distile_kernel_get_variant(kernel.get(), variant, &info));
        for (int number = 0; number < 7; number++) {
            check_quantized_run(model, number == 0 ? large : runs.next(one, alignment), kernel, info, random,
                                [&](const QuantizedCall &call) { run_on_device(gpu, kernel, weights, variant, call); });
        }
    }
    // In the exact mode, all variants store the same.
    distile_variant_info any{};
    any.tile_h = any.tile_w = 1;
    large.store = DISTILE_STORE_EXACT;
    check_quantized_run(model, large, kernel, any, random,
                        [&](const QuantizedCall &call) { run_on_device(gpu, kernel, weights, -1, call); });
}

}  // namespace

TEST_CASE("Quantized operators on tensor cores compute what integer sums give", "[gpu_int8]") {
    const Gpu gpu;
    if (!gpu) {
        return;
    }
    std::mt19937 random(1);
    QuantizedRuns runs;
    for (const auto &linked : linked_polykernels) {
        for (const distile_polykernel *each = linked.polykernel; each; each = each->fallback) {
            DYNAMIC_SECTION(each->name) {
                if (can_run(gpu, *each)) {
                    check_variants(gpu, *each, false, DISTILE_INT8, runs, random);
                    check_variants(gpu, *each, true, DISTILE_INT8, runs, random);
                    check_variants(gpu, *each, false, DISTILE_INT4, runs, random);
                }
            }
        }
    }
}
