#include "tests/support/special_values.h"
#include "reference/tensors.h"
#include <algorithm>
#include <cmath>
#include <limits>

namespace distile {

namespace {

const char *const special_names[] = {"NaN", "-NaN", "infinity", "-infinity", "a huge number", "minus a huge number"};
const char *const place_names[] = {"input", "filter", "bias", "residual"};

}  // namespace

SpecialCalls::SpecialCalls(const distile_polykernel &polykernel, bool zeros)
    : kind_(polykernel.kind), conv_(convolution_of(polykernel)), dtype_(type_of(polykernel)) {
    const bool enlarges = kind_ == DISTILE_MASKED_CONV_TRANSPOSE2D || kind_ == DISTILE_MASKED_UPSAMPLE_CONV2D;
    in_height_ = kind_ == DISTILE_MASKED_LINEAR ? 1 : enlarges ? 5 : 9;
    in_width_ = kind_ == DISTILE_MASKED_LINEAR ? 40 : enlarges ? 6 : 11;
    height_ = reference_output_height(conv_, in_height_, kind_);
    width_ = reference_output_width(conv_, in_width_, kind_);

    std::mt19937 random(1);
    set_operator(reference_, polykernel);
    reference_.filter = draw(Values::Integers, filter_size(conv_), random);
    if (!zeros) {
        std::replace(reference_.filter.begin(), reference_.filter.end(), 0.0f, 1.0f);
    }
    reference_.bias = draw(Values::Integers, conv_.out_channels, random);
    for (int32_t y = 0; y < height_; y++) {
        for (int32_t x = 0; x < width_; x++) {
            // Not on the right, so that some of the input is never read; always in a corner.
            const bool active = (x <= width_ / 2 && random() % 2 == 0) || (x == 0 && y == 0);
            reference_.mask.push_back(active ? 1 : 0);
            if (active) {
                active_.push_back({y, x});
            }
        }
    }
    for (int32_t y = 0; y < in_height_; y++) {
        for (int32_t x = 0; x < in_width_; x++) {
            if (reads(y, x)) {
                read_.push_back({y, x});
            }
        }
    }
    input_ = draw(Values::Integers, read_.size() * conv_.in_channels, random);
    residual_ = draw(Values::Integers, active_.size() * conv_.out_channels, random);
    largest_ = expected_of(ordinary_call(false)).largest;
}

/** Whether an active output pixel reads an input pixel: by an operator of one channel that adds up what it reads. */
bool SpecialCalls::reads(int32_t y, int32_t x) const {
    distile_conv2d ones = conv_;
    ones.in_channels = ones.out_channels = ones.groups = 1;
    const std::vector<float> filter(filter_size(ones), 1);
    distile_weights_source source{};
    source.filter = filter.data();
    source.order = DISTILE_HWIO;
    const Conv2dReference sum(ones, source, kind_);
    std::vector<float> pixels(static_cast<size_t>(in_height_) * in_width_);
    pixels[static_cast<size_t>(y) * in_width_ + x] = 1;
    const distile_tensor input = distile_tensor_make(pixels.data(), 1, in_height_, in_width_, 1);
    std::vector<double> sums;
    for (const auto &[row, column] : active_) {
        sum.sums(input, nullptr, 0, row, column, sums);
        if (sums[0] != 0) {
            return true;
        }
    }
    return false;
}

float SpecialCalls::value_of(Special special) const {
    using Limits = std::numeric_limits<float>;
    // The others round in no type, and not to TF32 either.
    const float huge = dtype_ == DISTILE_FLOAT16 ? 65504.0f : 0x1.cp127f;
    const float magnitude = special == Special::Nan || special == Special::NegativeNan             ? Limits::quiet_NaN()
                            : special == Special::Infinity || special == Special::NegativeInfinity ? Limits::infinity()
                                                                                                   : huge;
    const bool negative = static_cast<int>(special) % 2 != 0;
    return std::copysign(magnitude, negative ? -1.0f : 1.0f);
}

ValueClasses SpecialCalls::visit(const std::function<void(const SpecialCall &)> &check) const {
    ValueClasses classes;
    for (const Place place : places()) {
        for (const Special special : all_specials) {
            for (const bool bordered : {false, true}) {
                const SpecialCall each = call(special, place, bordered);
                check(each);
                for (size_t i = 0; i < each.expected.values.size(); i++) {
                    if (each.expected.states[i / conv_.out_channels] == PixelState::Computed) {
                        const float value = each.expected.values[i];
                        (std::isnan(value) ? classes.nan : std::isinf(value) ? classes.infinite : classes.finite)++;
                    }
                }
            }
        }
    }
    return classes;
}

std::vector<Place> SpecialCalls::places() const {
    std::vector<Place> places = {Place::Input, Place::Filter, Place::Bias};
    if (conv_.residual != 0) {
        places.push_back(Place::Residual);
    }
    return places;
}

TestTensor SpecialCalls::output() const {
    return {1, height_, width_, conv_.out_channels, {}, Flush::Back, dtype_};
}

SpecialCall SpecialCalls::ordinary_call(bool bordered) const {
    TensorLayout layout;
    if (bordered) {
        const Border border = padding_of(conv_, kind_);
        layout.border_top = border.top;
        layout.border_bottom = border.bottom;
        layout.border_left = border.left;
        layout.border_right = border.right;
    }
    SpecialCall call;
    call.filter = reference_.filter;
    call.bias = reference_.bias;
    const auto make = [&](int32_t height, int32_t width, int32_t channels, const std::vector<float> &values,
                          const std::vector<std::array<int32_t, 2>> &pixels) {
        auto tensor = std::make_unique<TestTensor>(1, height, width, channels, layout, Flush::Back, dtype_);
        for (size_t i = 0; i < values.size(); i++) {
            const auto &[y, x] = pixels[i / channels];
            tensor->set(0, y, x, static_cast<int32_t>(i % channels), values[i]);
        }
        return tensor;
    };
    call.input = make(in_height_, in_width_, conv_.in_channels, input_, read_);
    layout = {};
    if (conv_.residual != 0) {
        call.residual = make(height_, width_, conv_.out_channels, residual_, active_);
    }
    return call;
}

ReferenceOutput SpecialCalls::expected_of(const SpecialCall &call) const {
    ReferenceArgs args = reference_;
    args.input = call.input->view();
    args.filter = call.filter;
    args.bias = call.bias;
    args.residual = call.residual ? &call.residual->view() : nullptr;
    return reference_masked_conv2d(args);
}

SpecialCall SpecialCalls::call(Special special, Place place, bool bordered) const {
    SpecialCall call = ordinary_call(bordered);
    const float value = value_of(special);
    const auto index = static_cast<size_t>(special);
    call.name = std::string(special_names[index]) + " in the " + place_names[static_cast<int>(place)] +
                (bordered ? ", with a border" : ", without a border");
    const int32_t channel = conv_.out_channels / 2;
    if (place == Place::Input) {
        const auto &[y, x] = read_[7 * index % read_.size()];
        call.input->set(0, y, x, conv_.in_channels / 2, value);
    } else if (place == Place::Filter) {
        const size_t weights = call.filter.size() / conv_.out_channels;
        call.filter[weights / 2 * conv_.out_channels + channel] = value;
    } else if (place == Place::Bias) {
        call.bias[channel] = value;
    } else {
        const auto &[y, x] = active_[7 * index % active_.size()];
        call.residual->set(0, y, x, channel, value);
    }
    call.expected = expected_of(call);
    // Errors are judged by ordinary numbers: by the special one, every value would be near.
    call.expected.largest = largest_;
    return call;
}

}  // namespace distile
