/** \file
 * Every row of the table of activations, against the reference: for whatever computes them.
 */
#ifndef DISTILE_TESTS_ACTIVATION_TESTS_H
#define DISTILE_TESTS_ACTIVATION_TESTS_H

#include "facts/activation_names.h"
#include "reference/activation_reference.h"
#include "tests/support/catch.h"
#include <algorithm>
#include <cmath>
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

/** `activate(activation, inputs)` returns what the tested code makes of the inputs, for every row of the table. `most`
 * is the largest error, relative to the input, or to 1 where that is smaller. */
template<typename Activate> void check_activations(const Activate &activate, double most = 5e-7) {
    const std::vector<float> inputs = activation_inputs();
    int32_t number = 0;
    for (const char *const name : activation_names) {
        const auto activation = static_cast<distile_activation>(number++);
        const std::vector<float> found = activate(activation, inputs);
        REQUIRE(found.size() == inputs.size());
        for (size_t i = 0; i < inputs.size(); i++) {
            const double due = apply_epilogue(activation, inputs[i]);
            const double bound = most * std::max(1.0, std::abs(double{inputs[i]}));
            const bool right = std::isnan(due)   ? std::isnan(found[i])
                               : std::isinf(due) ? found[i] == due
                                                 : std::abs(found[i] - due) <= bound;
            if (!right) {
                CAPTURE(name, inputs[i], due, found[i]);
                FAIL_CHECK("an activation is wrong");
            }
        }
    }
    REQUIRE(number == DISTILE_NUM_ACTIVATIONS);
}

}  // namespace distile

#endif
