#include "generators/epilogue.h"
#include "facts/activations.h"
#include <vector>

namespace distile {

using namespace Halide;

namespace {

/** Coefficients start at the highest power. */
Expr polynomial(const Expr &x, const std::vector<float> &coefficients) {
    Expr result = coefficients[0];
    for (size_t i = 1; i < coefficients.size(); i++) {
        result = result * x + coefficients[i];
    }
    return result;
}

/** The error function to a few units in the last place: x P(x^2) / Q(x^2), with the coefficients of Eigen 3.3
 * (unsupported/Eigen/src/SpecialFunctions/SpecialFunctionsImpl.h, generic_fast_erf_float). Beyond 4 it is 1 in
 * float32: at 4.1 the quotient exceeds 1 by more than it is rounded, so the last clamp makes exactly 1 of it. */
Expr error_function(const Expr &value) {
    const Expr x = clamp(value, -4.1f, 4.1f), square = x * x;
    const Expr p = polynomial(square, {-2.72614225801306e-10f, 2.77068142495902e-08f, -2.10102402082508e-06f,
                                       -5.69250639462346e-05f, -7.34990630326855e-04f, -2.95459980854025e-03f,
                                       -1.60960333262415e-02f});
    const Expr q = polynomial(square, {-1.45660718464996e-05f, -2.13374055278905e-04f, -1.68282697438203e-03f,
                                       -7.37332916720468e-03f, -1.42647390514189e-02f});
    return clamp(x * p / q, -1.0f, 1.0f);
}

/** The hyperbolic tangent to a few units in the last place, with the coefficients of Eigen 3.3
 * (Eigen/src/Core/MathFunctionsImpl.h, generic_fast_tanh_float). From 9 on it is 1 in float32. */
Expr hyperbolic_tangent(const Expr &value) {
    const Expr x = clamp(value, -9.0f, 9.0f), square = x * x;
    const Expr p = polynomial(square, {-2.76076847742355e-16f, 2.00018790482477e-13f, -8.60467152213735e-11f,
                                       5.12229709037114e-08f, 1.48572235717979e-05f, 6.37261928875436e-04f,
                                       4.89352455891786e-03f});
    const Expr q = polynomial(
        square, {1.19825839466702e-06f, 1.18534705686654e-04f, 2.26843463243900e-03f, 4.89352518554385e-03f});
    return clamp(x * p / q, -1.0f, 1.0f);
}

/** Halide's exp fails for arguments far outside float32's range. The exponential of 89 is infinite. */
Expr one_plus_exponential_of_minus(const Expr &value) {
    return 1.0f + exp(-clamp(value, -89.0f, 87.0f));
}

/** The value, or NaN where `x` is NaN: the functions above may return a number there. A number minus itself is 0. */
Expr keep_nan(const Expr &x, const Expr &value) {
    const Expr limited = min(1.0f, max(-1.0f, x));
    return value + (limited - limited);
}

#define AT_LEAST(x, low) max(low, x)
#define LIMIT(x, low, high) min(high, max(low, x))
#define ONE_PLUS_EXP_MINUS(x) one_plus_exponential_of_minus(x)
#define ERF(x) error_function(x)
#define TANH(x) hyperbolic_tangent(x)
#define KEEP_NAN(x, value) keep_nan(x, value)
#define CHOOSE(condition, value, other) select(condition, value, other)

Expr row_of(distile_activation activation, const Expr &x, const Expr &slope) {
    switch (activation) {
#define ROW(number, name, NAME, value, gradient)                                                                       \
    case DISTILE_ACTIVATION_##NAME:                                                                                    \
        return value;
        DISTILE_ACTIVATIONS(ROW)
#undef ROW
    }
    return x;
}

#undef AT_LEAST
#undef LIMIT
#undef ONE_PLUS_EXP_MINUS
#undef ERF
#undef TANH
#undef KEEP_NAN
#undef CHOOSE

}  // namespace

const std::map<std::string, distile_activation> &activations_by_name() {
    static const std::map<std::string, distile_activation> names = {
#define ROW(number, name, NAME, value, gradient) {#name, DISTILE_ACTIVATION_##NAME},
        DISTILE_ACTIVATIONS(ROW)
#undef ROW
    };
    return names;
}

Expr apply_epilogue(distile_activation activation, const Expr &value, const Expr &slope) {
    const Expr activated = row_of(activation, value, slope);
    // Halide's code otherwise assumes that there are no NaNs. As strict comparisons, max(a, b) is b where b is NaN. A
    // GELU keeps NaN without: whatever the error function makes of it, x is a factor. Its polynomials are then fused
    // multiplications and additions.
    return activation == DISTILE_ACTIVATION_NONE || activation == DISTILE_ACTIVATION_GELU ? activated
                                                                                          : strict_float(activated);
}

}  // namespace distile
