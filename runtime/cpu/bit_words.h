/** \file
 * Rows of bits in 64-bit words.
 */
#ifndef DISTILE_BIT_WORDS_H
#define DISTILE_BIT_WORDS_H

#include <cstdint>

namespace distile {

/** The 64 bits from `bit` on in a row of num_words words; 0 beyond its end. */
inline uint64_t word_at(const uint64_t *row, int32_t num_words, int64_t bit) {
    const int64_t word = bit / 64, shift = bit % 64;
    const uint64_t low = word < num_words ? row[word] >> shift : 0;
    const uint64_t high = word + 1 < num_words ? row[word + 1] << 1 << (63 - shift) : 0;
    return low | high;
}

}  // namespace distile

#endif
