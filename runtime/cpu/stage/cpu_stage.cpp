#include "runtime/cpu/stage/cpu_stage.h"
#include "runtime/base/types.h"
#include "runtime/cpu/cpu_mask.h"
#include "runtime/cpu/products/listed_attention.h"
#include "runtime/cpu/products/quantized_products.h"
#include "runtime/cpu/simd/channel_loops.h"
#include "runtime/cpu/stage/cpu_target.h"
#include "runtime/stage/stage.h"
#include "runtime/tensor/tensor.h"
#include <algorithm>
#include <chrono>
#include <numeric>
#include <optional>
#include <vector>

namespace distile {

namespace {

/** A thread's results that its second-level cache does not keep: where there are more, they pass through it in parts.
 */
constexpr int64_t least_chain_numbers = 256 << 10;

PixelMemory memory_of(const distile_tensor *tensor) {
    return tensor
               ? PixelMemory{static_cast<float *>(tensor->data), tensor->stride_w, tensor->stride_h, tensor->stride_n}
               : PixelMemory{};
}

/** The weights of the first part. */
PanelWeights weights_of(const CheckedStep &step) {
    const StageParts parts = stage_parts(step.filter(), step.weights_dtype);
    const void *const packed = step.given.weights;
    return {packed,
            product_weights(step.weights_dtype),
            static_cast<int64_t>(distile_dtype_size(step.weights_dtype)),
            stage_factors(parts.filter, step.weights_dtype, packed),
            parts.filter.out_channels,
            parts.filter.taps() * parts.filter.in_channels};
}

/** A convolution at listed pixels. */
ListedConvolution listed(const CheckedStep &step, const TileList &pixels) {
    const distile_stage_step &given = step.given;
    const distile_tensor &input = *given.input;
    const distile_window &window = given.window;
    const StageFilter filter = step.filter();
    const StageParts parts = stage_parts(filter, step.weights_dtype);
    return {memory_of(given.input),
            memory_of(given.output),
            memory_of(given.residual),
            {window.kernel_h, window.stride_h, window.dilation_h, window.pad_top, -input.border_top,
             input.height + input.border_bottom},
            {window.kernel_w, window.stride_w, window.dilation_w, window.pad_left, -input.border_left,
             input.width + input.border_right},
            filter.in_channels / parts.count,
            filter.is_depthwise() ? 1 : 0,
            weights_of(step),
            given.bias,
            step.activation(),
            pixels.xy,
            pixels.image,
            pixels.count,
            given.later ? &cpu_mask(*given.later).bitmask() : nullptr,
            nullptr,
            {parts.count, parts.bytes, parts.filter.out_channels}};
}

/** Whether a step overwrites nothing that another reads, which it then may compute, too. */
bool spares(const CheckedStep &step, const CheckedStep &other) {
    const distile_tensor written = without_border(*step.given.output);
    const auto meets = [&](const distile_tensor *read) { return read && overlap(written, without_border(*read)); };
    return !meets(other.given.input) && !meets(other.given.residual);
}

/** Whether the step that reads a transient output can compute it, too: of a depthwise convolution, and of one behind
 * which such a convolution waits for the next. */
bool can_wait(const CheckedStep *step, const CheckedStep *end) {
    if (step->given.transient == 0) {
        return false;
    }
    const CheckedStep &reader = *(step + 1);
    if (step->filter().is_depthwise()) {
        return is_point(reader.given.window) && reader.filter().groups == 1 && reader.output == step->output &&
               spares(reader, *step);
    }
    const distile_tensor &output = *step->given.output;
    const bool has_border =
        output.border_top != 0 || output.border_bottom != 0 || output.border_left != 0 || output.border_right != 0;
    return step->filter().groups == 1 && !has_border && reader.given.kind == DISTILE_STEP_CONV2D &&
           reader.filter().is_depthwise() && step + 2 != end && can_wait(step + 1, end) && spares(*(step + 2), *step);
}

bool is_active(const Bitmask &mask, int32_t n, int32_t y, int32_t x) {
    return (mask.words[(int64_t{n} * mask.height + y) * mask.words_per_row() + x / 64] >> x % 64 & 1) != 0;
}

/** Adds the score of a pixel to its total and a part of it to the output, and returns whether it goes on. */
bool goes_on(const distile_stage_step &step, int32_t n, int32_t y, int32_t x, float &total) {
    const auto pixel = [&](const distile_tensor &tensor) {
        return static_cast<float *>(tensor.data) + n * tensor.stride_n + y * tensor.stride_h + x * tensor.stride_w;
    };
    const float *const from = pixel(*step.input), *const factors = static_cast<const float *>(step.weights);
    const float sum = std::inner_product(from, from + step.input->channels, factors, step.score_bias);
    float score = 1 / one_plus_exponential_of_minus(sum);
    if (step.limits) {
        score = std::min(score, step.limits[int64_t{y} * step.input->width + x]);
    }
    const float before = total;
    total += score;
    const bool is_left = total < step.threshold;
    if (step.output && x < step.output->width) {
        const float part = is_left ? score : 1 - before;
        float *const to = pixel(*step.output);
        for (int32_t channel = 0; channel < step.input->channels; channel++) {
            to[channel] += part * from[channel];
        }
    }
    return is_left;
}

/** Where the pixels of a list are in it. */
class IndexOfList {
public:
    IndexOfList(CpuDevice &device, const TileList &list, const MaskShape &shape)
        : memory_(device.take_scratch(sizeof(int32_t) * static_cast<size_t>(num_rows(shape) * (shape.width + 1) + 1))),
          index_{shape.height, shape.width, static_cast<int32_t *>(memory_.get()),
                 static_cast<int32_t *>(memory_.get()) + num_rows(shape) + 1} {
        auto *const rows = static_cast<int32_t *>(memory_.get()), *const pixels = rows + num_rows(shape) + 1;
        int64_t row = 0;
        for (int64_t i = 0; i < list.count; i++) {
            const int64_t own = int64_t{list.image[i]} * shape.height + (list.xy[i] >> 16);
            for (; row <= own; row++) {
                rows[row] = static_cast<int32_t>(i);
            }
            pixels[own * shape.width + (list.xy[i] & 0xffff)] = static_cast<int32_t>(i);
        }
        for (; row <= num_rows(shape); row++) {
            rows[row] = static_cast<int32_t>(list.count);
        }
    }
    const ListIndex &index() const {
        return index_;
    }

private:
    static int64_t num_rows(const MaskShape &shape) {
        return int64_t{shape.batch} * shape.height;
    }

    ScratchMemory memory_;
    ListIndex index_;
};

}  // namespace

CpuStageRunner::CpuStageRunner(CpuDevice &device)
    : device_(device), needed_(device.make_mask()), all_(device.make_mask()), all_read_(device.make_mask()) {
}

void CpuStageRunner::run(const Stage &stage, StageTrace *trace) {
    using Clock = std::chrono::steady_clock;
    const Clock::time_point began = trace ? Clock::now() : Clock::time_point{};
    const auto now = [&] { return static_cast<uint32_t>(std::chrono::nanoseconds(Clock::now() - began).count()); };
    std::vector<const CheckedStep *> waiting;  // The step behind them computes them, too.
    for (auto step = stage.steps.begin(); step != stage.steps.end(); ++step) {
        const uint32_t start = trace ? now() : 0;
        const bool scores = makes_mask(step->given);
        if (step->given.kind == DISTILE_STEP_HALT) {
            halt(*step);
        } else if (scores) {
            make_mask(*step);
        } else if (step->given.kind == DISTILE_STEP_NORMALIZE) {
            normalize(*step);
        } else if (step->given.kind == DISTILE_STEP_ATTENTION) {
            attend(*step);
        } else if (step->given.kind != DISTILE_STEP_CONV2D) {
            take_channels(*step);
        } else if (is_quantized(step->given.input->dtype)) {
            run_quantized(device_,
                          {*step->given.input, *step->given.output, step->given.residual, step->given.window,
                           step->filter(), step->given.weights, step->activation()},
                          pixels_of(*step, *all_));
        } else if ((waiting.empty() || step->filter().is_depthwise()) &&
                   can_wait(&*step, stage.steps.data() + stage.steps.size())) {
            waiting.push_back(&*step);
        } else {
            const auto next = std::find_if(step + 1, stage.steps.end(), [](const CheckedStep &other) {
                return other.given.kind == DISTILE_STEP_CONV2D;
            });
            convolve(*step, waiting, next == stage.steps.end() ? nullptr : &*next);
            waiting.clear();
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

void CpuStageRunner::halt(const CheckedStep &step) {
    const distile_stage_step &given = step.given;
    const MaskShape &shape = step.output;
    std::vector<uint8_t> going(static_cast<size_t>(shape.batch) * shape.height * shape.width);
    size_t at = 0;
    for (int32_t n = 0; n < shape.batch; n++) {
        for (int32_t y = 0; y < shape.height; y++) {
            for (int32_t x = 0; x < shape.width; x++, at++) {
                const bool may_go_on = !given.from || is_active(cpu_mask(*given.from).bitmask(), n, y, x);
                going[at] = may_go_on && goes_on(given, n, y, x, given.totals[at]) ? 1 : 0;
            }
        }
    }
    given.mask->set_mirrored(
        shape, [&] { given.mask->set_bytes(shape, going.data(), int64_t{shape.height} * shape.width, shape.width); });
}

void CpuStageRunner::normalize(const CheckedStep &step) {
    const distile_stage_step &given = step.given;
    device_.normalize({*given.input, *given.output, given.mask ? *given.mask : every_pixel(step, *all_),
                       static_cast<const float *>(given.weights), given.bias, given.epsilon,
                       given.norm == DISTILE_LAYER_NORM, false});
}

void CpuStageRunner::take_channels(const CheckedStep &step) {
    const distile_stage_step &given = step.given;
    if (given.kind == DISTILE_STEP_SUM) {
        finish_channels(step, *given.input);
        return;
    }
    // The residual may be the output.
    ScratchMemory memory;
    distile_tensor made = *given.output;
    if (given.residual) {
        const int64_t numbers = int64_t{made.batch} * made.height * made.width * made.channels;
        memory = device_.take_scratch(static_cast<size_t>(numbers) * sizeof(float));
        made = distile_tensor_make(memory.get(), made.batch, made.height, made.width, made.channels);
    }
    distile_mask &mask = given.mask ? *given.mask : every_pixel(step, *all_);
    const distile_window &window = given.window;
    if (given.kind == DISTILE_STEP_UPSAMPLE) {
        device_.upsample_nearest(*given.input, made, mask, window.stride_h, window.stride_w, false);
    } else {
        device_.pool({*given.input, made, mask, window, given.kind == DISTILE_STEP_MAX_POOL, true, false});
    }
    if (given.residual || given.activation != DISTILE_ACTIVATION_NONE) {
        finish_channels(step, made);
    }
}

void CpuStageRunner::finish_channels(const CheckedStep &step, const distile_tensor &made) {
    const distile_stage_step &given = step.given;
    device_.combine({made, given.residual ? *given.residual : made, *given.output,
                     given.mask ? *given.mask : every_pixel(step, *all_), given.residual ? DISTILE_ADD : DISTILE_COPY,
                     distile::Activation{DISTILE_ACTIVATION_NONE, 0}, step.activation(), false});
}

void CpuStageRunner::attend(const CheckedStep &step) {
    const distile_stage_step &given = step.given;
    const TileList rows = pixels_of(step, *all_);
    const TileList keys = given.all_keys != 0 ? every_pixel(step, *all_).list({1, 1}, {}) : rows;
    run_attention(device_.context, device_.products(),
                  {memory_of(given.input),
                   memory_of(given.key),
                   memory_of(given.value),
                   memory_of(given.output),
                   given.heads,
                   given.input->channels / given.heads,
                   given.scale,
                   {rows.xy, rows.image, rows.count},
                   {keys.xy, keys.image, keys.count}});
}

distile_mask &CpuStageRunner::every_pixel(const CheckedStep &step, distile_mask &all) {
    if (!(all.shape == step.output)) {
        all.set_all(step.output);
    }
    return all;
}

TileList CpuStageRunner::pixels_of(const CheckedStep &step, distile_mask &all) {
    distile_mask *mask = step.given.mask;
    if (!mask) {
        mask = &every_pixel(step, all);
    } else if (step.given.reader) {
        needed_->set_window(step.output, *mask, *step.given.reader, Direction::ToInput);
        mask = needed_.get();
    }
    return mask->list({1, 1}, {});
}

void CpuStageRunner::convolve(const CheckedStep &step, const std::vector<const CheckedStep *> &waiting,
                              const CheckedStep *next) {
    const std::optional<PanelWeights> next_weights = next ? std::optional(weights_of(*next)) : std::nullopt;
    const PanelWeights *const fetched = next_weights ? &*next_weights : nullptr;
    if (waiting.size() == 2) {
        const CheckedStep &source = *waiting[0], &depthwise = *waiting[1];
        // Both lists are used at once, and without masks they may be of different sizes.
        const TileList read = pixels_of(source, *all_read_), pixels = pixels_of(step, *all_);
        if (!pass(source, read, depthwise, step, pixels, fetched)) {
            const PanelWeights of_depthwise = weights_of(depthwise);
            convolve(source, read, &of_depthwise);
            pass(depthwise, step, pixels, fetched);
        }
        return;
    }
    const TileList pixels = pixels_of(step, *all_);
    if (waiting.empty()) {
        convolve(step, pixels, fetched);
    } else {
        pass(*waiting[0], step, pixels, fetched);
    }
}

void CpuStageRunner::convolve(const CheckedStep &step, const TileList &pixels, const PanelWeights *next) {
    ListedConvolution convolution = listed(step, pixels);
    convolution.next = next;
    run_convolution(device_.context, device_.products(), convolution);
}

void CpuStageRunner::pass(const CheckedStep &depthwise, const CheckedStep &step, const TileList &pixels,
                          const PanelWeights *next) {
    const ListedConvolution before = listed(depthwise, pixels);
    ListedConvolution convolution = listed(step, pixels);
    convolution.next = next;
    convolution.before = &before;
    run_passing(convolution, passed_numbers(device_.context, device_.products(), convolution));
}

bool CpuStageRunner::pass(const CheckedStep &source, const TileList &read, const CheckedStep &depthwise,
                          const CheckedStep &step, const TileList &pixels, const PanelWeights *next) {
    const int64_t made = read.count * source.given.output->channels;
    if (made <= least_chain_numbers * device_.context.options.threads) {
        return false;
    }
    const IndexOfList index(device_, read, source.output);
    const ListedConvolution first = listed(source, read);
    ListedConvolution before = listed(depthwise, pixels), convolution = listed(step, pixels);
    before.before = &first;
    before.taken = &index.index();
    convolution.next = next;
    convolution.before = &before;
    const int64_t numbers = passed_numbers(device_.context, device_.products(), convolution);
    if (numbers > 0) {
        run_passing(convolution, numbers);
    }
    return numbers > 0;
}

void CpuStageRunner::run_passing(ListedConvolution &convolution, int64_t numbers) {
    const ScratchMemory memory = device_.take_scratch(static_cast<size_t>(numbers) * sizeof(float));
    convolution.passed = static_cast<float *>(memory.get());
    run_convolution(device_.context, device_.products(), convolution);
}

}  // namespace distile
