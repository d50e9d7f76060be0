/** \file
 * Four rows of bytes as groups of four: [channel][row].
 */
#ifndef DISTILE_DOT_PRODUCT_INTERLEAVE_H
#define DISTILE_DOT_PRODUCT_INTERLEAVE_H

#include <cstdint>
#include <cstring>
#include <utility>

namespace distile::dot_product {

/** The widest vector whose bytes the file that includes this can shuffle. */
#if defined(__AVX512BW__)
constexpr int32_t widest_bytes = 64;
#elif defined(__AVX2__)
constexpr int32_t widest_bytes = 32;
#else
constexpr int32_t widest_bytes = 16;
#endif

/** Vectors of some bytes, by their elements. */
template<int32_t Size> struct VectorOf;
template<> struct VectorOf<16> {
    using Bytes = uint8_t __attribute__((vector_size(16)));
    using Pairs = uint16_t __attribute__((vector_size(16)));
    using Longs = uint64_t __attribute__((vector_size(16)));
};
template<> struct VectorOf<32> {
    using Bytes = uint8_t __attribute__((vector_size(32)));
    using Pairs = uint16_t __attribute__((vector_size(32)));
    using Longs = uint64_t __attribute__((vector_size(32)));
};
template<> struct VectorOf<64> {
    using Bytes = uint8_t __attribute__((vector_size(64)));
    using Pairs = uint16_t __attribute__((vector_size(64)));
    using Longs = uint64_t __attribute__((vector_size(64)));
};

/** `Set` as in Epilogue. */
template<class Set, int32_t Size> class Interleaving {
public:
    using Vector = typename VectorOf<Size>::Bytes;

    /** Stores four times as many bytes. */
    static void store(const Vector &a, const Vector &b, const Vector &c, const Vector &d, uint8_t *to) {
        Pairs ab[2], cd[2];
        alternate<1, lane>(a, b, ab);
        alternate<1, lane>(c, d, cd);
        // Each lane of the four has 4 of 16 channels.
        Longs quarters[4];
        alternate<2, lane>(ab[0], cd[0], quarters);
        alternate<2, lane>(ab[1], cd[1], quarters + 2);
        if constexpr (Size == lane) {
            store(quarters[0], quarters[1], quarters[2], quarters[3], to);
        } else {
            Longs first[2], second[2];
            alternate<lane, Size>(quarters[0], quarters[1], first);
            alternate<lane, Size>(quarters[2], quarters[3], second);
            if constexpr (Size == 2 * lane) {
                store(first[0], second[0], first[1], second[1], to);
            } else {
                alternate<2 * lane, Size>(first[0], second[0], quarters);
                alternate<2 * lane, Size>(first[1], second[1], quarters + 2);
                store(quarters[0], quarters[1], quarters[2], quarters[3], to);
            }
        }
    }

private:
    using Pairs = typename VectorOf<Size>::Pairs;
    using Longs = typename VectorOf<Size>::Longs;
    /** The bytes within which instructions for bytes and pairs alternate. */
    static constexpr int32_t lane = 16;

    static void store(const Longs &a, const Longs &b, const Longs &c, const Longs &d, uint8_t *to) {
        constexpr int64_t size = Size;
        std::memcpy(to, &a, size);
        std::memcpy(to + size, &b, size);
        std::memcpy(to + 2 * size, &c, size);
        std::memcpy(to + 3 * size, &d, size);
    }
    /** Alternates units of two vectors, so many bytes each: to[0] has those of the first half of each group, to[1]
     * those of the second halves. */
    template<int32_t Unit, int32_t Group, typename From, typename To>
    static void alternate(const From &a, const From &b, To *to) {
        constexpr int32_t bytes = sizeof(a[0]);
        alternate<Unit / bytes, Group / bytes, 0>(a, b, to[0], std::make_integer_sequence<int32_t, Size / bytes>());
        alternate<Unit / bytes, Group / bytes, 1>(a, b, to[1], std::make_integer_sequence<int32_t, Size / bytes>());
    }
    template<int32_t Unit, int32_t Group, int32_t Half, typename From, typename To, int32_t... I>
    static void alternate(const From &a, const From &b, To &to, std::integer_sequence<int32_t, I...>) {
        const From made = __builtin_shufflevector(a, b, source(I, Unit, Group, Half, sizeof...(I))...);
        std::memcpy(&to, &made, sizeof(to));
    }
    /** Where element `i` comes from. Elements of the second vector follow those of the first. */
    static constexpr int32_t source(int32_t i, int32_t unit, int32_t group, int32_t half, int32_t all) {
        const int32_t place = i % group, number = place / unit;
        return i - place + half * group / 2 + number / 2 * unit + place % unit + number % 2 * all;
    }
};

}  // namespace distile::dot_product

#endif
