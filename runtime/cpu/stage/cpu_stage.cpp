#include "runtime/cpu/stage/cpu_stage.h"
#include "runtime/cpu/cpu_mask.h"
#include "runtime/cpu/products/listed_convolution.h"
#include "runtime/cpu/stage/cpu_target.h"
#include "runtime/stage/stage.h"
#include <algorithm>
#include <chrono>
#include <optional>

namespace distile {

namespace {

PixelMemory memory_of(const distile_tensor *tensor) {
    return tensor
               ? PixelMemory{static_cast<float *>(tensor->data), tensor->stride_w, tensor->stride_h, tensor->stride_n}
               : PixelMemory{};
}

PanelWeights weights_of(const CheckedStep &step) {
    const distile_stage_step &given = step.given;
    const StageFilter filter{given.output->channels, given.input->channels, given.window.kernel_h,
                             given.window.kernel_w};
    return {given.weights,
            product_weights(step.weights_dtype),
            static_cast<int64_t>(distile_dtype_size(step.weights_dtype)),
            stage_factors(filter, step.weights_dtype, given.weights),
            filter.out_channels,
            filter.taps() * filter.in_channels};
}

}  // namespace

CpuStageRunner::CpuStageRunner(CpuDevice &device)
    : device_(device), needed_(device.make_mask()), all_(device.make_mask()) {
}

void CpuStageRunner::run(const Stage &stage, StageTrace *trace) {
    using Clock = std::chrono::steady_clock;
    const Clock::time_point began = trace ? Clock::now() : Clock::time_point{};
    const auto now = [&] { return static_cast<uint32_t>(std::chrono::nanoseconds(Clock::now() - began).count()); };
    for (auto step = stage.steps.begin(); step != stage.steps.end(); ++step) {
        const uint32_t start = trace ? now() : 0;
        const bool scores = step->given.kind == DISTILE_STEP_SCORES;
        if (scores) {
            make_mask(*step);
        } else {
            const auto next = std::find_if(step + 1, stage.steps.end(), [](const CheckedStep &other) {
                return other.given.kind == DISTILE_STEP_CONV2D;
            });
            convolve(*step, next == stage.steps.end() ? nullptr : &*next);
        }
        if (trace) {
            const uint32_t end = now();
            trace->items.push_back({static_cast<int32_t>(step - stage.steps.begin()), 0, 0, start, start,
                                    scores ? 0 : start, scores ? 0 : end, end, end});
        }
    }
}

void CpuStageRunner::make_mask(const CheckedStep &step) {
    const distile_stage_step &given = step.given;
    distile_tensor scored = *given.input;
    scored.height = step.output.height;
    scored.width = step.output.width;
    scored.stride_h *= given.window.stride_h;
    scored.stride_w *= given.window.stride_w;
    given.mask->set_mirrored(step.output, [&] {
        given.mask->set_scores(scored, {static_cast<const float *>(given.weights), given.score_bias, given.threshold});
    });
}

TileList CpuStageRunner::pixels_of(const CheckedStep &step) {
    distile_mask *mask = step.given.mask;
    if (!mask) {
        mask = all_.get();
        if (!(mask->shape == step.output)) {
            mask->set_all(step.output);
        }
    } else if (step.given.reader) {
        needed_->set_window(step.output, *mask, *step.given.reader, Direction::ToInput);
        mask = needed_.get();
    }
    return mask->list({1, 1}, {});
}

void CpuStageRunner::convolve(const CheckedStep &step, const CheckedStep *next) {
    const distile_stage_step &given = step.given;
    const distile_tensor &input = *given.input;
    const distile_window &window = given.window;
    const TileList pixels = pixels_of(step);
    const std::optional<PanelWeights> next_weights = next ? std::optional(weights_of(*next)) : std::nullopt;
    run_convolution(device_.context, device_.products(),
                    {memory_of(given.input),
                     memory_of(given.output),
                     memory_of(given.residual),
                     {window.kernel_h, window.stride_h, window.dilation_h, window.pad_top, -input.border_top,
                      input.height + input.border_bottom},
                     {window.kernel_w, window.stride_w, window.dilation_w, window.pad_left, -input.border_left,
                      input.width + input.border_right},
                     input.channels,
                     false,
                     weights_of(step),
                     given.bias,
                     step.activation(),
                     pixels.xy,
                     pixels.image,
                     pixels.count,
                     given.later ? &cpu_mask(*given.later).bitmask() : nullptr,
                     next_weights ? &*next_weights : nullptr});
}

}  // namespace distile
