#include "layer.h"
#include "reference/conv2d_reference.h"
#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <random>
#include <stdexcept>

namespace distile {

namespace {

using Clock = std::chrono::steady_clock;

double microseconds_since(Clock::time_point start) {
    return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

/** The output's value before a run; a ReLU's result is never negative. */
constexpr float untouched = -123.0f;

/** Uniform in [-scale, scale), the same with every standard library. */
float uniform(std::mt19937_64 &engine, float scale) {
    return (static_cast<float>(engine() >> 40) / static_cast<float>(1 << 23) - 1) * scale;
}

/** The quantile at `share`; 0 if there are no values. */
double quantile(std::vector<double> &values, double share) {
    if (values.empty()) {
        return 0;
    }
    const auto position = values.begin() + static_cast<std::ptrdiff_t>(share * static_cast<double>(values.size()));
    std::nth_element(values.begin(), position, values.end());
    return *position;
}

double median(std::vector<double> &values) {
    return quantile(values, .5);
}

/** Calls `timed`, which stores its measurements, for a few milliseconds: one to eight times. One untimed call comes
 * first, because the other side has filled the caches and its threads may still spin. */
void run_block(const std::function<void(bool)> &timed) {
    timed(false);
    const Clock::time_point start = Clock::now();
    for (int call = 0; call < 8 && (call == 0 || microseconds_since(start) < 8000); call++) {
        timed(true);
    }
}

}  // namespace

Layer::Layer(const Context &context, const distile_polykernel &built, int32_t height, int32_t width)
    : kernel(make_kernel(context, built)), polykernel(&built), height(height), width(width), context_(context) {
    for (int32_t i = 0; i < distile_kernel_num_variants(kernel.get()); i++) {
        distile_variant_info variant{};
        distile::check(context, distile_kernel_get_variant(kernel.get(), i, &variant));
        if (variant.dense != 0) {
            dense_variant_ = variant.name;
        }
    }
    if (dense_variant_.empty()) {
        throw std::runtime_error("the plan of '" + name() +
                                 "' has no dense candidate to compare with; add one and build again");
    }

    const distile_conv2d &conv = conv2d();
    input_.emplace(1, height, width, conv.in_channels, padding_of(conv));
    output_.emplace(1, height, width, conv.out_channels);
    input = input_->view();
    output = output_->view();
    std::mt19937_64 engine(1);
    std::vector<float> pixel_values(pixels() * conv.in_channels);
    std::generate(pixel_values.begin(), pixel_values.end(), [&] { return uniform(engine, 1); });
    input_->set(pixel_values.data());

    const int32_t taps = conv.in_channels * conv.kernel_h * conv.kernel_w;
    filter.resize(static_cast<size_t>(conv.out_channels) * taps);
    bias.resize(conv.out_channels);
    // Keeps the outputs near 1, like network initialisers.
    const float scale = std::sqrt(6.0f / static_cast<float>(taps));
    std::generate(filter.begin(), filter.end(), [&] { return uniform(engine, scale); });
    std::generate(bias.begin(), bias.end(), [&] { return uniform(engine, 1); });
    weights_ = pack_weights(context, kernel, weights_source());

    mask_ = make_mask(context);
    full_mask_ = make_mask(context);
    ByteMask full;
    full.height = height;
    full.width = width;
    full.bytes.assign(pixels(), 1);
    set(full_mask_, full);
}

std::string Layer::name() const {
    distile_kernel_info info{};
    distile::check(context_, distile_kernel_get_info(kernel.get(), &info));
    return info.name;
}

distile_weights_source Layer::weights_source() const {
    distile_weights_source source{};
    source.filter = filter.data();
    source.order = DISTILE_OIHW;
    source.bias = bias.data();
    return source;
}

double Layer::flops_per_pixel() const {
    const distile_conv2d &conv = conv2d();
    return 2.0 * conv.in_channels * conv.out_channels * conv.kernel_h * conv.kernel_w;
}

std::string Layer::summary() const {
    const distile_conv2d &conv = conv2d();
    return std::to_string(conv.kernel_h) + "x" + std::to_string(conv.kernel_w) + " convolution, " +
           std::to_string(conv.in_channels) + " to " + std::to_string(conv.out_channels) + " channels, " +
           std::to_string(height) + " x " + std::to_string(width) + " pixels";
}

void Layer::compute_reference() {
    const distile_conv2d &conv = conv2d();
    if (conv.epilogue != DISTILE_ACTIVATION_RELU || conv.residual != 0 || conv.stride_h != 1 || conv.stride_w != 1 ||
        conv.dilation_h != 1 || conv.dilation_w != 1) {
        throw std::runtime_error("'" + name() +
                                 "' is not a plain convolution with a ReLU; the demonstration supports nothing else");
    }
    const Conv2dReference loops(conv, weights_source());
    reference_.reserve(pixels() * conv.out_channels);
    std::vector<double> sums;
    for (int32_t y = 0; y < height; y++) {
        for (int32_t x = 0; x < width; x++) {
            loops.sums(input, nullptr, 0, y, x, sums);
            for (const double sum : sums) {
                reference_.push_back(static_cast<float>(apply_epilogue(conv.epilogue, sum)));
            }
        }
    }
}

distile_choice Layer::choose(const ByteMask &bytes) {
    set(mask_, bytes);
    distile_choice choice{};
    distile::check(context_, distile_kernel_choose(kernel.get(), mask_.get(), &choice));
    return choice;
}

distile_tile_list Layer::tiles(int32_t tile_h, int32_t tile_w) {
    distile_tile_list list{};
    distile::check(context_, distile_mask_tiles(mask_.get(), tile_h, tile_w, &list));
    return list;
}

double Layer::error_of(const float *pixels, const ByteMask *mask) const {
    const size_t channels = conv2d().out_channels;
    double difference = 0;
    for (size_t i = 0; i < reference_.size(); i++) {
        if (!mask || mask->bytes[i / channels] != 0) {
            const double error = std::abs(static_cast<double>(pixels[i]) - reference_[i]);
            // Comparisons with NaN are false, so a NaN must not pass as a small error.
            difference = error <= difference ? difference : std::isnan(error) ? HUGE_VAL : error;
        }
    }
    return difference / *std::max_element(reference_.begin(), reference_.end());
}

Deviation Layer::check(const ByteMask &bytes) {
    const int64_t channels = conv2d().out_channels;
    std::fill_n(output_->memory().data(), pixels() * channels, untouched);
    set(mask_, bytes);
    run(mask_, nullptr);
    Deviation deviation;
    deviation.error = error_of(output_->memory().data(), &bytes);
    for (int64_t pixel = 0; pixel < pixels(); pixel++) {
        const float *out = output_->memory().data() + pixel * channels;
        deviation.touched +=
            bytes.bytes[pixel] == 0 && std::any_of(out, out + channels, [](float value) { return value != untouched; });
    }
    return deviation;
}

Times Layer::measure(const ByteMask &bytes, const std::function<void()> &vendor, double seconds) {
    std::vector<double> masked, kernel_only, dense, others;
    const std::array<std::function<void(bool)>, 3> sides = {[&](bool keep) {
                                                                const Clock::time_point start = Clock::now();
                                                                set(mask_, bytes);
                                                                run(mask_, nullptr);
                                                                const double whole = microseconds_since(start);
                                                                // A second call reuses counts and tile lists, so it
                                                                // times the kernel alone.
                                                                const Clock::time_point again = Clock::now();
                                                                run(mask_, nullptr);
                                                                const double rest = microseconds_since(again);
                                                                if (keep) {
                                                                    masked.push_back(whole);
                                                                    kernel_only.push_back(rest);
                                                                }
                                                            },
                                                            [&](bool keep) {
                                                                const Clock::time_point start = Clock::now();
                                                                run(full_mask_, dense_variant_.c_str());
                                                                if (keep) {
                                                                    dense.push_back(microseconds_since(start));
                                                                }
                                                            },
                                                            [&](bool keep) {
                                                                const Clock::time_point start = Clock::now();
                                                                vendor();
                                                                if (keep) {
                                                                    others.push_back(microseconds_since(start));
                                                                }
                                                            }};
    Times times;
    const Clock::time_point start = Clock::now();
    while (times.rounds < 3 || microseconds_since(start) < seconds * 1e6) {
        for (size_t side = 0; side < (vendor ? sides.size() : 2); side++) {
            run_block(sides[side]);
        }
        times.rounds++;
        if (times.rounds == 1) {
            // The first round warms up.
            for (std::vector<double> *values : {&masked, &kernel_only, &dense, &others}) {
                values->clear();
            }
        }
    }
    times.rounds--;
    times.masked = median(masked);
    times.kernel = median(kernel_only);
    times.dense = median(dense);
    times.vendor = median(others);
    times.scatter = (quantile(masked, .75) - quantile(masked, .25)) / times.masked;
    return times;
}

void Layer::set(const Mask &mask, const ByteMask &bytes) {
    distile::check(context_, distile_mask_set_bytes(mask.get(), bytes.bytes.data(), bytes.batch, bytes.height,
                                                    bytes.width, int64_t{bytes.height} * bytes.width, bytes.width));
}

void Layer::run(const Mask &mask, const char *variant) {
    distile_run_args args{};
    args.input = &input;
    args.output = &output;
    args.weights = weights_.get();
    args.mask = mask.get();
    args.inactive = DISTILE_KEEP;
    args.variant = variant;
    distile::check(context_, distile_run(kernel.get(), &args));
}

}  // namespace distile
