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
    using Words = uint32_t __attribute__((vector_size(16)));
};
template<> struct VectorOf<32> {
    using Bytes = uint8_t __attribute__((vector_size(32)));
    using Pairs = uint16_t __attribute__((vector_size(32)));
    using Words = uint32_t __attribute__((vector_size(32)));
};
template<> struct VectorOf<64> {
    using Bytes = uint8_t __attribute__((vector_size(64)));
    using Pairs = uint16_t __attribute__((vector_size(64)));
    using Words = uint32_t __attribute__((vector_size(64)));
};

/** `Isa` as in Epilogue. */
template<class Isa, int32_t Size> class Interleaving {
public:
    using Vector = typename VectorOf<Size>::Bytes;

    /** Stores four times as many bytes. */
    static void store(const Vector &a, const Vector &b, const Vector &c, const Vector &d, uint8_t *to) {
        Vector dealt[4];
        deal(a, dealt[0]);
        deal(b, dealt[1]);
        deal(c, dealt[2]);
        deal(d, dealt[3]);
        Pairs ab[2], cd[2];
        alternate<1>(dealt[0], dealt[1], ab);
        alternate<1>(dealt[2], dealt[3], cd);
        Vector made[4];
        alternate<2>(ab[0], cd[0], made);
        alternate<2>(ab[1], cd[1], made + 2);
        for (int64_t i = 0; i < 4; i++) {
            std::memcpy(to + i * Size, &made[i], Size);
        }
    }

private:
    using Pairs = typename VectorOf<Size>::Pairs;
    using Words = typename VectorOf<Size>::Words;
    /** The bytes within which instructions for bytes and pairs alternate. */
    static constexpr int32_t lane = 16;

    /** Deals words to the lanes: the first ones of all lanes follow each other, then the second ones. */
    static void deal(const Vector &from, Vector &to) {
        deal(from, to, std::make_integer_sequence<int32_t, Size / 4>());
    }
    template<int32_t... I> static void deal(const Vector &from, Vector &to, std::integer_sequence<int32_t, I...>) {
        constexpr int32_t lanes = Size / lane, in_lane = lane / 4;
        Words words;
        std::memcpy(&words, &from, sizeof(words));
        const Words dealt = __builtin_shufflevector(words, words, (I % in_lane * lanes + I / in_lane)...);
        std::memcpy(&to, &dealt, sizeof(to));
    }
    /** Alternates units of `Unit` bytes of two vectors in each lane: to[0] has those of its first half, to[1] those of
     * the second one. */
    template<int32_t Unit, typename From, typename To> static void alternate(const From &a, const From &b, To *to) {
        constexpr int32_t bytes = sizeof(a[0]);
        alternate<Unit / bytes, lane / bytes, 0>(a, b, to[0], std::make_integer_sequence<int32_t, Size / bytes>());
        alternate<Unit / bytes, lane / bytes, 1>(a, b, to[1], std::make_integer_sequence<int32_t, Size / bytes>());
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
