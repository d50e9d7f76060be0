// Stages on a GPU, against plain loops step by step.
#include "tests/cuda/gpu_session.h"
#include "tests/support/stage_tests.h"

using namespace distile;

namespace {

struct GpuMachine : Gpu {
    template<typename T> using Array = DeviceArray<T>;
};

}  // namespace

TEST_CASE("A stage computes what its steps do one by one, bit by bit where sums are exact", "[gpu_stage]") {
    const GpuMachine gpu;
    if (!gpu) {
        return;
    }
    constexpr uint32_t all = 0;
    for (const distile_dtype dtype : {DISTILE_FLOAT16, DISTILE_BFLOAT16}) {
        for (const double density : {-1., .1, .5, 1., 0.}) {
            for (const bool spreads : {false, true}) {
                TestedStage<GpuMachine> stage(gpu, dtype, 5, true);
                add_bottlenecks(stage, 2, 13, 37, 256, 64, 3, density, spreads);
                stage.check(all);
            }
        }
    }
    // Each shape of tiles.
    for (uint32_t tile = 0; tile < 6; tile++) {
        INFO("tile " << tile);
        TestedStage<GpuMachine> stage(gpu, DISTILE_FLOAT16, 6 + tile, true);
        add_bottlenecks(stage, 1, 24, 70, 256, 128, 1, -1);
        stage.check(1u << tile);
    }
}

TEST_CASE("A stage rounds once for each step", "[gpu_stage]") {
    const GpuMachine gpu;
    if (!gpu) {
        return;
    }
    for (const distile_dtype dtype : {DISTILE_FLOAT16, DISTILE_BFLOAT16}) {
        TestedStage<GpuMachine> stage(gpu, dtype, 7, false);
        add_bottlenecks(stage, 3, 9, 34, 128, 64, 1, .3);
        stage.check(0);
    }
}

TEST_CASE("Stages of many steps come in several parts, or take several launches", "[gpu_stage]") {
    const GpuMachine gpu;
    if (!gpu) {
        return;
    }
    for (const int32_t blocks : {40, 90}) {
        TestedStage<GpuMachine> stage(gpu, DISTILE_FLOAT16, 8, true);
        add_bottlenecks(stage, 1, 8, 9, 64, 64, blocks, -1);
        stage.check(0);
    }
}

TEST_CASE("Windows of a stage are dilated, wide, and reach across images' borders", "[gpu_stage]") {
    const GpuMachine gpu;
    if (!gpu) {
        return;
    }
    TestedStage<GpuMachine> stage(gpu, DISTILE_FLOAT16, 9, true);
    StageImage<GpuMachine> &x = stage.image(2, 11, 40, 64, 4), &y = stage.image(2, 11, 40, 96),
                           &z = stage.image(2, 6, 20, 32);
    TestedStage<GpuMachine>::TestMask &mask = stage.mask(2, 11, 40, .2), &half = stage.mask(2, 6, 20, .3);
    stage.conv(x, y, 3, 1, 4, &mask);
    stage.conv(x, z, 5, 2, 1, &half);
    stage.check(0);
}

TEST_CASE("A stage on a GPU makes masks from many images", "[gpu_stage]") {
    const GpuMachine gpu;
    if (!gpu) {
        return;
    }
    // A warp scores eight pixels, or a block does.
    for (const int32_t batch : {1, 12}) {
        TestedStage<GpuMachine> stage(gpu, DISTILE_FLOAT16, 12, true);
        add_bottlenecks(stage, batch, 15, 41, 64, 64, 2, -1, true);
        stage.check(0);
    }
}

TEST_CASE("A reader's windows reach outside a smaller mask on a GPU", "[gpu_stage]") {
    const GpuMachine gpu;
    if (!gpu) {
        return;
    }
    // Without a row and a column behind the image, the mask has one of both less.
    TestedStage<GpuMachine> stage(gpu, DISTILE_FLOAT16, 13, true);
    const distile_window open_end{3, 3, 1, 1, 1, 1, 1, 1, DISTILE_WINDOW_CONV};
    StageImage<GpuMachine> &x = stage.image(3, 12, 33, 64), &y = stage.image(3, 12, 33, 64);
    stage.conv(x, y, 1, 1, 1, &stage.mask(3, 11, 32, .3), &open_end);
    stage.check(0);
}

TEST_CASE("The trace of a stage on a GPU has all items in order", "[gpu_stage]") {
    const GpuMachine gpu;
    if (!gpu) {
        return;
    }
    TestedStage<GpuMachine> stage(gpu, DISTILE_FLOAT16, 14, true);
    add_bottlenecks(stage, 1, 24, 30, 64, 64, 2, -1);
    for (const distile_stage_item &item : stage.trace()) {
        CHECK((item.step >= 0 && item.worker >= 0));
        CHECK(item.open <= item.told);
        CHECK((item.begun == 0 || item.begun <= item.told));
        if (item.multiplied != 0) {
            CHECK((item.listed <= item.begun && item.open <= item.begun && item.begun <= item.multiplied &&
                   item.multiplied <= item.stored));
        }
    }
}
