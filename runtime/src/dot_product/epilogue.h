/** \file
 * From float32 sums to stored bfloat16: bias, residual and activation. Plain loops, which the compiler vectorises for
 * the instruction set of the file that includes this.
 */
#ifndef DISTILE_DOT_PRODUCT_EPILOGUE_H
#define DISTILE_DOT_PRODUCT_EPILOGUE_H

#include <cstdint>
#include <cstring>
#include <distile/polykernel.h>

namespace distile::dot_product {

/** Output channels of a vector of sums, and of a block of the weights. */
constexpr int32_t vector_channels = 16;

/** `Set` only tells the code of instruction sets apart: a linker must not merge their functions. */
template<class Set> struct Epilogue {
    /** Rounds to nearest even. NaN stays NaN. */
    static uint16_t narrow(float value) {
        uint32_t bits = 0;
        std::memcpy(&bits, &value, sizeof(bits));
        const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16, nan = bits >> 16 | 0x40;
        return static_cast<uint16_t>((bits & 0x7fffffff) > 0x7f800000 ? nan : rounded);
    }
    static float widen(uint16_t stored) {
        const uint32_t bits = static_cast<uint32_t>(stored) << 16;
        float value = 0;
        std::memcpy(&value, &bits, sizeof(value));
        return value;
    }
    /** Coefficients start at the highest power. */
    static float polynomial(float, float sum) {
        return sum;
    }
    template<class... Rest> static float polynomial(float x, float sum, float next, Rest... rest) {
        return polynomial(x, sum * x + next, rest...);
    }
    /** Also a number if `x` is NaN. */
    static float clamp(float x, float least, float most) {
        const float above = x >= least ? x : least;
        return above > most ? most : above;
    }
    /** The exponential of a number from -87 to 89, to a few units in the last place; infinite above float32's range. */
    static float exponential(float x) {
        constexpr float to_integer = 0x1.8p23f, log2_e = 1.44269504f, ln2_high = 0.693359375f,
                        ln2_low = -2.12194440e-4f;
        const float shifted = x * log2_e + to_integer, power = shifted - to_integer;
        const float r = (x - power * ln2_high) - power * ln2_low;
        const float series = polynomial(r, 1.9875691500e-4f, 1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f,
                                        1.6666665459e-1f, 5.0000001201e-1f);
        const float fraction = series * r * r + r + 1;
        const uint32_t bits = static_cast<uint32_t>(static_cast<int32_t>(power) + 127) << 23;
        float scale = 0;
        std::memcpy(&scale, &bits, sizeof(scale));
        return fraction * scale;
    }
    /** The error function to a few units in the last place, with the coefficients of Eigen 3.3; 1 beyond 4. */
    static float error_function(float value) {
        const float x = clamp(value, -4.1f, 4.1f), square = x * x;
        const float p =
            polynomial(square, -2.72614225801306e-10f, 2.77068142495902e-08f, -2.10102402082508e-06f,
                       -5.69250639462346e-05f, -7.34990630326855e-04f, -2.95459980854025e-03f, -1.60960333262415e-02f);
        const float q = polynomial(square, -1.45660718464996e-05f, -2.13374055278905e-04f, -1.68282697438203e-03f,
                                   -7.37332916720468e-03f, -1.42647390514189e-02f);
        return clamp(x * p / q, -1, 1);
    }
    /** NaN stays NaN. */
    template<distile_epilogue Kind> static float activate(float x) {
        if constexpr (Kind == DISTILE_EPILOGUE_RELU) {
            return x < 0 ? 0 : x;
        } else if constexpr (Kind == DISTILE_EPILOGUE_RELU6) {
            return x < 0 ? 0 : x > 6 ? 6 : x;
        } else if constexpr (Kind == DISTILE_EPILOGUE_SILU) {
            // The exponential of 89 is infinite, so the result is 0 for large negative values.
            return x / (1 + exponential(-clamp(x, -89, 87)));
        } else if constexpr (Kind == DISTILE_EPILOGUE_GELU) {
            // Twice the value could overflow.
            return x * (.5f + .5f * error_function(x * .70710678f));
        } else {
            return x;
        }
    }
    static void copy(const uint16_t *from, uint16_t *to, int32_t count) {
        // A size that the compiler knows makes one instruction of it.
        if (count == vector_channels) {
            std::memcpy(to, from, vector_channels * sizeof(uint16_t));
        } else {
            std::memcpy(to, from, count * sizeof(uint16_t));
        }
    }
    /** Stores up to 16 channels of a pixel. */
    template<distile_epilogue Kind> static void
    store_vector(const float *sums, const float *bias, const uint16_t *residual, uint16_t *output, int32_t count) {
        float values[vector_channels];
        uint16_t stored[vector_channels] = {};
        // Unrolled loops would not be vectorised.
#pragma GCC unroll 1
        for (int32_t c = 0; c < vector_channels; c++) {
            values[c] = sums[c] + bias[c];
        }
        if (residual) {
            copy(residual, stored, count);
#pragma GCC unroll 1
            for (int32_t c = 0; c < vector_channels; c++) {
                values[c] += widen(stored[c]);
            }
        }
#pragma GCC unroll 1
        for (int32_t c = 0; c < vector_channels; c++) {
            stored[c] = narrow(activate<Kind>(values[c]));
        }
        copy(stored, output, count);
    }
    template<distile_epilogue Kind> static void store_all(const float *sums, const float *bias,
                                                          const uint16_t *residual, uint16_t *output, int32_t count) {
        for (int32_t c = 0; c < count; c += vector_channels) {
            const int32_t left = count - c;
            store_vector<Kind>(sums + c, bias + c, residual ? residual + c : nullptr, output + c,
                               left < vector_channels ? left : vector_channels);
        }
    }
    /** Stores `count` channels of a pixel. The sums and the bias hold whole vectors. */
    static void store(distile_epilogue epilogue, const float *sums, const float *bias, const uint16_t *residual,
                      uint16_t *output, int32_t count) {
        switch (epilogue) {
        case DISTILE_EPILOGUE_NONE:
            return store_all<DISTILE_EPILOGUE_NONE>(sums, bias, residual, output, count);
        case DISTILE_EPILOGUE_RELU:
            return store_all<DISTILE_EPILOGUE_RELU>(sums, bias, residual, output, count);
        case DISTILE_EPILOGUE_RELU6:
            return store_all<DISTILE_EPILOGUE_RELU6>(sums, bias, residual, output, count);
        case DISTILE_EPILOGUE_SILU:
            return store_all<DISTILE_EPILOGUE_SILU>(sums, bias, residual, output, count);
        case DISTILE_EPILOGUE_GELU:
            return store_all<DISTILE_EPILOGUE_GELU>(sums, bias, residual, output, count);
        }
    }
};

}  // namespace distile::dot_product

#endif
