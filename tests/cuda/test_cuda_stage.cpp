// Stages on a GPU, against plain loops step by step.
#include "reference/activation_reference.h"
#include "tests/cuda/gpu_session.h"
#include "tests/support/reference.h"
#include <algorithm>
#include <cmath>
#include <distile/stage.h>
#include <memory>
#include <random>

using namespace distile;

namespace {

/** An image tensor on the host, with a border of zeros, and on the GPU. */
struct Image {
    Image(distile_dtype type, int32_t images, int32_t rows, int32_t columns, int32_t num_channels, int32_t border_width)
        : dtype(type), batch(images), height(rows), width(columns), channels(num_channels), border(border_width),
          values(static_cast<size_t>(batch) * whole_height() * whole_width() * channels), device(values.size()) {
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
        std::vector<uint16_t> stored(values.size());
        for (size_t i = 0; i < stored.size(); i++) {
            store_as(dtype, values[i], &stored[i]);
        }
        device.set(stored);
    }
    std::vector<float> download() const {
        const std::vector<uint16_t> stored = device.get();
        std::vector<float> found(stored.size());
        for (size_t i = 0; i < stored.size(); i++) {
            found[i] = load_as(dtype, &stored[i]);
        }
        return found;
    }
    distile_tensor view() const {
        distile_tensor tensor =
            distile_tensor_make(device.data() + (static_cast<size_t>(border) * whole_width() + border) * channels,
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
    DeviceArray<uint16_t> device;
};

using Bits = std::vector<uint8_t>;

/** A step as plain loops compute it, and as the library takes it. */
struct Step {
    distile_stage_step given{};
    Image *input = nullptr, *output = nullptr, *residual = nullptr;
    std::vector<float> weights, bias;  ///< [output][input][row][column]
    Bits *mask = nullptr, *later = nullptr;
    std::unique_ptr<distile_window> reader;
    std::unique_ptr<distile_tensor> input_view, output_view, residual_view;
    std::unique_ptr<DeviceArray<unsigned char>> device_weights;
    std::unique_ptr<DeviceArray<float>> device_bias;
};

/** Steps, their tensors and their masks. */
class TestedStage {
public:
    TestedStage(const Gpu &gpu, distile_dtype dtype, unsigned seed, bool exact)
        : random(seed), gpu_(gpu), dtype_(dtype), exact_(exact) {
    }

    Image &image(int32_t batch, int32_t height, int32_t width, int32_t channels, int32_t border = 0) {
        images_.push_back(std::make_unique<Image>(dtype_, batch, height, width, channels, border));
        images_.back()->fill([this] { return draw(); });
        return *images_.back();
    }

    struct TestMask {
        Bits bits;
        int32_t batch, height, width;
        Mask mask;
    };
    TestMask &mask(int32_t batch, int32_t height, int32_t width, double density) {
        masks_.push_back(std::make_unique<TestMask>(
            TestMask{Bits(static_cast<size_t>(batch) * height * width), batch, height, width, gpu_.make_mask()}));
        TestMask &made = *masks_.back();
        if (density >= 0) {
            for (uint8_t &bit : made.bits) {
                bit = std::uniform_real_distribution<>(0, 1)(random) < density ? 1 : 0;
            }
            uploads_.push_back(std::make_unique<DeviceArray<uint8_t>>(made.bits));
            gpu_.check(distile_mask_set_bytes(made.mask.get(), uploads_.back()->data(), batch, height, width,
                                              int64_t{height} * width, width));
        }
        return made;
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
        step.device_bias = std::make_unique<DeviceArray<float>>(step.weights);
        step.given.weights = step.device_bias->data();
        step.given.score_bias = .5f;
        return step;
    }

    Step &conv(Image &input, Image &output, int32_t kernel, int32_t stride, int32_t dilation, TestMask *mask,
               const distile_window *reader = nullptr, Image *residual = nullptr, TestMask *later = nullptr) {
        Step &step = add(input);
        step.output = &output;
        step.residual = residual;
        step.output_view = std::make_unique<distile_tensor>(output.view());
        step.given.output = step.output_view.get();
        if (residual) {
            step.residual_view = std::make_unique<distile_tensor>(residual->view());
            step.given.residual = step.residual_view.get();
        }
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
        draw_weights(step, kernel);
        return step;
    }

    void check(uint32_t tiles) {
        std::vector<distile_stage_step> steps;
        for (const auto &step : steps_) {
            steps.push_back(step->given);
        }
        distile_stage_args args{};
        args.steps = steps.data();
        args.num_steps = static_cast<int32_t>(steps.size());
        args.tiles = tiles;
        for (const auto &image : images_) {
            image->upload();
        }
        const std::vector<std::vector<float>> before = host_values();
        gpu_.check(distile_run_stage(gpu_.context.get(), &args));
        const std::vector<std::vector<uint16_t>> first = stored();
        for (const auto &step : steps_) {
            step->given.kind == DISTILE_STEP_SCORES ? compute_scores(*step) : compute(*step);
        }
        compare();
        // A second run must give the bits of the first.
        restore(before);
        gpu_.check(distile_run_stage(gpu_.context.get(), &args));
        CHECK(stored() == first);
        restore(before);
    }

    std::mt19937 random;

private:
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

    void draw_weights(Step &step, int32_t kernel) {
        const size_t of_output = static_cast<size_t>(step.input->channels) * kernel * kernel;
        step.weights.assign(of_output * step.output->channels, 0);
        step.bias.resize(static_cast<size_t>(step.output->channels));
        for (int32_t out = 0; out < step.output->channels; out++) {
            float *const own = step.weights.data() + out * of_output;
            if (exact_) {
                for (int i = 0; i < 6; i++) {
                    own[random() % of_output] = static_cast<float>(static_cast<int>(random() % 3) - 1);
                }
            } else {
                std::generate_n(own, of_output, [&] {
                    return round_to(dtype_, std::normal_distribution<float>()(random) /
                                                std::sqrt(static_cast<float>(of_output)));
                });
            }
            step.bias[static_cast<size_t>(out)] = exact_ ? static_cast<float>(random() % 2) : draw();
        }
        std::vector<unsigned char> packed(static_cast<size_t>(
            distile_stage_weights_bytes(step.output->channels, step.input->channels, kernel, kernel)));
        gpu_.check(distile_pack_stage_weights(gpu_.context.get(), dtype_, step.output->channels, step.input->channels,
                                              kernel, kernel, step.weights.data(), packed.data()));
        step.device_weights = std::make_unique<DeviceArray<unsigned char>>(packed);
        step.device_bias = std::make_unique<DeviceArray<float>>(step.bias);
        step.given.weights = step.device_weights->data();
        step.given.bias = step.device_bias->data();
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
                        continue;
                    }
                    const bool keeps =
                        step.later &&
                        (*step.later)[(static_cast<size_t>(n) * output.height + y) * output.width + x] != 0;
                    for (int32_t out = 0; out < output.channels; out++) {
                        double sum = step.bias[static_cast<size_t>(out)];
                        const float *weight = step.weights.data() +
                                              static_cast<size_t>(out) * step.input->channels * w.kernel_h * w.kernel_w;
                        for (int32_t c = 0; c < step.input->channels; c++) {
                            for (int32_t ky = 0; ky < w.kernel_h; ky++) {
                                for (int32_t kx = 0; kx < w.kernel_w; kx++, weight++) {
                                    if (*weight != 0) {
                                        sum += double{*weight} *
                                               step.input->at(n, y * w.stride_h - w.pad_top + ky * w.dilation_h,
                                                              x * w.stride_w - w.pad_left + kx * w.dilation_w, c);
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

    void compare() const {
        for (const auto &mask : masks_) {
            if (mask->mask) {
                DeviceArray<uint8_t> bytes(mask->bits.size());
                gpu_.check(distile_mask_get_bytes(mask->mask.get(), bytes.data(), int64_t{mask->height} * mask->width,
                                                  mask->width));
                CHECK(bytes.get() == mask->bits);
            }
        }
        for (size_t i = 0; i < images_.size(); i++) {
            INFO("tensor " << i);
            const std::vector<float> found = images_[i]->download(), &due = images_[i]->values;
            float largest = 0, error = 0;
            for (size_t e = 0; e < due.size(); e++) {
                largest = std::max(largest, std::abs(due[e]));
                error = std::max(error, std::isfinite(found[e]) ? std::abs(found[e] - due[e]) : INFINITY);
            }
            if (exact_) {
                CHECK(found == due);
            } else {
                CHECK(error <= largest * (dtype_ == DISTILE_FLOAT16 ? 4e-3f : 3e-2f));
            }
        }
    }

    std::vector<std::vector<float>> host_values() const {
        std::vector<std::vector<float>> all;
        for (const auto &image : images_) {
            all.push_back(image->values);
        }
        return all;
    }
    std::vector<std::vector<uint16_t>> stored() const {
        std::vector<std::vector<uint16_t>> all;
        for (const auto &image : images_) {
            all.push_back(image->device.get());
        }
        return all;
    }
    void restore(const std::vector<std::vector<float>> &values) {
        for (size_t i = 0; i < values.size(); i++) {
            images_[i]->values = values[i];
            images_[i]->upload();
        }
    }

    const Gpu &gpu_;
    distile_dtype dtype_;
    bool exact_;
    std::vector<std::unique_ptr<Image>> images_;
    std::vector<std::unique_ptr<TestMask>> masks_;
    std::vector<std::unique_ptr<DeviceArray<uint8_t>>> uploads_;
    std::vector<std::unique_ptr<Step>> steps_;
};

constexpr distile_window three{3, 3, 1, 1, 1, 1, 1, 1, DISTILE_WINDOW_CONV};

/** Bottlenecks of a residual network, of which the first halves the image, each with a mask from its input. */
void add_bottlenecks(TestedStage &stage, int32_t batch, int32_t height, int32_t width, int32_t wide, int32_t narrow,
                     int32_t blocks, double density) {
    const auto mask_of = [&](Image &x, int32_t stride) -> TestedStage::TestMask & {
        const int32_t rows = (x.height + stride - 1) / stride, columns = (x.width + stride - 1) / stride;
        TestedStage::TestMask &mask = stage.mask(batch, rows, columns, density);
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
        TestedStage::TestMask &mask = mask_of(first, 2);
        stage.conv(first, reduced, 1, 1, 1, &mask, &half);
        stage.conv(first, x, 1, 2, 1, nullptr, nullptr, nullptr, &mask);
        stage.conv(reduced, middle, 3, 2, 1, &mask);
        stage.conv(middle, x, 1, 1, 1, &mask, nullptr, &x);
    }
    Image &reduced = stage.image(batch, rows, columns, narrow, 1), &middle = stage.image(batch, rows, columns, narrow);
    for (int32_t block = 0; block < blocks; block++) {
        TestedStage::TestMask &mask = mask_of(x, 1);
        stage.conv(x, reduced, 1, 1, 1, &mask, &three);
        stage.conv(reduced, middle, 3, 1, 1, &mask);
        stage.conv(middle, x, 1, 1, 1, &mask, nullptr, &x);
    }
}

}  // namespace

TEST_CASE("A stage computes what its steps do one by one, bit by bit where sums are exact", "[gpu_stage]") {
    const Gpu gpu;
    if (!gpu) {
        return;
    }
    constexpr uint32_t all = 0;
    for (const distile_dtype dtype : {DISTILE_FLOAT16, DISTILE_BFLOAT16}) {
        for (const double density : {-1., .1, .5, 1., 0.}) {
            TestedStage stage(gpu, dtype, 5, true);
            add_bottlenecks(stage, 2, 13, 37, 256, 64, 3, density);
            stage.check(all);
        }
    }
    // Each shape of tiles.
    for (uint32_t tile = 0; tile < 6; tile++) {
        INFO("tile " << tile);
        TestedStage stage(gpu, DISTILE_FLOAT16, 6 + tile, true);
        add_bottlenecks(stage, 1, 24, 70, 256, 128, 1, -1);
        stage.check(1u << tile);
    }
}

TEST_CASE("A stage rounds once for each step", "[gpu_stage]") {
    const Gpu gpu;
    if (!gpu) {
        return;
    }
    for (const distile_dtype dtype : {DISTILE_FLOAT16, DISTILE_BFLOAT16}) {
        TestedStage stage(gpu, dtype, 7, false);
        add_bottlenecks(stage, 3, 9, 34, 128, 64, 1, .3);
        stage.check(0);
    }
}

TEST_CASE("Stages of many steps take several launches", "[gpu_stage]") {
    const Gpu gpu;
    if (!gpu) {
        return;
    }
    TestedStage stage(gpu, DISTILE_FLOAT16, 8, true);
    add_bottlenecks(stage, 1, 8, 9, 64, 64, 40, -1);
    stage.check(0);
}

TEST_CASE("Windows of a stage are dilated, wide, and reach across images' borders", "[gpu_stage]") {
    const Gpu gpu;
    if (!gpu) {
        return;
    }
    TestedStage stage(gpu, DISTILE_FLOAT16, 9, true);
    Image &x = stage.image(2, 11, 40, 64, 4), &y = stage.image(2, 11, 40, 96), &z = stage.image(2, 6, 20, 32);
    TestedStage::TestMask &mask = stage.mask(2, 11, 40, .2), &half = stage.mask(2, 6, 20, .3);
    stage.conv(x, y, 3, 1, 4, &mask);
    stage.conv(x, z, 5, 2, 1, &half);
    stage.check(0);
}
