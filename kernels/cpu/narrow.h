/** \file
 * Float32 to integers of 8 bits, rounded to nearest even, by the instructions of the file that includes this.
 */
#ifndef DISTILE_DOT_PRODUCT_NARROW_H
#define DISTILE_DOT_PRODUCT_NARROW_H

#include "kernels/cpu/epilogue.h"
#include <cstdint>
#include <cstring>
#include <type_traits>
#if defined(__AVX512BW__) || defined(__AVX2__)
#include <immintrin.h>
#endif

namespace distile::dot_product {

/** 16 numbers of a type in which outputs are stored. */
template<typename Stored> struct StoredVector;
template<> struct StoredVector<uint8_t> {
    using Type = uint8_t __attribute__((vector_size(vector_channels)));
    using Wider = uint16_t __attribute__((vector_size(vector_channels * 2)));
};
template<> struct StoredVector<int8_t> {
    using Type = int8_t __attribute__((vector_size(vector_channels)));
    using Wider = int16_t __attribute__((vector_size(vector_channels * 2)));
};
template<> struct StoredVector<float> { using Type = float __attribute__((vector_size(vector_channels * 4))); };

#if defined(__AVX2__)
/** The step that narrowing of a register's and of a word's numbers shares. */
template<class Isa, typename Stored> struct Saturation {
#if defined(__AVX512BW__)
    using Register = __m512i;
    [[gnu::always_inline]] static void apply(const Register (&integers)[4], int32_t least, int32_t zero_point,
                                             Register &bytes) {
        const Register low = _mm512_set1_epi16(static_cast<int16_t>(least)),
                       zero = _mm512_set1_epi16(static_cast<int16_t>(zero_point));
        Register pairs[2];
        for (int64_t i = 0; i < 2; i++) {
            pairs[i] = _mm512_packs_epi32(integers[2 * i], integers[2 * i + 1]);
            pairs[i] = _mm512_add_epi16(_mm512_max_epi16(pairs[i], low), zero);
        }
        bytes =
            std::is_signed_v<Stored> ? _mm512_packs_epi16(pairs[0], pairs[1]) : _mm512_packus_epi16(pairs[0], pairs[1]);
    }
#else
    using Register = __m256i;
    [[gnu::always_inline]] static void apply(const Register (&integers)[4], int32_t least, int32_t zero_point,
                                             Register &bytes) {
        const Register low = _mm256_set1_epi16(static_cast<int16_t>(least)),
                       zero = _mm256_set1_epi16(static_cast<int16_t>(zero_point));
        Register pairs[2];
        for (int64_t i = 0; i < 2; i++) {
            pairs[i] = _mm256_packs_epi32(integers[2 * i], integers[2 * i + 1]);
            pairs[i] = _mm256_add_epi16(_mm256_max_epi16(pairs[i], low), zero);
        }
        bytes =
            std::is_signed_v<Stored> ? _mm256_packs_epi16(pairs[0], pairs[1]) : _mm256_packus_epi16(pairs[0], pairs[1]);
    }
#endif
};
#endif

/** Up to four vectors at a time: instructions narrow two to one. `Isa` as in Epilogue. */
template<class Isa, typename Stored> struct Narrowing {
    using Floats = typename Epilogue<Isa>::Floats;

    /** Stores each number plus a zero point; in place of a lower one, or NaN, `least`. The sums must be numbers of the
     * type. */
    template<int32_t Vectors>
    [[gnu::always_inline]] static void store(const Floats *values, int32_t least, int32_t zero_point, Stored *to) {
#if defined(__AVX512BW__)
        __m512i integers[4] = {};
        for (int64_t v = 0; v < Vectors; v++) {
            // The form without a mask gets a false warning from GCC 12.
            integers[v] = _mm512_maskz_cvtps_epi32(0xffff, reinterpret_cast<const __m512 &>(values[v]));
        }
        __m512i bytes;
        Saturation<Isa, Stored>::apply(integers, least, zero_point, bytes);
        // Each lane has four channels of every vector.
        typename Epilogue<Isa>::Words words;
        std::memcpy(&words, &bytes, sizeof(words));
        const auto ordered =
            __builtin_shufflevector(words, words, 0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
        std::memcpy(to, &ordered, Vectors * vector_channels);
#elif defined(__AVX2__)
        const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
        for (int64_t v = 0; v < Vectors; v += 2) {
            __m256i integers[4] = {};
            for (int64_t i = 0; i < 2 && v + i < Vectors; i++) {
                const auto *const half = reinterpret_cast<const __m256 *>(&values[v + i]);
                integers[2 * i] = _mm256_cvtps_epi32(half[0]);
                integers[2 * i + 1] = _mm256_cvtps_epi32(half[1]);
            }
            __m256i bytes;
            Saturation<Isa, Stored>::apply(integers, least, zero_point, bytes);
            const __m256i ordered = _mm256_permutevar8x32_epi32(bytes, order);
            std::memcpy(to + v * vector_channels, &ordered, (Vectors - v < 2 ? 1 : 2) * vector_channels);
        }
#else
        // Near this number, float32 has integers only, and its bits count them.
        constexpr float to_integer = 0x1.8p23f;
        constexpr int32_t bits_of_zero = 0x4b400000;
        using Integers = typename Epilogue<Isa>::Integers;
        using Vector = typename StoredVector<Stored>::Type;
        for (int64_t v = 0; v < Vectors; v++) {
            const Floats low = Floats{} + static_cast<float>(least),
                         near = (values[v] > low ? values[v] : low) + to_integer;
            Integers integers;
            std::memcpy(&integers, &near, sizeof(integers));
            const Vector stored = __builtin_convertvector(integers + (zero_point - bits_of_zero), Vector);
            std::memcpy(to + v * vector_channels, &stored, sizeof(stored));
        }
#endif
    }
};

/** Four numbers of each pixel of a register of pixels become the bytes of a word. */
template<class Isa, typename Stored> struct QuadNarrowing {
    using Floats = typename Activation<Isa>::Floats;

    /** Stores what Narrowing stores of numbers: [pixel][4]. */
    [[gnu::always_inline]] static void store(const Floats (&values)[4], int32_t least, int32_t zero_point,
                                             uint32_t *words) {
#if defined(__AVX512BW__)
        __m512i integers[4];
        for (int64_t c = 0; c < 4; c++) {
            integers[c] = _mm512_maskz_cvtps_epi32(0xffff, reinterpret_cast<const __m512 &>(values[c]));
        }
        __m512i bytes;
        Saturation<Isa, Stored>::apply(integers, least, zero_point, bytes);
        _mm512_store_si512(words, _mm512_shuffle_epi8(bytes, _mm512_load_si512(order)));
#elif defined(__AVX2__)
        __m256i integers[4];
        for (int64_t c = 0; c < 4; c++) {
            integers[c] = _mm256_cvtps_epi32(reinterpret_cast<const __m256 &>(values[c]));
        }
        __m256i bytes;
        Saturation<Isa, Stored>::apply(integers, least, zero_point, bytes);
        _mm256_store_si256(reinterpret_cast<__m256i *>(words),
                           _mm256_shuffle_epi8(bytes, _mm256_load_si256(reinterpret_cast<const __m256i *>(order))));
#else
        // As in Narrowing. The bits of zero end with a byte of 0.
        constexpr float to_integer = 0x1.8p23f;
        using Words = uint32_t __attribute__((vector_size(register_lanes * 4)));
        const Floats low = Floats{} + static_cast<float>(least);
        Words made{};
        for (int c = 0; c < 4; c++) {
            const Floats near = (values[c] > low ? values[c] : low) + to_integer;
            Words integers;
            std::memcpy(&integers, &near, sizeof(integers));
            made |= ((integers + static_cast<uint32_t>(zero_point)) & 0xff) << (8 * c);
        }
        std::memcpy(words, &made, sizeof(made));
#endif
    }

private:
    /** Takes four numbers of each of four pixels from the order of numbers to that of pixels. */
    alignas(64) static constexpr uint8_t order[64] = {
        0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15, 0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15,
        0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15, 0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15};
};

}  // namespace distile::dot_product

#endif
