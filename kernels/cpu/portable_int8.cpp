/** \file
 * Dot products of four quantized numbers on any CPU. Linked into every PolyKernel that has such variants.
 */
#include "kernels/cpu/columns.h"
#include "kernels/cpu/int8.h"
#include "kernels/dot_products.h"

namespace {

struct PortableInt8 {
    using Types = distile::dot_product::Int8<PortableInt8>;
    static constexpr int32_t channels = distile::dot_product::vector_channels;
    struct Total {
        int32_t sums[channels];
    };
    struct Weights {
        const int8_t *at;
    };
    struct Spread {
        int32_t values[4];
    };
    struct Own {
        const uint8_t *at;
    };
    struct Lanes {
        const int32_t *packs;
    };
    struct Shuffled {
        uint8_t numbers[channels][4];
    };

    static constexpr int32_t rows_of(int32_t vectors) {
        return vectors == 1 ? 4 : vectors == 2 ? 2 : 1;
    }
    static void clear(Total &total) {
        total = {};
    }
    static void load(const int32_t *from, Total &total) {
        __builtin_memcpy(total.sums, from, sizeof(total.sums));
    }
    static void store(const Total &total, int32_t *to) {
        __builtin_memcpy(to, total.sums, sizeof(total.sums));
    }
    static void load(const int8_t *from, Weights &weights) {
        weights.at = from;
    }
    static void spread(const uint8_t *from, Spread &spread) {
        for (int32_t i = 0; i < 4; i++) {
            spread.values[i] = from[i];
        }
    }
    static void load(const uint8_t *from, Own &own) {
        own.at = from;
    }
    /** The sums of four products fit, but the total of many may wrap around. `distance` is between the numbers of
     * output channels. */
    template<typename Number>
    static void add(Total &total, const Number *numbers, int64_t distance, const Weights &weights) {
        for (int64_t c = 0; c < channels; c++) {
            int32_t sum = 0;
            for (int64_t i = 0; i < 4; i++) {
                sum += numbers[distance * c + i] * weights.at[4 * c + i];
            }
            total.sums[c] = static_cast<int32_t>(static_cast<uint32_t>(total.sums[c]) + static_cast<uint32_t>(sum));
        }
    }
    static void add(Total &total, const Spread &group, const Weights &weights) {
        add(total, group.values, 0, weights);
    }
    static void load(const int32_t *from, Lanes &lanes) {
        lanes.packs = from;
    }
    static void shuffle(const uint8_t *step, int32_t pack, const Lanes &lanes, Shuffled &shuffled) {
        for (int64_t c = 0; c < channels; c++) {
            __builtin_memcpy(shuffled.numbers[c], step + 4 * int64_t{pack + lanes.packs[c]}, 4);
        }
    }
    static void add(Total &total, const Shuffled &shuffled, const Weights &weights) {
        add(total, shuffled.numbers[0], 4, weights);
    }
    static void add(Total &total, const Own &own, const Weights &weights) {
        add(total, own.at, 4, weights);
    }
};

}  // namespace

extern "C" int distile_call_portable_int8(const distile_dot_product_code *code, const distile_kernel_call *call) {
    return distile::dot_product::run_quantized<PortableInt8>(*code, *call);
}
