/** \file
 * The online softmax of two rows, whose scores four neighbouring lanes share as the tensor cores leave them: element i
 * belongs to row i / 2 % 2.
 */
#ifndef DISTILE_CUDA_TENSOR_CORE_SOFTMAX_CUH
#define DISTILE_CUDA_TENSOR_CORE_SOFTMAX_CUH

#include <cstdint>

namespace distile::tensor_core {

constexpr float log2_e = 1.4426950408889634f;

/** 2 to the power of x. */
__device__ inline float power_of_2(float x) {
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
    return power;
}

/** Before any score, a maximum is -infinity. */
constexpr float no_score = __builtin_bit_cast(float, 0xff800000u);

/** The softmax of the rows of one thread. */
struct Softmax {
    float max[2] = {no_score, no_score};  ///< The maximum over all lanes of the row.
    float sum[2] = {0, 0};                ///< The sum of this lane's probabilities.

    /** What the maximum of a row without scores is replaced by, so that differences of infinities do not occur. */
    __device__ static float finite(float value) {
        return value == no_score ? 0 : value;
    }

    /** Turns scores into probabilities, relative to the maximum so far; `scale` is at least 0 and has log2(e) in it.
     * Former sums shrink by `factors`. Returns whether any row of the warp has a factor other than 1. */
    template<int Count, class Scores> __device__ bool add(Scores &scores, float scale, float (&factors)[2]) {
        constexpr int chains = 4;
        float most[2][chains];
#pragma unroll
        for (int i = 0; i < 4 * chains; i++) {
            const int row = i / 2 % 2, chain = i / 4;
            most[row][chain] = i % 2 == 0 ? scores[i] : fmaxf(most[row][chain], scores[i]);
        }
#pragma unroll
        for (int i = 4 * chains; i < Count; i++) {
            most[i / 2 % 2][i / 4 % chains] = fmaxf(most[i / 2 % 2][i / 4 % chains], scores[i]);
        }
        float shift[2];
        bool changed = false;
#pragma unroll
        for (int row = 0; row < 2; row++) {
            float next = fmaxf(fmaxf(most[row][0], most[row][1]), fmaxf(most[row][2], most[row][3]));
            next = fmaxf(next, __shfl_xor_sync(~0u, next, 1));
            next = fmaxf(next, __shfl_xor_sync(~0u, next, 2));
            next = fmaxf(next, max[row]);
            changed = changed || next != max[row];
            shift[row] = finite(next) * scale;
            factors[row] = power_of_2(max[row] * scale - shift[row]);
            max[row] = next;
            sum[row] *= factors[row];
        }
        float sums[2][2] = {};
#pragma unroll
        for (int i = 0; i < Count; i++) {
            const int row = i / 2 % 2;
            scores[i] = power_of_2(scores[i] * scale - shift[row]);
            sums[row][i % 2] += scores[i];
        }
        sum[0] += sums[0][0] + sums[0][1];
        sum[1] += sums[1][0] + sums[1][1];
        return __any_sync(~0u, changed);
    }

    /** Keeps the compiler from computing probabilities later than here, where products would end before. */
    __device__ void complete() const {
        if (sum[0] < 0 || sum[1] < 0) {
            asm volatile("nanosleep.u32 0;");
        }
    }

    /** Unites these rows with what another block has of them. Sums of both shrink by factors. */
    __device__ void unite(const Softmax &other, float scale, float (&factors)[2], float (&others)[2]) {
#pragma unroll
        for (int row = 0; row < 2; row++) {
            const float next = fmaxf(max[row], other.max[row]), shift = finite(next) * scale;
            factors[row] = power_of_2(max[row] * scale - shift);
            others[row] = power_of_2(other.max[row] * scale - shift);
            max[row] = next;
            sum[row] = sum[row] * factors[row] + other.sum[row] * others[row];
        }
    }

    /** What the rows' sums are multiplied by in the end; 0 for a row without scores. */
    __device__ void finish(float (&factors)[2]) {
#pragma unroll
        for (int row = 0; row < 2; row++) {
            float all = sum[row] + __shfl_xor_sync(~0u, sum[row], 1);
            all += __shfl_xor_sync(~0u, all, 2);
            factors[row] = all == 0 ? 0 : 1 / all;
        }
    }

    /** Turns scores whose maximum and sum are known into the probabilities of whole rows, with what finish() gave. */
    template<int Count, class Scores>
    __device__ void weigh(Scores &scores, float scale, const float (&factors)[2]) const {
        const float shift[2] = {finite(max[0]) * scale, finite(max[1]) * scale};
#pragma unroll
        for (int i = 0; i < Count; i++) {
            scores[i] = power_of_2(scores[i] * scale - shift[i / 2 % 2]) * factors[i / 2 % 2];
        }
    }
};

}  // namespace distile::tensor_core

#endif
