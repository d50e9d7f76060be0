/** \file
 * Every row of the table of activations, against the reference: for whatever computes them.
 */
#ifndef DISTILE_TESTS_ACTIVATION_TESTS_H
#define DISTILE_TESTS_ACTIVATION_TESTS_H

#include "facts/activation_names.h"
#include "reference/activation_reference.h"
#include "runtime/base/activation.h"
#include "tests/support/catch.h"
#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <vector>

namespace distile {

/** Steps of 2^-8 around 0, where the functions bend; both sides of the numbers where a formula changes; and the ends of
 * float32's range, subnormal numbers, zeros, infinities and NaN. */
inline std::vector<float> activation_inputs() {
    using Float = std::numeric_limits<float>;
    std::vector<float> values;
    for (int i = -(24 << 8); i <= 24 << 8; i++) {
        values.push_back(static_cast<float>(i) / (1 << 8));
    }
    for (const float value : {0.0f,
                              Float::denorm_min(),
                              1e-40f,
                              Float::min(),
                              1e-30f,
                              1e-10f,
                              1e-6f,
                              1e-4f,
                              3.0f,
                              4.1f,
                              6.0f,
                              9.0f,
                              40.0f,
                              44.0f,
                              86.9f,
                              87.0f,
                              87.5f,
                              88.0f,
                              88.5f,
                              89.0f,
                              104.0f,
                              1e4f,
                              1e5f,
                              1e30f,
                              3e38f,
                              Float::max(),
                              Float::infinity(),
                              Float::quiet_NaN()}) {
        for (const float near : {value, std::nextafterf(value, 0), std::nextafterf(value, Float::infinity())}) {
            values.insert(values.end(), {near, -near});
        }
    }
    return values;
}

/** The slopes that rows with one are checked with. The first is any, for the other rows. */
constexpr float activation_slopes[] = {DISTILE_DEFAULT_SLOPE, 0, 1, -.5f, 1.75f};

/** Whether a number is the reference's. A row with a slope makes exact zeros, so their signs count too. */
inline bool is_activated(const Activation &activation, float found, double due, double bound) {
    const auto rounded = static_cast<float>(due);  // Infinite beyond float32's range.
    if (std::isnan(rounded) || std::isinf(rounded)) {
        return std::isnan(rounded) ? std::isnan(found) : found == rounded;
    }
    const bool same_zero =
        !activations_with_slope[activation.function] || due != 0 || std::signbit(found) == std::signbit(due);
    return std::abs(found - due) <= bound && same_zero;
}

/** `activate(activation, inputs)` returns what the tested code makes of the inputs, for every row of the table and, if
 * it has one, several slopes. `most` is the largest error, relative to the input, or to 1 where that is smaller. */
template<typename Activate> void check_activations(const Activate &activate, double most = 5e-7) {
    const std::vector<float> inputs = activation_inputs();
    int32_t number = 0;
    for (const char *const name : activation_names) {
        const auto function = static_cast<distile_activation>(number);
        const size_t slopes = activations_with_slope[number++] ? std::size(activation_slopes) : 1;
        for (size_t s = 0; s < slopes; s++) {
            const Activation activation{function, activation_slopes[s]};
            const std::vector<float> found = activate(activation, inputs);
            REQUIRE(found.size() == inputs.size());
            for (size_t i = 0; i < inputs.size(); i++) {
                const double due = apply_epilogue(function, inputs[i], activation.slope);
                if (!is_activated(activation, found[i], due, most * std::max(1.0, std::abs(double{inputs[i]})))) {
                    CAPTURE(name, activation.slope, inputs[i], due, found[i]);
                    FAIL_CHECK("an activation is wrong");
                }
            }
        }
    }
    REQUIRE(number == DISTILE_NUM_ACTIVATIONS);
}

}  // namespace distile

#endif
