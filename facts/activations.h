/** \file
 * The activations, one row each:
 *
 *     ROW(number, name, NAME, value, gradient)
 *
 * The number is that of distile_activation, the name that of operator files and of Python. The value is that of x. The
 * gradient is the one before the activation where g is the one behind it; only Python computes it. A row that names
 * `slope` has one number that is given at run time. Whoever computes with activations, names them or numbers them
 * expands this table, and defines what the expressions call, each once in its own numbers: C, C++, CUDA, OpenCL C,
 * Halide's expressions and Python. Values call
 *
 *     AT_LEAST(x, low)        low where x is less; NaN stays NaN
 *     LIMIT(x, low, high)     low where x is less, high where it is more; NaN stays NaN
 *     ONE_PLUS_EXP_MINUS(x)   1 + exp(-x), infinite where float32 has no number
 *     ERF(x)                  the error function
 *     TANH(x)                 the hyperbolic tangent
 *     KEEP_NAN(x, value)      the value, but NaN where x is NaN, though the last three may be a number there
 *     CHOOSE(condition, value, other)
 *
 * and gradients also BETWEEN(x, low, high) and ABOVE(x, low), which are 1 or 0, EXP(x), SIGMOID(x) and SOFTPLUS(x).
 */
#ifndef DISTILE_FACTS_ACTIVATIONS_H
#define DISTILE_FACTS_ACTIVATIONS_H

/* A row has three lines, which write_python.cmake reads. */
/* clang-format off */
#define DISTILE_ACTIVATIONS(ROW) \
    ROW(0, none, NONE, \
        x, \
        g) \
    ROW(1, relu, RELU, \
        AT_LEAST(x, 0), \
        g * ABOVE(x, 0)) \
    ROW(2, relu6, RELU6, \
        LIMIT(x, 0, 6), \
        g * BETWEEN(x, 0, 6)) \
    ROW(3, silu, SILU, \
        x / ONE_PLUS_EXP_MINUS(x), \
        g * (SIGMOID(x) * (1 + x * (1 - SIGMOID(x))))) \
    ROW(4, gelu, GELU, \
        x * (.5f + .5f * ERF(x * .70710678f)), \
        g * (.5 * (1 + ERF(x * .7071067811865476)) + x * (EXP(x * x * -.5) / 2.5066282746310002))) \
    ROW(5, sigmoid, SIGMOID, \
        KEEP_NAN(x, 1 / ONE_PLUS_EXP_MINUS(x)), \
        g * (SIGMOID(x) * (1 - SIGMOID(x)))) \
    ROW(6, hardsigmoid, HARDSIGMOID, \
        LIMIT(x + 3, 0, 6) / 6, \
        g * BETWEEN(x, -3, 3) / 6) \
    ROW(7, hardswish, HARDSWISH, \
        x * (LIMIT(x + 3, 0, 6) / 6), \
        g * CHOOSE(x > -3, CHOOSE(x < 3, x / 3 + .5, 1.), 0.)) \
    ROW(8, tanh, TANH, \
        KEEP_NAN(x, TANH(x)), \
        g * (1 - TANH(x) * TANH(x))) \
    ROW(9, elu, ELU, \
        AT_LEAST(x, 0) + 2 * TANH(.5f * LIMIT(x, -40, 0)) / (1 - TANH(.5f * LIMIT(x, -40, 0))), \
        g * CHOOSE(x > 0, 1., EXP(x))) \
    ROW(10, mish, MISH, \
        x / (.5f * (2 * ONE_PLUS_EXP_MINUS(x) - 1 + 1 / (2 * ONE_PLUS_EXP_MINUS(x) - 1))), \
        g * (TANH(SOFTPLUS(x)) + x * SIGMOID(x) * (1 - TANH(SOFTPLUS(x)) * TANH(SOFTPLUS(x))))) \
    ROW(11, leaky_relu, LEAKY_RELU, \
        CHOOSE(x > 0, x, slope * x), \
        CHOOSE(x > 0, g, slope * g))
/* clang-format on */

/** The slope where none is given: PyTorch's and ONNX's. */
#define DISTILE_DEFAULT_SLOPE .01f

// A sum has no parentheses around its parts. NOLINTNEXTLINE(bugprone-macro-parentheses)
#define DISTILE_ACTIVATION_COUNTED(number, name, NAME, value, gradient) +1
/** The number of rows. */
#define DISTILE_NUM_ACTIVATIONS (0 DISTILE_ACTIVATIONS(DISTILE_ACTIVATION_COUNTED))

#endif
