/** \file
 * Products of listed pixels by vectors of 16 bytes, which every CPU has: 16 registers of them, or 32 on AArch64.
 */
#include "runtime/cpu/products/product_loops.h"

namespace distile {

namespace {

struct Portable {
    static constexpr int32_t set_panels = 1;
    static constexpr int32_t depthwise_panels = 1;

    using Floats = float __attribute__((vector_size(16)));

    [[gnu::always_inline]] static void widen(const uint16_t *from, Floats &to) {
        using Halves = uint16_t __attribute__((vector_size(8)));
        using Words = uint32_t __attribute__((vector_size(16)));
        Halves halves;
        std::memcpy(&halves, from, sizeof(halves));
        const Words words = __builtin_convertvector(halves, Words) << 16;
        std::memcpy(&to, &words, sizeof(to));
    }
    [[gnu::always_inline]] static void widen(const int8_t *from, Floats &to) {
        to = Floats{static_cast<float>(from[0]), static_cast<float>(from[1]), static_cast<float>(from[2]),
                    static_cast<float>(from[3])};
    }

    static void keep(const Floats &) {
    }
    static void load_part(const float *from, int64_t count, Floats &to) {
        std::memcpy(&to, from, static_cast<size_t>(count) * sizeof(float));
    }
    static void store_part(float *to, int64_t count, const Floats &from) {
        std::memcpy(to, &from, static_cast<size_t>(count) * sizeof(float));
    }

#ifdef __aarch64__
    static constexpr int32_t group_pixels[] = {0, 6};
    using DepthwisePixels = std::integer_sequence<int, 1, 2, 4>;

    template<class Choice> static void multiply(const GroupProduct &product) {
        Choice::template call<1, 1, 2, 4, 6>(product);
    }
#else
    static constexpr int32_t group_pixels[] = {0, 2};
    using DepthwisePixels = std::integer_sequence<int, 1, 2>;

    template<class Choice> static void multiply(const GroupProduct &product) {
        Choice::template call<1, 1, 2>(product);
    }
#endif
};

}  // namespace

const PixelProducts portable_products = make_products<Portable>("");

}  // namespace distile
