#include "bench/cpu/masked.h"
#include <algorithm>
#include <cmath>
#include <fmt/core.h>
#include <limits>
#include <stdexcept>
#include <utility>

namespace distile::bench {

namespace {

constexpr float spoiled = -12345.0f;

double largest_magnitude(const std::vector<float> &values) {
    double largest = std::numeric_limits<double>::min();
    for (const float value : values) {
        largest = std::max(largest, std::abs(double{value}));
    }
    return largest;
}

/** The larger of two errors; NaN counts as the largest. */
double worse(double worst, double difference) {
    return std::isnan(difference) ? std::numeric_limits<double>::infinity() : std::max(worst, difference);
}

}  // namespace

void set_mask(const Context &context, const Mask &mask, const ByteMask &bytes) {
    check(context, distile_mask_set_bytes(mask.get(), bytes.bytes.data(), bytes.batch, bytes.height, bytes.width,
                                          int64_t{bytes.height} * bytes.width, bytes.width));
}

double relative_error(const float *result, const std::vector<float> &reference) {
    double worst = 0;
    for (size_t i = 0; i < reference.size(); i++) {
        worst = worse(worst, std::abs(double{result[i]} - reference[i]));
    }
    return worst / largest_magnitude(reference);
}

MaskedOperator::MaskedOperator(const Context &context, Problem &problem, const distile_polykernel &polykernel,
                               const std::vector<std::string> &times, AlignedFloats output)
    : context_(context), problem_(problem), kernel_(make_kernel(context, polykernel)),
      polykernel_(taken_polykernel(polykernel, kernel_)), weights_(pack_weights(context, kernel_, problem.weights())),
      mask_(make_mask(context)), full_mask_(make_mask(context)), output_memory_(std::move(output)),
      output_(problem.output(output_memory_.data())) {
    set_mask(context, full_mask_, make_byte_mask({"dense"}, output_.batch, output_.height, output_.width));
    for (const std::string &path : times) {
        const distile_status status = distile_kernel_load_times(kernel_.get(), path.c_str());
        if (status != DISTILE_ERROR_OTHER_OPERATOR) {
            check(context, status);
        }
    }
}

void MaskedOperator::link(const distile_dense_candidate &candidate) {
    check(context_, distile_kernel_add_dense(kernel_.get(), &candidate));
}

void MaskedOperator::set_time(const char *candidate, double microseconds) {
    const int64_t pixels = int64_t{output_.batch} * output_.height * output_.width;
    check(context_, distile_kernel_add_time(kernel_.get(), candidate, pixels, microseconds));
}

distile_choice MaskedOperator::choose(const ByteMask &mask) {
    set_mask(context_, mask_, mask);
    distile_choice choice{};
    check(context_, distile_kernel_choose(kernel_.get(), mask_.get(), &choice));
    return choice;
}

void MaskedOperator::run(const ByteMask &mask, bool bordered, bool zero, const char *variant) {
    set_mask(context_, mask_, mask);
    distile_run_args args{};
    args.input = &problem_.input(bordered);
    args.output = &output_;
    args.residual = problem_.residual();
    args.weights = weights_.get();
    args.mask = mask_.get();
    args.inactive = zero ? DISTILE_ZERO : DISTILE_KEEP;
    args.variant = variant;
    check(context_, distile_run(kernel_.get(), &args));
}

void MaskedOperator::run_dense(bool bordered, const distile_tensor &output) {
    distile_run_args args{};
    args.input = &problem_.input(bordered);
    args.output = &output;
    args.residual = problem_.residual();
    args.weights = weights_.get();
    args.mask = full_mask_.get();
    args.variant = dense_variant();
    check(context_, distile_run(kernel_.get(), &args));
}

const char *MaskedOperator::dense_variant() const {
    return bench::dense_variant(polykernel());
}

void MaskedOperator::spoil_output() {
    auto *const words = reinterpret_cast<uint32_t *>(output_memory_.data());
    std::fill_n(words, output_memory_.size(), word_of(output_.dtype, spoiled));
}

double MaskedOperator::check_output(const ByteMask &mask, bool zero) {
    const std::vector<float> &reference = problem_.reference();
    const std::vector<float> result = to_floats(output_.dtype, output_memory_.data(), problem_.output_size());
    const float due = zero ? 0.0f : round_to(output_.dtype, spoiled);
    const auto channels = static_cast<size_t>(output_.channels);
    double worst = 0;
    for (size_t pixel = 0; pixel < mask.bytes.size(); pixel++) {
        for (size_t i = pixel * channels; i < (pixel + 1) * channels; i++) {
            const float value = result[i];
            if (mask.bytes[pixel] != 0) {
                worst = worse(worst, std::abs(double{value} - reference[i]));
            } else if (value != due) {
                throw std::runtime_error(
                    fmt::format("the inactive pixel {} holds {} in channel {}; in mode '{}' {} is due", pixel, value,
                                i % channels, zero ? "zero" : "keep", due));
            }
        }
    }
    const double error = worst / largest_magnitude(reference), allowed = tolerance_of(output_.dtype);
    if (!(error <= allowed)) {
        throw std::runtime_error(fmt::format("our active pixels differ from plain loops by {} of the largest value; "
                                             "{} is allowed",
                                             error, allowed));
    }
    return error;
}

}  // namespace distile::bench
