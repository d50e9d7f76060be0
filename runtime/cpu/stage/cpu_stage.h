/** \file
 * Stages on a CPU: steps one after another, each on all threads, which find the next one while they are awake.
 */
#ifndef DISTILE_CPU_STAGE_CPU_STAGE_H
#define DISTILE_CPU_STAGE_CPU_STAGE_H

#include "runtime/cpu/cpu_device.h"
#include "runtime/mask/mask.h"

namespace distile {

struct CheckedStep;

class CpuStageRunner {
public:
    explicit CpuStageRunner(CpuDevice &device);

    void run(const Stage &stage, StageTrace *trace);

private:
    void make_mask(const CheckedStep &step);
    /** `passing` is a depthwise convolution that it computes first, or null; `next` the convolution behind it, or null.
     */
    void convolve(const CheckedStep &step, const CheckedStep *passing, const CheckedStep *next);
    /** The pixels that a step computes. */
    TileList pixels_of(const CheckedStep &step);

    CpuDevice &device_;
    // What the reader of a step's output needs, and all pixels, of the last shape.
    std::unique_ptr<distile_mask> needed_, all_;
};

}  // namespace distile

#endif
