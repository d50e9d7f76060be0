/** \file
 * The data types, one row each:
 *
 *     ROW(number, name, NAME, bits, ONNX, digits, widened, narrowed)     where tensors hold floating-point numbers
 *     ROW(number, name, NAME, bits, ONNX, least, most)                   where they hold integers
 *
 * The number is that of distile_dtype. The name is that of operator files, of PyTorch and of NumPy (with ml_dtypes),
 * ONNX the one in ONNX's TensorProto. The digits are the significant bits of a normal number. `widened` makes a
 * float32 of an element, and `narrowed` the nearest element, ties to even, of a float32; `x` and the results are bits,
 * unsigned and of 32 bits. Whoever names, numbers, sizes or converts types expands this table, and defines what the
 * expressions call, each once in its own numbers: C++, CUDA, OpenCL C, Halide's expressions. They call
 *
 *     CHOOSE(condition, bits, other)   one of both
 *     FLOAT_OF(bits), BITS_OF(float)   the same bits as another type
 *     LESSER(bits, other)              the smaller one
 *
 * Some convert a type faster, with instructions for it.
 */
#ifndef DISTILE_FACTS_TYPES_H
#define DISTILE_FACTS_TYPES_H

/* The first two lines of a row are what write_python.cmake reads. A number too large for float16, bfloat16 or
 * float8_e5m2 becomes infinite; float8_e4m3fn has no infinity, and saturates. */
/* clang-format off */
#define DISTILE_FLOAT_TYPES(ROW) \
    ROW(1, float32, FLOAT32, 32, FLOAT, 24, \
        x, \
        x) \
    ROW(2, float16, FLOAT16, 16, FLOAT16, 11, \
        DISTILE_WIDENED(x, 16, 10, 15, 0x7c00u), \
        DISTILE_NARROWED(x, 16, 10, 15, 0x7c00u, 0x7e00u)) \
    ROW(3, bfloat16, BFLOAT16, 16, BFLOAT16, 8, \
        x << 16, \
        CHOOSE((x & 0x7fffffffu) > 0x7f800000u, x >> 16 | 0x40u, (x + 0x7fffu + (x >> 16 & 1u)) >> 16)) \
    ROW(7, float8_e4m3fn, FLOAT8_E4M3FN, 8, FLOAT8E4M3FN, 4, \
        DISTILE_WIDENED(x, 8, 3, 7, 0x7fu), \
        DISTILE_NARROWED(x, 8, 3, 7, 0x7eu, 0x7fu)) \
    ROW(8, float8_e5m2, FLOAT8_E5M2, 8, FLOAT8E5M2, 3, \
        DISTILE_WIDENED(x, 8, 2, 15, 0x7cu), \
        DISTILE_NARROWED(x, 8, 2, 15, 0x7cu, 0x7fu))

/** Elements of quantized tensors. */
#define DISTILE_QUANTIZED_TYPES(ROW) \
    ROW(4, uint8, UINT8, 8, UINT8, 0, 255) \
    ROW(5, int8, INT8, 8, INT8, -128, 127)

/** Elements of filters alone, which fill no byte. */
#define DISTILE_FILTER_TYPES(ROW) \
    ROW(6, int4, INT4, 4, INT4, -8, 7)
/* clang-format on */

/** Every row, for a ROW(number, name, NAME, bits, ONNX, ...). */
#define DISTILE_TYPES(ROW) DISTILE_FLOAT_TYPES(ROW) DISTILE_QUANTIZED_TYPES(ROW) DISTILE_FILTER_TYPES(ROW)

/* A format with a sign, exponents and `mantissa` bits. Its magnitudes from `special` on are infinite or NaN; `largest`
 * is what a number too large becomes. A float32 with this exponent has the least subnormal number as its last bit. */
#define DISTILE_ALIGNMENT(mantissa, bias) (((151u - (bias) - (mantissa)) & 0xffu) << 23)

#define DISTILE_WIDENED(x, bits, mantissa, bias, special)                                                              \
    (CHOOSE(DISTILE_MAGNITUDE(x, bits) < (1u << (mantissa)),                                                           \
            BITS_OF(FLOAT_OF(DISTILE_MAGNITUDE(x, bits) | DISTILE_ALIGNMENT(mantissa, bias)) -                         \
                    FLOAT_OF(DISTILE_ALIGNMENT(mantissa, bias))),                                                      \
            CHOOSE(DISTILE_MAGNITUDE(x, bits) < (special),                                                             \
                   (DISTILE_MAGNITUDE(x, bits) << (23 - (mantissa))) + ((127u - (bias)) << 23),                        \
                   DISTILE_MAGNITUDE(x, bits) << (23 - (mantissa)) | 0x7f800000u)) |                                   \
     (x) >> ((bits)-1) << 31)
#define DISTILE_MAGNITUDE(x, bits) ((x) & ((1u << ((bits)-1)) - 1u))

#define DISTILE_NARROWED(x, bits, mantissa, bias, largest, nan)                                                        \
    (CHOOSE(((x)&0x7fffffffu) > 0x7f800000u, nan,                                                                      \
            CHOOSE(((x)&0x7fffffffu) < (128u - (bias)) << 23,                                                          \
                   BITS_OF(FLOAT_OF((x)&0x7fffffffu) + FLOAT_OF(DISTILE_ALIGNMENT(mantissa, bias))) -                  \
                       DISTILE_ALIGNMENT(mantissa, bias),                                                              \
                   LESSER(((((x)&0x7fffffffu) + (1u << (22 - (mantissa))) - 1u + ((x) >> (23 - (mantissa)) & 1u)) >>   \
                           (23 - (mantissa))) -                                                                        \
                              ((127u - (bias)) << (mantissa)),                                                         \
                          largest))) |                                                                                 \
     (x) >> 31 << ((bits)-1))

/* A sum has no parentheses around its parts. NOLINTNEXTLINE(bugprone-macro-parentheses) */
#define DISTILE_TYPE_COUNTED(number, name, NAME, bits, ONNX, digits, widened, narrowed) +1
/** The number of rows of floating-point types. */
#define DISTILE_NUM_FLOAT_TYPES (0 DISTILE_FLOAT_TYPES(DISTILE_TYPE_COUNTED))

#endif
