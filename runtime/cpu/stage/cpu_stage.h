/** \file
 * Stages on a CPU: steps one after another, each on all threads, which find the next one while they are awake.
 */
#ifndef DISTILE_CPU_STAGE_CPU_STAGE_H
#define DISTILE_CPU_STAGE_CPU_STAGE_H

#include "runtime/cpu/cpu_device.h"
#include "runtime/mask/mask.h"
#include <vector>

namespace distile {

struct CheckedStep;
struct ListedConvolution;
struct PanelWeights;

class CpuStageRunner {
public:
    explicit CpuStageRunner(CpuDevice &device);

    void run(const Stage &stage, StageTrace *trace);

private:
    void make_mask(const CheckedStep &step);
    void halt(const CheckedStep &step);
    void normalize(const CheckedStep &step);
    /** Pools, upsamples, adds or copies. */
    void take_channels(const CheckedStep &step);
    /** Adds the residual to what such a step has made, and applies the activation. */
    void finish_channels(const CheckedStep &step, const distile_tensor &made);
    void attend(const CheckedStep &step);
    /** `waiting` are steps that it computes first, none, one or two; `next` is the convolution behind it, or null. */
    void convolve(const CheckedStep &step, const std::vector<const CheckedStep *> &waiting, const CheckedStep *next);
    void convolve(const CheckedStep &step, const TileList &pixels, const PanelWeights *next);
    /** Computes a convolution of 1 x 1 with the depthwise one before it, at pixels of both. */
    void pass(const CheckedStep &depthwise, const CheckedStep &step, const TileList &pixels, const PanelWeights *next);
    /** Computes them with the convolution before, at the pixels that are read; false if that takes too little or too
     * much memory. */
    bool pass(const CheckedStep &source, const TileList &read, const CheckedStep &depthwise, const CheckedStep &step,
              const TileList &pixels, const PanelWeights *next);
    void run_passing(ListedConvolution &convolution, int64_t numbers);
    /** A mask of all pixels of a step's output. */
    static distile_mask &every_pixel(const CheckedStep &step, distile_mask &all);
    /** The pixels that a step computes, in a list of its mask, or of `all`. */
    TileList pixels_of(const CheckedStep &step, distile_mask &all);

    CpuDevice &device_;
    // What the reader of a step's output needs, and all pixels, of the last shape, of a step and of what it reads.
    std::unique_ptr<distile_mask> needed_, all_, all_read_;
};

}  // namespace distile

#endif
