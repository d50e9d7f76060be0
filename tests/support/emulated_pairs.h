/** \file
 * Dot products of pairs of bfloat16 in vector registers, in plain C++, for tests of the code that uses them.
 */
#ifndef DISTILE_TESTS_EMULATED_PAIRS_H
#define DISTILE_TESTS_EMULATED_PAIRS_H

#include "kernels/cpu/bfloat16.h"
#include "kernels/cpu/registers.h"
#include <cstdint>
#include <cstring>

namespace distile {

/** A Dot, as in registers.h. */
struct EmulatedPairs {
    using Types = dot_product::Bfloat16<EmulatedPairs>;
    static constexpr int32_t channels = dot_product::vector_channels;
    struct Total {
        float sums[channels];
    };
    struct Weights {
        const uint16_t *pairs;
    };
    struct Spread {
        uint16_t pair[2];
    };
    struct Lanes {
        const int32_t *packs;
    };
    struct Shuffled {
        uint16_t pairs[channels][2];
    };

    static constexpr int32_t rows_of(int32_t vectors) {
        return vectors <= 2 ? 14 : vectors == 3 ? 9 : 6;
    }
    static void clear(Total &total) {
        total = {};
    }
    static void load(const float *from, Total &total) {
        std::memcpy(total.sums, from, sizeof(total.sums));
    }
    static void store(const Total &total, float *to) {
        std::memcpy(to, total.sums, sizeof(total.sums));
    }
    static void load(const uint16_t *from, Weights &weights) {
        weights.pairs = from;
    }
    static void spread(const uint16_t *from, Spread &spread) {
        std::memcpy(spread.pair, from, sizeof(spread.pair));
    }
    static void load(const int32_t *from, Lanes &lanes) {
        lanes.packs = from;
    }
    static void shuffle(const uint16_t *step, int32_t pack, const Lanes &lanes, Shuffled &shuffled) {
        for (int32_t c = 0; c < channels; c++) {
            std::memcpy(shuffled.pairs[c], step + 2 * int64_t{pack + lanes.packs[c]}, sizeof(shuffled.pairs[c]));
        }
    }
    static void add(Total &total, const Spread &spread, const Weights &weights) {
        for (int32_t c = 0; c < channels; c++) {
            add_pair(total.sums[c], spread.pair, weights.pairs + 2 * c);
        }
    }
    static void add(Total &total, const Shuffled &shuffled, const Weights &weights) {
        for (int32_t c = 0; c < channels; c++) {
            add_pair(total.sums[c], shuffled.pairs[c], weights.pairs + 2 * c);
        }
    }

private:
    static float value_of(uint16_t stored) {
        const uint32_t bits = uint32_t{stored} << 16;
        float value = 0;
        std::memcpy(&value, &bits, sizeof(value));
        return value;
    }
    static void add_pair(float &sum, const uint16_t *a, const uint16_t *b) {
        sum += value_of(a[0]) * value_of(b[0]) + value_of(a[1]) * value_of(b[1]);
    }
};

}  // namespace distile

#endif
