#include "autoscheduler/measure/vector_code.h"
#include <arm_neon.h>

namespace distile {

namespace {

/** A multiply-add waits for the sum, as in kernels: a core may need the sum later than the factors. */
float32x4_t multiply_add(float32x4_t sum, float32x4_t factor, float32x4_t other_factor) {
    return vfmaq_f32(sum, factor, other_factor);
}

int32x4_t load(const int32x4_t *from) {
    return *from;
}

DISTILE_VECTOR_CODE(neon, , float32x4_t, int32x4_t, 16, vdupq_n_f32, multiply_add, vst1q_f32, load, veorq_s32)

}  // namespace

const std::vector<VectorCode> &vector_codes() {
    static const std::vector<VectorCode> codes = {{"neon", 4, 32, chains_neon<chains>, chains_neon<1>, read_neon}};
    return codes;
}

void run_cycles(int64_t steps) {
    int64_t value = 0;
    for (int64_t i = 0; i < steps; i++) {
        __asm__ volatile("eor %0, %0, %1\n\teor %0, %0, %1\n\teor %0, %0, %1\n\teor %0, %0, %1\n\t"
                         "eor %0, %0, %1\n\teor %0, %0, %1\n\teor %0, %0, %1\n\teor %0, %0, %1"
                         : "+r"(value)
                         : "r"(i));
    }
}

}  // namespace distile
