/** \file
 * Products with nonzero quads of quantized weights by any CPU, four pixels at a time. Linked into every PolyKernel that
 * has such variants.
 */
#include "kernels/cpu/quad_nonzeros.h"
#include "kernels/dot_products.h"

namespace {

struct PortableInt8Nonzeros {
    static constexpr int32_t lanes = 4, most_rows = 12;
    using Words = uint32_t __attribute__((vector_size(16)));
    using Integers = int32_t __attribute__((vector_size(16)));
    using Halves = int16_t __attribute__((vector_size(16)));
    using Total = Words;
    /** The numbers 0 and 2, and 1 and 3, as 16 bits. */
    struct Weight {
        Halves even, odd;
    };

    static constexpr int32_t shared_sums = 6, most_shared = 2;

    static void clear(Total &total) {
        total = Total{};
    }
    static void load(const float *from, Total &total) {
        __builtin_memcpy(&total, from, sizeof(total));
    }
    static void store(const Total &total, float *to) {
        __builtin_memcpy(to, &total, sizeof(total));
    }
    static void spread(uint32_t quad, Weight &weight) {
        const auto bytes = reinterpret_cast<Halves>(quad + Words{});
        weight.even = bytes << 8 >> 8;
        weight.odd = bytes >> 8;
    }
    /** The products fit 16 bits, sums of two need not. The total of many may wrap around. */
    static void add(Total &total, const float *pixels, const Weight &weight) {
        Words bytes;
        __builtin_memcpy(&bytes, pixels, sizeof(bytes));
        const auto even = reinterpret_cast<Halves>(bytes & 0xff00ffu) * weight.even,
                   odd = reinterpret_cast<Halves>(bytes >> 8 & 0xff00ffu) * weight.odd;
        total += reinterpret_cast<Words>(sums_of_pairs(reinterpret_cast<Integers>(even)) +
                                         sums_of_pairs(reinterpret_cast<Integers>(odd)));
    }
    static Integers sums_of_pairs(Integers halves) {
        return (halves >> 16) + (reinterpret_cast<Integers>(reinterpret_cast<Words>(halves) << 16) >> 16);
    }
};

}  // namespace

extern "C" int distile_call_portable_int8_nonzeros(const distile_dot_product_code *code,
                                                   const distile_kernel_call *call) {
    return distile::dot_product::call_quad_nonzeros<PortableInt8Nonzeros>(*code, *call);
}
