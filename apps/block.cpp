// An inverted residual block of MobileNetV2, computed only where a moving half-disc needs its result:
//
//     input -> 1x1, 96 -> 576, relu6 -> depthwise 3x3, relu6 -> 1x1, 576 -> 96, + input -> result
//
// Usage: block [height and width in pixels]
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <distile/distile.hpp>
#include <distile/mask_algebra.h>
#include <distile_conv1x1_576_96.h>
#include <distile_conv1x1_96_576.h>
#include <distile_depthwise3x3_576.h>
#include <random>
#include <vector>

namespace {

using distile::check;
using Clock = std::chrono::steady_clock;

constexpr int narrow = 96, wide = 576, taps = 3 * 3, layers = 3, frames = 40;

std::vector<float> random_values(size_t count, float scale) {
    static std::mt19937 engine(1);
    std::uniform_real_distribution<float> uniform(-scale, scale);
    std::vector<float> values(count);
    std::generate(values.begin(), values.end(), [&] { return uniform(engine); });
    return values;
}

/** An operator with its weights and its mask. */
struct Layer {
    Layer(const distile::Context &context, const distile_polykernel &polykernel, size_t products, int channels)
        : channels(channels), filter(random_values(channels * products, .1F)), bias(random_values(channels, 1)),
          kernel(distile::make_kernel(context, polykernel)), mask(distile::make_mask(context)) {
        distile_weights_source source{};
        source.filter = filter.data();
        source.order = DISTILE_OIHW;
        source.bias = bias.data();
        weights = distile::pack_weights(context, kernel, source);
    }

    /** A value of the output by definition, before the epilogue. */
    double sum(size_t channel, const std::vector<double> &inputs) const {
        double sum = bias[channel];
        for (size_t i = 0; i < inputs.size(); i++) {
            sum += inputs[i] * filter[channel * inputs.size() + i];
        }
        return sum;
    }

    int channels;
    std::vector<float> filter, bias;
    distile::Kernel kernel;
    distile::Mask mask;
    distile::Weights weights;
};

/** A way to run the block. */
struct Way {
    const char *name;
    bool has_border, everywhere;
    distile_inactive inactive;
    distile::Planner planner = nullptr;     /**< Null: the layers write to `memory`. */
    std::vector<float> memory[layers] = {}; /**< The output of each layer. */
    distile_tensor result = {};
    double milliseconds = HUGE_VAL; /**< The time of the fastest frame. */
    double error = 0;               /**< The largest error of the last frame. */
};

struct Block {
    Block(const distile::Context &context, int size) : context(context), size(size) {
        chain.emplace_back(context, distile_conv1x1_96_576, narrow, wide);
        chain.emplace_back(context, distile_depthwise3x3_576, taps, wide);
        chain.emplace_back(context, distile_conv1x1_576_96, wide, narrow);
    }

    /** Sets the masks, from the last layer to the first: each layer computes what the next one reads. */
    void set_masks(const std::vector<uint8_t> &active) {
        check(context, distile_mask_set_bytes(chain.back().mask.get(), active.data(), 1, size, size,
                                              int64_t{size} * size, size));
        for (size_t i = layers - 1; i > 0; i--) {
            const distile_window window = distile_kernel_window(chain[i].kernel.get());
            check(context,
                  distile_mask_needed_input(chain[i - 1].mask.get(), chain[i].mask.get(), &window, size, size));
        }
    }

    /** Runs all layers; the last adds the block's input. */
    void run(const distile_tensor &input, Way &way) {
        way.result = input;
        for (size_t i = 0; i < layers; i++) {
            const distile_tensor previous = way.result;
            way.result = output_of(i, way);
            distile_run_args args{};
            args.input = &previous;
            args.residual = i == layers - 1 ? &input : nullptr;
            args.output = &way.result;
            args.weights = chain[i].weights.get();
            args.mask = chain[i].mask.get();
            args.inactive = way.inactive;
            check(context, distile_run(chain[i].kernel.get(), &args));
        }
    }

    /** What a layer writes to, with the zero border that the next layer reads: as wide as its padding. */
    distile_tensor output_of(size_t i, Way &way) {
        const bool has_border = way.has_border && i + 1 < layers;
        const int border = has_border ? distile_kernel_border(chain[i + 1].kernel.get()).top : 0;
        const int channels = chain[i].channels, row = size + 2 * border;
        if (way.planner) {
            const distile_output_spec spec{1, size, size, channels, border, border, border, border, DISTILE_FLOAT32};
            distile_tensor output{};
            check(context,
                  distile_planner_next(way.planner.get(), &spec, chain[i].mask.get(), DISTILE_STORE_EXACT, &output));
            return output;
        }
        // The first frame makes it all zero. No layer writes the border.
        way.memory[i].resize(size_t{1} * row * row * channels);
        float *first = way.memory[i].data() + int64_t{border} * (row + 1) * channels;
        distile_tensor output = distile_tensor_make(first, 1, size, size, channels);
        output.stride_h = int64_t{row} * channels;
        output.border_top = output.border_bottom = output.border_left = output.border_right = border;
        return output;
    }

    /** A pixel of the result by definition. */
    std::vector<double> expected(const std::vector<float> &input, int y, int x) const {
        std::vector<std::vector<double>> windows(wide, std::vector<double>(taps));  // 0 outside the image
        for (int tap = 0; tap < taps; tap++) {
            const int row = y + tap / 3 - 1, column = x + tap % 3 - 1;
            if (row >= 0 && row < size && column >= 0 && column < size) {
                const auto pixel = input.begin() + int64_t{row * size + column} * narrow;
                const std::vector<double> inputs(pixel, pixel + narrow);
                for (int c = 0; c < wide; c++) {
                    windows[c][tap] = std::clamp(chain[0].sum(c, inputs), 0.0, 6.0);
                }
            }
        }
        std::vector<double> filtered, result;
        for (int c = 0; c < wide; c++) {
            filtered.push_back(std::clamp(chain[1].sum(c, windows[c]), 0.0, 6.0));
        }
        for (int c = 0; c < narrow; c++) {
            result.push_back(chain[2].sum(c, filtered) + input[(y * size + x) * narrow + c]);
        }
        return result;
    }

    const distile::Context &context;
    int size;
    std::vector<Layer> chain;
};

/** The mask of a frame: half a disc at the bottom, which moves to the right and comes back on the left. */
std::vector<uint8_t> half_disc(int size, int frame) {
    std::vector<uint8_t> active(size_t{1} * size * size);
    for (int y = 0; y < size; y++) {
        for (int x = 0; x < size; x++) {
            active[y * size + (x + frame * size / frames) % size] = std::hypot(size - y, size / 2 - x) < .25 * size;
        }
    }
    return active;
}

int run(int size) {
    const distile::Context context = distile::make_context();
    Block block(context, size);
    const std::vector<uint8_t> all(size_t{1} * size * size, 1);
    std::vector<float> values = random_values(all.size() * narrow, 1);
    const distile_tensor input = distile_tensor_make(values.data(), 1, size, size, narrow);
    Way ways[] = {{"all pixels", true, true, DISTILE_KEEP},
                  {"keep", true, false, DISTILE_KEEP},
                  {"keep, no border", false, false, DISTILE_KEEP},
                  {"zero", true, false, DISTILE_ZERO},
                  {"planner", true, false, DISTILE_KEEP, distile::make_planner(context)}};
    std::vector<uint8_t> active;
    for (int frame = 0; frame < frames; frame++) {
        active = half_disc(size, frame);
        for (Way &way : ways) {  // in turns, so that other programs slow all of them
            const Clock::time_point start = Clock::now();
            block.set_masks(way.everywhere ? all : active);
            block.run(input, way);
            const std::chrono::duration<double, std::milli> time = Clock::now() - start;
            way.milliseconds = std::min(way.milliseconds, time.count());
        }
    }

    for (size_t pixel = 0; pixel < active.size(); pixel++) {
        const int y = static_cast<int>(pixel) / size, x = static_cast<int>(pixel) % size;
        const std::vector<double> expected =
            active[pixel] != 0 ? block.expected(values, y, x) : std::vector<double>(narrow);
        for (Way &way : ways) {
            const bool is_known = active[pixel] != 0 || way.inactive == DISTILE_ZERO || way.planner;
            for (size_t c = 0; c < narrow && is_known; c++) {
                const float value = static_cast<const float *>(way.result.data)[pixel * narrow + c];
                const double error = std::abs(value - expected[c]);
                way.error = std::isnan(error) ? HUGE_VAL : std::max(way.error, error);
            }
        }
    }

    const auto density = [&](size_t layer) {
        int64_t pixels = 0;
        check(context, distile_mask_active_pixels(block.chain[layer].mask.get(), &pixels));
        return static_cast<double>(pixels) / (size * size);
    };
    const double ideal = 1 / density(layers - 1);
    std::printf("The layers compute %.1f %%, %.1f %% and %.1f %% of the pixels: ideally %.1f times as fast as all.\n",
                100 * density(0), 100 * density(1), 100 * density(2), ideal);
    bool right = true;
    for (const Way &way : ways) {
        const double speed_up = ways[0].milliseconds / way.milliseconds;
        std::printf("%-16s %6.2f ms, speed-up %4.1f, %3.0f %% of the ideal, largest error %.1e\n", way.name,
                    way.milliseconds, speed_up, 100 * speed_up / ideal, way.error);
        right = right && way.error < 1e-4;
    }
    std::printf("The planner's buffers take %.1f MiB.\n",
                static_cast<double>(distile_planner_bytes(ways[4].planner.get())) / (1 << 20));
    return right ? 0 : 1;
}

}  // namespace

int main(int argc, char **argv) {
    try {
        return run(argc > 1 ? std::atoi(argv[1]) : 64);
    } catch (const std::exception &error) {
        std::fprintf(stderr, "block: %s\n", error.what());
        return 1;
    }
}
