/** \file
 * Activations by definition, in double precision. They are not those of the table, which every other code computes.
 */
#ifndef DISTILE_ACTIVATION_REFERENCE_H
#define DISTILE_ACTIVATION_REFERENCE_H

#include <cmath>
#include <distile/distile.h>

namespace distile {

/** NaN stays NaN. */
inline double apply_epilogue(distile_activation epilogue, double value, float slope = .01f) {
    switch (epilogue) {
    case DISTILE_ACTIVATION_NONE:
        return value;
    case DISTILE_ACTIVATION_RELU:
        return value < 0 ? 0 : value;
    case DISTILE_ACTIVATION_RELU6:
        return value < 0 ? 0 : value > 6 ? 6 : value;
    case DISTILE_ACTIVATION_SILU:
        return value / (1 + std::exp(-value));
    case DISTILE_ACTIVATION_GELU:
        return value * 0.5 * std::erfc(-value / std::sqrt(2.0));
    case DISTILE_ACTIVATION_SIGMOID:
        return 1 / (1 + std::exp(-value));
    case DISTILE_ACTIVATION_HARDSIGMOID:
        return value < -3 ? 0 : value > 3 ? 1 : (value + 3) / 6;
    case DISTILE_ACTIVATION_HARDSWISH:
        return value * (value < -3 ? 0 : value > 3 ? 6 : value + 3) / 6;
    case DISTILE_ACTIVATION_TANH:
        return std::tanh(value);
    case DISTILE_ACTIVATION_ELU:
        return value < 0 ? std::expm1(value) : value;
    case DISTILE_ACTIVATION_MISH:
        return value * std::tanh(std::log1p(std::exp(value)));
    case DISTILE_ACTIVATION_LEAKY_RELU:
        return value > 0 ? value : slope * value;
    }
    return value;
}

/** Whether an activation makes integers of integers. */
inline bool keeps_integers(distile_activation epilogue) {
    return epilogue <= DISTILE_ACTIVATION_RELU6;
}

}  // namespace distile

#endif
