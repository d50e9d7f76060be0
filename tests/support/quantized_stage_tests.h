/** \file
 * Stages of quantized tensors on a device, against plain loops over integers step by step, to the bit. `Machine` is as
 * in stage_tests.h.
 */
#ifndef DISTILE_TESTS_QUANTIZED_STAGE_TESTS_H
#define DISTILE_TESTS_QUANTIZED_STAGE_TESTS_H

#include "tests/support/catch.h"
#include "tests/support/quantized_model.h"
#include "tests/support/stage_mask.h"
#include <algorithm>
#include <distile/stage.h>
#include <functional>
#include <memory>
#include <random>
#include <vector>

namespace distile {

/** A tensor on the host, whose border holds its zero point, and in a device's memory. */
template<class Machine> struct QuantizedStageImage {
    QuantizedStageImage(distile_dtype dtype, int32_t batch, int32_t height, int32_t width, int32_t channels,
                        int32_t border, std::mt19937 &random)
        : host(dtype, batch, height, width, channels, {0, 0, 0, border, border, border, border, false}, Flush::Back,
               random),
          // 0 becomes a number near the least one, so that saturated results differ from it.
          scale{.05f, static_cast<int32_t>(random() % 200) + (dtype == DISTILE_INT8 ? -100 : 28)},
          device(static_cast<size_t>(host.count)) {
        if (dtype == DISTILE_FLOAT32) {
            scale = {};
        }
        host.set_border(scale.zero_point);
        view = host.view;
        view.data = device.data() + (static_cast<uint8_t *>(host.view.data) - host.bytes);
    }
    std::vector<uint8_t> bytes() const {
        return {host.bytes, host.bytes + host.count};
    }

    QuantizedTensor host;
    distile_scale scale;
    typename Machine::template Array<unsigned char> device;
    distile_tensor view;
};

/** Steps, their tensors and their masks. */
template<class Machine> class TestedQuantizedStage {
public:
    using Image = QuantizedStageImage<Machine>;
    template<typename T> using Array = typename Machine::template Array<T>;

    using TestMask = StageMask<Machine>;

    TestedQuantizedStage(const Machine &machine, distile_dtype dtype, unsigned seed)
        : random(seed), machine_(machine), dtype_(dtype) {
    }

    Image &image(int32_t batch, int32_t height, int32_t width, int32_t channels, int32_t border = 0,
                 bool is_real = false) {
        images_.push_back(std::make_unique<Image>(is_real ? DISTILE_FLOAT32 : dtype_, batch, height, width, channels,
                                                  border, random));
        return *images_.back();
    }
    TestMask &mask(int32_t batch, int32_t height, int32_t width, double density) {
        masks_.push_back(std::make_unique<TestMask>(machine_, batch, height, width));
        masks_.back()->draw(machine_, density, random);
        return *masks_.back();
    }

    /** A mask of the pixels whose stored numbers, times small integers, have a sum above 0. */
    TestMask &scores(Image &input, int32_t stride) {
        const auto places = [&](int32_t extent) { return (extent + stride - 1) / stride; };
        const int32_t batch = input.view.batch, height = places(input.view.height), width = places(input.view.width);
        TestMask &made = mask(batch, height, width, 0);
        std::vector<float> weights(static_cast<size_t>(input.view.channels));
        for (float &weight : weights) {
            weight = static_cast<float>(random() % 3) - 1;
        }
        factors_.push_back(std::make_unique<Array<float>>(weights));
        distile_stage_step step{};
        step.kind = DISTILE_STEP_SCORES;
        step.input = &input.view;
        step.window = {1, 1, stride, stride, 1, 1, 0, 0, DISTILE_WINDOW_CONV};
        step.weights = factors_.back()->data();
        step.mask = made.mask.get();
        step.score_bias = .5f;
        add(step, [&input, &made, weights, stride] {
            for (int32_t i = 0; i < made.batch * made.height * made.width; i++) {
                const int32_t x = i % made.width, y = i / made.width % made.height, n = i / made.width / made.height;
                float sum = .5f;
                for (size_t c = 0; c < weights.size(); c++) {
                    sum += weights[c] *
                           static_cast<float>(input.host.get(n, y * stride, x * stride, static_cast<int32_t>(c)));
                }
                made.bits[static_cast<size_t>(i)] = sum > 0 ? 1 : 0;
            }
        });
        return made;
    }

    /** What a convolution has beside its window. */
    struct More {
        int32_t stride = 1, dilation = 1, groups = 1;
        const distile_window *reader = nullptr;
        Image *residual = nullptr;
        distile_activation activation = DISTILE_ACTIVATION_RELU;
        bool transient = false, has_halves = false;
    };
    void conv(Image &input, Image &output, int32_t kernel, TestMask *mask, const More &more) {
        const int32_t pad = more.dilation * (kernel - 1) / 2;
        const int32_t channels = input.view.channels, outputs = output.view.channels;
        models_.push_back(std::make_unique<QuantizedModel>(
            QuantizedCase{"",
                          DISTILE_MASKED_CONV2D,
                          {channels, outputs, more.groups, kernel, kernel, more.stride, more.stride, pad, pad, pad, pad,
                           more.dilation, more.dilation, more.activation, more.residual ? 1 : 0},
                          dtype_,
                          output.view.dtype},
            more.has_halves, random));
        QuantizedModel &model = *models_.back();
        // Tensors have their scales from whatever step reads or writes them.
        model.quantization.input.zero_point = input.scale.zero_point;
        if (output.view.dtype != DISTILE_FLOAT32) {
            model.quantization.output.zero_point = output.scale.zero_point;
        }
        if (more.residual && output.view.dtype != DISTILE_FLOAT32) {
            model.quantization.residual.zero_point = more.residual->scale.zero_point;
        }
        distile_stage_step step{};
        step.kind = DISTILE_STEP_CONV2D;
        step.input = &input.view;
        step.output = &output.view;
        step.residual = more.residual ? &more.residual->view : nullptr;
        step.mask = mask ? mask->mask.get() : nullptr;
        step.reader = more.reader;
        step.window = {kernel,        kernel, more.stride, more.stride,        more.dilation,
                       more.dilation, pad,    pad,         DISTILE_WINDOW_CONV};
        step.weights = packed(model);
        step.activation = more.activation;
        step.slope = &model.slope;
        step.groups = more.groups;
        step.transient = more.transient ? 1 : 0;
        add(step, [&input, &output, &model, mask, more] { compute(input, output, model, mask, more); });
    }

    /** Compares all memory of all tensors behind the steps, and that of a second run. */
    void check(uint32_t tiles) {
        for (int run = 0; run < 2; run++) {
            std::vector<std::vector<uint8_t>> before;
            for (const auto &image : images_) {
                before.push_back(image->bytes());
                image->device.set(before.back());
            }
            distile_stage_args args{};
            args.steps = steps_.data();
            args.num_steps = static_cast<int32_t>(steps_.size());
            args.tiles = tiles;
            machine_.check(distile_run_stage(machine_.context.get(), &args));
            for (const auto &compute_step : plain_) {
                compute_step();
            }
            for (size_t i = 0; i < images_.size(); i++) {
                INFO("image " << i);
                const std::vector<uint8_t> found = images_[i]->device.get(), due = images_[i]->bytes();
                const auto at = std::mismatch(found.begin(), found.end(), due.begin());
                INFO("byte " << at.first - found.begin() << " of " << found.size());
                CHECK(found == due);
                std::copy(before[i].begin(), before[i].end(), images_[i]->host.bytes);
            }
        }
    }

    std::mt19937 random;

private:
    const void *packed(const QuantizedModel &model) {
        const distile_conv2d &conv = model.of.conv;
        distile_quantized_step of{};
        of.extents = {conv.out_channels, conv.in_channels / conv.groups, conv.kernel_h, conv.kernel_w};
        of.groups = conv.groups;
        of.input = dtype_;
        of.output = model.of.output;
        of.activation = conv.epilogue;
        distile_weights_source source{};
        source.filter = model.filter.data();
        source.dtype = DISTILE_INT8;
        source.order = DISTILE_HWIO;
        source.bias = model.float_bias.data();
        source.quantization = &model.quantization;
        const auto bytes = static_cast<size_t>(distile_quantized_stage_weights_bytes(machine_.context.get(), &of));
        REQUIRE(bytes > 0);
        // Arrays of the CPU are aligned to nothing much.
        constexpr size_t alignment = 128;
        std::vector<unsigned char> host(bytes);
        machine_.check(distile_pack_quantized_stage_weights(machine_.context.get(), &of, &source, host.data()));
        weights_.push_back(std::make_unique<Array<unsigned char>>(bytes + alignment));
        unsigned char *const first = weights_.back()->data();
        const size_t gap = (alignment - reinterpret_cast<uintptr_t>(first) % alignment) % alignment;
        std::vector<unsigned char> shifted(bytes + alignment);
        std::copy(host.begin(), host.end(), shifted.begin() + static_cast<std::ptrdiff_t>(gap));
        weights_.back()->set(shifted);
        return first + gap;
    }

    static bool is_computed(const TestMask &mask, const distile_window *reader, int32_t n, int32_t y, int32_t x) {
        if (!reader) {
            return mask.at(n, y, x);
        }
        for (int32_t ky = 0; ky < reader->kernel_h; ky++) {
            for (int32_t kx = 0; kx < reader->kernel_w; kx++) {
                const int32_t from_y = y + reader->pad_top - ky * reader->dilation_h,
                              from_x = x + reader->pad_left - kx * reader->dilation_w;
                if (from_y % reader->stride_h == 0 && from_x % reader->stride_w == 0 &&
                    mask.at(n, from_y / reader->stride_h, from_x / reader->stride_w)) {
                    return true;
                }
            }
        }
        return false;
    }
    static void compute(const Image &input, const Image &output, const QuantizedModel &model, const TestMask *mask,
                        const More &more) {
        const distile_tensor &view = output.view;
        for (int32_t n = 0; n < view.batch; n++) {
            for (int32_t y = 0; y < view.height; y++) {
                for (int32_t x = 0; x < view.width; x++) {
                    if (mask && !is_computed(*mask, more.reader, n, y, x)) {
                        continue;
                    }
                    for (int32_t o = 0; o < view.channels; o++) {
                        model.result(input.host, more.residual ? &more.residual->host : nullptr, n, y, x, o,
                                     output.host.at(n, y, x, o));
                    }
                }
            }
        }
    }
    void add(const distile_stage_step &step, std::function<void()> plain) {
        steps_.push_back(step);
        plain_.push_back(std::move(plain));
    }

    const Machine &machine_;
    distile_dtype dtype_;
    std::vector<std::unique_ptr<Image>> images_;
    std::vector<std::unique_ptr<TestMask>> masks_;
    std::vector<std::unique_ptr<QuantizedModel>> models_;
    std::vector<std::unique_ptr<Array<unsigned char>>> weights_;
    std::vector<std::unique_ptr<Array<float>>> factors_;
    std::vector<distile_stage_step> steps_;
    std::vector<std::function<void()>> plain_;
};

/** Residual blocks whose masks are their inputs' scores, or are drawn with a density that is not below 0. */
template<class Machine> void add_quantized_blocks(TestedQuantizedStage<Machine> &stage, int32_t batch, int32_t height,
                                                  int32_t width, int32_t wide, int32_t narrow, int32_t blocks,
                                                  double density, bool transient = false) {
    static constexpr distile_window three{3, 3, 1, 1, 1, 1, 1, 1, DISTILE_WINDOW_CONV};
    using Image = QuantizedStageImage<Machine>;
    Image &first = stage.image(batch, 2 * height - 1, 2 * width, narrow, 1),
          &x = stage.image(batch, height, width, wide), &reduced = stage.image(batch, height, width, narrow, 1),
          &middle = stage.image(batch, height, width, narrow);
    stage.conv(first, x, 3, nullptr, {2});
    for (int32_t block = 0; block < blocks; block++) {
        auto &mask = density < 0 ? stage.scores(x, 1) : stage.mask(batch, height, width, density);
        stage.conv(x, reduced, 1, &mask, {1, 1, 1, &three, nullptr, DISTILE_ACTIVATION_RELU, transient});
        stage.conv(reduced, middle, 3, &mask, {1, 1, 1, nullptr, nullptr, DISTILE_ACTIVATION_RELU, transient});
        stage.conv(middle, x, 1, &mask, {1, 1, 1, nullptr, &x});
    }
}

/** A step with each kind of window and result, of channels that are multiples of `least`. */
template<class Machine> void add_quantized_kinds(TestedQuantizedStage<Machine> &stage, int32_t least) {
    using Image = QuantizedStageImage<Machine>;
    const int32_t channels = 5 * least, outputs = 3 * least;
    Image &x = stage.image(2, 13, 37, channels, 4), &y = stage.image(2, 13, 37, outputs),
          &real = stage.image(2, 13, 37, outputs, 0, true), &added = stage.image(2, 13, 37, outputs, 0, true),
          &half = stage.image(2, 7, 19, outputs), &own = stage.image(2, 13, 37, channels),
          &half_own = stage.image(2, 7, 19, channels);
    auto &mask = stage.mask(2, 13, 37, .3), &of_half = stage.scores(x, 2);
    stage.conv(x, y, 3, &mask, {1, 4});
    stage.conv(x, half, 5, &of_half, {2, 1, 1, nullptr, nullptr, DISTILE_ACTIVATION_NONE});
    stage.conv(x, y, 1, &mask, {1, 1, 1, nullptr, &y, DISTILE_ACTIVATION_LEAKY_RELU});
    stage.conv(x, y, 1, nullptr, {1, 1, 1, nullptr, &y, DISTILE_ACTIVATION_RELU6});
    stage.conv(x, real, 3, &mask, {});
    stage.conv(x, real, 1, &mask, {1, 1, 1, nullptr, &added, DISTILE_ACTIVATION_HARDSWISH});
    stage.conv(x, own, 3, &mask, {1, 1, channels});
    stage.conv(x, half_own, 5, nullptr, {2, 1, channels, nullptr, nullptr, DISTILE_ACTIVATION_NONE});
    stage.conv(x, own, 3, &mask, {1, 2, channels, nullptr, &own, DISTILE_ACTIVATION_HARDSIGMOID});
    // Results in the middle between two numbers. The input then has no zero point, so its windows stay inside.
    Image &whole = stage.image(1, 9, 33, channels), &rounded = stage.image(1, 9, 33, outputs);
    whole.scale.zero_point = 0;
    stage.conv(whole, rounded, 1, nullptr, {1, 1, 1, nullptr, &rounded, DISTILE_ACTIVATION_NONE, false, true});
}

}  // namespace distile

#endif
