/** \file
 * Squares of float32 turned in registers: rows become columns. `Lanes` is 4, 8 or 16, the numbers of a register.
 */
#ifndef DISTILE_DOT_PRODUCT_TRANSPOSE_H
#define DISTILE_DOT_PRODUCT_TRANSPOSE_H

#include <cstdint>
#include <cstring>
#include <utility>

namespace distile::dot_product {

/** A register of float32. */
template<int Lanes> struct FloatVector;
template<> struct FloatVector<4> { using Type = float __attribute__((vector_size(16))); };
template<> struct FloatVector<8> { using Type = float __attribute__((vector_size(32))); };
template<> struct FloatVector<16> { using Type = float __attribute__((vector_size(64))); };

/** `Isa` as in Epilogue. */
template<class Isa, int Lanes> class Transpose {
public:
    using Vector = typename FloatVector<Lanes>::Type;

    /** `rows[i][j]` becomes `turned[j][i]`. */
    [[gnu::always_inline]] static void run(const float *const *rows, Vector (&turned)[Lanes]) {
        Vector whole[Lanes], pairs[Lanes];
#pragma GCC unroll 16
        for (int i = 0; i < Lanes; i++) {
            std::memcpy(&whole[i], rows[i], sizeof(Vector));
        }
#pragma GCC unroll 8
        for (int i = 0; i < Lanes; i += 2) {
            mix<interleave_low>(whole[i], whole[i + 1], pairs[i]);
            mix<interleave_high>(whole[i], whole[i + 1], pairs[i + 1]);
        }
#pragma GCC unroll 4
        for (int i = 0; i < Lanes; i += 4) {
            mix<low_pairs>(pairs[i], pairs[i + 2], turned[i]);
            mix<high_pairs>(pairs[i], pairs[i + 2], turned[i + 1]);
            mix<low_pairs>(pairs[i + 1], pairs[i + 3], turned[i + 2]);
            mix<high_pairs>(pairs[i + 1], pairs[i + 3], turned[i + 3]);
        }
        // Each part of four numbers now holds four rows of a column: parts change places.
        swap_parts<1>(turned);
        swap_parts<2>(turned);
    }
    /** `rows[i][j]` becomes `to[j * distance + i]`. */
    [[gnu::always_inline]] static void run(const float *const *rows, float *to, int64_t distance) {
        Vector turned[Lanes];
        run(rows, turned);
#pragma GCC unroll 16
        for (int i = 0; i < Lanes; i++) {
            std::memcpy(to + i * distance, &turned[i], sizeof(Vector));
        }
    }

private:
    // Which element of two vectors, one behind the other, becomes element i.
    static constexpr int interleave_low(int i) {
        return i / 4 * 4 + i % 4 / 2 + (i % 2) * Lanes;
    }
    static constexpr int interleave_high(int i) {
        return interleave_low(i) + 2;
    }
    static constexpr int low_pairs(int i) {
        return i / 4 * 4 + i % 2 + (i % 4 / 2) * Lanes;
    }
    static constexpr int high_pairs(int i) {
        return low_pairs(i) + 2;
    }
    template<int Distance> static constexpr int first_parts(int i) {
        return (i / 4 & Distance) == 0 ? i : i - Distance * 4 + Lanes;
    }
    template<int Distance> static constexpr int second_parts(int i) {
        return (i / 4 & Distance) == 0 ? i + Distance * 4 : i + Lanes;
    }

    // Vectors are passed by address, because how they are returned depends on the instruction set.
    template<int (*Pattern)(int)>
    [[gnu::always_inline]] static void mix(const Vector &a, const Vector &b, Vector &mixed) {
        mix<Pattern>(a, b, mixed, std::make_integer_sequence<int, Lanes>());
    }
    template<int (*Pattern)(int), int... Indices> [[gnu::always_inline]] static void
    mix(const Vector &a, const Vector &b, Vector &mixed, std::integer_sequence<int, Indices...>) {
        mixed = __builtin_shufflevector(a, b, Pattern(Indices)...);
    }
    template<int Distance> [[gnu::always_inline]] static void swap_parts(Vector (&rows)[Lanes]) {
        if constexpr (Distance * 4 < Lanes) {
#pragma GCC unroll 16
            for (int i = 0; i < Lanes; i++) {
                if ((i / 4 & Distance) == 0) {
                    Vector &low = rows[i], &high = rows[i + Distance * 4];
                    const Vector before = low;
                    mix<first_parts<Distance>>(before, high, low);
                    mix<second_parts<Distance>>(before, high, high);
                }
            }
        }
    }
};

}  // namespace distile::dot_product

#endif
