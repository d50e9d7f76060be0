/** \file
 * Stages on a device, against plain loops step by step.
 *
 * A device is a `Machine` with a context, make_mask(), check(status), Array<T>, an array in the device's memory with
 * data(), get() and set(), and multiplies_tf32, whether it rounds factors of float32.
 */
#ifndef DISTILE_TESTS_STAGE_TESTS_H
#define DISTILE_TESTS_STAGE_TESTS_H

#include "reference/activation_reference.h"
#include "tests/support/catch.h"
#include "tests/support/reference.h"
#include "tests/support/stage_mask.h"
#include <algorithm>
#include <cmath>
#include <distile/distile.hpp>
#include <distile/stage.h>
#include <memory>
#include <numeric>
#include <random>
#include <string>

namespace distile {

inline constexpr distile_window stage_point{1, 1, 1, 1, 1, 1, 0, 0, DISTILE_WINDOW_CONV};

/** An image tensor on the host, with a border of zeros or another number, and in a device's memory. */
template<class Machine> struct StageImage {
    StageImage(distile_dtype type, int32_t images, int32_t rows, int32_t columns, int32_t num_channels,
               int32_t border_width)
        : dtype(type), batch(images), height(rows), width(columns), channels(num_channels), border(border_width),
          values(static_cast<size_t>(batch) * whole_height() * whole_width() * channels),
          device(values.size() * distile_dtype_size(dtype)) {
    }

    int32_t whole_height() const {
        return height + 2 * border;
    }
    int32_t whole_width() const {
        return width + 2 * border;
    }
    float &at(int32_t n, int32_t y, int32_t x, int32_t c) {
        return values[((static_cast<size_t>(n) * whole_height() + y + border) * whole_width() + x + border) * channels +
                      c];
    }
    /** Fills the border. What is inside must be drawn again. */
    void set_outside(float value) {
        std::fill(values.begin(), values.end(), value);
    }
    void set_free(int32_t n, int32_t y, int32_t x, bool free) {
        is_free.resize(values.size());
        const auto first = is_free.begin() + (&at(n, y, x, 0) - values.data());
        std::fill(first, first + channels, free);
    }
    template<typename Draw> void fill(const Draw &draw) {
        for (int32_t n = 0; n < batch; n++) {
            for (int32_t y = 0; y < height; y++) {
                for (int32_t x = 0; x < width; x++) {
                    for (int32_t c = 0; c < channels; c++) {
                        at(n, y, x, c) = round_to(dtype, draw());
                    }
                }
            }
        }
        upload();
    }
    void upload() {
        const size_t bytes = distile_dtype_size(dtype);
        std::vector<unsigned char> stored(values.size() * bytes);
        for (size_t i = 0; i < values.size(); i++) {
            store_as(dtype, values[i], &stored[i * bytes]);
        }
        device.set(stored);
    }
    std::vector<float> download() const {
        const size_t bytes = distile_dtype_size(dtype);
        const std::vector<unsigned char> stored = device.get();
        std::vector<float> found(values.size());
        for (size_t i = 0; i < found.size(); i++) {
            found[i] = load_as(dtype, &stored[i * bytes]);
        }
        return found;
    }
    distile_tensor view() const {
        distile_tensor tensor =
            distile_tensor_make(device.data() + (static_cast<size_t>(border) * whole_width() + border) * channels *
                                                    distile_dtype_size(dtype),
                                batch, height, width, channels);
        tensor.dtype = dtype;
        tensor.stride_h = int64_t{whole_width()} * channels;
        tensor.stride_n = whole_height() * tensor.stride_h;
        tensor.border_top = tensor.border_bottom = tensor.border_left = tensor.border_right = border;
        return tensor;
    }

    distile_dtype dtype;
    int32_t batch, height, width, channels, border;
    std::vector<float> values;
    std::vector<bool> is_free;  ///< Values that may be anything: a step may have written them, too.
    typename Machine::template Array<unsigned char> device;
};

using StageBits = std::vector<uint8_t>;

/** A number for each pixel, on the host and in a device's memory. */
template<class Machine> struct StageNumbers {
    explicit StageNumbers(size_t count) : values(count), device(values) {
    }
    std::vector<float> values;
    typename Machine::template Array<float> device;
};

/** A step as plain loops compute it, and as the library takes it. */
template<class Machine> struct StageTestStep {
    using Image = StageImage<Machine>;

    distile_stage_step given{};
    Image *input = nullptr, *output = nullptr, *residual = nullptr;
    std::vector<float> weights, bias;  ///< [output][input of its group][row][column]
    StageBits *mask = nullptr, *later = nullptr;
    // Attention takes these channels of the input's pixels as query, and as many behind them as key and as value.
    int32_t channels = 0;
    // A halt has these.
    StageBits *from = nullptr;
    StageNumbers<Machine> *totals = nullptr;
    std::vector<float> limits;
    std::unique_ptr<typename Machine::template Array<float>> device_limits;
    std::unique_ptr<distile_window> reader;
    std::unique_ptr<distile_tensor> input_view, output_view, residual_view, key_view, value_view;
    std::unique_ptr<typename Machine::template Array<unsigned char>> device_weights;
    std::unique_ptr<typename Machine::template Array<float>> device_bias, device_factors;
};

/** Steps, their tensors and their masks. */
template<class Machine> class TestedStage {
public:
    using Image = StageImage<Machine>;
    using Step = StageTestStep<Machine>;
    using Bits = StageBits;
    template<typename T> using Array = typename Machine::template Array<T>;

    /** With `exact`, all sums are of small integers. Weights are stored as `weights`, by default as tensors are. */
    TestedStage(const Machine &machine, distile_dtype dtype, unsigned seed, bool exact,
                distile_dtype weights = distile_dtype{})
        : random(seed), machine_(machine), dtype_(dtype), exact_(exact), weights_dtype_(weights) {
    }

    Image &image(int32_t batch, int32_t height, int32_t width, int32_t channels, int32_t border = 0) {
        images_.push_back(std::make_unique<Image>(dtype_, batch, height, width, channels, border));
        images_.back()->fill([this] { return draw(); });
        return *images_.back();
    }
    /** An image of small integers below 0, with minus infinity in its border. */
    Image &negative_image(int32_t batch, int32_t height, int32_t width, int32_t channels, int32_t border) {
        Image &made = image(batch, height, width, channels, border);
        made.set_outside(-INFINITY);
        made.fill([this] { return -1 - static_cast<float>(random() % 4); });
        return made;
    }

    using TestMask = StageMask<Machine>;
    TestMask &mask(int32_t batch, int32_t height, int32_t width, double density) {
        masks_.push_back(std::make_unique<TestMask>(machine_, batch, height, width));
        if (density >= 0) {
            masks_.back()->draw(machine_, density, random);
        }
        return *masks_.back();
    }

    /** A mask of what has a score above 0. */
    Step &scores(Image &input, TestMask &made, int32_t stride) {
        Step &step = add(input);
        step.given.kind = DISTILE_STEP_SCORES;
        step.given.window = {1, 1, stride, stride, 1, 1, 0, 0, DISTILE_WINDOW_CONV};
        step.mask = &made.bits;
        step.given.mask = made.mask.get();
        step.weights.resize(static_cast<size_t>(input.channels));
        for (float &weight : step.weights) {
            weight = exact_ ? static_cast<float>(static_cast<int>(random() % 3) - 1)
                            : std::normal_distribution<float>()(random);
        }
        step.device_bias = std::make_unique<Array<float>>(step.weights);
        step.given.weights = step.device_bias->data();
        step.given.score_bias = .5f;
        return step;
    }

    Step &conv(Image &input, Image &output, int32_t kernel, int32_t stride, int32_t dilation, TestMask *mask,
               const distile_window *reader = nullptr, Image *residual = nullptr, TestMask *later = nullptr,
               int32_t groups = 1) {
        Step &step = add(input);
        set_output(step, output, residual);
        const int32_t pad = dilation * (kernel - 1) / 2;
        step.given.window = {kernel, kernel, stride, stride, dilation, dilation, pad, pad, DISTILE_WINDOW_CONV};
        if (mask) {
            step.mask = &mask->bits;
            step.given.mask = mask->mask.get();
        }
        if (reader) {
            step.reader = std::make_unique<distile_window>(*reader);
            step.given.reader = step.reader.get();
        }
        if (later) {
            step.later = &later->bits;
            step.given.later = later->mask.get();
        }
        step.given.activation = exact_ ? DISTILE_ACTIVATION_RELU6 : DISTILE_ACTIVATION_RELU;
        step.given.groups = groups;
        draw_weights(step, kernel);
        return step;
    }

    /** A norm of each pixel's channels, with factors and summands unless it is plain. */
    Step &norm(Image &input, Image &output, TestMask *mask, distile_norm kind = DISTILE_LAYER_NORM,
               bool is_plain = false) {
        Step &step = layer(DISTILE_STEP_NORMALIZE, input, output, stage_point, mask);
        step.given.norm = kind;
        step.given.epsilon = 1e-3f;
        step.weights.assign(static_cast<size_t>(input.channels), 1);
        step.bias.assign(static_cast<size_t>(input.channels), 0);
        if (!is_plain) {
            for (size_t c = 0; c < step.weights.size(); c++) {
                step.weights[c] = std::normal_distribution<float>(1, .2f)(random);
                step.bias[c] = std::normal_distribution<float>()(random);
            }
            step.device_factors = std::make_unique<Array<float>>(step.weights);
            step.device_bias = std::make_unique<Array<float>>(step.bias);
            step.given.weights = step.device_factors->data();
            step.given.bias = step.device_bias->data();
        }
        return step;
    }

    /** Attention of heads of the output's channels; a pixel of the input has those of its query, its key and its value.
     */
    Step &attention(Image &input, Image &output, int32_t heads, TestMask *mask, bool all_keys = false) {
        Step &step = layer(DISTILE_STEP_ATTENTION, input, output, stage_point, mask);
        step.channels = output.channels;
        step.given.heads = heads;
        const int32_t of_head = output.channels / heads;
        step.given.scale = 1 / std::sqrt(static_cast<float>(of_head));
        step.given.all_keys = all_keys ? 1 : 0;
        step.input_view->channels = output.channels;
        step.key_view = std::make_unique<distile_tensor>(*step.input_view);
        step.value_view = std::make_unique<distile_tensor>(*step.input_view);
        const size_t bytes = static_cast<size_t>(output.channels) * distile_dtype_size(dtype_);
        step.key_view->data = static_cast<char *>(step.key_view->data) + bytes;
        step.value_view->data = static_cast<char *>(step.value_view->data) + 2 * bytes;
        step.given.key = step.key_view.get();
        step.given.value = step.value_view.get();
        return step;
    }

    /** A mask of those that go on, of another mask or of all, with the totals of an earlier halt or from 0 on. */
    Step &halt(Image &input, TestMask &made, TestMask *from, Image *output, Step *before, float score_bias,
               bool is_limited) {
        Step &step = add(input);
        step.given.kind = DISTILE_STEP_HALT;
        step.given.window = stage_point;
        step.mask = &made.bits;
        step.given.mask = made.mask.get();
        if (from) {
            step.from = &from->bits;
            step.given.from = from->mask.get();
        }
        step.weights.resize(static_cast<size_t>(input.channels));
        for (float &weight : step.weights) {
            weight = std::normal_distribution<float>(0, .3f)(random);
        }
        step.device_factors = std::make_unique<Array<float>>(step.weights);
        step.given.weights = step.device_factors->data();
        step.given.score_bias = score_bias;
        step.given.threshold = .99f;
        if (before) {
            step.totals = before->totals;
        } else {
            numbers_.push_back(std::make_unique<StageNumbers<Machine>>(made.bits.size()));
            step.totals = numbers_.back().get();
        }
        step.given.totals = step.totals->device.data();
        if (is_limited) {
            step.limits.assign(static_cast<size_t>(input.height) * input.width, 1);
            step.limits.front() = .1f;
            step.device_limits = std::make_unique<Array<float>>(step.limits);
            step.given.limits = step.device_limits->data();
        }
        if (output) {
            set_output(step, *output, nullptr);
        }
        return step;
    }

    /** A step that takes each channel by itself. */
    Step &layer(distile_step_kind kind, Image &input, Image &output, const distile_window &window,
                TestMask *mask = nullptr, Image *residual = nullptr) {
        Step &step = add(input);
        step.given.kind = kind;
        step.given.window = window;
        set_output(step, output, residual);
        if (mask) {
            step.mask = &mask->bits;
            step.given.mask = mask->mask.get();
        }
        return step;
    }

    void check(uint32_t tiles) {
        for (const auto &image : images_) {
            image->upload();
        }
        const std::vector<std::vector<float>> before = host_values();
        launch(tiles);
        const std::vector<std::vector<unsigned char>> first = stored();
        for (const auto &step : steps_) {
            compute_step(*step);
        }
        compare();
        // A second run must give the bits of the first.
        restore(before);
        launch(tiles);
        CHECK(stored() == first);
        restore(before);
    }

    /** Runs the steps. */
    void launch(uint32_t tiles) {
        const std::vector<distile_stage_step> steps = given();
        const distile_stage_args args = arguments(steps, tiles);
        machine_.check(distile_run_stage(machine_.context.get(), &args));
    }

    /** Runs the steps, and returns all tensors. */
    std::vector<float> run() {
        launch(0);
        std::vector<float> all;
        for (const auto &image : images_) {
            const std::vector<float> values = image->download();
            all.insert(all.end(), values.begin(), values.end());
        }
        return all;
    }

    /** Runs the steps, and returns their items: each step has one. */
    std::vector<distile_stage_item> trace() {
        const std::vector<distile_stage_step> steps = given();
        const distile_stage_args args = arguments(steps, 0);
        int64_t count = 0;
        machine_.check(distile_trace_stage(machine_.context.get(), &args, nullptr, 0, &count));
        std::vector<distile_stage_item> items(static_cast<size_t>(count) + 1000);
        machine_.check(distile_trace_stage(machine_.context.get(), &args, items.data(),
                                           static_cast<int64_t>(items.size()), &count));
        REQUIRE((count > 0 && count <= static_cast<int64_t>(items.size())));
        items.resize(static_cast<size_t>(count));
        for (int32_t step = 0; step < args.num_steps; step++) {
            CHECK(std::any_of(items.begin(), items.end(),
                              [&](const distile_stage_item &item) { return item.step == step; }));
        }
        return items;
    }

    std::mt19937 random;
    int32_t teams = 0;  ///< As in distile_stage_args.

private:
    std::vector<distile_stage_step> given() const {
        std::vector<distile_stage_step> steps;
        for (const auto &step : steps_) {
            steps.push_back(step->given);
        }
        return steps;
    }
    distile_stage_args arguments(const std::vector<distile_stage_step> &steps, uint32_t tiles) const {
        distile_stage_args args{};
        args.teams = teams;
        args.steps = steps.data();
        args.num_steps = static_cast<int32_t>(steps.size());
        args.tiles = tiles;
        return args;
    }
    float draw() {
        return exact_ ? static_cast<float>(random() % 4) : std::normal_distribution<float>()(random);
    }

    Step &add(Image &input) {
        steps_.push_back(std::make_unique<Step>());
        Step &step = *steps_.back();
        step.input = &input;
        step.input_view = std::make_unique<distile_tensor>(input.view());
        step.given.input = step.input_view.get();
        return step;
    }

    static void set_output(Step &step, Image &output, Image *residual) {
        step.output = &output;
        step.residual = residual;
        step.output_view = std::make_unique<distile_tensor>(output.view());
        step.given.output = step.output_view.get();
        if (residual) {
            step.residual_view = std::make_unique<distile_tensor>(residual->view());
            step.given.residual = step.residual_view.get();
        }
    }

    void draw_weights(Step &step, int32_t kernel) {
        const int32_t groups = step.given.groups;
        const size_t of_output = static_cast<size_t>(step.input->channels / groups) * kernel * kernel;
        step.weights.assign(of_output * step.output->channels, 0);
        step.bias.resize(static_cast<size_t>(step.output->channels));
        for (int32_t out = 0; out < step.output->channels; out++) {
            float *const own = step.weights.data() + out * of_output;
            if (exact_) {
                for (int i = 0; i < 6; i++) {
                    // In int8, 127 makes a factor of 1.
                    const int unit = weights_dtype_ == DISTILE_INT8 ? 127 : 1;
                    own[random() % of_output] = static_cast<float>(unit * (static_cast<int>(random() % 3) - 1));
                }
            } else {
                std::generate_n(own, of_output, [&] {
                    return std::normal_distribution<float>()(random) / std::sqrt(static_cast<float>(of_output));
                });
            }
            round_weights(own, of_output);
            step.bias[static_cast<size_t>(out)] = exact_ ? static_cast<float>(random() % 2) : draw();
        }
        distile_context *const context = machine_.context.get();
        const int32_t outputs = step.output->channels, inputs = step.input->channels;
        std::vector<unsigned char> packed(static_cast<size_t>(
            distile_stage_weights_bytes(context, stored_weights(), outputs, inputs, kernel, kernel, groups)));
        machine_.check(distile_pack_stage_weights(context, stored_weights(), outputs, inputs, kernel, kernel, groups,
                                                  step.weights.data(), packed.data()));
        step.given.weights_dtype = weights_dtype_;
        step.device_weights = std::make_unique<Array<unsigned char>>(packed);
        step.device_bias = std::make_unique<Array<float>>(step.bias);
        step.given.weights = step.device_weights->data();
        step.given.bias = step.device_bias->data();
    }

    distile_dtype stored_weights() const {
        return weights_dtype_ == distile_dtype{} ? dtype_ : weights_dtype_;
    }

    /** Makes of an output channel's weights what their type keeps of them. */
    void round_weights(float *weights, size_t count) const {
        float factor = 1;
        if (stored_weights() == DISTILE_INT8) {
            float largest = 0;
            for (size_t i = 0; i < count; i++) {
                largest = std::max(largest, std::abs(weights[i]));
            }
            factor = largest > 0 ? largest / 127 : 1;
        }
        for (size_t i = 0; i < count; i++) {
            weights[i] = stored_weights() == DISTILE_INT8 ? std::round(weights[i] / factor) * factor
                                                          : round_to(stored_weights(), weights[i]);
        }
    }

    void compute_step(const Step &step) const {
        switch (step.given.kind) {
        case DISTILE_STEP_SCORES:
            return compute_scores(step);
        case DISTILE_STEP_HALT:
            return compute_halt(step);
        default:
            return compute(step);
        }
    }

    void compute_halt(const Step &step) const {
        const Image &input = *step.input;
        size_t at = 0;
        for (int32_t n = 0; n < input.batch; n++) {
            for (int32_t y = 0; y < input.height; y++) {
                for (int32_t x = 0; x < input.width; x++, at++) {
                    (*step.mask)[at] = 0;
                    if (step.from && (*step.from)[at] == 0) {
                        continue;
                    }
                    double sum = step.given.score_bias;
                    for (int32_t c = 0; c < input.channels; c++) {
                        sum += double{step.input->at(n, y, x, c)} * step.weights[static_cast<size_t>(c)];
                    }
                    double score = 1 / (1 + std::exp(-sum));
                    if (!step.limits.empty()) {
                        score = std::min(score, double{step.limits[static_cast<size_t>(y) * input.width + x]});
                    }
                    float &total = step.totals->values[at];
                    const double before = total, part = before + score < step.given.threshold ? score : 1 - before;
                    (*step.mask)[at] = before + score < step.given.threshold ? 1 : 0;
                    total = static_cast<float>(before + score);
                    for (int32_t c = 0; step.output && x < step.output->width && c < input.channels; c++) {
                        float &to = step.output->at(n, y, x, c);
                        to = round_to(dtype_, static_cast<float>(to + part * step.input->at(n, y, x, c)));
                    }
                }
            }
        }
    }

    /** What a norm makes of a pixel. */
    static std::vector<double> normalized(const Step &step, int32_t n, int32_t y, int32_t x) {
        const int32_t channels = step.input->channels;
        double mean = 0, squares = 0;
        for (int32_t c = 0; c < channels && step.given.norm == DISTILE_LAYER_NORM; c++) {
            mean += double{step.input->at(n, y, x, c)} / channels;
        }
        for (int32_t c = 0; c < channels; c++) {
            squares += (step.input->at(n, y, x, c) - mean) * (step.input->at(n, y, x, c) - mean) / channels;
        }
        std::vector<double> results(static_cast<size_t>(channels));
        for (int32_t c = 0; c < channels; c++) {
            const auto at = static_cast<size_t>(c);
            results[at] = (step.input->at(n, y, x, c) - mean) / std::sqrt(squares + double{step.given.epsilon}) *
                              step.weights[at] +
                          step.bias[at];
        }
        return results;
    }

    /** What attention makes of a pixel. */
    std::vector<double> attended(const Step &step, int32_t n, int32_t y, int32_t x) const {
        Image &input = *step.input;
        const int32_t channels = step.channels, of_head = channels / step.given.heads;
        std::vector<double> results(static_cast<size_t>(channels));
        for (int32_t first = 0; first < channels; first += of_head) {
            std::vector<double> scores;
            std::vector<const float *> values;
            for (int32_t key_y = 0; key_y < input.height; key_y++) {
                for (int32_t key_x = 0; key_x < input.width; key_x++) {
                    if (step.given.all_keys == 0 && !computes(step, n, key_y, key_x)) {
                        continue;
                    }
                    const float *const query = &input.at(n, y, x, first), *const key = &input.at(n, key_y, key_x,
                                                                                                 channels + first);
                    scores.push_back(std::inner_product(query, query + of_head, key, 0.) * step.given.scale);
                    values.push_back(&input.at(n, key_y, key_x, 2 * channels + first));
                }
            }
            const double most = *std::max_element(scores.begin(), scores.end());
            double sum = 0;
            for (double &score : scores) {
                score = std::exp(score - most);
                sum += score;
            }
            auto *const own = results.data() + first;
            for (int32_t c = 0; c < of_head; c++) {
                for (size_t key = 0; key < scores.size(); key++) {
                    own[c] += scores[key] / sum * values[key][c];
                }
            }
        }
        return results;
    }

    static void compute_scores(const Step &step) {
        const distile_window &window = step.given.window;
        size_t at = 0;
        for (int32_t n = 0; n < step.input->batch; n++) {
            for (int32_t y = 0; y < step.input->height; y += window.stride_h) {
                for (int32_t x = 0; x < step.input->width; x += window.stride_w) {
                    double sum = step.given.score_bias;
                    for (int32_t c = 0; c < step.input->channels; c++) {
                        sum += double{step.input->at(n, y, x, c)} * step.weights[static_cast<size_t>(c)];
                    }
                    (*step.mask)[at++] = sum > step.given.threshold ? 1 : 0;
                }
            }
        }
    }

    /** Whether a step computes a pixel, by looking at every window of the reader. */
    bool computes(const Step &step, int32_t n, int32_t y, int32_t x) const {
        if (!step.mask) {
            return true;
        }
        const auto &shape = shape_of(*step.mask);
        const auto bit = [&](int32_t row, int32_t column) {
            return (*step.mask)[(static_cast<size_t>(n) * shape.height + row) * shape.width + column] != 0;
        };
        if (!step.reader) {
            return bit(y, x);
        }
        const distile_window &w = *step.reader;
        for (int32_t ky = 0; ky < w.kernel_h; ky++) {
            for (int32_t kx = 0; kx < w.kernel_w; kx++) {
                const int32_t row = y + w.pad_top - ky * w.dilation_h, column = x + w.pad_left - kx * w.dilation_w;
                if (row >= 0 && column >= 0 && row % w.stride_h == 0 && column % w.stride_w == 0 &&
                    row / w.stride_h < shape.height && column / w.stride_w < shape.width &&
                    bit(row / w.stride_h, column / w.stride_w)) {
                    return true;
                }
            }
        }
        return false;
    }

    const TestMask &shape_of(const Bits &bits) const {
        return **std::find_if(masks_.begin(), masks_.end(), [&](const auto &mask) { return &mask->bits == &bits; });
    }

    void compute(const Step &step) const {
        const distile_window &w = step.given.window;
        Image &output = *step.output;
        std::vector<float> results(static_cast<size_t>(output.channels));
        for (int32_t n = 0; n < output.batch; n++) {
            for (int32_t y = 0; y < output.height; y++) {
                for (int32_t x = 0; x < output.width; x++) {
                    if (!computes(step, n, y, x)) {
                        if (step.given.spreads != 0) {
                            output.set_free(n, y, x, true);
                        }
                        continue;
                    }
                    output.set_free(n, y, x, step.given.transient != 0);
                    const bool keeps =
                        step.later &&
                        (*step.later)[(static_cast<size_t>(n) * output.height + y) * output.width + x] != 0;
                    const bool normalizes = step.given.kind == DISTILE_STEP_NORMALIZE;
                    if (normalizes || step.given.kind == DISTILE_STEP_ATTENTION) {
                        const std::vector<double> all =
                            normalizes ? normalized(step, n, y, x) : attended(step, n, y, x);
                        for (int32_t out = 0; out < output.channels; out++) {
                            output.at(n, y, x, out) =
                                round_to(dtype_, static_cast<float>(all[static_cast<size_t>(out)]));
                        }
                        continue;
                    }
                    for (int32_t out = 0; out < output.channels; out++) {
                        if (step.given.kind != DISTILE_STEP_CONV2D) {
                            const double sum =
                                of_layer(step, n, y, x, out) + (step.residual ? step.residual->at(n, y, x, out) : 0);
                            results[static_cast<size_t>(out)] =
                                round_to(dtype_, static_cast<float>(apply_epilogue(step.given.activation, sum)));
                            continue;
                        }
                        double sum = step.bias[static_cast<size_t>(out)];
                        const int32_t groups = step.given.groups, inputs = step.input->channels / groups;
                        const float *weight =
                            step.weights.data() + static_cast<size_t>(out) * inputs * w.kernel_h * w.kernel_w;
                        const int32_t first = out / (output.channels / groups) * inputs;
                        for (int32_t c = first; c < first + inputs; c++) {
                            for (int32_t ky = 0; ky < w.kernel_h; ky++) {
                                for (int32_t kx = 0; kx < w.kernel_w; kx++, weight++) {
                                    const int32_t row = y * w.stride_h - w.pad_top + ky * w.dilation_h,
                                                  column = x * w.stride_w - w.pad_left + kx * w.dilation_w;
                                    if (*weight != 0 && row >= 0 && column >= 0 && row < step.input->height &&
                                        column < step.input->width) {
                                        sum += double{*weight} * step.input->at(n, row, column, c);
                                    }
                                }
                            }
                        }
                        sum += step.residual ? step.residual->at(n, y, x, out) : 0;
                        const double result = keeps ? sum : apply_epilogue(step.given.activation, sum);
                        results[static_cast<size_t>(out)] = round_to(dtype_, static_cast<float>(result));
                    }
                    for (int32_t out = 0; out < output.channels; out++) {
                        output.at(n, y, x, out) = results[static_cast<size_t>(out)];
                    }
                }
            }
        }
    }

    /** What a step that takes each channel by itself makes of a window. */
    static double of_layer(const Step &step, int32_t n, int32_t y, int32_t x, int32_t c) {
        const distile_window &w = step.given.window;
        if (step.given.kind == DISTILE_STEP_UPSAMPLE) {
            return step.input->at(n, y / w.stride_h, x / w.stride_w, c);
        }
        double largest = -INFINITY, sum = 0;
        for (int32_t ky = 0; ky < w.kernel_h; ky++) {
            for (int32_t kx = 0; kx < w.kernel_w; kx++) {
                const int32_t row = y * w.stride_h - w.pad_top + ky * w.dilation_h,
                              column = x * w.stride_w - w.pad_left + kx * w.dilation_w;
                const bool inside = row >= 0 && column >= 0 && row < step.input->height && column < step.input->width;
                if (inside) {
                    const double value = step.input->at(n, row, column, c);
                    largest = std::max(largest, value);
                    sum += value;
                }
            }
        }
        return step.given.kind == DISTILE_STEP_MAX_POOL ? largest : sum / (w.kernel_h * w.kernel_w);
    }

    void compare() const {
        for (const auto &mask : masks_) {
            if (mask->mask) {
                Array<uint8_t> bytes(mask->bits.size());
                machine_.check(distile_mask_get_bytes(mask->mask.get(), bytes.data(),
                                                      int64_t{mask->height} * mask->width, mask->width));
                CHECK(bytes.get() == mask->bits);
            }
        }
        for (const auto &numbers : numbers_) {
            const std::vector<float> found = numbers->device.get();
            for (size_t i = 0; i < found.size(); i++) {
                CHECK(std::abs(found[i] - numbers->values[i]) <= 1e-5f);
            }
        }
        for (size_t i = 0; i < images_.size(); i++) {
            INFO("tensor " << i);
            std::vector<float> found = images_[i]->download();
            const std::vector<float> &due = images_[i]->values;
            for (size_t e = 0; e < images_[i]->is_free.size(); e++) {
                found[e] = images_[i]->is_free[e] ? due[e] : found[e];
            }
            float largest = 0, error = 0;
            for (size_t e = 0; e < due.size(); e++) {
                largest = std::max(largest, std::abs(due[e]));
                error = std::max(error, std::isfinite(found[e]) ? std::abs(found[e] - due[e]) : INFINITY);
            }
            if (exact_) {
                CHECK(found == due);
            } else {
                CHECK(error <= largest * bound());
            }
        }
    }

    /** How large errors may be, compared to the largest number of a tensor. */
    float bound() const {
        const bool multiplies = std::any_of(steps_.begin(), steps_.end(), [](const auto &step) {
            return (step->given.kind == DISTILE_STEP_CONV2D && step->given.groups == 1) ||
                   step->given.kind == DISTILE_STEP_ATTENTION;
        });
        const bool has_11_bits =
            dtype_ == DISTILE_FLOAT16 || (dtype_ == DISTILE_FLOAT32 && Machine::multiplies_tf32 && multiplies);
        return has_11_bits ? 4e-3f : dtype_ == DISTILE_FLOAT32 ? 1e-5f : 3e-2f;
    }

    std::vector<std::vector<float>> host_values() const {
        std::vector<std::vector<float>> all;
        for (const auto &image : images_) {
            all.push_back(image->values);
        }
        return all;
    }
    std::vector<std::vector<unsigned char>> stored() const {
        std::vector<std::vector<unsigned char>> all;
        for (const auto &image : images_) {
            all.push_back(image->device.get());
        }
        return all;
    }
    /** Totals begin at 0 again. */
    void restore(const std::vector<std::vector<float>> &values) {
        for (size_t i = 0; i < values.size(); i++) {
            images_[i]->values = values[i];
            images_[i]->upload();
        }
        for (const auto &numbers : numbers_) {
            std::fill(numbers->values.begin(), numbers->values.end(), 0.0f);
            numbers->device.set(numbers->values);
        }
    }

    const Machine &machine_;
    distile_dtype dtype_;
    bool exact_;
    distile_dtype weights_dtype_;
    std::vector<std::unique_ptr<Image>> images_;
    std::vector<std::unique_ptr<TestMask>> masks_;
    std::vector<std::unique_ptr<Step>> steps_;
    std::vector<std::unique_ptr<StageNumbers<Machine>>> numbers_;
};

inline constexpr distile_window stage_three_by_three{3, 3, 1, 1, 1, 1, 1, 1, DISTILE_WINDOW_CONV};

/** An inverted residual block: 1x1 to `wide` channels, a depthwise convolution whose output is `transient`, and 1x1
 * back, added to x, at the pixels of a mask or at all. With `result`, the first output is transient, too, and the block
 * writes there. The first output has a border, as wide as windows reach outside where a device needs that. */
template<class Machine> void add_inverted_residual(TestedStage<Machine> &stage, StageImage<Machine> &x, int32_t wide,
                                                   int32_t kernel, typename TestedStage<Machine>::TestMask *mask,
                                                   StageImage<Machine> *result = nullptr, int32_t border = 0) {
    using Image = StageImage<Machine>;
    Image &expanded = stage.image(x.batch, x.height, x.width, wide, border),
          &filtered = stage.image(x.batch, x.height, x.width, wide);
    const int32_t pad = (kernel - 1) / 2;
    const distile_window window{kernel, kernel, 1, 1, 1, 1, pad, pad, DISTILE_WINDOW_CONV};
    stage.conv(x, expanded, 1, 1, 1, mask, mask ? &window : nullptr).given.transient = result ? 1 : 0;
    stage.conv(expanded, filtered, kernel, 1, 1, mask, nullptr, nullptr, nullptr, wide).given.transient = 1;
    stage.conv(filtered, result ? *result : x, 1, 1, 1, mask, nullptr, &x).given.activation = DISTILE_ACTIVATION_NONE;
}

/** Pixels that halt one after the other, of which the first has limited scores, and what they add up in the first
 * column. */
template<class Machine>
void add_halts(TestedStage<Machine> &stage, int32_t batch, int32_t height, int32_t width, int32_t channels) {
    using Image = StageImage<Machine>;
    Image &x = stage.image(batch, height, width, channels), &y = stage.image(batch, height, width, channels, 1),
          &sum = stage.image(batch, height, 1, channels), &all = stage.image(batch, height, width, channels);
    auto &first = stage.mask(batch, height, width, -1), &second = stage.mask(batch, height, width, -1),
         &third = stage.mask(batch, height, width, -1), &given = stage.mask(batch, height, width, .5),
         &of_given = stage.mask(batch, height, width, -1);
    auto &halt = stage.halt(x, first, nullptr, &sum, nullptr, -1, true);
    stage.norm(y, x, &first);
    stage.halt(y, second, &first, &sum, &halt, -1, true);
    stage.halt(x, third, &second, &sum, &halt, INFINITY, false);
    stage.halt(y, of_given, &given, &all, nullptr, .5f, false);
}

/** Pools, upsamples, adds and copies of images of integers, with masks or without. */
template<class Machine> void add_layers(TestedStage<Machine> &stage, int32_t channels) {
    using Image = StageImage<Machine>;
    const auto window = [](int32_t kernel, int32_t stride, int32_t dilation, int32_t pad) {
        return distile_window{kernel, kernel, stride, stride, dilation, dilation, pad, pad, DISTILE_WINDOW_CONV};
    };
    const auto image = [&](int32_t height, int32_t width, int32_t border = 0) -> Image & {
        return stage.image(2, height, width, channels, border);
    };
    Image &x = image(12, 38, 1), &small = image(6, 19, 2), &overlapping = image(5, 18), &mean = image(6, 19),
          &large = image(12, 38, 1), &larger = image(18, 38), &sum = image(12, 38), &copy = image(12, 38),
          &block = image(12, 38), &stem = image(6, 19), &negative = stage.negative_image(2, 12, 38, channels, 2),
          &of_negative = image(6, 19), &apart = image(12, 38), &pooled = image(6, 19);
    auto &mask = stage.mask(2, 12, 38, .4), &half = stage.mask(2, 6, 19, .6);
    stage.layer(DISTILE_STEP_MAX_POOL, x, small, window(2, 2, 1, 0));
    stage.layer(DISTILE_STEP_MAX_POOL, x, overlapping, window(3, 2, 1, 0));
    stage.layer(DISTILE_STEP_AVERAGE_POOL, x, mean, window(4, 2, 1, 1), &half);
    stage.layer(DISTILE_STEP_UPSAMPLE, small, large, window(1, 2, 1, 0));
    distile_window factors = window(1, 2, 1, 0);
    factors.stride_h = 3;
    stage.layer(DISTILE_STEP_UPSAMPLE, mean, larger, factors, nullptr);
    stage.layer(DISTILE_STEP_SUM, x, sum, window(1, 1, 1, 0), nullptr, &large).given.activation =
        DISTILE_ACTIVATION_RELU6;
    stage.layer(DISTILE_STEP_SUM, sum, copy, window(1, 1, 1, 0), &mask);
    stage.conv(copy, block, 1, 1, 1, &mask, nullptr, &sum);
    stage.layer(DISTILE_STEP_SUM, large, sum, window(1, 1, 1, 0), nullptr, &block);
    stage.layer(DISTILE_STEP_UPSAMPLE, small, block, window(1, 2, 1, 0), &mask, &block);
    // Windows outside: of what is not negative, beside a border of zeros, and of what is.
    stage.layer(DISTILE_STEP_MAX_POOL, x, stem, window(3, 2, 1, 1), &half);
    stage.layer(DISTILE_STEP_MAX_POOL, negative, of_negative, window(3, 2, 1, 1));
    stage.layer(DISTILE_STEP_MAX_POOL, negative, apart, window(3, 1, 2, 2), &mask).given.activation =
        DISTILE_ACTIVATION_RELU;
    stage.layer(DISTILE_STEP_MAX_POOL, negative, pooled, window(2, 2, 1, 0), &half, &pooled);
}

struct AttentionShape {
    int32_t batch, height, width, heads, channels;  ///< Channels of a head.
};
/** On a GPU: blocks of each number of rows, images without rows, several words of images, one slot of channels and two.
 * On a CPU: several blocks of keys, and of rows. */
inline constexpr AttentionShape attention_shapes[] = {{1, 1, 197, 3, 64},  {3, 1, 197, 2, 64},  {40, 1, 65, 3, 64},
                                                      {1, 1, 8, 1, 8},     {2, 14, 15, 2, 40},  {3, 1, 130, 2, 128},
                                                      {12, 1, 300, 1, 80}, {1, 1, 1000, 2, 16}, {36, 1, 33, 6, 32}};

inline std::string text_of(const AttentionShape &shape) {
    return std::to_string(shape.batch) + " images of " + std::to_string(shape.height) + " x " +
           std::to_string(shape.width) + ", " + std::to_string(shape.heads) + " heads of " +
           std::to_string(shape.channels);
}

/** Checks attention of a shape: to the pixels of masks of these densities, from them to all, and of all. */
template<class Machine> void check_attention(const Machine &machine, distile_dtype dtype, unsigned seed,
                                             const AttentionShape &shape, const std::vector<double> &densities) {
    const auto [batch, height, width, heads, of_head] = shape;
    const int32_t channels = heads * of_head;
    for (const double density : densities) {
        INFO("density " << density);
        TestedStage<Machine> stage(machine, dtype, seed++, false);
        StageImage<Machine> &x = stage.image(batch, height, width, 3 * channels),
                            &y = stage.image(batch, height, width, channels),
                            &z = stage.image(batch, height, width, channels, 1);
        auto &mask = stage.mask(batch, height, width, density);
        stage.attention(x, y, heads, &mask);
        stage.attention(x, z, heads, &mask, true);
        stage.check(0);
    }
    TestedStage<Machine> stage(machine, dtype, seed, false);
    stage.attention(stage.image(batch, height, width, 3 * channels), stage.image(batch, height, width, channels), heads,
                    nullptr);
    stage.check(0);
}

/** A layer of a transformer: its tokens attend to each other, and then each is mapped through four times the channels.
 * With `all_keys`, the tokens of the mask attend to all. */
template<class Machine> void add_token_layer(TestedStage<Machine> &stage, StageImage<Machine> &x, int32_t heads,
                                             typename TestedStage<Machine>::TestMask *mask, bool all_keys = false,
                                             bool spreads = false) {
    using Image = StageImage<Machine>;
    const auto image = [&](int32_t channels) -> Image & { return stage.image(x.batch, x.height, x.width, channels); };
    Image &normalized = image(x.channels), &parts = image(3 * x.channels), &attended = image(x.channels),
          &again = image(x.channels), &wide = image(4 * x.channels);
    const auto linear = [&](Image &from, Image &to, bool is_spread, Image *residual) -> distile_activation & {
        auto &step = stage.conv(from, to, 1, 1, 1, all_keys && &to == &parts ? nullptr : mask, nullptr, residual);
        step.given.spreads = is_spread ? 1 : 0;
        step.given.activation = DISTILE_ACTIVATION_NONE;
        return step.given.activation;
    };
    stage.norm(x, normalized, all_keys ? nullptr : mask).given.spreads = spreads ? 1 : 0;
    linear(normalized, parts, spreads, nullptr);
    stage.attention(parts, attended, heads, mask, all_keys);
    linear(attended, x, false, &x);
    stage.norm(x, again, mask);
    linear(again, wide, false, nullptr) = DISTILE_ACTIVATION_GELU;
    linear(wide, x, false, &x);
}

/** Bottlenecks of a residual network, of which the first halves the image, each with a mask from its input. With
 * `spreads`, their first convolutions may write other pixels. With `transient`, nobody reads what is between the
 * convolutions of the others. */
template<class Machine> void add_bottlenecks(TestedStage<Machine> &stage, int32_t batch, int32_t height, int32_t width,
                                             int32_t wide, int32_t narrow, int32_t blocks, double density,
                                             bool spreads = false, bool transient = false) {
    using Image = StageImage<Machine>;
    using TestMask = typename TestedStage<Machine>::TestMask;
    const auto mask_of = [&](Image &x, int32_t stride) -> TestMask & {
        const int32_t rows = (x.height + stride - 1) / stride, columns = (x.width + stride - 1) / stride;
        TestMask &mask = stage.mask(batch, rows, columns, density);
        if (density < 0) {
            stage.scores(x, mask, stride);
        }
        return mask;
    };
    Image &first = stage.image(batch, height, width, narrow);
    const int32_t rows = (height + 1) / 2, columns = (width + 1) / 2;
    Image &x = stage.image(batch, rows, columns, wide);
    {
        const distile_window half{3, 3, 2, 2, 1, 1, 1, 1, DISTILE_WINDOW_CONV};
        Image &reduced = stage.image(batch, height, width, narrow, 1),
              &middle = stage.image(batch, rows, columns, narrow);
        TestMask &mask = mask_of(first, 2);
        stage.conv(first, reduced, 1, 1, 1, &mask, &half).given.spreads = spreads ? 1 : 0;
        stage.conv(first, x, 1, 2, 1, nullptr, nullptr, nullptr, &mask);
        stage.conv(reduced, middle, 3, 2, 1, &mask);
        stage.conv(middle, x, 1, 1, 1, &mask, nullptr, &x);
    }
    Image &reduced = stage.image(batch, rows, columns, narrow, 1), &middle = stage.image(batch, rows, columns, narrow);
    for (int32_t block = 0; block < blocks; block++) {
        TestMask &mask = mask_of(x, 1);
        distile_stage_step &reduce = stage.conv(x, reduced, 1, 1, 1, &mask, &stage_three_by_three).given;
        reduce.spreads = spreads ? 1 : 0;
        reduce.transient = transient ? 1 : 0;
        stage.conv(reduced, middle, 3, 1, 1, &mask).given.transient = transient ? 1 : 0;
        stage.conv(middle, x, 1, 1, 1, &mask, nullptr, &x);
    }
}

}  // namespace distile

#endif
