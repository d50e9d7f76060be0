// Stages on a GPU, against plain loops step by step.
#include "tests/cuda/gpu_session.h"
#include "tests/support/stage_tests.h"

using namespace distile;

namespace {

struct GpuMachine : Gpu {
    template<typename T> using Array = DeviceArray<T>;
    static constexpr bool multiplies_tf32 = true;
};

constexpr distile_dtype types[] = {DISTILE_FLOAT16, DISTILE_BFLOAT16, DISTILE_FLOAT32};

}  // namespace

TEST_CASE("A stage computes what its steps do one by one, bit by bit where sums are exact", "[gpu_stage]") {
    const GpuMachine gpu;
    if (!gpu) {
        return;
    }
    constexpr uint32_t all = 0;
    for (const distile_dtype dtype : types) {
        for (const double density : {-1., .1, .5, 1., 0.}) {
            for (const bool spreads : {false, true}) {
                TestedStage<GpuMachine> stage(gpu, dtype, 5, true);
                add_bottlenecks(stage, 2, 13, 37, 256, 64, 3, density, spreads);
                stage.check(all);
            }
        }
    }
    // Each shape of tiles.
    for (const distile_dtype dtype : {DISTILE_FLOAT16, DISTILE_FLOAT32}) {
        for (uint32_t tile = 0; tile < 6; tile++) {
            INFO("tile " << tile);
            TestedStage<GpuMachine> stage(gpu, dtype, 6 + tile, true);
            add_bottlenecks(stage, 1, 24, 70, 256, 128, 1, -1);
            stage.check(1u << tile);
        }
    }
}

TEST_CASE("A stage rounds once for each step", "[gpu_stage]") {
    const GpuMachine gpu;
    if (!gpu) {
        return;
    }
    for (const distile_dtype dtype : types) {
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

TEST_CASE("Steps of a stage on a GPU count masks that blocks do not keep", "[gpu_stage][gpu_stage_large]") {
    const GpuMachine gpu;
    if (!gpu) {
        return;
    }
    struct Shape {
        int32_t batch, height, width;
    };
    // From one word more than blocks keep, and chunks that end within an image, to more chunks than a warp has lanes.
    for (const Shape &shape : {Shape{1, 251, 70}, Shape{3, 140, 40}, Shape{16, 56, 56}, Shape{2, 800, 80}}) {
        INFO(shape.batch << " images of " << shape.height << " x " << shape.width);
        for (const double density : {-1., 0., .3, 1.}) {
            INFO("density " << density);
            TestedStage<GpuMachine> stage(gpu, DISTILE_FLOAT16, 30, true);
            add_bottlenecks(stage, shape.batch, shape.height, shape.width, 64, 32, 2, density);
            stage.check(0);
        }
    }
    // Windows with a stride read more pixels than the mask has.
    TestedStage<GpuMachine> stage(gpu, DISTILE_BFLOAT16, 31, true);
    const distile_window strided{3, 3, 2, 2, 1, 1, 1, 1, DISTILE_WINDOW_CONV};
    StageImage<GpuMachine> &x = stage.image(2, 270, 66, 64), &wide = stage.image(2, 270, 66, 32, 1),
                           &half = stage.image(2, 135, 33, 64);
    TestedStage<GpuMachine>::TestMask &mask = stage.mask(2, 135, 33, .2);
    stage.conv(x, wide, 1, 1, 1, &mask, &strided);
    stage.conv(wide, half, 3, 2, 1, &mask);
    stage.check(0);
}

TEST_CASE("Convolutions of a stage on a GPU have any multiple of 8 channels", "[gpu_stage][gpu_stage_channels]") {
    const GpuMachine gpu;
    if (!gpu) {
        return;
    }
    constexpr int32_t channels[] = {8, 24, 40, 64, 72, 96, 136, 200};
    constexpr size_t count = sizeof(channels) / sizeof(channels[0]);
    for (const distile_dtype dtype : types) {
        for (size_t i = 0; i < count; i++) {
            // Each number of inputs with some numbers of outputs, and each shape of tiles.
            const int32_t in = channels[i], out = channels[(3 * i + 1) % count];
            const auto tile = static_cast<uint32_t>(i % 6);
            INFO("from " << in << " to " << out << " channels, tile " << tile);
            TestedStage<GpuMachine> stage(gpu, dtype, 20 + static_cast<unsigned>(i), true);
            StageImage<GpuMachine> &x = stage.image(2, 9, 37, in, 1), &y = stage.image(2, 9, 37, out),
                                   &z = stage.image(2, 9, 37, in), &small = stage.image(2, 5, 19, out);
            TestedStage<GpuMachine>::TestMask &mask = stage.mask(2, 9, 37, .3), &half = stage.mask(2, 5, 19, .5);
            stage.conv(x, y, 1, 1, 1, &mask, &stage_three_by_three);
            stage.conv(y, z, 1, 1, 1, &mask, nullptr, &z);
            stage.conv(x, small, 3, 2, 1, &half);
            stage.check(i % 2 == 0 ? 0 : 1u << tile);
        }
    }
    // Larger tiles, with a last group of columns that zeros fill up.
    for (const distile_dtype dtype : {DISTILE_FLOAT16, DISTILE_FLOAT32}) {
        for (uint32_t tile = 0; tile < 6; tile++) {
            INFO("tile " << tile);
            TestedStage<GpuMachine> stage(gpu, dtype, 40 + tile, true);
            // In float32, multiples of 4.
            const int32_t less = dtype == DISTILE_FLOAT32 ? 4 : 0;
            StageImage<GpuMachine> &x = stage.image(1, 20, 33, 88 - less, 1), &y = stage.image(1, 20, 33, 120 - less),
                                   &z = stage.image(1, 20, 33, 240 - less);
            TestedStage<GpuMachine>::TestMask &mask = stage.mask(1, 20, 33, .6);
            stage.conv(x, y, 3, 1, 1, &mask, nullptr, &y);
            stage.conv(y, z, 1, 1, 1, &mask, nullptr, &z);
            stage.check(1u << tile);
        }
    }
}

TEST_CASE("Images of float32 of a stage on a GPU have multiples of 4 channels", "[gpu_stage][gpu_stage_tf32]") {
    const GpuMachine gpu;
    if (!gpu) {
        return;
    }
    for (const int32_t channels : {4, 12, 36, 68, 100, 204}) {
        INFO(channels << " channels");
        TestedStage<GpuMachine> stage(gpu, DISTILE_FLOAT32, 140, true);
        StageImage<GpuMachine> &x = stage.image(2, 9, 37, channels);
        TestedStage<GpuMachine>::TestMask &mask = stage.mask(2, 9, 37, -1);
        stage.scores(x, mask, 1);
        add_inverted_residual<GpuMachine>(stage, x, 2 * channels + 4, 3, &mask, nullptr, 1);
        add_layers(stage, channels);
        stage.check(0);
        TestedStage<GpuMachine> tokens(gpu, DISTILE_FLOAT32, 141, false);
        tokens.norm(tokens.image(2, 3, 70, channels), tokens.image(2, 3, 70, channels), &tokens.mask(2, 3, 70, .4));
        add_halts(tokens, 2, 3, 35, channels);
        tokens.check(0);
    }
}

TEST_CASE("A stage on a GPU multiplies float32 as TF32 and sums in float32", "[gpu_stage][gpu_stage_tf32]") {
    const GpuMachine gpu;
    if (!gpu) {
        return;
    }
    constexpr int32_t channels = 96, outputs = 160, kernel = 3, height = 16, width = 30;
    for (uint32_t tile = 0; tile < 6; tile++) {
        INFO("tile " << tile);
        TestedStage<GpuMachine> stage(gpu, DISTILE_FLOAT32, 150 + tile, false);
        StageImage<GpuMachine> &x = stage.image(1, height, width, channels, 1),
                               &y = stage.image(1, height, width, outputs);
        auto &step = stage.conv(x, y, kernel, 1, 1, nullptr);
        step.given.activation = DISTILE_ACTIVATION_NONE;
        stage.launch(1u << tile);
        const std::vector<float> found = y.download();
        // Rounding to TF32 errs by 2^-10 of a pixel, which is truncated, and 2^-11 of a weight. Sums may be truncated.
        constexpr double of_factors = 0x1p-10 + 0x1p-11 + 0x1p-21, of_sums = 2 * kernel * kernel * channels * 0x1p-24;
        double most = 0;
        bool is_within = true;
        for (int32_t row = 0; row < height; row++) {
            for (int32_t column = 0; column < width; column++) {
                for (int32_t out = 0; out < outputs; out++) {
                    double sum = step.bias[static_cast<size_t>(out)], all = std::abs(sum);
                    const float *weight = step.weights.data() + size_t{channels} * kernel * kernel * out;
                    for (int32_t c = 0; c < channels; c++) {
                        for (int32_t tap = 0; tap < kernel * kernel; tap++, weight++) {
                            const double product =
                                double{*weight} * x.at(0, row + tap / kernel - 1, column + tap % kernel - 1, c);
                            sum += product;
                            all += std::abs(product);
                        }
                    }
                    const auto place = static_cast<size_t>(&y.at(0, row, column, out) - y.values.data());
                    const double error = std::abs(found[place] - sum);
                    is_within = is_within && error <= all * (of_factors + of_sums);
                    most = std::max(most, error / all);
                }
            }
        }
        CHECK(is_within);
        CHECK(most > 0x1p-20);  // TF32 it is.
    }
}

TEST_CASE("Convolutions of a stage on a GPU may be depthwise", "[gpu_stage][gpu_stage_channels]") {
    const GpuMachine gpu;
    if (!gpu) {
        return;
    }
    struct Shape {
        int32_t channels, kernel, stride, dilation;
    };
    constexpr Shape shapes[] = {{8, 3, 1, 1},  {24, 3, 2, 1}, {96, 5, 1, 1},  {144, 3, 1, 2}, {576, 3, 1, 1},
                                {72, 1, 1, 1}, {64, 7, 2, 1}, {120, 3, 3, 2}, {40, 9, 1, 1},  {200, 2, 2, 1}};
    for (const distile_dtype dtype : types) {
        unsigned seed = 50;
        for (const Shape &shape : shapes) {
            for (const double density : {0., .2, 1.}) {
                INFO(shape.channels << " channels, " << shape.kernel << " x " << shape.kernel << ", stride "
                                    << shape.stride << ", dilation " << shape.dilation << ", density " << density);
                TestedStage<GpuMachine> stage(gpu, dtype, seed++, true);
                const int32_t border = shape.dilation * (shape.kernel - 1), rows = (13 - 1) / shape.stride + 1,
                              columns = (41 - 1) / shape.stride + 1;
                StageImage<GpuMachine> &x = stage.image(2, 13, 41, shape.channels, border),
                                       &y = stage.image(2, rows, columns, shape.channels),
                                       &all = stage.image(2, rows, columns, shape.channels);
                TestedStage<GpuMachine>::TestMask &mask = stage.mask(2, rows, columns, density),
                                                  &later = stage.mask(2, rows, columns, .5);
                stage.conv(x, y, shape.kernel, shape.stride, shape.dilation, &mask, nullptr, &y, nullptr,
                           shape.channels);
                stage.conv(x, all, shape.kernel, shape.stride, shape.dilation, nullptr, nullptr, nullptr, &later,
                           shape.channels);
                stage.check(0);
            }
        }
    }
}

TEST_CASE("Large depthwise convolutions of a stage on a GPU, also of masks that blocks do not keep",
          "[gpu_stage][gpu_stage_channels]") {
    const GpuMachine gpu;
    if (!gpu) {
        return;
    }
    // Threads have one row, two or four.
    for (const int32_t height : {4, 12, 45}) {
        INFO(height << " rows");
        TestedStage<GpuMachine> stage(gpu, DISTILE_FLOAT16, 80 + static_cast<unsigned>(height), height != 12);
        StageImage<GpuMachine> &x = stage.image(1, height, 70, 576, 1), &y = stage.image(1, height, 70, 576);
        TestedStage<GpuMachine>::TestMask &mask = stage.mask(1, height, 70, .7);
        stage.conv(x, y, 3, 1, 1, &mask, nullptr, &y, nullptr, 576);
        stage.check(0);
    }
    TestedStage<GpuMachine> stage(gpu, DISTILE_FLOAT16, 84, true);
    StageImage<GpuMachine> &x = stage.image(3, 140, 40, 40), &wide = stage.image(3, 140, 40, 72, 1),
                           &y = stage.image(3, 140, 40, 72);
    TestedStage<GpuMachine>::TestMask &mask = stage.mask(3, 140, 40, .2);
    stage.conv(x, wide, 1, 1, 1, &mask, &stage_three_by_three);
    stage.conv(wide, y, 3, 1, 1, &mask, nullptr, nullptr, nullptr, 72);
    stage.check(0);
}

TEST_CASE("Inverted residuals of a stage on a GPU make their masks", "[gpu_stage][gpu_stage_channels]") {
    const GpuMachine gpu;
    if (!gpu) {
        return;
    }
    struct Shape {
        int32_t batch, height, width, narrow, wide;
    };
    constexpr Shape shapes[] = {{1, 40, 40, 96, 576}, {1, 8, 8, 96, 576}, {2, 16, 16, 24, 144}, {3, 33, 35, 8, 40}};
    for (const distile_dtype dtype : types) {
        for (const Shape &shape : shapes) {
            for (const bool exact : {true, false}) {
                INFO(shape.batch << " images of " << shape.height << " x " << shape.width << ", " << shape.narrow
                                 << " to " << shape.wide << " channels");
                TestedStage<GpuMachine> stage(gpu, dtype, 90, exact);
                StageImage<GpuMachine> &x = stage.image(shape.batch, shape.height, shape.width, shape.narrow);
                for (int block = 0; block < (exact ? 2 : 1); block++) {
                    // Rounded scores may be on the other side of the threshold.
                    TestedStage<GpuMachine>::TestMask &mask =
                        stage.mask(shape.batch, shape.height, shape.width, exact ? -1 : .4);
                    if (exact) {
                        stage.scores(x, mask, 1);
                    }
                    add_inverted_residual<GpuMachine>(stage, x, shape.wide, 3, &mask, nullptr, 1);
                }
                stage.check(0);
            }
        }
    }
}

TEST_CASE("Steps of a stage on a GPU pool, upsample and add", "[gpu_stage][gpu_stage_channels]") {
    const GpuMachine gpu;
    if (!gpu) {
        return;
    }
    for (const distile_dtype dtype : types) {
        for (const int32_t channels : {8, 72, 96}) {
            INFO(channels << " channels");
            TestedStage<GpuMachine> stage(gpu, dtype, 95, true);
            add_layers(stage, channels);
            stage.check(0);
        }
    }
}

TEST_CASE("Steps of a stage on a GPU normalize pixels", "[gpu_stage][gpu_stage_tokens]") {
    const GpuMachine gpu;
    if (!gpu) {
        return;
    }
    for (const distile_dtype dtype : types) {
        for (const int32_t channels : {8, 192, 384, 520, 768, 1152, 2048}) {
            for (const int32_t batch : {1, 8}) {
                INFO(channels << " channels, " << batch << " images");
                TestedStage<GpuMachine> stage(gpu, dtype, 100, false);
                StageImage<GpuMachine> &x = stage.image(batch, 3, 197, channels, 1),
                                       &y = stage.image(batch, 3, 197, channels),
                                       &z = stage.image(batch, 3, 197, channels, 2),
                                       &all = stage.image(batch, 3, 197, channels);
                stage.norm(x, y, &stage.mask(batch, 3, 197, .4));
                stage.norm(x, z, &stage.mask(batch, 3, 197, .01), DISTILE_RMS_NORM);
                stage.norm(x, all, nullptr, DISTILE_LAYER_NORM, true);
                stage.check(0);
            }
        }
    }
}

TEST_CASE("Steps of a stage on a GPU attend to the pixels of a mask", "[gpu_stage][gpu_stage_tokens]") {
    const GpuMachine gpu;
    if (!gpu) {
        return;
    }
    for (const distile_dtype dtype : types) {
        unsigned seed = 110;
        for (const AttentionShape &shape : attention_shapes) {
            constexpr int32_t most_of_float32 = 64;
            if (dtype == DISTILE_FLOAT32 && shape.channels > most_of_float32) {
                continue;
            }
            INFO(text_of(shape));
            check_attention(gpu, dtype, seed, shape, {.02, .5, 1.});
            seed += 4;
        }
    }
}

TEST_CASE("Pixels of a stage on a GPU go on until their scores have added up", "[gpu_stage][gpu_stage_tokens]") {
    const GpuMachine gpu;
    if (!gpu) {
        return;
    }
    // A block scores eight pixels, or a warp does.
    for (const int32_t batch : {1, 20}) {
        for (const distile_dtype dtype : types) {
            INFO(batch << " images");
            TestedStage<GpuMachine> stage(gpu, dtype, 120, false);
            add_halts(stage, batch, 1, 197, 192);
            add_halts(stage, batch, 3, 35, 72);
            stage.check(0);
        }
    }
}

TEST_CASE("Layers of a transformer are a stage on a GPU", "[gpu_stage][gpu_stage_tokens]") {
    const GpuMachine gpu;
    if (!gpu) {
        return;
    }
    for (const distile_dtype dtype : types) {
        for (const int32_t batch : {1, 6}) {
            for (const bool all_keys : {false, true}) {
                INFO(batch << " images" << (all_keys ? ", all keys" : ""));
                TestedStage<GpuMachine> stage(gpu, dtype, 130, false);
                StageImage<GpuMachine> &x = stage.image(batch, 1, 75, 128);
                add_token_layer(stage, x, 2, &stage.mask(batch, 1, 75, .7), all_keys, true);
                add_token_layer(stage, x, 2, &stage.mask(batch, 1, 75, .3), all_keys, true);
                stage.check(0);
            }
        }
    }
}

TEST_CASE("Teams of blocks compute residual blocks of small images", "[gpu_stage][gpu_stage_teams]") {
    const GpuMachine gpu;
    if (!gpu) {
        return;
    }
    struct Shape {
        int32_t batch, height, width;
    };
    // Clusters; then teams without, of an image each, and of several.
    for (const Shape &shape : {Shape{1, 14, 14}, Shape{3, 13, 5}, Shape{12, 4, 5}, Shape{35, 2, 3}}) {
        INFO(shape.batch << " images of " << shape.height << " x " << shape.width);
        unsigned seed = 70;
        for (const distile_dtype dtype : {DISTILE_FLOAT16, DISTILE_BFLOAT16}) {
            for (const double density : {-1., 0., .3, 1.}) {
                INFO("density " << density);
                TestedStage<GpuMachine> stage(gpu, dtype, seed++, true);
                stage.teams = 1;
                add_bottlenecks(stage, shape.batch, 2 * shape.height, 2 * shape.width, 1024, 256, 2, density,
                                seed % 2 == 0, seed % 3 == 0);
                stage.check(0);
            }
        }
        TestedStage<GpuMachine> stage(gpu, DISTILE_FLOAT16, 90, false);
        stage.teams = 1;
        add_bottlenecks(stage, shape.batch, 2 * shape.height, 2 * shape.width, 1024, 256, 2, .4);
        stage.check(0);
    }
}

TEST_CASE("Teams compute more residual blocks than a launch has", "[gpu_stage][gpu_stage_teams]") {
    const GpuMachine gpu;
    if (!gpu) {
        return;
    }
    TestedStage<GpuMachine> stage(gpu, DISTILE_FLOAT16, 91, true);
    stage.teams = 1;
    add_bottlenecks(stage, 1, 8, 6, 1024, 256, 70, -1);
    stage.check(0);
    for (const distile_stage_item &item : stage.trace()) {
        CHECK((item.open <= item.stored && item.stored <= item.told));
    }
}

TEST_CASE("The trace of a stage on a GPU has all items in order", "[gpu_stage]") {
    const GpuMachine gpu;
    if (!gpu) {
        return;
    }
    TestedStage<GpuMachine> stage(gpu, DISTILE_FLOAT16, 14, true);
    add_bottlenecks(stage, 1, 24, 30, 64, 64, 2, -1);
    add_inverted_residual<GpuMachine>(stage, stage.image(1, 24, 30, 24), 72, 3, &stage.mask(1, 24, 30, .5), nullptr, 1);
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
