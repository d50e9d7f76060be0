// Stages on a CPU, against plain loops step by step, with the code of each instruction set.
#include "runtime/cpu/architectures/cpu_architecture.h"
#include "runtime/cpu/cpu_features.h"
#include "tests/support/cpu_machine.h"
#include "tests/support/short_tests.h"
#include "tests/support/stage_tests.h"
#include <array>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

using namespace distile;

namespace {

using CpuTestedStage = TestedStage<CpuMachine>;
using CpuImage = StageImage<CpuMachine>;

/** Calls test(machine) for the code of each instruction set that this CPU has. */
template<typename Test> void for_each_code(const Test &test) {
    for (const PixelProducts *products : known_pixel_products()) {
        if (missing_cpu_feature(products->features).empty()) {
            INFO("features " << products->features);
            test(CpuMachine(products->features));
        }
    }
}

constexpr distile_dtype same_type{};

}  // namespace

TEST_CASE("A stage on a CPU computes what its steps do one by one, bit by bit where sums are exact", "[stage]") {
    for_each_code([](const CpuMachine &cpu) {
        for (const double density : {-1., .1, .5, 1., 0.}) {
            CpuTestedStage stage(cpu, DISTILE_FLOAT32, 5, true);
            add_bottlenecks(stage, 2, 13, 37, 64, 24, 2, density, density == .5);
            stage.check(0);
        }
    });
}

TEST_CASE("A stage on a CPU takes any channels, and weights of each type", "[stage]") {
    for_each_code([](const CpuMachine &cpu) {
        for (const bool exact : {true, false}) {
            for (const distile_dtype weights : {same_type, DISTILE_BFLOAT16, DISTILE_INT8}) {
                CpuTestedStage stage(cpu, DISTILE_FLOAT32, 7, exact, weights);
                // One to four panels in the last set, the last of them filled, and chunks of more than one group.
                for (const int32_t channels : {1, 16, 30, 40, 64, 100}) {
                    INFO(channels << " channels");
                    CpuImage &x = stage.image(1, 7, 33, channels), &y = stage.image(1, 7, 33, 101 - channels);
                    stage.conv(x, y, 3, 1, 1, &stage.mask(1, 7, 33, .4), nullptr, channels == 40 ? &y : nullptr);
                }
                stage.check(0);
            }
        }
    });
}

TEST_CASE("Windows of a stage on a CPU reach outside images, with a border or none", "[stage]") {
    for_each_code([](const CpuMachine &cpu) {
        CpuTestedStage stage(cpu, DISTILE_FLOAT32, 9, true);
        for (const int32_t border : {0, 1, 4}) {
            CpuImage &x = stage.image(2, 11, 20, 19, border), &y = stage.image(2, 11, 20, 33),
                     &z = stage.image(2, 6, 10, 32);
            stage.conv(x, y, 3, 1, 4, &stage.mask(2, 11, 20, .2));
            stage.conv(x, z, 5, 2, 1, &stage.mask(2, 6, 10, .3));
            // More taps than the code takes at once.
            stage.conv(x, y, 9, 1, 1, &stage.mask(2, 11, 20, .1));
        }
        stage.check(0);
    });
}

TEST_CASE("Steps of a stage on a CPU normalize pixels, which go on until their scores have added up", "[stage]") {
    const CpuMachine cpu("");
    for (const int32_t batch : {1, 3}) {
        CpuTestedStage stage(cpu, DISTILE_FLOAT32, 23, false);
        add_halts(stage, batch, 1, 197, 96);
        add_halts(stage, batch, 3, 35, 7);
        CpuImage &x = stage.image(batch, 5, 9, 33, 1), &y = stage.image(batch, 5, 9, 33);
        auto &mask = stage.mask(batch, 5, 9, .4);
        stage.norm(x, y, &mask);
        stage.conv(y, x, 1, 1, 1, &mask, nullptr, &x);
        stage.norm(x, y, nullptr, DISTILE_RMS_NORM, true);
        stage.check(0);
    }
}

TEST_CASE("Steps of a stage on a CPU pool, upsample and add", "[stage]") {
    const CpuMachine cpu(present_cpu_features());
    for (const int32_t channels : {1, 8, 37}) {
        INFO(channels << " channels");
        CpuTestedStage stage(cpu, DISTILE_FLOAT32, 95, true);
        add_layers(stage, channels);
        stage.check(0);
    }
}

TEST_CASE("Steps of a stage on a CPU attend to the pixels of a mask", "[stage]") {
    for_each_code([](const CpuMachine &cpu) {
        unsigned seed = 110;
        for (const AttentionShape &shape : attention_shapes) {
            INFO(text_of(shape));
            check_attention(cpu, DISTILE_FLOAT32, seed, shape, {0., .5});
            seed += 3;
        }
        // Channels that fill no panel or more than one set, one token, whole blocks of keys, and one key more.
        constexpr AttentionShape others[] = {{1, 1, 1, 1, 1},    {2, 3, 3, 5, 3},   {1, 1, 70, 2, 17},
                                             {2, 1, 33, 1, 200}, {1, 1, 256, 1, 8}, {1, 1, 257, 1, 24},
                                             {1, 2, 300, 3, 16}, {5, 1, 2, 2, 12}};
        for (const AttentionShape &shape : others) {
            INFO(text_of(shape));
            check_attention(cpu, DISTILE_FLOAT32, seed, shape, {.02, .7, 1.});
            seed += 4;
        }
    });
}

TEST_CASE("Layers of a transformer are a stage on a CPU", "[stage]") {
    for_each_code([](const CpuMachine &cpu) {
        for (const bool all_keys : {false, true}) {
            CpuTestedStage stage(cpu, DISTILE_FLOAT32, 130, false);
            CpuImage &x = stage.image(3, 1, 75, 60);
            add_token_layer(stage, x, 2, &stage.mask(3, 1, 75, .7), all_keys, true);
            add_token_layer(stage, x, 5, &stage.mask(3, 1, 75, .3), all_keys);
            add_token_layer(stage, x, 4, nullptr);
            stage.check(0);
        }
    });
}

TEST_CASE("Attention of a stage on a CPU scores large numbers, and passes on what is none", "[stage]") {
    for_each_code([](const CpuMachine &cpu) {
        constexpr int32_t tokens = 600, channels = 16;
        CpuTestedStage stage(cpu, DISTILE_FLOAT32, 17, false);
        CpuImage &x = stage.image(1, 1, tokens, 3 * channels), &y = stage.image(1, 1, tokens, channels);
        // Scores up to a hundred thousand, which are exact, and of which the largest are in any block of keys.
        for (int32_t token = 0; token < tokens; token++) {
            for (int32_t c = 0; c < 2 * channels; c++) {
                x.at(0, 0, token, c) = std::round(60 * x.at(0, 0, token, c));
            }
        }
        x.upload();
        stage.attention(x, y, 1, &stage.mask(1, 1, tokens, .8));
        stage.check(0);
        // Where a key is NaN, all is, and where a query is, its row.
        CpuTestedStage with_nan(cpu, DISTILE_FLOAT32, 18, false);
        CpuImage &of_nan = with_nan.image(2, 1, 300, 3 * channels), &result = with_nan.image(2, 1, 300, channels);
        of_nan.at(0, 0, 290, channels) = NAN;
        of_nan.at(1, 0, 7, 0) = NAN;
        of_nan.upload();
        with_nan.attention(of_nan, result, 2, nullptr);
        with_nan.run();
        const std::vector<float> found = result.download();
        for (int32_t n = 0; n < 2; n++) {
            for (int32_t token = 0; token < 300; token++) {
                const float *const pixel = &found[(size_t{300} * n + token) * channels];
                // NaN is in channels of the first head.
                CHECK(std::isnan(pixel[0]) == (n == 0 || token == 7));
                CHECK(!std::isnan(pixel[channels / 2]));
            }
        }
    });
}

TEST_CASE("Convolutions of a stage on a CPU may have groups", "[stage]") {
    for_each_code([](const CpuMachine &cpu) {
        for (const distile_dtype weights : {same_type, DISTILE_BFLOAT16, DISTILE_INT8}) {
            CpuTestedStage stage(cpu, DISTILE_FLOAT32, 21, weights != DISTILE_INT8, weights);
            // Input channels, output channels and groups; depthwise ones of less than a panel, several, and whole sets.
            for (const auto &[in, out, groups] :
                 {std::array{6, 9, 3}, std::array{64, 40, 2}, std::array{12, 24, 12}, std::array{5, 5, 5},
                  std::array{64, 64, 64}, std::array{99, 99, 99}}) {
                INFO(in << " to " << out << " channels in " << groups << " groups");
                CpuImage &x = stage.image(2, 9, 21, in), &y = stage.image(2, 9, 21, out),
                         &z = stage.image(2, 5, 11, out);
                stage.conv(x, y, 3, 1, 1, &stage.mask(2, 9, 21, .4), nullptr, &y, nullptr, groups);
                stage.conv(x, z, 5, 2, 1, nullptr, nullptr, nullptr, &stage.mask(2, 5, 11, .5), groups);
            }
            stage.check(0);
        }
    });
}

TEST_CASE("Depthwise convolutions of a stage on a CPU may have any kernel and many channels", "[stage]") {
    for_each_code([](const CpuMachine &cpu) {
        CpuTestedStage stage(cpu, DISTILE_FLOAT32, 22, true);
        // More channels than the code takes at once.
        CpuImage &many = stage.image(1, 2, 7, 4105), &of_many = stage.image(1, 2, 7, 4105);
        stage.conv(many, of_many, 3, 1, 1, &stage.mask(1, 2, 7, .7), nullptr, nullptr, nullptr, 4105);
        // More rows and columns of a kernel, and a row whose windows read more than it keeps addresses for.
        CpuImage &row = stage.image(1, 3, 40, 4), &of_row = stage.image(1, 3, 40, 4);
        for (const auto &[kernel, dilation] : {std::array{21, 1}, std::array{101, 1}, std::array{3, 370}}) {
            stage.conv(row, of_row, kernel, 1, dilation, &stage.mask(1, 3, 40, .7), nullptr, nullptr, nullptr, 4);
        }
        stage.check(0);
    });
}

TEST_CASE("A stage on a CPU passes on what depthwise convolutions make, and what is left is as without", "[stage]") {
    int number = 0;
    for_each_code([&](const CpuMachine &cpu) {
        for (const double density : {0., .02, .3, 1.}) {
            for (const distile_dtype weights : {same_type, DISTILE_BFLOAT16, DISTILE_INT8}) {
                if (left_out(number++)) {
                    continue;
                }
                CpuTestedStage stage(cpu, DISTILE_FLOAT32, 23, true, weights);
                CpuImage &x = stage.image(2, 19, 33, 24);
                add_inverted_residual(stage, x, 144, 3, &stage.mask(2, 19, 33, density));
                add_inverted_residual(stage, x, 50, 5, &stage.mask(2, 19, 33, density));
                add_inverted_residual(stage, x, 7, 3, nullptr);
                stage.check(0);
            }
        }
        // What windows of other pixels read is overwritten only when all are computed.
        CpuTestedStage in_place(cpu, DISTILE_FLOAT32, 27, true);
        CpuImage &x = in_place.image(1, 19, 33, 32), &filtered = in_place.image(1, 19, 33, 32);
        auto &mask = in_place.mask(1, 19, 33, .6);
        in_place.conv(x, filtered, 3, 1, 1, &mask, nullptr, nullptr, nullptr, 32).given.transient = 1;
        in_place.conv(filtered, x, 1, 1, 1, &mask);
        in_place.check(0);
        // More channels than are passed on at a time in a chunk of many pixels.
        CpuTestedStage stage(cpu, DISTILE_FLOAT32, 25, true);
        add_inverted_residual(stage, stage.image(1, 24, 40, 16), 1500, 3, nullptr);
        stage.check(0);
    });
}

TEST_CASE("A stage on a CPU passes on what windows of depthwise convolutions read, where caches do not keep it",
          "[stage]") {
    const auto blocks = [](const CpuMachine &cpu, double density) {
        CpuTestedStage stage(cpu, DISTILE_FLOAT32, 29, true);
        CpuImage &x = stage.image(2, 42, 61, 8), &y = stage.image(2, 42, 61, 8), &z = stage.image(2, 42, 61, 8);
        add_inverted_residual(stage, x, 330, 3, &stage.mask(2, 42, 61, density), &y);
        add_inverted_residual(stage, y, 300, 5, density < 1 ? nullptr : &stage.mask(2, 42, 61, .3), &z);
        // Too few to pass through a cache, and rows that none keeps.
        add_inverted_residual(stage, z, 24, 3, &stage.mask(2, 42, 61, density), &x);
        CpuImage &wide = stage.image(1, 5, 700, 4), &last = stage.image(1, 5, 700, 4);
        add_inverted_residual(stage, wide, 160, 3, &stage.mask(1, 5, 700, density), &last);
        stage.check(0);
    };
    // Each but the last could be computed by the next.
    const auto separable = [](const CpuMachine &cpu) {
        CpuTestedStage stage(cpu, DISTILE_FLOAT32, 33, true);
        CpuImage *from = &stage.image(1, 60, 60, 160);
        for (int32_t i = 0; i < 4; i++) {
            CpuImage &to = stage.image(1, 60, 60, 160);
            stage.conv(*from, to, i % 2 == 0 ? 3 : 1, 1, 1, nullptr, nullptr, nullptr, nullptr, i % 2 == 0 ? 160 : 1)
                .given.transient = i < 3 ? 1 : 0;
            from = &to;
        }
        stage.check(0);
    };
    const auto strides = [](const CpuMachine &cpu) {
        CpuTestedStage stage(cpu, DISTILE_FLOAT32, 31, true);
        CpuImage &x = stage.image(1, 70, 64, 5), &expanded = stage.image(1, 70, 64, 250),
                 &filtered = stage.image(1, 35, 32, 250), &y = stage.image(1, 35, 32, 9);
        auto &mask = stage.mask(1, 35, 32, .6);
        const distile_window window{3, 3, 2, 2, 2, 2, 2, 2, DISTILE_WINDOW_CONV};
        stage.conv(x, expanded, 1, 1, 1, &mask, &window).given.transient = 1;
        stage.conv(expanded, filtered, 3, 2, 2, &mask, nullptr, nullptr, nullptr, 250).given.transient = 1;
        stage.conv(filtered, y, 1, 1, 1, &mask);
        // With every pixel, of other sizes before and behind.
        stage.conv(x, expanded, 1, 1, 1, nullptr).given.transient = 1;
        stage.conv(expanded, filtered, 3, 2, 1, nullptr, nullptr, nullptr, nullptr, 250).given.transient = 1;
        stage.conv(filtered, y, 1, 1, 1, nullptr);
        stage.check(0);
    };
    const std::vector<std::function<void(const CpuMachine &)>> parts = {[&](const CpuMachine &cpu) { blocks(cpu, .4); },
                                                                        [&](const CpuMachine &cpu) { blocks(cpu, 1); },
                                                                        separable, strides};
    int number = 0;
    for_each_code([&](const CpuMachine &cpu) {
        for (const auto &part : parts) {
            if (!left_out(number++)) {
                part(cpu);
            }
        }
    });
}

TEST_CASE("Long reductions of a stage on a CPU are summed part by part", "[stage]") {
    for_each_code([](const CpuMachine &cpu) {
        for (const distile_dtype weights : {same_type, DISTILE_INT8}) {
            CpuTestedStage stage(cpu, DISTILE_FLOAT32, 11, true, weights);
            CpuImage &x = stage.image(1, 12, 12, 700), &y = stage.image(1, 12, 12, 144);
            stage.conv(x, y, 3, 1, 1, nullptr);
            stage.check(0);
        }
    });
}

TEST_CASE("A stage on a CPU gives the same bits with any number of threads", "[stage]") {
    std::vector<std::vector<float>> results;
    for (const int32_t threads : {1, 2, 5}) {
        const CpuMachine cpu(present_cpu_features(), threads);
        CpuTestedStage stage(cpu, DISTILE_FLOAT32, 13, false);
        add_bottlenecks(stage, 1, 21, 30, 96, 40, 2, .3);
        add_inverted_residual(stage, stage.image(1, 20, 31, 48), 288, 3, &stage.mask(1, 20, 31, .4));
        CpuImage &x = stage.image(1, 64, 64, 16), &y = stage.image(1, 64, 64, 16);
        add_inverted_residual(stage, x, 576, 3, &stage.mask(1, 64, 64, .7), &y);
        add_token_layer(stage, stage.image(2, 1, 301, 48), 3, &stage.mask(2, 1, 301, .95));
        results.push_back(stage.run());
    }
    CHECK(results[0] == results[1]);
    CHECK(results[0] == results[2]);
}

TEST_CASE("The trace of a stage on a CPU has its steps in order", "[stage]") {
    const CpuMachine cpu(present_cpu_features());
    CpuTestedStage stage(cpu, DISTILE_FLOAT32, 14, false);
    add_bottlenecks(stage, 1, 9, 10, 16, 8, 1, -1);
    uint32_t end = 0;
    for (const distile_stage_item &item : stage.trace()) {
        CHECK((item.open >= end && item.stored >= item.open && item.worker == 0));
        CHECK((item.multiplied == 0) == (item.begun == 0));
        end = item.stored;
    }
}

TEST_CASE("The trace of a stage refuses what is wrong", "[stage]") {
    const Context context = make_context();
    const distile_stage_args args{};
    int64_t count = 0;
    distile_stage_item item{};
    CHECK(distile_trace_stage(nullptr, &args, &item, 1, &count) == DISTILE_ERROR_NULL_POINTER);
    CHECK(distile_trace_stage(context.get(), nullptr, &item, 1, &count) == DISTILE_ERROR_NULL_POINTER);
    CHECK(distile_trace_stage(context.get(), &args, &item, 1, nullptr) == DISTILE_ERROR_NULL_POINTER);
    CHECK(distile_trace_stage(context.get(), &args, nullptr, 1, &count) == DISTILE_ERROR_BAD_VALUE);
    CHECK(distile_trace_stage(context.get(), &args, &item, -1, &count) == DISTILE_ERROR_BAD_VALUE);
    CHECK(distile_trace_stage(context.get(), &args, &item, 1, &count) == DISTILE_ERROR_NULL_POINTER);
}
