// Stages of quantized tensors on a GPU, against plain loops step by step.
#include "tests/cuda/gpu_session.h"
#include "tests/support/quantized_stage_tests.h"

using namespace distile;

namespace {

struct QuantizedGpu : Gpu {
    template<typename T> using Array = DeviceArray<T>;
};

constexpr distile_dtype quantized_types[] = {DISTILE_UINT8, DISTILE_INT8};

}  // namespace

TEST_CASE("A quantized stage on a GPU computes what its steps do one by one, to the bit", "[gpu_stage]") {
    const QuantizedGpu gpu;
    if (!gpu) {
        return;
    }
    for (const distile_dtype type : quantized_types) {
        for (const double density : {-1., .1, .5, 1., 0.}) {
            INFO("type " << type << ", density " << density);
            TestedQuantizedStage<QuantizedGpu> stage(gpu, type, 5);
            add_quantized_blocks(stage, 2, 13, 37, 256, 64, 2, density, density == .5);
            stage.check(0);
        }
        // Each shape of tiles, with channels that are no multiple of what a step of the reduction has.
        for (uint32_t tile = 0; tile < 6; tile++) {
            INFO("type " << type << ", tile " << tile);
            TestedQuantizedStage<QuantizedGpu> stage(gpu, type, 6 + tile);
            add_quantized_blocks(stage, 1, 12, 35, 384, 144, 1, -1);
            stage.check(1u << tile);
        }
    }
}

TEST_CASE("Quantized steps on a GPU have any window and kind of result", "[gpu_stage]") {
    const QuantizedGpu gpu;
    if (!gpu) {
        return;
    }
    for (const distile_dtype type : quantized_types) {
        for (const int32_t least : {16, 32, 48}) {
            INFO("type " << type << ", channels " << least);
            TestedQuantizedStage<QuantizedGpu> stage(gpu, type, 7);
            add_quantized_kinds(stage, least);
            stage.check(0);
        }
    }
}
