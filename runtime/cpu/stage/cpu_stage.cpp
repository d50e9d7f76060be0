#include "runtime/cpu/stage/cpu_stage.h"
#include "runtime/cpu/cpu_mask.h"
#include "runtime/cpu/products/listed_convolution.h"
#include "runtime/cpu/stage/cpu_target.h"
#include "runtime/stage/stage.h"
#include "runtime/tensor/tensor.h"
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

/** The weights of a part. */
PanelWeights weights_of(const CheckedStep &step, int32_t part) {
    const StageParts parts = stage_parts(step.filter(), step.weights_dtype);
    const void *const packed = static_cast<const char *>(step.given.weights) + part * parts.bytes;
    return {packed,
            product_weights(step.weights_dtype),
            static_cast<int64_t>(distile_dtype_size(step.weights_dtype)),
            stage_factors(parts.filter, step.weights_dtype, packed),
            parts.filter.out_channels,
            parts.filter.taps() * parts.filter.in_channels};
}

/** A part of a convolution at listed pixels. */
ListedConvolution listed(const CheckedStep &step, int32_t part, const TileList &pixels) {
    const distile_stage_step &given = step.given;
    const distile_tensor &input = *given.input;
    const distile_window &window = given.window;
    const StageFilter filter = step.filter();
    const int32_t parts = stage_parts(filter, step.weights_dtype).count;
    const int32_t inputs = filter.in_channels / parts, outputs = filter.out_channels / parts;
    const int64_t first_input = int64_t{part} * inputs, first_output = int64_t{part} * outputs;
    return {memory_of(given.input).from(first_input),
            memory_of(given.output).from(first_output),
            memory_of(given.residual).from(first_output),
            {window.kernel_h, window.stride_h, window.dilation_h, window.pad_top, -input.border_top,
             input.height + input.border_bottom},
            {window.kernel_w, window.stride_w, window.dilation_w, window.pad_left, -input.border_left,
             input.width + input.border_right},
            inputs,
            filter.is_depthwise(),
            weights_of(step, part),
            given.bias ? given.bias + first_output : nullptr,
            step.activation(),
            pixels.xy,
            pixels.image,
            pixels.count,
            given.later ? &cpu_mask(*given.later).bitmask() : nullptr,
            nullptr};
}

/** Whether the step that reads a transient output can compute it, too: it overwrites nothing that others still read. */
bool can_wait(const CheckedStep &step, const CheckedStep &reader) {
    const distile_tensor written = without_border(*reader.given.output);
    const auto meets = [&](const distile_tensor *read) { return read && overlap(written, without_border(*read)); };
    return step.filter().is_depthwise() && !meets(step.given.input) && !meets(step.given.residual);
}

}  // namespace

CpuStageRunner::CpuStageRunner(CpuDevice &device)
    : device_(device), needed_(device.make_mask()), all_(device.make_mask()) {
}

void CpuStageRunner::run(const Stage &stage, StageTrace *trace) {
    using Clock = std::chrono::steady_clock;
    const Clock::time_point began = trace ? Clock::now() : Clock::time_point{};
    const auto now = [&] { return static_cast<uint32_t>(std::chrono::nanoseconds(Clock::now() - began).count()); };
    const CheckedStep *passing = nullptr;  // It waits for the step behind it, which computes it, too.
    for (auto step = stage.steps.begin(); step != stage.steps.end(); ++step) {
        const uint32_t start = trace ? now() : 0;
        const bool scores = step->given.kind == DISTILE_STEP_SCORES;
        if (scores) {
            make_mask(*step);
        } else if (step->given.transient != 0 && can_wait(*step, *(step + 1))) {
            passing = &*step;
        } else {
            const auto next = std::find_if(step + 1, stage.steps.end(), [](const CheckedStep &other) {
                return other.given.kind == DISTILE_STEP_CONV2D;
            });
            convolve(*step, passing, next == stage.steps.end() ? nullptr : &*next);
            passing = nullptr;
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

void CpuStageRunner::convolve(const CheckedStep &step, const CheckedStep *passing, const CheckedStep *next) {
    const TileList pixels = pixels_of(step);
    const int32_t parts = stage_parts(step.filter(), step.weights_dtype).count;
    for (int32_t part = 0; part < parts; part++) {
        const CheckedStep *const follower = part + 1 < parts ? &step : next;
        const std::optional<PanelWeights> next_weights =
            follower ? std::optional(weights_of(*follower, follower == &step ? part + 1 : 0)) : std::nullopt;
        ListedConvolution convolution = listed(step, part, pixels);
        convolution.next = next_weights ? &*next_weights : nullptr;
        if (!passing) {
            run_convolution(device_.context, device_.products(), convolution);
            continue;
        }
        const ListedConvolution before = listed(*passing, 0, pixels);
        const int64_t numbers = passed_numbers(device_.context, device_.products(), convolution);
        const ScratchMemory memory = device_.take_scratch(static_cast<size_t>(numbers) * sizeof(float));
        convolution.before = &before;
        convolution.passed = static_cast<float *>(memory.get());
        run_convolution(device_.context, device_.products(), convolution);
    }
}

}  // namespace distile
