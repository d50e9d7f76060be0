#include "epilogue.h"
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

/** Halide's exp fails for arguments far outside float32's range. The exponential of 89 is infinite. */
Expr one_plus_exponential_of_minus(const Expr &value) {
    return 1.0f + exp(-clamp(value, -89.0f, 87.0f));
}

}  // namespace

const std::map<std::string, Epilogue> &epilogue_names() {
    static const std::map<std::string, Epilogue> names = {{"none", Epilogue::None},
                                                          {"relu", Epilogue::Relu},
                                                          {"relu6", Epilogue::Relu6},
                                                          {"silu", Epilogue::Silu},
                                                          {"gelu", Epilogue::Gelu},
                                                          {"sigmoid", Epilogue::Sigmoid},
                                                          {"hardsigmoid", Epilogue::Hardsigmoid},
                                                          {"hardswish", Epilogue::Hardswish}};
    return names;
}

Expr apply_epilogue(Epilogue epilogue, const Expr &value) {
    // Halide's code otherwise assumes that there are no NaNs. As strict comparisons, max(a, b) is b where b is NaN.
    switch (epilogue) {
    case Epilogue::None:
        return value;
    case Epilogue::Relu:
        return strict_float(max(0.0f, value));
    case Epilogue::Relu6:
        return strict_float(min(6.0f, max(0.0f, value)));
    case Epilogue::Silu:
        return strict_float(value / one_plus_exponential_of_minus(value));
    case Epilogue::Gelu:
        // The error function of NaN may be any number; the factor `value` keeps NaN. Twice `value` could overflow.
        return value * (0.5f + 0.5f * error_function(value * 0.70710678f));
    case Epilogue::Sigmoid: {
        // The exponential of NaN may be any number; the difference of this and itself is 0 or NaN.
        const Expr limited = min(1.0f, max(-1.0f, value));
        return strict_float(1.0f / one_plus_exponential_of_minus(value) + (limited - limited));
    }
    case Epilogue::Hardsigmoid:
        return strict_float(min(6.0f, max(0.0f, value + 3.0f)) / 6.0f);
    case Epilogue::Hardswish:
        return strict_float(value * (min(6.0f, max(0.0f, value + 3.0f)) / 6.0f));
    }
    return value;
}

}  // namespace distile
