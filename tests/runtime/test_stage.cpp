// What a stage checks, and how weights are packed, both for GPUs, without one.
#include "runtime/base/context.h"
#include "runtime/base/device.h"
#include "runtime/stage/check_stage.h"
#include "tests/support/catch.h"
#include <cmath>
#include <cstdint>
#include <cstring>
#include <distile/distile.hpp>
#include <distile/stage.h>
#include <functional>
#include <limits>
#include <string>
#include <vector>

using namespace distile;

namespace {

constexpr distile_window point{1, 1, 1, 1, 1, 1, 0, 0, DISTILE_WINDOW_CONV},
    three{3, 3, 1, 1, 1, 1, 1, 1, DISTILE_WINDOW_CONV}, five{5, 5, 1, 1, 1, 1, 2, 2, DISTILE_WINDOW_CONV};

/** An image of float16 in memory that is aligned well enough. */
struct Image {
    Image(int32_t height, int32_t width, int32_t channels, int32_t border = 0)
        : memory((size_t{2} * (height + 2 * border) * (width + 2 * border) * channels + 128) / 2) {
        const int32_t rows = height + 2 * border, columns = width + 2 * border;
        auto *const first =
            reinterpret_cast<uint16_t *>((reinterpret_cast<uintptr_t>(memory.data()) + 127) / 128 * 128);
        view = distile_tensor_make(first + (border * columns + border) * channels, 1, height, width, channels);
        view.dtype = DISTILE_FLOAT16;
        view.stride_h = int64_t{columns} * channels;
        view.stride_n = view.stride_h * rows;
        view.border_top = view.border_bottom = view.border_left = view.border_right = border;
    }

    std::vector<uint16_t> memory;
    distile_tensor view{};
};

/** Arguments of a stage: a mask unit, and three convolutions of its pixels. */
struct Arguments {
    Arguments() {
        distile_stage_step &unit = steps[0], &reduce = steps[1], &middle = steps[2], &expand = steps[3];
        unit.kind = DISTILE_STEP_SCORES;
        unit.input = &x.view;
        unit.mask = mask.get();
        unit.window = point;
        unit.weights = numbers.memory.data();
        reduce.input = &x.view;
        reduce.output = &reduced.view;
        reduce.reader = &three;
        reduce.window = point;
        middle.input = &reduced.view;
        middle.output = &middled.view;
        middle.window = three;
        expand.input = &middled.view;
        expand.output = expand.residual = &x.view;
        expand.window = point;
        for (distile_stage_step *const step : {&reduce, &middle, &expand}) {
            step->mask = mask.get();
            step->weights = numbers.view.data;
            step->bias = reinterpret_cast<const float *>(numbers.view.data);
            step->activation = DISTILE_ACTIVATION_RELU;
        }
        unit.weights = numbers.view.data;
        args.steps = steps;
        args.num_steps = 4;
    }

    /** The checks of a GPU. */
    distile_status check() const {
        return guarded(context.get(), "a test", [&] {
            checked_stage(context.get(), args, gpu_stage_target);
            return DISTILE_OK;
        });
    }

    Context context = make_context();
    Mask mask = make_mask(context), other = make_mask(context);
    Image x{9, 40, 128}, reduced{9, 40, 64, 1}, middled{9, 40, 64}, numbers{1, 1, 256};
    distile_stage_step steps[4]{};
    distile_stage_args args{};
};

struct Fault {
    const char *what;
    distile_status status;
    std::function<void(Arguments &)> make;
};

}  // namespace

TEST_CASE("A stage that is right passes the checks of a GPU, and not all of a CPU's", "[stage]") {
    Arguments stage;
    CHECK(stage.check() == DISTILE_OK);
    stage.steps[1].transient = stage.steps[2].transient = 1;
    CHECK(stage.check() == DISTILE_OK);
    CHECK(distile_run_stage(stage.context.get(), &stage.args) == DISTILE_ERROR_BAD_TYPE);
    CHECK(std::string(distile_context_message(stage.context.get())).find("take float32, uint8 and int8 here") !=
          std::string::npos);
}

TEST_CASE("What is wrong with a stage is said before it runs", "[stage]") {
    const Context foreign = make_context();
    const Mask of_foreign = make_mask(foreign);
    const Fault faults[] = {
        {"no steps", DISTILE_ERROR_NULL_POINTER, [](Arguments &s) { s.args.steps = nullptr; }},
        {"0 steps", DISTILE_ERROR_BAD_VALUE, [](Arguments &s) { s.args.num_steps = 0; }},
        {"reserved", DISTILE_ERROR_BAD_VALUE, [](Arguments &s) { s.args.reserved[1] = 1; }},
        {"reserved of a step", DISTILE_ERROR_BAD_VALUE, [](Arguments &s) { s.steps[2].reserved[2] = 1; }},
        {"reserved number of a step", DISTILE_ERROR_BAD_VALUE, [](Arguments &s) { s.steps[2].reserved32 = 1; }},
        {"other pixels beside a residual", DISTILE_ERROR_BAD_VALUE, [](Arguments &s) { s.steps[3].spreads = 1; }},
        {"other pixels of scores", DISTILE_ERROR_BAD_VALUE, [](Arguments &s) { s.steps[0].spreads = 1; }},
        {"groups of scores", DISTILE_ERROR_BAD_VALUE, [](Arguments &s) { s.steps[0].groups = 1; }},
        {"groups on a GPU", DISTILE_ERROR_BAD_CHANNELS, [](Arguments &s) { s.steps[2].groups = 32; }},
        {"fewer than no groups", DISTILE_ERROR_BAD_CHANNELS, [](Arguments &s) { s.steps[2].groups = -1; }},
        {"scores that nobody reads", DISTILE_ERROR_BAD_VALUE, [](Arguments &s) { s.steps[0].transient = 1; }},
        {"an output that windows read", DISTILE_ERROR_BAD_VALUE,
         [](Arguments &s) {
             s.steps[1].transient = 1;
             s.steps[1].reader = nullptr;
         }},
        {"an output that other windows read", DISTILE_ERROR_BAD_VALUE,
         [](Arguments &s) {
             s.steps[1].transient = 1;
             s.steps[1].reader = &five;
         }},
        {"the last output", DISTILE_ERROR_BAD_VALUE, [](Arguments &s) { s.steps[3].transient = 1; }},
        {"twice transient", DISTILE_ERROR_BAD_VALUE, [](Arguments &s) { s.steps[2].transient = 2; }},
        {"a transient output at other pixels", DISTILE_ERROR_BAD_VALUE,
         [](Arguments &s) {
             s.steps[2].transient = 1;
             s.steps[3].mask = nullptr;
         }},
        {"a transient output of another tensor", DISTILE_ERROR_BAD_VALUE,
         [](Arguments &s) {
             s.steps[2].transient = 1;
             s.steps[3].input = &s.reduced.view;
         }},
        {"twice other pixels", DISTILE_ERROR_BAD_VALUE, [](Arguments &s) { s.steps[1].spreads = 2; }},
        {"kind", DISTILE_ERROR_BAD_VALUE,
         [](Arguments &s) {
             const int number = 9;
             std::memcpy(&s.steps[1].kind, &number, sizeof(number));
         }},
        {"activation", DISTILE_ERROR_BAD_VALUE,
         [](Arguments &s) {
             const int number = 99;
             std::memcpy(&s.steps[1].activation, &number, sizeof(number));
         }},
        {"no input", DISTILE_ERROR_NULL_POINTER, [](Arguments &s) { s.steps[1].input = nullptr; }},
        {"no output", DISTILE_ERROR_NULL_POINTER, [](Arguments &s) { s.steps[1].output = nullptr; }},
        {"no weights", DISTILE_ERROR_NULL_POINTER, [](Arguments &s) { s.steps[1].weights = nullptr; }},
        {"no factors", DISTILE_ERROR_NULL_POINTER, [](Arguments &s) { s.steps[0].weights = nullptr; }},
        {"no mask of scores", DISTILE_ERROR_NULL_POINTER, [](Arguments &s) { s.steps[0].mask = nullptr; }},
        {"output of scores", DISTILE_ERROR_BAD_VALUE, [](Arguments &s) { s.steps[0].output = &s.reduced.view; }},
        {"NaN", DISTILE_ERROR_BAD_VALUE,
         [](Arguments &s) { s.steps[0].threshold = std::numeric_limits<float>::quiet_NaN(); }},
        {"float32", DISTILE_ERROR_BAD_TYPE, [](Arguments &s) { s.x.view.dtype = DISTILE_FLOAT32; }},
        {"type of weights", DISTILE_ERROR_BAD_TYPE, [](Arguments &s) { s.steps[2].weights_dtype = DISTILE_INT8; }},
        {"unknown type of weights", DISTILE_ERROR_BAD_TYPE,
         [](Arguments &s) {
             const int number = 77;
             std::memcpy(&s.steps[2].weights_dtype, &number, sizeof(number));
         }},
        {"type of factors", DISTILE_ERROR_BAD_VALUE, [](Arguments &s) { s.steps[0].weights_dtype = DISTILE_FLOAT32; }},
        {"two types", DISTILE_ERROR_BAD_TYPE, [](Arguments &s) { s.middled.view.dtype = DISTILE_BFLOAT16; }},
        {"input channels", DISTILE_ERROR_BAD_CHANNELS, [](Arguments &s) { s.middled.view.channels = 36; }},
        {"output channels", DISTILE_ERROR_BAD_CHANNELS, [](Arguments &s) { s.reduced.view.channels = 28; }},
        {"address", DISTILE_ERROR_BAD_ALIGNMENT,
         [](Arguments &s) { s.middled.view.data = static_cast<uint16_t *>(s.middled.view.data) + 1; }},
        {"address of weights", DISTILE_ERROR_BAD_ALIGNMENT,
         [](Arguments &s) { s.steps[2].weights = static_cast<const char *>(s.steps[2].weights) + 16; }},
        {"stride", DISTILE_ERROR_BAD_STRIDE, [](Arguments &s) { s.middled.view.stride_h += 4; }},
        {"border", DISTILE_ERROR_BAD_SHAPE,
         [](Arguments &s) { s.reduced.view.border_left = s.reduced.view.border_right = 0; }},
        {"window", DISTILE_ERROR_BAD_VALUE, [](Arguments &s) { s.steps[2].window.stride_w = 0; }},
        {"transposed window", DISTILE_ERROR_BAD_VALUE,
         [](Arguments &s) { s.steps[2].window.kind = DISTILE_WINDOW_TRANSPOSED; }},
        {"batch", DISTILE_ERROR_BAD_SHAPE, [](Arguments &s) { s.middled.view.batch = 2; }},
        {"in place", DISTILE_ERROR_ALIASING, [](Arguments &s) { s.steps[3].input = &s.x.view; }},
        {"shape of the mask", DISTILE_ERROR_BAD_MASK, [](Arguments &s) { s.steps[0].window.stride_h = 2; }},
        {"mask without data", DISTILE_ERROR_BAD_MASK, [](Arguments &s) { s.steps[2].mask = s.other.get(); }},
        {"mask of another context", DISTILE_ERROR_BAD_MASK, [&](Arguments &s) { s.steps[0].mask = of_foreign.get(); }},
        {"reader without a mask", DISTILE_ERROR_BAD_VALUE, [](Arguments &s) { s.steps[1].mask = nullptr; }},
        {"residual", DISTILE_ERROR_BAD_CHANNELS, [](Arguments &s) { s.steps[2].residual = &s.numbers.view; }},
    };
    for (const Fault &fault : faults) {
        INFO(fault.what);
        Arguments stage;
        fault.make(stage);
        INFO(distile_context_message(stage.context.get()));
        const distile_status status = stage.check();
        INFO(distile_context_message(stage.context.get()));
        CHECK(distile_status_name(status) == std::string(distile_status_name(fault.status)));
    }
    CHECK(distile_run_stage(nullptr, nullptr) == DISTILE_ERROR_NULL_POINTER);
    CHECK(distile_run_stage(foreign.get(), nullptr) == DISTILE_ERROR_NULL_POINTER);
}

TEST_CASE("Steps of a stage run as early as what they read and overwrite lets them", "[stage]") {
    Arguments stage;
    Image other_x{9, 40, 128}, other_y{9, 40, 64}, other_z{9, 40, 64};
    // Behind the chain of a mask unit and three convolutions: a chain of two that has nothing to do with it, and a
    // convolution that overwrites what the chain reads first.
    std::vector<distile_stage_step> steps(stage.steps, stage.steps + 4);
    const auto add = [&](Image &input, Image &output) {
        steps.push_back(stage.steps[3]);
        steps.back().input = &input.view;
        steps.back().output = &output.view;
        steps.back().mask = nullptr;
        steps.back().residual = nullptr;
    };
    add(other_x, other_y);
    add(other_y, other_z);
    add(other_z, stage.reduced);
    distile_stage_args args{};
    args.steps = steps.data();
    args.num_steps = static_cast<int32_t>(steps.size());
    Stage checked = checked_stage(stage.context.get(), args, gpu_stage_target);
    CHECK(order_by_levels(checked) == std::vector<int32_t>{4, 0, 1, 5, 2, 3, 6});
    std::vector<bool> starts;
    for (const CheckedStep &step : checked.steps) {
        starts.push_back(step.starts_level);
    }
    CHECK(starts == std::vector<bool>{false, false, true, false, true, true, false});
    // A mask that is made twice keeps the steps in their order.
    steps.push_back(stage.steps[0]);
    args.steps = steps.data();
    args.num_steps++;
    Stage twice = checked_stage(stage.context.get(), args, gpu_stage_target);
    CHECK(order_by_levels(twice) == std::vector<int32_t>{0, 1, 2, 3, 4, 5, 6, 7});
}

TEST_CASE("Weights of a stage on a GPU hold each number once, in the order of gpu_target.cpp", "[stage]") {
    constexpr int32_t outs = 64, ins = 128, rows = 1, columns = 3, taps = rows * columns;
    constexpr int64_t steps = 8;  // 6, and zeros.
    const StageFilter filter{outs, ins, rows, columns, 1};
    const int64_t bytes = gpu_stage_target.weight_bytes(filter, DISTILE_FLOAT16);
    REQUIRE(bytes == steps * 64 * outs * 2);
    std::vector<float> weights(size_t{outs} * ins * taps);
    for (size_t i = 0; i < weights.size(); i++) {
        weights[i] = static_cast<float>(i % 2039);  // A prime: neighbours in any direction differ.
    }
    std::vector<uint16_t> packed(static_cast<size_t>(bytes) / 2), due(packed.size());
    gpu_stage_target.pack(filter, DISTILE_FLOAT16, weights.data(), packed.data());
    size_t place = 0;
    for (int32_t group = 0; group < outs; group += 32) {
        for (int32_t step = 0; step < steps; step++) {
            for (int32_t line = 0; line < 32; line++) {
                // A thread has columns 2 q and 2 q + 1 of every 8, which are channels 8 q to 8 q + 7.
                const int32_t out = group + line % 8 / 2 * 8 + line / 8 * 2 + line % 2;
                for (int32_t number = 0; number < 64; number++, place++) {
                    const int32_t in = step % 2 * 64 + (number / 8 ^ line % 8) * 8 + number % 8, tap = step / 2;
                    const float value = tap < taps ? weights[(static_cast<size_t>(out) * ins + in) * taps + tap] : 0;
                    // Integers below 2048 are exact: build the float16 from its exponent and fraction.
                    uint32_t bits = 0;
                    std::memcpy(&bits, &value, sizeof(bits));
                    due[place] =
                        value == 0 ? 0 : static_cast<uint16_t>((((bits >> 23) - 112) << 10) | (bits >> 13 & 0x3ff));
                }
            }
        }
    }
    CHECK(packed == due);
    CHECK(gpu_stage_target.is_possible({40, 24, 1, 1, 1}, DISTILE_FLOAT16));
    CHECK(gpu_stage_target.is_possible({64, 64, 1, 1, 64}, DISTILE_FLOAT16));
    CHECK(!gpu_stage_target.is_possible({44, 64, 1, 1, 1}, DISTILE_FLOAT16));
    CHECK(!gpu_stage_target.is_possible({32, 36, 1, 1, 1}, DISTILE_FLOAT16));
    CHECK(!gpu_stage_target.is_possible({32, 64, 0, 1, 1}, DISTILE_FLOAT16));
    CHECK(!gpu_stage_target.is_possible({64, 64, 1, 1, 32}, DISTILE_FLOAT16));
    CHECK(!gpu_stage_target.is_possible({64, 128, 1, 1, 64}, DISTILE_FLOAT16));
    CHECK(!gpu_stage_target.is_possible({64, 64, 1, 1, 0}, DISTILE_FLOAT16));
}

TEST_CASE("Weights of a stage on a GPU have zeros for channels that fill up steps and groups", "[stage]") {
    constexpr int32_t outs = 72, ins = 88, columns = 2;
    constexpr size_t steps = 4, groups = 4, of_line = 64, lines = 32;  // Groups come in pairs.
    const StageFilter filter{outs, ins, 1, columns, 1};
    const int64_t bytes = gpu_stage_target.weight_bytes(filter, DISTILE_BFLOAT16);
    REQUIRE(bytes == int64_t{steps * groups * of_line * lines * 2});
    std::vector<float> weights(size_t{outs} * ins * columns);
    for (size_t i = 0; i < weights.size(); i++) {
        weights[i] = static_cast<float>(i % 251 + 1);
    }
    std::vector<uint16_t> packed(static_cast<size_t>(bytes) / 2);
    gpu_stage_target.pack(filter, DISTILE_BFLOAT16, weights.data(), packed.data());
    for (size_t group = 0; group < groups; group++) {
        for (size_t step = 0; step < steps; step++) {
            for (size_t line = 0; line < lines; line++) {
                const size_t out = group * 32 + line % 8 / 2 * 8 + line / 8 * 2 + line % 2, tap = step / 2;
                for (size_t number = 0; number < of_line; number++) {
                    const size_t in = step % 2 * 64 + (number / 8 ^ line % 8) * 8 + number % 8;
                    const float value = out < outs && in < ins ? weights[(out * ins + in) * columns + tap] : 0;
                    uint32_t bits = 0;
                    std::memcpy(&bits, &value, sizeof(bits));  // Integers of 8 bits are exact.
                    CHECK(packed[((group * steps + step) * lines + line) * of_line + number] == bits >> 16);
                }
            }
        }
    }
}

TEST_CASE("Weights of float32 of a stage on a GPU are rounded to TF32", "[stage]") {
    constexpr int32_t outs = 36, ins = 44, columns = 2;
    constexpr size_t steps = 4, groups = 2, of_line = 32, lines = 32;
    const StageFilter filter{outs, ins, 1, columns, 1};
    const int64_t bytes = gpu_stage_target.weight_bytes(filter, DISTILE_FLOAT32);
    REQUIRE(bytes == int64_t{steps * groups * of_line * lines * 4});
    std::vector<float> weights(size_t{outs} * ins * columns);
    for (size_t i = 0; i < weights.size(); i++) {
        weights[i] = 1 + static_cast<float>(i) * 0x1p-12f;  // TF32 has multiples of 2^-10 there.
    }
    std::vector<float> packed(static_cast<size_t>(bytes) / 4);
    gpu_stage_target.pack(filter, DISTILE_FLOAT32, weights.data(), packed.data());
    for (size_t group = 0; group < groups; group++) {
        for (size_t step = 0; step < steps; step++) {
            for (size_t line = 0; line < lines; line++) {
                const size_t out = group * 32 + line % 8 / 2 * 8 + line / 8 * 2 + line % 2, tap = step / 2;
                for (size_t number = 0; number < of_line; number++) {
                    const size_t in = step % 2 * 32 + (number / 4 ^ line % 8) * 4 + number % 4;
                    const float value = out < outs && in < ins ? weights[(out * ins + in) * columns + tap] : 0;
                    CHECK(packed[((group * steps + step) * lines + line) * of_line + number] ==
                          std::nearbyint(value * 0x1p10f) * 0x1p-10f);
                }
            }
        }
    }
    CHECK(gpu_stage_target.is_possible({44, 36, 1, 1, 1}, DISTILE_FLOAT32));
    CHECK(!gpu_stage_target.is_possible({42, 36, 1, 1, 1}, DISTILE_FLOAT32));
}

TEST_CASE("A stage on a GPU multiplies float32 only where the context allows TF32", "[stage]") {
    const Context context = make_context();
    // Twice as high as their views: there is room for float32.
    Image x{18, 40, 64}, y{18, 40, 64};
    for (Image *const image : {&x, &y}) {
        image->view.dtype = DISTILE_FLOAT32;
        image->view.height = 9;
    }
    distile_stage_step convolution{}, attention{}, norm{};
    for (distile_stage_step *const step : {&convolution, &attention, &norm}) {
        step->input = &x.view;
        step->output = &y.view;
        step->window = point;
    }
    convolution.weights = x.view.data;
    attention.kind = DISTILE_STEP_ATTENTION;
    attention.key = attention.value = &x.view;
    attention.heads = 1;
    attention.scale = 1;
    norm.kind = DISTILE_STEP_NORMALIZE;
    const auto check = [&](distile_math math, const distile_stage_step &step) {
        context->options.math = math;
        distile_stage_args args{};
        args.steps = &step;
        args.num_steps = 1;
        return guarded(context.get(), "a test", [&] {
            checked_stage(context.get(), args, gpu_stage_target);
            return DISTILE_OK;
        });
    };
    CHECK(check(DISTILE_MATH_DEFAULT, convolution) == DISTILE_OK);
    CHECK(check(DISTILE_MATH_TF32, convolution) == DISTILE_OK);
    CHECK(check(DISTILE_MATH_FLOAT32, convolution) == DISTILE_ERROR_UNSUPPORTED_DEVICE);
    CHECK(check(DISTILE_MATH_DEFAULT, attention) == DISTILE_ERROR_UNSUPPORTED_DEVICE);
    CHECK(std::string(distile_context_message(context.get())).find("DISTILE_MATH_TF32") != std::string::npos);
    CHECK(check(DISTILE_MATH_TF32, attention) == DISTILE_OK);
    CHECK(check(DISTILE_MATH_FLOAT32, norm) == DISTILE_OK);
    // Each channel by itself.
    convolution.groups = 64;
    CHECK(check(DISTILE_MATH_FLOAT32, convolution) == DISTILE_OK);
}

TEST_CASE("Depthwise weights of a stage on a GPU are tap by tap", "[stage]") {
    constexpr int32_t channels = 24, taps = 6;
    const StageFilter filter{channels, channels, 2, 3, channels};
    REQUIRE(gpu_stage_target.weight_bytes(filter, DISTILE_BFLOAT16) == channels * taps * 2);
    std::vector<float> weights(size_t{channels} * taps);
    for (size_t i = 0; i < weights.size(); i++) {
        weights[i] = static_cast<float>(i);
    }
    std::vector<uint16_t> packed(weights.size());
    gpu_stage_target.pack(filter, DISTILE_BFLOAT16, weights.data(), packed.data());
    for (size_t tap = 0; tap < taps; tap++) {
        for (size_t channel = 0; channel < channels; channel++) {
            uint32_t bits = 0;
            std::memcpy(&bits, &weights[channel * taps + tap], sizeof(bits));
            CHECK(packed[tap * channels + channel] == bits >> 16);
        }
    }
}

TEST_CASE("Steps of a stage that take each channel by itself are checked", "[stage]") {
    struct Layers {
        Layers() {
            for (Image *const image : {&x, &small, &large}) {
                image->view.height /= 2;
            }
            pool.kind = DISTILE_STEP_MAX_POOL;
            pool.input = &x.view;
            pool.output = &small.view;
            pool.window = {2, 2, 2, 2, 1, 1, 0, 0, DISTILE_WINDOW_CONV};
            grow.kind = DISTILE_STEP_UPSAMPLE;
            grow.input = &small.view;
            grow.output = &large.view;
            grow.window = {1, 1, 2, 2, 1, 1, 0, 0, DISTILE_WINDOW_CONV};
            sum.kind = DISTILE_STEP_SUM;
            sum.input = &large.view;
            sum.output = sum.residual = &x.view;
            sum.window = point;
            args.steps = steps;
            args.num_steps = 3;
        }
        distile_status check(const StageTarget &target) const {
            return guarded(context.get(), "a test", [&] {
                checked_stage(context.get(), args, target);
                return DISTILE_OK;
            });
        }
        Context context = make_context();
        // With room for float32, too.
        Image x{20, 40, 24, 1}, small{10, 20, 24}, large{20, 40, 24};
        distile_stage_step steps[3]{};
        distile_stage_step &pool = steps[0], &grow = steps[1], &sum = steps[2];
        distile_stage_args args{};
    };
    CHECK(Layers().check(gpu_stage_target) == DISTILE_OK);
    struct LayerFault {
        const char *what;
        distile_status status;
        std::function<void(Layers &)> make;
    };
    const LayerFault faults[] = {
        {"weights", DISTILE_ERROR_BAD_VALUE, [](Layers &s) { s.pool.weights = s.x.view.data; }},
        {"bias", DISTILE_ERROR_BAD_VALUE, [](Layers &s) { s.sum.bias = static_cast<const float *>(s.x.view.data); }},
        {"groups", DISTILE_ERROR_BAD_VALUE, [](Layers &s) { s.grow.groups = 1; }},
        {"a transient output", DISTILE_ERROR_BAD_VALUE, [](Layers &s) { s.grow.transient = 1; }},
        {"a reader", DISTILE_ERROR_BAD_VALUE, [](Layers &s) { s.pool.reader = &three; }},
        {"no output", DISTILE_ERROR_NULL_POINTER, [](Layers &s) { s.sum.output = nullptr; }},
        {"channels", DISTILE_ERROR_BAD_CHANNELS, [](Layers &s) { s.small.view.channels = 16; }},
        {"channels of the input", DISTILE_ERROR_BAD_CHANNELS,
         [](Layers &s) { s.x.view.channels = s.small.view.channels = 20; }},
        {"a window outside the border", DISTILE_ERROR_BAD_SHAPE,
         [](Layers &s) {
             s.x.view.border_left = 0;
             s.pool.window.pad_top = s.pool.window.pad_left = 1;
         }},
        {"a window of no pixel", DISTILE_ERROR_BAD_SHAPE,
         [](Layers &s) {
             s.pool.window.pad_top = 1;
             s.pool.window.kernel_h = 1;
         }},
        {"a mean outside of the border", DISTILE_ERROR_BAD_SHAPE,
         [](Layers &s) {
             s.pool.kind = DISTILE_STEP_AVERAGE_POOL;
             s.pool.window.pad_top = s.pool.window.pad_left = 2;
         }},
        {"factors", DISTILE_ERROR_BAD_SHAPE, [](Layers &s) { s.grow.window.stride_w = 1; }},
        {"a window of an upsampling", DISTILE_ERROR_BAD_VALUE, [](Layers &s) { s.grow.window.kernel_h = 2; }},
        {"strides of a sum", DISTILE_ERROR_BAD_VALUE, [](Layers &s) { s.sum.window.stride_h = 2; }},
        {"a sum in place", DISTILE_ERROR_ALIASING, [](Layers &s) { s.sum.input = &s.x.view; }},
        {"a residual of another shape", DISTILE_ERROR_BAD_SHAPE, [](Layers &s) { s.sum.residual = &s.small.view; }},
        {"activation", DISTILE_ERROR_BAD_VALUE,
         [](Layers &s) {
             const int number = 99;
             std::memcpy(&s.sum.activation, &number, sizeof(number));
         }},
        {"images", DISTILE_ERROR_BAD_SHAPE, [](Layers &s) { s.large.view.batch = 2; }},
    };
    for (const LayerFault &fault : faults) {
        INFO(fault.what);
        Layers stage;
        fault.make(stage);
        const distile_status status = stage.check(gpu_stage_target);
        INFO(distile_context_message(stage.context.get()));
        CHECK(distile_status_name(status) == std::string(distile_status_name(fault.status)));
    }
    Layers right;
    right.pool.kind = DISTILE_STEP_AVERAGE_POOL;
    right.pool.window.pad_top = right.pool.window.pad_left = 1;
    CHECK(right.check(gpu_stage_target) == DISTILE_OK);
    right.sum.residual = nullptr;
    CHECK(right.check(gpu_stage_target) == DISTILE_OK);
    // On a CPU, which needs no border.
    for (Image *const image : {&right.x, &right.small, &right.large}) {
        image->view.dtype = DISTILE_FLOAT32;
    }
    right.x.view.border_left = 0;
    right.pool.kind = DISTILE_STEP_MAX_POOL;
    CHECK(right.check(*right.context.get()->device->stage_target()) == DISTILE_OK);
    right.pool.window.kernel_h = 1;
    CHECK(right.check(*right.context.get()->device->stage_target()) == DISTILE_ERROR_BAD_SHAPE);
}

TEST_CASE("Steps of tokens are checked", "[stage]") {
    struct Tokens {
        Tokens() {
            CHECK(distile_mask_set_bytes(given.get(), bytes.data(), 1, 1, 40, 40, 40) == DISTILE_OK);
            for (Image *const image : {&x, &normalized, &parts, &attended, &first}) {
                image->view.width /= 2;
            }
            norm.kind = DISTILE_STEP_NORMALIZE;
            norm.input = &x.view;
            norm.output = &normalized.view;
            norm.weights = norm.bias = static_cast<const float *>(numbers.view.data);
            norm.epsilon = 1e-5f;
            norm.spreads = 1;
            query = key = value = parts.view;
            query.channels = key.channels = value.channels = 128;
            key.data = static_cast<uint16_t *>(key.data) + 128;
            value.data = static_cast<uint16_t *>(value.data) + 256;
            attention.kind = DISTILE_STEP_ATTENTION;
            attention.input = &query;
            attention.key = &key;
            attention.value = &value;
            attention.output = &attended.view;
            attention.heads = 2;
            attention.scale = .125f;
            norm.mask = attention.mask = halt.from = given.get();
            halt.kind = DISTILE_STEP_HALT;
            halt.input = &attended.view;
            halt.output = &first.view;
            halt.mask = made.get();
            halt.weights = numbers.view.data;
            halt.totals = static_cast<float *>(totals.view.data);
            halt.threshold = 1;
            norm.window = attention.window = halt.window = point;
            args.steps = steps;
            args.num_steps = 3;
        }
        distile_status check(const StageTarget &target) const {
            return guarded(context.get(), "a test", [&] {
                checked_stage(context.get(), args, target);
                return DISTILE_OK;
            });
        }
        Context context = make_context();
        Mask given = make_mask(context), made = make_mask(context), other = make_mask(context);
        std::vector<uint8_t> bytes = std::vector<uint8_t>(40, 1);
        // With room for float32, too.
        Image x{1, 80, 128}, normalized{1, 80, 128}, parts{1, 80, 384}, attended{1, 80, 128}, first{1, 2, 128},
            numbers{1, 1, 256}, totals{1, 1, 256}, small{1, 20, 128};
        distile_tensor query, key, value;
        distile_stage_step steps[3]{};
        distile_stage_step &norm = steps[0], &attention = steps[1], &halt = steps[2];
        distile_stage_args args{};
    };
    CHECK(Tokens().check(gpu_stage_target) == DISTILE_OK);
    struct TokenFault {
        const char *what;
        distile_status status;
        std::function<void(Tokens &)> make;
    };
    const auto shifted = [](const void *pointer, int32_t bytes) {
        return reinterpret_cast<float *>(reinterpret_cast<uintptr_t>(pointer) + static_cast<uintptr_t>(bytes));
    };
    const TokenFault faults[] = {
        {"channels of a norm", DISTILE_ERROR_BAD_CHANNELS,
         [](Tokens &s) { s.x.view.channels = s.normalized.view.channels = 100; }},
        {"many channels of a norm", DISTILE_ERROR_BAD_CHANNELS,
         [](Tokens &s) {
             s.x.view.channels = s.normalized.view.channels = 2056;
             s.x.view.stride_w = s.normalized.view.stride_w = 2056;
             s.x.view.width = s.normalized.view.width = 1;
         }},
        {"a norm of other pixels", DISTILE_ERROR_BAD_SHAPE, [](Tokens &s) { s.norm.output = &s.small.view; }},
        {"a norm in place", DISTILE_ERROR_ALIASING, [](Tokens &s) { s.norm.output = &s.x.view; }},
        {"strides of a norm", DISTILE_ERROR_BAD_VALUE, [](Tokens &s) { s.norm.window.stride_w = 2; }},
        {"a residual of a norm", DISTILE_ERROR_BAD_VALUE, [](Tokens &s) { s.norm.residual = &s.normalized.view; }},
        {"an activation of a norm", DISTILE_ERROR_BAD_VALUE,
         [](Tokens &s) { s.norm.activation = DISTILE_ACTIVATION_GELU; }},
        {"epsilon", DISTILE_ERROR_BAD_VALUE, [](Tokens &s) { s.norm.epsilon = -1; }},
        {"a norm that is none", DISTILE_ERROR_BAD_VALUE,
         [](Tokens &s) {
             const int number = 2;
             std::memcpy(&s.norm.norm, &number, sizeof(number));
         }},
        {"alignment of factors", DISTILE_ERROR_BAD_ALIGNMENT,
         [&](Tokens &s) { s.norm.weights = shifted(s.norm.weights, 4); }},
        {"alignment of summands", DISTILE_ERROR_BAD_ALIGNMENT,
         [&](Tokens &s) { s.norm.bias = shifted(s.norm.bias, 2); }},
        {"twice other pixels of a norm", DISTILE_ERROR_BAD_VALUE, [](Tokens &s) { s.norm.spreads = 2; }},
        {"groups of a norm", DISTILE_ERROR_BAD_VALUE, [](Tokens &s) { s.norm.groups = 1; }},
        {"heads of a norm", DISTILE_ERROR_BAD_VALUE, [](Tokens &s) { s.norm.heads = 1; }},
        {"totals of a norm", DISTILE_ERROR_BAD_VALUE, [](Tokens &s) { s.norm.totals = s.halt.totals; }},
        {"epsilon of attention", DISTILE_ERROR_BAD_VALUE, [](Tokens &s) { s.attention.epsilon = 1; }},
        {"no heads", DISTILE_ERROR_BAD_CHANNELS, [](Tokens &s) { s.attention.heads = 0; }},
        {"heads that divide nothing", DISTILE_ERROR_BAD_CHANNELS, [](Tokens &s) { s.attention.heads = 3; }},
        {"heads of 4 channels", DISTILE_ERROR_BAD_CHANNELS, [](Tokens &s) { s.attention.heads = 32; }},
        {"no scale", DISTILE_ERROR_BAD_VALUE, [](Tokens &s) { s.attention.scale = 0; }},
        {"an infinite scale", DISTILE_ERROR_BAD_VALUE,
         [](Tokens &s) { s.attention.scale = std::numeric_limits<float>::infinity(); }},
        {"no key", DISTILE_ERROR_NULL_POINTER, [](Tokens &s) { s.attention.key = nullptr; }},
        {"no value", DISTILE_ERROR_NULL_POINTER, [](Tokens &s) { s.attention.value = nullptr; }},
        {"fewer keys", DISTILE_ERROR_BAD_SHAPE, [](Tokens &s) { s.key.width = 20; }},
        {"other strides of keys", DISTILE_ERROR_BAD_STRIDE, [](Tokens &s) { s.attention.key = &s.x.view; }},
        {"keys of the output", DISTILE_ERROR_ALIASING,
         [](Tokens &s) { s.attention.key = s.attention.value = &s.attended.view; }},
        {"half of all keys", DISTILE_ERROR_BAD_VALUE, [](Tokens &s) { s.attention.all_keys = 2; }},
        {"weights of attention", DISTILE_ERROR_BAD_VALUE, [](Tokens &s) { s.attention.weights = s.halt.weights; }},
        {"other pixels of attention", DISTILE_ERROR_BAD_VALUE, [](Tokens &s) { s.attention.spreads = 1; }},
        {"a reader of attention", DISTILE_ERROR_BAD_VALUE, [](Tokens &s) { s.attention.reader = &three; }},
        {"no totals", DISTILE_ERROR_NULL_POINTER, [](Tokens &s) { s.halt.totals = nullptr; }},
        {"alignment of totals", DISTILE_ERROR_BAD_ALIGNMENT,
         [&](Tokens &s) { s.halt.totals = shifted(s.halt.totals, 2); }},
        {"alignment of limits", DISTILE_ERROR_BAD_ALIGNMENT,
         [&](Tokens &s) { s.halt.limits = shifted(s.halt.totals, 2); }},
        {"no factors of a halt", DISTILE_ERROR_NULL_POINTER, [](Tokens &s) { s.halt.weights = nullptr; }},
        {"a bias of a halt", DISTILE_ERROR_BAD_VALUE, [](Tokens &s) { s.halt.bias = s.norm.bias; }},
        {"a threshold that is none", DISTILE_ERROR_BAD_VALUE,
         [](Tokens &s) { s.halt.threshold = std::numeric_limits<float>::quiet_NaN(); }},
        {"no mask of a halt", DISTILE_ERROR_NULL_POINTER, [](Tokens &s) { s.halt.mask = nullptr; }},
        {"the mask of those that may go on", DISTILE_ERROR_BAD_VALUE, [](Tokens &s) { s.halt.from = s.made.get(); }},
        {"a mask without data", DISTILE_ERROR_BAD_MASK, [](Tokens &s) { s.halt.from = s.other.get(); }},
        {"a sum of more pixels", DISTILE_ERROR_BAD_SHAPE,
         [](Tokens &s) {
             s.halt.input = &s.small.view;
             s.halt.from = nullptr;
             s.halt.output = &s.x.view;
         }},
        {"a sum of the input", DISTILE_ERROR_ALIASING, [](Tokens &s) { s.halt.output = &s.attended.view; }},
        {"strides of a halt", DISTILE_ERROR_BAD_VALUE, [](Tokens &s) { s.halt.window.stride_w = 2; }},
    };
    for (const TokenFault &fault : faults) {
        INFO(fault.what);
        Tokens stage;
        fault.make(stage);
        const distile_status status = stage.check(gpu_stage_target);
        INFO(distile_context_message(stage.context.get()));
        CHECK(distile_status_name(status) == std::string(distile_status_name(fault.status)));
    }
    // On a CPU, of float32.
    Tokens right;
    for (Image *const image : {&right.x, &right.normalized, &right.parts, &right.attended, &right.first}) {
        image->view.dtype = DISTILE_FLOAT32;
    }
    CHECK(right.check(*right.context.get()->device->stage_target()) == DISTILE_ERROR_BAD_TYPE);
    right.query.dtype = right.key.dtype = right.value.dtype = DISTILE_FLOAT32;
    CHECK(right.check(*right.context.get()->device->stage_target()) == DISTILE_OK);
    right.attention.heads = 32;
    CHECK(right.check(*right.context.get()->device->stage_target()) == DISTILE_OK);
    right.attention.heads = 3;
    CHECK(right.check(*right.context.get()->device->stage_target()) == DISTILE_ERROR_BAD_CHANNELS);
    right.norm.scale = 1;
    CHECK(right.check(*right.context.get()->device->stage_target()) == DISTILE_ERROR_BAD_VALUE);
}

TEST_CASE("Packing weights of a stage checks its arguments", "[stage]") {
    const Context made = make_context();
    distile_context *const context = made.get();
    const std::vector<float> weights(size_t{17} * 3);
    CHECK(distile_stage_weights_bytes(context, DISTILE_FLOAT32, 17, 3, 1, 1, 1) == 32 * 3 * 4);
    CHECK(distile_stage_weights_bytes(context, DISTILE_BFLOAT16, 17, 3, 1, 1, 1) == 32 * 3 * 2);
    CHECK(distile_stage_weights_bytes(context, DISTILE_INT8, 17, 3, 1, 1, 1) == 32 * 3 + 32 * 4);
    CHECK(distile_stage_weights_bytes(context, DISTILE_FLOAT16, 17, 3, 1, 1, 1) == 0);
    CHECK(distile_stage_weights_bytes(context, DISTILE_FLOAT32, 0, 3, 1, 1, 1) == 0);
    CHECK(distile_stage_weights_bytes(nullptr, DISTILE_FLOAT32, 17, 3, 1, 1, 1) == 0);
    std::vector<float> packed(size_t{32} * 3);
    const auto pack = [&](distile_context *in, distile_dtype dtype, int32_t rows, const float *from, void *to) {
        return distile_pack_stage_weights(in, dtype, 17, 3, rows, 1, 1, from, to);
    };
    CHECK(pack(context, DISTILE_FLOAT32, 1, weights.data(), packed.data()) == DISTILE_OK);
    CHECK(pack(nullptr, DISTILE_FLOAT32, 1, weights.data(), packed.data()) == DISTILE_ERROR_NULL_POINTER);
    CHECK(pack(context, DISTILE_FLOAT16, 1, weights.data(), packed.data()) == DISTILE_ERROR_BAD_TYPE);
    CHECK(pack(context, DISTILE_FLOAT32, 0, weights.data(), packed.data()) == DISTILE_ERROR_BAD_CHANNELS);
    CHECK(pack(context, DISTILE_FLOAT32, 1, nullptr, packed.data()) == DISTILE_ERROR_NULL_POINTER);
    CHECK(pack(context, DISTILE_FLOAT32, 1, weights.data(), nullptr) == DISTILE_ERROR_NULL_POINTER);
}
