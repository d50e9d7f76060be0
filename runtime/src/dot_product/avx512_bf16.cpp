/** \file
 * Dot products of pairs by AVX512-BF16. Linked into every PolyKernel that has such variants.
 */
#include "product.h"
#include <immintrin.h>
#include <utility>

namespace {

using distile::dot_product::Block;
using distile::dot_product::step_elements;
using distile::dot_product::vector_channels;
using distile::dot_product::weight_step;

constexpr int32_t step_pairs = step_elements / 2;

struct Avx512Bf16 {
    static constexpr int32_t tile_rows = 1, chunk_steps = 8;
    static constexpr bool balances = true;
    /** The rows whose sums fit the registers, beside the weights and a row's pair. */
    static constexpr int32_t rows_of(int32_t vectors) {
        return vectors <= 2 ? 14 : vectors == 3 ? 9 : 6;
    }

    static void begin() {
    }
    static void end() {
    }

    using Code = void (*)(const Block &block, bool adds, float *sums);

    template<int Rows, int Vectors> static void code(const Block &block, bool adds, float *sums) {
        __m512 totals[Rows][Vectors];
#pragma GCC unroll 14
        for (int64_t row = 0; row < Rows; row++) {
#pragma GCC unroll 4
            for (int64_t v = 0; v < Vectors; v++) {
                totals[row][v] =
                    adds ? _mm512_load_ps(sums + (row * Vectors + v) * vector_channels) : _mm512_setzero_ps();
            }
        }
        const uint16_t *staged = block.staged, *weights = block.weights;
        for (int32_t step = 0; step < block.steps; step++, staged += block.staged_step, weights += weight_step) {
            for (int64_t pair = 0; pair < step_pairs; pair++) {
                __m512i loaded[Vectors];
                for (int64_t v = 0; v < Vectors; v++) {
                    loaded[v] = _mm512_load_si512(weights + v * block.weight_block + pair * 2 * vector_channels);
                }
                for (int64_t row = 0; row < Rows; row++) {
                    int32_t both = 0;
                    __builtin_memcpy(&both, staged + row * step_elements + 2 * pair, sizeof(both));
                    const __m512i spread = _mm512_set1_epi32(both);
                    for (int64_t v = 0; v < Vectors; v++) {
                        totals[row][v] = _mm512_dpbf16_ps(totals[row][v], (__m512bh)spread, (__m512bh)loaded[v]);
                    }
                }
            }
        }
#pragma GCC unroll 14
        for (int64_t row = 0; row < Rows; row++) {
#pragma GCC unroll 4
            for (int64_t v = 0; v < Vectors; v++) {
                _mm512_store_ps(sums + (row * Vectors + v) * vector_channels, totals[row][v]);
            }
        }
    }

    /** The code for 1 row, 2 rows and so on. */
    template<int Vectors, int... Indices> static Code code_of(int32_t rows, std::integer_sequence<int, Indices...>) {
        static constexpr Code codes[] = {code<Indices + 1, Vectors>...};
        return codes[rows - 1];
    }
    template<int Vectors> static Code code_of(int32_t rows) {
        return code_of<Vectors>(rows, std::make_integer_sequence<int, rows_of(Vectors)>());
    }

    static void multiply(const Block &block, int32_t rows, int32_t vectors, bool adds, float *sums) {
        const Code found = vectors == 1   ? code_of<1>(rows)
                           : vectors == 2 ? code_of<2>(rows)
                           : vectors == 3 ? code_of<3>(rows)
                                          : code_of<4>(rows);
        found(block, adds, sums);
    }
};

}  // namespace

extern "C" int distile_call_avx512_bf16(const distile_dot_product_code *code, const distile_kernel_call *call) {
    return distile::dot_product::Product<Avx512Bf16>(*code, *call).run();
}
