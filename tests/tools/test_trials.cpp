// How results of trials are judged: attention that rounds its probabilities, as tensor cores do, is right in code for
// them and wrong in other code.
#include "autoscheduler/measure/host_tensor.h"
#include "autoscheduler/measure/trial_runner.h"
#include "plans/nonzeros.h"
#include "tests/support/catch.h"
#include <algorithm>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>

using namespace distile;

namespace {

constexpr int heads = 2, head_dim = 16, channels = heads * head_dim, keys = 90;

Operator attention_in(const char *type) {
    return parse_operator({{"distile_operator", 1},
                           {"name", "attention"},
                           {"generator", "masked_attention"},
                           {"params", {{"dtype", type}, {"heads", heads}, {"head_dim", head_dim}}},
                           {"typical", {{"batch", 1}, {"tokens", 20}, {"key_tokens", keys}}}},
                          "here");
}

/** Attention in plain loops, whose probabilities go through `probability` and whose factors through `factor`. */
class Rounded : public TrialRunner {
public:
    using Round = std::function<float(float)>;

    Rounded(const TrialData &data, Round probability, Round factor)
        : data_(data), probability_(std::move(probability)), factor_(std::move(factor)) {
    }
    size_t add_mask(const std::vector<uint8_t> &bytes) override {
        mask_ = bytes;
        return 0;
    }
    void run(size_t) override {
        for (size_t pixel = 0; pixel < mask_.size(); pixel++) {
            for (int head = 0; mask_[pixel] != 0 && head < heads; head++) {
                compute(pixel * channels + head * head_dim, head * head_dim);
            }
        }
    }
    double time_us(size_t) override {
        return 0;
    }
    void set_output(const std::vector<float> &values) override {
        output_ = values;
    }
    std::vector<float> output() override {
        return output_;
    }

private:
    void compute(size_t row, int channel) {
        std::vector<double> weights(keys);
        for (int j = 0; j < keys; j++) {
            for (int d = 0; d < head_dim; d++) {
                weights[j] += static_cast<double>(factor_(data_.input[row + d])) *
                              factor_(data_.key[j * channels + channel + d]) / std::sqrt(head_dim);
            }
        }
        const double most = *std::max_element(weights.begin(), weights.end());
        double total = 0;
        std::vector<double> sums(head_dim);
        for (int j = 0; j < keys; j++) {
            const auto weight = static_cast<float>(std::exp(weights[j] - most));
            total += weight;
            for (int d = 0; d < head_dim; d++) {
                sums[d] += static_cast<double>(probability_(weight)) * factor_(data_.value[j * channels + channel + d]);
            }
        }
        std::vector<float> results(head_dim);
        std::transform(sums.begin(), sums.end(), results.begin(),
                       [&](double sum) { return static_cast<float>(sum / total); });
        round_to(data_.op.dtype(), results);
        std::copy(results.begin(), results.end(), output_.begin() + static_cast<std::ptrdiff_t>(row));
    }

    const TrialData &data_;
    Round probability_, factor_;
    std::vector<uint8_t> mask_;
    std::vector<float> output_;
};

float as_it_is(float value) {
    return value;
}

/** Cuts the mantissa to `bits`. */
Rounded::Round cut_to(int bits) {
    return [bits](float value) {
        int exponent = 0;
        const float mantissa = std::frexp(value, &exponent);
        return std::ldexp(std::trunc(std::ldexp(mantissa, bits)), exponent - bits);
    };
}

bool is_right(const TrialData &data, const char *layout, distile_math math, const Rounded::Round &probability,
              const Rounded::Round &factor) {
    distile_variant variant{};
    variant.layout = layout;
    distile_polykernel polykernel{};
    polykernel.kind = DISTILE_MASKED_ATTENTION;
    polykernel.variants = &variant;
    polykernel.math = math;
    Rounded runner(data, probability, factor);
    std::vector<uint8_t> mask(20);
    for (size_t i = 0; i < mask.size(); i += 2) {
        mask[i] = 1;
    }
    return check_output(runner, data, polykernel, mask, 100).empty();
}

}  // namespace

TEST_CASE("Probabilities may be rounded in attention on tensor cores alone", "[trials]") {
    for (const char *type : {"float16", "bfloat16"}) {
        CAPTURE(type);
        const Operator op = attention_in(type);
        const TrialData data(op, 1, {1, 20}, false);
        const auto round = [&](float value) {
            std::vector<float> rounded = {value};
            round_to(op.dtype(), rounded);
            return rounded[0];
        };
        const auto right = [&](const char *layout, const Rounded::Round &probability) {
            return is_right(data, layout, DISTILE_MATH_FLOAT32, probability, as_it_is);
        };
        CHECK(right(nullptr, as_it_is));
        CHECK_FALSE(right(nullptr, round));
        CHECK(right("cuda-k16", as_it_is));
        CHECK(right("cuda-k16", round));
        // With far fewer bits they are wrong there, too.
        CHECK_FALSE(right("cuda-k16", cut_to(type[0] == 'f' ? 4 : 2)));
    }
}

TEST_CASE("Attention in TF32 may cut its factors to ten bits, and no further", "[trials]") {
    const Operator op = attention_in("float32");
    const TrialData data(op, 1, {1, 20}, false);
    const auto right = [&](distile_math math, int bits) {
        return is_right(data, "cuda-k32", math, as_it_is, cut_to(bits));
    };
    CHECK(right(DISTILE_MATH_TF32, 11));
    CHECK_FALSE(right(DISTILE_MATH_FLOAT32, 11));
    CHECK_FALSE(right(DISTILE_MATH_TF32, 4));
}

TEST_CASE("Trials are measured with the weights that are given", "[trials]") {
    const Operator op = parse_operator({{"distile_operator", 1},
                                        {"name", "linear"},
                                        {"generator", "masked_linear"},
                                        {"params", {{"in_channels", 3}, {"out_channels", 2}}},
                                        {"typical", {{"batch", 1}, {"tokens", 4}, {"weight_zeros", .5}}}},
                                       "test");
    const std::vector<float> weights = {0, 1, 0, 2, 0, -3};
    CHECK(TrialData(op, 1, {1, 4}, false, weights).filter == weights);
    const std::vector<float> drawn = TrialData(op, 1, {1, 4}, false).filter;
    CHECK(drawn.size() == weights.size());
    CHECK(drawn != weights);
}

TEST_CASE("Trials of quantized operators have quads of zeros, and keep the nonzeros that are given", "[trials]") {
    const Operator op = parse_operator({{"distile_operator", 1},
                                        {"name", "linear"},
                                        {"generator", "masked_linear"},
                                        {"params", {{"dtype", "uint8"}, {"in_channels", 402}, {"out_channels", 20}}},
                                        {"typical", {{"batch", 1}, {"tokens", 4}, {"weight_zeros", .75}}}},
                                       "test");
    const TrialData drawn(op, 1, {1, 4}, false);
    int zeros = 0, all = 0;
    visit_prunable(op, [&](size_t first, size_t count) {
        const auto begin = drawn.quantized_filter.begin() + static_cast<ptrdiff_t>(first);
        zeros += std::all_of(begin, begin + static_cast<ptrdiff_t>(count), [](int8_t weight) { return weight == 0; });
        all++;
    });
    CHECK(all == 20 * 101);
    CHECK(std::abs(zeros - .75 * all) < .1 * all);
    std::vector<float> weights(size_t{20} * 402);
    weights[3] = 1e-6f;
    weights[7] = -300;
    weights[9] = 1;
    const std::vector<int8_t> given = TrialData(op, 1, {1, 4}, false, weights).quantized_filter;
    CHECK(std::count(given.begin(), given.end(), 0) == 20 * 402 - 3);
    CHECK(given[3] == 1);
    CHECK(given[7] == -127);
}

TEST_CASE("Trials of the pattern 2:4 keep at most two of four input channels", "[trials]") {
    for (const double further : {.5, .8}) {
        const Operator op = parse_operator(
            {{"distile_operator", 1},
             {"name", "conv"},
             {"generator", "masked_conv2d"},
             {"params", {{"in_channels", 24}, {"out_channels", 40}, {"kernel_h", 3}, {"kernel_w", 3}}},
             {"typical",
              {{"batch", 1}, {"height", 4}, {"width", 4}, {"weight_pattern", "2:4"}, {"weight_zeros", further}}}},
            "test");
        const std::vector<float> filter = TrialData(op, 1, {4, 4}, false).filter;
        REQUIRE(filter.size() == size_t{40} * 9 * 24);
        int64_t most = 0;
        for (size_t first = 0; first < filter.size(); first += 4) {
            const auto begin = filter.begin() + static_cast<ptrdiff_t>(first);
            most = std::max<int64_t>(most, 4 - std::count(begin, begin + 4, 0.0f));
        }
        CHECK(most == 2);
        const auto zeros = static_cast<double>(std::count(filter.begin(), filter.end(), 0.0f));
        CHECK(std::abs(zeros - further * static_cast<double>(filter.size())) <
              .05 * static_cast<double>(filter.size()));
    }
}
