/** \file
 * Products with the nonzero quads of weights of quantized operators, as nonzeros.h uses them: a word holds four input
 * channels, and so does a weight. Sums are int32. A class `Isa` as there has, besides,
 *
 *     using Total = ..., Weight = ...;  // A vector of sums, and a quad of weights in all lanes.
 *     static void clear(Total &), load(const float *, Total &), store(const Total &, float *);
 *     static void spread(uint32_t quad, Weight &weight);
 *     // Adds the products of the four unsigned channels of each pixel.
 *     static void add(Total &total, const float *pixels, const Weight &weight);
 *
 * The files that include this are compiled without fused multiply-adds, as int8.h asks.
 */
#ifndef DISTILE_DOT_PRODUCT_QUAD_NONZEROS_H
#define DISTILE_DOT_PRODUCT_QUAD_NONZEROS_H

#include "kernels/cpu/int8.h"
#include "kernels/cpu/interleave.h"
#include "kernels/cpu/nonzeros.h"

namespace distile::dot_product {

/** Products of quads. */
template<class Isa> struct QuadProducts : Isa {
    static void spread(const float *word, typename Isa::Weight &weight) {
        uint32_t quad = 0;
        std::memcpy(&quad, word, sizeof(quad));
        Isa::spread(quad, weight);
    }
};

template<class Isa> class QuadNumbers {
public:
    using Types = Int8<Isa>;
    using Element = typename Types::Element;
    using Products = QuadProducts<Isa>;
    static constexpr int32_t word_channels = 4;
    static constexpr bool stores_words = true;

    explicit QuadNumbers(const Types &types) {
        types.pad(padding_, sizeof(padding_));
        for (uint8_t &byte : padding_) {
            byte ^= types.flip();
        }
    }

    void stage(const Types &types, const Element *const *pixels, int32_t first, int32_t count, float *room, float *to,
               int64_t distance) const {
        const float *read[lanes];
        int32_t c = 0;
        for (; count - c >= vector_bytes; c += vector_bytes, to += lanes * distance) {
            for (int32_t i = 0; i < lanes; i++) {
                read[i] = reinterpret_cast<const float *>(pixels[i] ? pixels[i] + first + c : padding_);
            }
            turn(read, types.flip(), to, distance);
        }
        if (c == count) {
            return;
        }
        auto *const bytes = reinterpret_cast<uint8_t *>(room);
        const int32_t some = count - c;
        std::memset(bytes, 0, int64_t{lanes} * vector_bytes);
        ShortCopy<Types>::with(some, 0, [&](const auto &copy_one) {
            for (int64_t i = 0; i < lanes; i++) {
                copy_one(pixels[i] ? pixels[i] + first + c : padding_, bytes + i * vector_bytes);
            }
        });
        for (int64_t i = 0; i < lanes; i++) {
            read[i] = room + i * lanes;
        }
        turn(read, types.flip(), to, distance);
    }

private:
    static constexpr int32_t lanes = Isa::lanes, vector_bytes = lanes * static_cast<int32_t>(sizeof(float));
    using Words = typename VectorOf<vector_bytes>::Words;

    /** Turns a square of words, whose bytes become unsigned numbers. */
    static void turn(const float *const *rows, uint8_t flip, float *to, int64_t distance) {
        typename Transpose<Isa, lanes>::Vector turned[lanes];
        Transpose<Isa, lanes>::run(rows, turned);
        Words flips;
        std::memset(&flips, flip, sizeof(flips));
#pragma GCC unroll 16
        for (int i = 0; i < lanes; i++) {
            Words words;
            std::memcpy(&words, &turned[i], sizeof(words));
            words ^= flips;
            std::memcpy(to + i * distance, &words, sizeof(words));
        }
    }

    alignas(64) uint8_t padding_[64];  ///< What is staged in place of pixels beyond the input, as inputs are stored.
};

/** Computes a call. */
template<class Isa> int call_quad_nonzeros(const distile_dot_product_code &code, const distile_kernel_call &call) {
    return NonzeroProduct<Isa, QuadNumbers<Isa>>(code, call).run();
}

}  // namespace distile::dot_product

#endif
