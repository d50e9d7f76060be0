#include "autoscheduler/measure/vector_code.h"
#include <immintrin.h>

namespace distile {

namespace {

DISTILE_VECTOR_CODE(avx2, target("avx2,fma"), __m256, __m256i, 32, _mm256_set1_ps, _mm256_fmadd_ps, _mm256_storeu_ps,
                    _mm256_load_si256, _mm256_xor_si256)
DISTILE_VECTOR_CODE(avx512, target("avx512f"), __m512, __m512i, 64, _mm512_set1_ps, _mm512_fmadd_ps, _mm512_storeu_ps,
                    _mm512_load_si512, _mm512_xor_si512)

}  // namespace

const std::vector<VectorCode> &vector_codes() {
    static const std::vector<VectorCode> codes = {
        {"avx512f avx512bw avx512dq avx512vl", 16, 32, chains_avx512<chains>, chains_avx512<1>, read_avx512},
        {"avx2 fma", 8, 16, chains_avx2<chains>, chains_avx2<1>, read_avx2},
    };
    return codes;
}

void run_cycles(int64_t steps) {
    int64_t value = 0;
    for (int64_t i = 0; i < steps; i++) {
        __asm__ volatile("xor %1, %0\n\txor %1, %0\n\txor %1, %0\n\txor %1, %0\n\t"
                         "xor %1, %0\n\txor %1, %0\n\txor %1, %0\n\txor %1, %0"
                         : "+r"(value)
                         : "r"(i));
    }
}

}  // namespace distile
