/** \file
 * Pixels that go on until their scores have added up.
 */
#ifndef DISTILE_CUDA_KERNELS_STAGE_HALTING_CUH
#define DISTILE_CUDA_KERNELS_STAGE_HALTING_CUH

#include "runtime/cuda/kernels/stage_channels.cuh"

namespace distile {

/** What becomes of a pixel. */
struct Halting {
    bool goes_on;
    float part;  ///< How much of the pixel the output gets; 0 if it has halted before.
};

/** Adds a pixel's score, of which the sigmoid is given the argument, to its total. One thread; x may be outside. */
__device__ inline Halting add_score(const StageStep &step, uint32_t image, uint32_t y, uint32_t x, float sum) {
    if (x >= step.width.value) {
        return {false, 0};
    }
    const uint32_t line = image * step.height.value + y;
    if (step.later && (__ldcg(step.later + line * step.words_per_row.value + x / 32) >> x % 32 & 1) == 0) {
        return {false, 0};
    }
    float score = 1 / (1 + expf(-sum));
    if (step.weights) {
        score = fminf(score, __ldg(reinterpret_cast<const float *>(step.weights) + y * step.width.value + x));
    }
    float *const total = step.totals + line * step.width.value + x;
    const float before = __ldcg(total), next = before + score;
    __stcg(total, next);
    const bool goes_on = next < step.threshold;
    return {goes_on, goes_on ? score : 1 - before};
}

/** A warp adds a part of a pixel to the output, where that has the pixel. */
template<class Element>
__device__ void add_part(const StageStep &step, uint32_t image, uint32_t y, uint32_t x, float part) {
    if (part == 0 || x >= step.reduction) {
        return;
    }
    const auto at = [&](const StageView &view) {
        return piece_at<Element>(view.data, int64_t{view.stride_n} * image + int64_t{view.stride_h} * y +
                                                int64_t{view.stride_w} * x);
    };
    const uint4 *const from = at(step.input);
    uint4 *const to = at(step.output);
    constexpr uint32_t channels = piece_channels<Element>;
#pragma unroll 1
    for (uint32_t piece = lane(); piece < step.channels / channels; piece += 32) {
        float values[channels], sums[channels];
        unpack_channels<Element>(__ldcg(from + piece), values);
        unpack_channels<Element>(__ldcg(to + piece), sums);
#pragma unroll
        for (uint32_t c = 0; c < channels; c++) {
            sums[c] += part * values[c];
        }
        __stcg(to + piece, pack_channels<Element>(sums));
    }
}

}  // namespace distile

#endif
