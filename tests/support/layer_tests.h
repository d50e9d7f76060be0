/** \file
 * The tests of layers.h, for every device. A machine has a context, makes its device's arrays and tensors of those of
 * the host, and sets masks.
 */
#ifndef DISTILE_TESTS_LAYER_TESTS_H
#define DISTILE_TESTS_LAYER_TESTS_H

#include "reference/plain_layers.h"
#include "tests/support/activation_tests.h"
#include "tests/support/catch.h"
#include "tests/support/conv2d_cases.h"
#include "tests/support/short_tests.h"
#include "tests/support/test_tensor.h"
#include <algorithm>
#include <distile/distile.hpp>
#include <limits>
#include <random>

namespace distile {

/** Gaps between pixels, rows and images: none, whole vectors, and odd ones. */
constexpr TensorLayout layer_layouts[] = {{}, {8, 16, 24}, {3, 5, 7}};

inline const TensorLayout &layer_layout(int number) {
    return layer_layouts[number % std::size(layer_layouts)];
}

/** Draws the pixels that `active` selects; the others stay NaN. */
inline void draw_pixels(const TestTensor &tensor, const std::vector<uint8_t> &active, float mean,
                        std::mt19937 &random) {
    for_each_pixel(tensor.view(), [&](size_t pixel, int32_t n, int32_t y, int32_t x) {
        for (int32_t c = 0; c < tensor.view().channels && active[pixel] != 0; c++) {
            tensor.set(n, y, x, c, draw(Values::Floats, random) + mean);
        }
    });
}

/** A call on a mask of a machine: sets the mask, makes the call, and compares what it wrote. */
template<typename Machine> struct LayerCall {
    using Tensor = typename Machine::Tensor;

    LayerCall(const Machine &on, const std::vector<uint8_t> &active, int32_t batch, int32_t height, int32_t width)
        : machine(on), mask(on.make_mask()), bytes(active) {
        on.set_mask(mask, bytes, batch, height, width);
    }
    template<typename Call>
    void run(TestTensor &host, Tensor &written, const ReferenceOutput &expected, const Call &call) const {
        const std::vector<uint32_t> before = host.snapshot();
        machine.check(call());
        REQUIRE(written.download());
        REQUIRE(host.difference(before, expected) == "");
    }

    const Machine &machine;
    Mask mask;
    typename Machine::template Array<uint8_t> bytes;
};

template<typename Machine>
void test_pooling(const Machine &machine, distile_dtype dtype, int number, std::mt19937 &random) {
    if (left_out(number)) {
        return;
    }
    // Kernel, stride, dilation, padding; of rows and columns.
    const int32_t windows[][8] = {{3, 3, 2, 2, 1, 1, 1, 1}, {2, 2, 2, 2, 1, 1, 0, 0}, {3, 3, 1, 1, 1, 1, 1, 1},
                                  {1, 1, 1, 1, 1, 1, 0, 0}, {2, 5, 1, 3, 1, 1, 0, 2}, {3, 2, 1, 2, 2, 3, 2, 1},
                                  {7, 9, 1, 1, 1, 1, 0, 0}};
    const int32_t shapes[][3] = {{1, 7, 9}, {2, 8, 33}, {3, 8, 70}};
    const int32_t all_channels[] = {1, 3, 8, 17, 64, 72, 200};
    const int32_t *const shape = shapes[number % std::size(shapes)];
    const int32_t batch = shape[0], height = shape[1], width = shape[2];
    const int32_t *const numbers = windows[number % std::size(windows)];
    const int32_t channels = all_channels[number / 3 % std::size(all_channels)];
    distile_pool_args args{};
    args.window = {numbers[0], numbers[1], numbers[2], numbers[3],         numbers[4],
                   numbers[5], numbers[6], numbers[7], DISTILE_WINDOW_CONV};
    args.pooling = number % 2 == 0 ? DISTILE_MAX_POOLING : DISTILE_AVERAGE_POOLING;
    args.count_padding = number / 2 % 2;
    args.inactive = number / 3 % 2 == 0 ? DISTILE_KEEP : DISTILE_ZERO;
    const auto extent = [](int32_t input, int32_t kernel, int32_t stride, int32_t dilation, int32_t pad) {
        return (input + 2 * pad - dilation * (kernel - 1) - 1) / stride + 1;
    };
    const int32_t out_height = extent(height, numbers[0], numbers[2], numbers[4], numbers[6]);
    const int32_t out_width = extent(width, numbers[1], numbers[3], numbers[5], numbers[7]);
    const char *name = mask_names[number % std::size(mask_names)];
    CAPTURE(dtype, number, batch, height, width, channels, out_height, out_width, args.pooling, name);
    const std::vector<uint8_t> active = make_mask(name, batch, out_height, out_width, random);
    TestTensor input(batch, height, width, channels, layer_layout(number), Flush::Back, dtype);
    TestTensor output(batch, out_height, out_width, channels, layer_layout(number / 2), Flush::Back, dtype);
    // What no active window reads stays NaN.
    std::vector<uint8_t> needed(size_t{1} * batch * height * width, 0);
    for_each_pixel(output.view(), [&](size_t pixel, int32_t n, int32_t y, int32_t x) {
        for (int32_t tap = 0; tap < numbers[0] * numbers[1] && active[pixel] != 0; tap++) {
            const int32_t row = y * numbers[2] - numbers[6] + tap / numbers[1] * numbers[4];
            const int32_t column = x * numbers[3] - numbers[7] + tap % numbers[1] * numbers[5];
            if (row >= 0 && row < height && column >= 0 && column < width) {
                needed[(size_t{1} * n * height + row) * width + column] = 1;
            }
        }
    });
    draw_pixels(input, needed, 0, random);
    const ReferenceOutput expected = plain_pool(input.view(), output.view(), active, args);
    const LayerCall<Machine> call(machine, active, batch, out_height, out_width);
    typename Machine::Tensor device_input(input, number % 3 == 0), device_output(output, number % 3 == 1);
    args.input = &device_input.view();
    args.output = &device_output.view();
    args.mask = call.mask.get();
    call.run(output, device_output, expected, [&] { return distile_pool(machine.context.get(), &args); });
}

template<typename Machine>
void test_global_pooling(const Machine &machine, distile_dtype dtype, int number, std::mt19937 &random) {
    if (left_out(number)) {
        return;
    }
    const int32_t shapes[][3] = {{1, 1, 1}, {2, 7, 9}, {3, 7, 70}, {5, 1, 300}, {1, 64, 65}};
    const int32_t all_channels[] = {1, 3, 31, 32, 33, 64, 136};
    const int32_t *const shape = shapes[number % std::size(shapes)];
    const int32_t batch = shape[0], height = shape[1], width = shape[2];
    const int32_t channels = all_channels[number / 2 % std::size(all_channels)];
    const char *name = mask_names[number % std::size(mask_names)];
    const bool all = number % 4 == 3;
    distile_global_pool_args args{};
    args.pooling = number % 2 == 0 ? DISTILE_MAX_POOLING : DISTILE_AVERAGE_POOLING;
    CAPTURE(dtype, number, batch, height, width, channels, args.pooling, name, all);
    const std::vector<uint8_t> active = make_mask(all ? "full" : name, batch, height, width, random);
    TestTensor input(batch, height, width, channels, layer_layout(number), Flush::Back, dtype);
    TestTensor output(batch, 1, 1, channels, layer_layout(number / 2), Flush::Back, dtype);
    draw_pixels(input, active, number % 3 == 0 ? 50 : 0, random);
    const ReferenceOutput expected = plain_global_pool(input.view(), active, args.pooling);
    const LayerCall<Machine> call(machine, active, batch, height, width);
    typename Machine::Tensor device_input(input, number % 3 == 0), device_output(output, number % 3 == 1);
    args.input = &device_input.view();
    args.output = &device_output.view();
    args.mask = all ? nullptr : call.mask.get();
    call.run(output, device_output, expected, [&] { return distile_global_pool(machine.context.get(), &args); });
}

template<typename Machine>
void test_combination(const Machine &machine, distile_dtype dtype, int number, std::mt19937 &random) {
    if (left_out(number)) {
        return;
    }
    const int32_t shapes[][3] = {{1, 1, 1}, {2, 7, 9}, {3, 7, 70}, {2, 1, 300}};
    const int32_t all_channels[] = {1, 3, 8, 17, 64, 72, 200};
    const int32_t *const shape = shapes[number % std::size(shapes)];
    const int32_t batch = shape[0], height = shape[1], width = shape[2];
    const int32_t channels = all_channels[number / 2 % std::size(all_channels)];
    const char *name = mask_names[number % std::size(mask_names)];
    distile_combine_args args{};
    args.combination = static_cast<distile_combination>(number % 3);
    args.activation = static_cast<distile_activation>(number % DISTILE_NUM_ACTIVATIONS);
    args.inactive = number / 3 % 2 == 0 ? DISTILE_KEEP : DISTILE_ZERO;
    const bool copies = args.combination == DISTILE_COPY, spread = number / 4 % 2 == 0;
    args.other_activation = static_cast<distile_activation>(copies ? 0 : number / 3 % DISTILE_NUM_ACTIVATIONS);
    // Into a tensor of its own, or in the place of an operand.
    const int place = number / 5 % (copies || spread ? 2 : 3);
    CAPTURE(dtype, number, batch, height, width, channels, args.combination, args.activation, args.other_activation,
            name, spread, place);
    const std::vector<uint8_t> active = make_mask(name, batch, height, width, random);
    const std::vector<uint8_t> all(spread ? batch : active.size(), 1);
    TestTensor input(batch, height, width, channels, layer_layout(number), Flush::Back, dtype);
    TestTensor other(batch, spread ? 1 : height, spread ? 1 : width, channels, layer_layout(number / 2), Flush::Back,
                     dtype);
    TestTensor own(batch, height, width, channels, layer_layout(number / 3), Flush::Back, dtype);
    draw_pixels(input, active, 0, random);
    draw_pixels(other, spread ? all : active, 0.5f, random);
    ReferenceOutput expected = plain_combine(input.view(), copies ? nullptr : &other.view(), active, args);
    // Errors of the activation of a factor are relative to the factor.
    expected.largest = std::max(expected.largest, 1.0);
    const LayerCall<Machine> call(machine, active, batch, height, width);
    typename Machine::Tensor device_input(input, number % 3 == 0), device_other(other, number % 3 == 1),
        device_own(own, number % 3 == 2);
    args.input = &device_input.view();
    args.other = copies ? nullptr : &device_other.view();
    TestTensor &output = place == 0 ? own : place == 1 ? input : other;
    typename Machine::Tensor &device_output = place == 0 ? device_own : place == 1 ? device_input : device_other;
    args.output = &device_output.view();
    args.mask = call.mask.get();
    call.run(output, device_output, expected, [&] { return distile_combine(machine.context.get(), &args); });
}

template<typename Machine>
void test_group_norm(const Machine &machine, distile_dtype dtype, int number, std::mt19937 &random) {
    if (left_out(number)) {
        return;
    }
    const int32_t shapes[][3] = {{1, 1, 1}, {2, 7, 9}, {3, 7, 70}, {5, 1, 300}};
    // Channels and groups.
    const int32_t splits[][2] = {{1, 1}, {6, 3}, {8, 2}, {17, 17}, {32, 32}, {64, 32}, {72, 6}, {200, 1}};
    const int32_t *const shape = shapes[number % std::size(shapes)];
    const int32_t batch = shape[0], height = shape[1], width = shape[2];
    const auto &[channels, groups] = splits[number / 2 % std::size(splits)];
    const char *name = mask_names[number % std::size(mask_names)];
    // The statistics of the active pixels, of all pixels as given ones, or the first image's for all.
    const int source = number / 3 % 3;
    const bool in_place = number % 5 == 0;
    distile_group_norm_args args{};
    args.groups = groups;
    args.epsilon = number % 2 == 0 ? 1e-3f : 0.25f;
    args.activation = static_cast<distile_activation>(number % DISTILE_NUM_ACTIVATIONS);
    args.inactive = number / 3 % 2 == 0 ? DISTILE_KEEP : DISTILE_ZERO;
    CAPTURE(dtype, number, batch, height, width, channels, groups, name, source, in_place, args.activation);
    const std::vector<uint8_t> active = make_mask(name, batch, height, width, random);
    const std::vector<uint8_t> all(active.size(), 1), &read = source == 0 ? active : all;
    TestTensor input(batch, height, width, channels, layer_layout(number), Flush::Back, dtype);
    TestTensor own(batch, height, width, channels, layer_layout(number / 2), Flush::Back, dtype);
    draw_pixels(input, read, number % 3 == 0 ? 3 : 0, random);
    const std::vector<float> gamma = draw(Values::Floats, number % 4 == 0 ? 0 : channels, random);
    const std::vector<float> beta = draw(Values::Floats, number % 4 == 1 ? 0 : channels, random);
    PlainStatistics statistics(input.view(), read, groups);
    const LayerCall<Machine> call(machine, active, batch, height, width);
    typename Machine::Tensor device_input(input, number % 3 == 0), device_own(own, number % 3 == 1);
    using Floats = typename Machine::template Array<float>;
    const Floats device_gamma(gamma.empty() ? std::vector<float>(1) : gamma);
    const Floats device_beta(beta.empty() ? std::vector<float>(1) : beta);
    Floats mean(std::vector<float>(statistics.mean.size())), variance(std::vector<float>(statistics.mean.size()));
    distile_group_statistics_args find{};
    find.input = &device_input.view();
    find.mask = source == 0 ? call.mask.get() : nullptr;
    find.groups = groups;
    find.mean = mean.data();
    find.variance = variance.data();
    machine.check(distile_group_statistics(machine.context.get(), &find));
    const std::vector<float> found = machine.read(mean), found_variance = machine.read(variance);
    for (size_t i = 0; i < found.size(); i++) {
        CAPTURE(i, found[i], statistics.mean[i], found_variance[i], statistics.variance[i]);
        CHECK(std::abs(found[i] - statistics.mean[i]) <= 1e-6 * (1 + std::abs(statistics.mean[i])));
        CHECK(std::abs(found_variance[i] - statistics.variance[i]) <= 1e-5 * (1 + statistics.variance[i]));
    }
    args.mean = source == 0 ? nullptr : mean.data();
    args.variance = source == 0 ? nullptr : variance.data();
    args.shared_statistics = source == 2 ? 1 : 0;
    for (size_t i = 0; i < statistics.mean.size() && source == 2; i++) {
        statistics.mean[i] = statistics.mean[i % groups];
        statistics.variance[i] = statistics.variance[i % groups];
    }
    args.gamma = gamma.empty() ? nullptr : device_gamma.data();
    args.beta = beta.empty() ? nullptr : device_beta.data();
    ReferenceOutput expected = plain_group_norm(input.view(), active, statistics, gamma, beta, args);
    // Errors of the mean are relative to the values, and grow as much as deviations do.
    expected.largest = std::max(expected.largest, 4 / std::sqrt(double{args.epsilon}));
    TestTensor &output = in_place ? input : own;
    typename Machine::Tensor &device_output = in_place ? device_input : device_own;
    args.input = &device_input.view();
    args.output = &device_output.view();
    args.mask = call.mask.get();
    call.run(output, device_output, expected, [&] { return distile_group_norm(machine.context.get(), &args); });
}

/** Whole numbers, so that a score is exactly at the threshold or not. */
template<typename Machine>
void test_scores(const Machine &machine, distile_dtype dtype, int number, std::mt19937 &random) {
    if (left_out(number)) {
        return;
    }
    const int32_t shapes[][3] = {{1, 1, 1}, {2, 7, 9}, {3, 7, 70}, {1, 5, 64}, {2, 1, 300}};
    const int32_t all_channels[] = {1, 3, 8, 9, 64, 72, 200, 1048, 1601};
    const int32_t *const shape = shapes[number % std::size(shapes)];
    const int32_t batch = shape[0], height = shape[1], width = shape[2];
    const int32_t channels = all_channels[number / 2 % std::size(all_channels)];
    CAPTURE(dtype, number, batch, height, width, channels);
    TestTensor tensor(batch, height, width, channels, layer_layout(number), Flush::Back, dtype);
    tensor.draw(Values::Integers, random);
    if (number % 7 == 0) {
        tensor.set(0, 0, 0, 0, std::numeric_limits<float>::quiet_NaN());
    }
    const std::vector<float> weights = draw(Values::Integers, number % 3 == 0 ? 0 : channels, random);
    const float bias = draw(Values::Integers, random), threshold = draw(Values::Integers, random);
    const typename Machine::Tensor device_tensor(tensor, number % 2 == 0);
    const typename Machine::template Array<float> device_weights(weights.empty() ? std::vector<float>(1) : weights);
    const Mask mask = machine.make_mask();
    // Its bytes too, with gaps.
    const int64_t row = width + number % 3, image = row * height + number % 2;
    std::vector<uint32_t> due(static_cast<size_t>(batch * image + 3) / 4, 0x07070707);
    typename Machine::template Array<uint32_t> mirror(due);
    machine.check(distile_mask_mirror(mask.get(), reinterpret_cast<uint8_t *>(mirror.data()), image, row));
    machine.check(distile_mask_set_scores(mask.get(), &device_tensor.view(),
                                          weights.empty() ? nullptr : device_weights.data(), bias, threshold));
    const uint32_t *words = nullptr;
    int32_t words_per_row = 0;
    machine.check(distile_mask_bits(mask.get(), &words, &words_per_row));
    const std::vector<uint32_t> bits = machine.read_words(words, size_t{1} * batch * height * words_per_row);
    int64_t active = 0, set = 0;
    machine.check(distile_mask_active_pixels(mask.get(), &active));
    for_each_pixel(tensor.view(), [&](size_t, int32_t n, int32_t y, int32_t x) {
        double score = bias;
        for (int32_t c = 0; c < channels; c++) {
            score += tensor.get(n, y, x, c) * (weights.empty() ? 1 : weights[c]);
        }
        const uint32_t word = bits[(size_t{1} * n * height + y) * words_per_row + x / 32];
        CAPTURE(n, y, x, score, threshold);
        REQUIRE((word >> (x % 32) & 1) == (score > threshold ? 1u : 0u));
        set += score > threshold ? 1 : 0;
        reinterpret_cast<uint8_t *>(due.data())[n * image + y * row + x] = score > threshold ? 1 : 0;
    });
    CHECK(active == set);
    CHECK(machine.read_words(mirror.data(), due.size()) == due);
}

/** Concatenation by channels: copies into slices of a wider tensor leave its other channels. */
template<typename Machine> void test_concatenation(const Machine &machine, std::mt19937 &random) {
    constexpr int32_t batch = 2, height = 5, width = 9, parts = 3;
    const int32_t channels[parts] = {8, 3, 16};
    for (distile_dtype dtype : float_types) {
        const std::vector<uint8_t> active = make_mask("random", batch, height, width, random);
        const LayerCall<Machine> call(machine, active, batch, height, width);
        TestTensor wide(batch, height, width, 27, {}, Flush::Back, dtype);
        std::vector<std::vector<double>> pixels(active.size());
        typename Machine::Tensor device_wide(wide, false);
        const std::vector<uint32_t> before = wide.snapshot();
        distile_tensor slice = device_wide.view();
        for (int32_t size : channels) {
            TestTensor part(batch, height, width, size, {}, Flush::Back, dtype);
            draw_pixels(part, active, 0, random);
            for_each_pixel(part.view(), [&](size_t pixel, int32_t n, int32_t y, int32_t x) {
                const std::vector<float> values = channels_at(part.view(), n, y, x);
                pixels[pixel].insert(pixels[pixel].end(), values.begin(), values.end());
            });
            typename Machine::Tensor device_part(part, false);
            slice.channels = size;
            distile_combine_args args{};
            args.input = &device_part.view();
            args.output = &slice;
            args.mask = call.mask.get();
            machine.check(distile_combine(machine.context.get(), &args));
            slice.data = static_cast<char *>(slice.data) + size * distile_dtype_size(dtype);
            // The copy must have been made before the part goes.
            REQUIRE(device_part.download());
        }
        ReferenceOutput expected;
        for (size_t i = 0; i < active.size(); i++) {
            append(expected, active[i] != 0 ? PixelState::Computed : PixelState::Kept, pixels[i], dtype);
        }
        REQUIRE(device_wide.download());
        REQUIRE(wide.difference(before, expected, 0) == "");
    }
}

/** NaN and infinity reach the results that PyTorch's do. */
template<typename Machine> void test_special_layers(const Machine &machine) {
    constexpr float no_number = std::numeric_limits<float>::quiet_NaN();
    constexpr float infinity = std::numeric_limits<float>::infinity();
    const std::vector<float> values = {no_number, infinity, -infinity, 3e38f, -3e38f, 0, -100, 100};
    const auto count = static_cast<int32_t>(values.size());
    const std::vector<uint8_t> active(1, 1);
    const LayerCall<Machine> call(machine, active, 1, 1, 1);
    check_activations([&](const Activation &activation, const std::vector<float> &inputs) {
        const auto channels = static_cast<int32_t>(inputs.size());
        TestTensor input(1, 1, 1, channels), output(1, 1, 1, channels);
        for (int32_t c = 0; c < channels; c++) {
            input.set(0, 0, 0, c, inputs[c]);
        }
        typename Machine::Tensor device_input(input, false), device_output(output, false);
        distile_combine_args args{};
        args.input = &device_input.view();
        args.output = &device_output.view();
        args.mask = call.mask.get();
        args.activation = activation.function;
        args.slope = &activation.slope;
        machine.check(distile_combine(machine.context.get(), &args));
        REQUIRE(device_output.download());
        std::vector<float> results;
        for (int32_t c = 0; c < channels; c++) {
            results.push_back(output.get(0, 0, 0, c));
        }
        return results;
    });
    // Pooling of two pixels, in either order.
    for (bool swapped : {false, true}) {
        TestTensor pixels(1, 1, 2, count), pooled(1, 1, 1, count);
        for (int32_t c = 0; c < count; c++) {
            pixels.set(0, 0, swapped ? 1 : 0, c, values[c]);
            pixels.set(0, 0, swapped ? 0 : 1, c, 2);
        }
        typename Machine::Tensor device_pixels(pixels, false), device_pooled(pooled, false);
        for (distile_pooling pooling : {DISTILE_MAX_POOLING, DISTILE_AVERAGE_POOLING}) {
            const ReferenceOutput expected = plain_global_pool(pixels.view(), {1, 1}, pooling);
            distile_global_pool_args global{};
            global.input = &device_pixels.view();
            global.output = &device_pooled.view();
            global.pooling = pooling;
            distile_pool_args pool{};
            pool.input = global.input;
            pool.output = global.output;
            pool.mask = call.mask.get();
            pool.pooling = pooling;
            pool.window = {1, 2, 1, 1, 1, 1, 0, 0, DISTILE_WINDOW_CONV};
            for (bool is_global : {false, true}) {
                const std::vector<uint32_t> before = pooled.snapshot();
                machine.check(is_global ? distile_global_pool(machine.context.get(), &global)
                                        : distile_pool(machine.context.get(), &pool));
                REQUIRE(device_pooled.download());
                CAPTURE(pooling, swapped, is_global);
                CHECK(pooled.difference(before, expected) == "");
            }
        }
    }
}

}  // namespace distile

#endif
