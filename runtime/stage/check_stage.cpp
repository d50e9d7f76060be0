#include "runtime/stage/check_stage.h"
#include "runtime/base/context.h"
#include "runtime/base/device.h"
#include "runtime/base/enumerators.h"
#include "runtime/base/types.h"
#include "runtime/mask/mask_checks.h"
#include "runtime/tensor/tensor.h"
#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <utility>

namespace distile {

namespace {

bool uses_mask(const distile_stage_step &step, const distile_mask *mask) {
    return mask && (step.mask == mask || step.later == mask || step.from == mask);
}

bool overlap_any(const distile_tensor *written, const distile_stage_step &reader) {
    if (!written) {
        return false;
    }
    const auto meets = [&](const distile_tensor *other) {
        return other && overlap(without_border(*written), without_border(*other));
    };
    return meets(reader.input) || meets(reader.residual) || meets(reader.output) || meets(reader.key) ||
           meets(reader.value);
}

/** Whether two steps may not run at the same time. */
bool conflict(const distile_stage_step &a, const distile_stage_step &b) {
    const auto makes = [](const distile_stage_step &step) { return makes_mask(step) ? step.mask : nullptr; };
    return overlap_any(a.output, b) || overlap_any(b.output, a) || uses_mask(b, makes(a)) || uses_mask(a, makes(b)) ||
           (a.totals && a.totals == b.totals);
}

/** Checks one step, with what the steps before have made. */
class StepCheck {
public:
    StepCheck(distile_context *context, const StageTarget &target, const distile_stage_step &step, int32_t number,
              const std::vector<CheckedStep> &before)
        : context_(context), target_(target), step_(step), before_(before),
          name_("distile_run_stage, step " + std::to_string(number)), call_(name_.c_str()) {
    }

    CheckedStep run() {
        require(check_enumerator(context_, call_, "kind", step_.kind));
        if (!is_reserved_zero(step_.reserved) || step_.reserved32 != 0) {
            throw bad_value("a reserved field is not 0");
        }
        check_step_tensor(step_.input, "input", step_.input ? step_.input->channels : 0, true);
        check_numbers(step_.window, "window");
        if (!before_.empty() && before_.front().given.input->dtype != step_.input->dtype) {
            throw Failure{fail(context_, DISTILE_ERROR_BAD_TYPE, "%s: the input is %s, but that of the first step %s",
                               call_, TypeText(step_.input->dtype).text,
                               TypeText(before_.front().given.input->dtype).text)};
        }
        if (is_quantized() && step_.kind != DISTILE_STEP_SCORES && step_.kind != DISTILE_STEP_CONV2D) {
            throw Failure{fail(context_, DISTILE_ERROR_BAD_TYPE,
                               "%s: the input is %s; only convolutions and scores take quantized tensors in a stage",
                               call_, TypeText(step_.input->dtype).text)};
        }
        CheckedStep checked{step_, {}, step_.input->dtype, false, false};
        if (step_.kind == DISTILE_STEP_SCORES) {
            check_scores(checked);
        } else if (step_.kind == DISTILE_STEP_CONV2D) {
            check_convolution(checked);
            spread(checked);
        } else if (step_.kind == DISTILE_STEP_NORMALIZE) {
            check_norm(checked);
            spread(checked);
        } else if (step_.kind == DISTILE_STEP_ATTENTION) {
            check_attention(checked);
        } else if (step_.kind == DISTILE_STEP_HALT) {
            check_halt(checked);
        } else {
            check_layer(checked);
        }
        check_other_fields();
        check_transient();
        find_order(checked);
        return checked;
    }

private:
    Failure bad_value(const char *what) const {
        return {fail(context_, DISTILE_ERROR_BAD_VALUE, "%s: %s", call_, what)};
    }

    bool is_quantized() const {
        return distile::is_quantized(raw(step_.input->dtype));
    }
    /** The type of outputs and residuals, which may be float32 where the input is quantized. */
    distile_dtype result_type() const {
        const bool is_real = step_.kind == DISTILE_STEP_CONV2D && is_quantized() && step_.output &&
                             raw(step_.output->dtype) == DISTILE_FLOAT32;
        return is_real ? DISTILE_FLOAT32 : step_.input->dtype;
    }

    void check_step_tensor(const distile_tensor *tensor, const char *what, int32_t channels, bool border) const {
        if (!tensor) {
            throw Failure{fail_null(context_, call_, what)};
        }
        require(check_tensor(context_, border ? tensor->dtype : result_type(), call_, tensor, what, channels, border));
        if (!target_.takes(tensor->dtype)) {
            throw Failure{fail(context_, DISTILE_ERROR_BAD_TYPE, "%s: the %s is %s; stages take %s here", call_, what,
                               TypeText(tensor->dtype).text, target_.types)};
        }
        const size_t vector_bytes = target_.vector_bytes, element_bytes = distile_dtype_size(tensor->dtype);
        const auto is_whole = [&](int64_t elements) {
            return static_cast<size_t>(elements) * element_bytes % vector_bytes == 0;
        };
        if (reinterpret_cast<uintptr_t>(tensor->data) % vector_bytes != 0) {
            throw Failure{fail(context_, DISTILE_ERROR_BAD_ALIGNMENT, "%s: the %s is not aligned to %zu bytes", call_,
                               what, vector_bytes)};
        }
        if (!is_whole(tensor->stride_w) || !is_whole(tensor->stride_h) ||
            (tensor->batch > 1 && !is_whole(tensor->stride_n))) {
            throw Failure{fail(context_, DISTILE_ERROR_BAD_STRIDE,
                               "%s: the %s has strides that are no multiples of %zu", call_, what,
                               vector_bytes / element_bytes)};
        }
        const int64_t span = (tensor->batch - 1) * tensor->stride_n +
                             (int64_t{tensor->height} + tensor->border_bottom) * tensor->stride_h +
                             (int64_t{tensor->width} + tensor->border_right) * tensor->stride_w;
        if (span > largest_span || span * static_cast<int64_t>(element_bytes) >= target_.most_span_bytes) {
            throw Failure{fail(context_, DISTILE_ERROR_BAD_SHAPE, "%s: the %s spans 2^%d elements or more", call_, what,
                               span > largest_span ? 31 : 30)};
        }
    }

    void check_numbers(const distile_window &window, const char *what) const {
        require(check_window(context_, call_, &window));
        const int32_t most = std::max({window.kernel_h, window.kernel_w, window.stride_h, window.stride_w,
                                       window.dilation_h, window.dilation_w, window.pad_top, window.pad_left});
        if (window.kind != DISTILE_WINDOW_CONV || most > INT16_MAX) {
            throw Failure{fail(context_, DISTILE_ERROR_BAD_VALUE,
                               "%s: the %s has a number above %d, or its kind is not DISTILE_WINDOW_CONV", call_, what,
                               INT16_MAX)};
        }
    }

    void check_words(const MaskShape &shape) const {
        if (stage_words(shape) > target_.most_words) {
            throw Failure{fail(context_, DISTILE_ERROR_BAD_SHAPE,
                               "%s: %d images of %d x %d pixels have more than %lld words of 32 pixels: run fewer "
                               "images at a time",
                               call_, shape.batch, shape.height, shape.width,
                               static_cast<long long>(target_.most_words))};
        }
    }

    void check_scores(CheckedStep &checked) const {
        const distile_tensor &input = *step_.input;
        if (step_.output || step_.residual || step_.reader || step_.later || step_.bias) {
            throw bad_value("scores have no output, residual, reader, later pixels or bias");
        }
        if (step_.spreads != 0 || step_.groups != 0 || step_.transient != 0) {
            throw bad_value("scores write their mask alone: `spreads`, `groups` and `transient` must be 0");
        }
        if (raw(step_.weights_dtype) != 0) {
            throw bad_value("the weights of scores are float32: their type must be 0");
        }
        check_factors();
        const auto places = [](int32_t extent, int32_t stride) { return (extent + stride - 1) / stride; };
        checked.output = {input.batch, places(input.height, step_.window.stride_h),
                          places(input.width, step_.window.stride_w)};
        check_made_mask(checked.output);
    }

    int32_t channels_at_once() const {
        return target_.channels_at_once(step_.input->dtype);
    }
    void check_channels() const {
        if (step_.input->channels % channels_at_once() != 0) {
            throw Failure{fail(context_, DISTILE_ERROR_BAD_CHANNELS, "%s: the input has %d channels, no multiple of %d",
                               call_, step_.input->channels, channels_at_once())};
        }
    }

    /** Checks that the context allows products of the tensors' type, where it decides as it does about an operator of
     * its own. */
    void check_math(distile_math by_default) const {
        const distile_math given = context_->options.math, allowed = given == DISTILE_MATH_DEFAULT ? by_default : given;
        if (target_.multiplies_tf32(step_.input->dtype) && allowed != DISTILE_MATH_TF32) {
            throw Failure{fail(context_, DISTILE_ERROR_UNSUPPORTED_DEVICE,
                               "%s: stages multiply float32 as TF32 here, which the context does not allow %s: set its "
                               "option math to DISTILE_MATH_TF32, or call the layers one by one",
                               call_, given == DISTILE_MATH_DEFAULT ? "for attention" : "for any layer")};
        }
    }

    /** Checks what makes scores of pixels. */
    void check_factors() const {
        check_channels();
        if (std::isnan(step_.score_bias) || std::isnan(step_.threshold)) {
            throw bad_value("the bias or the threshold is NaN");
        }
        check_vector_alignment();
        if (!step_.weights) {
            throw Failure{fail_null(context_, call_, "weights")};
        }
    }
    /** Checks weights that are a number for each channel. */
    void check_vector_alignment() const {
        const size_t alignment = std::max(target_.vector_bytes, sizeof(float));
        require(check_alignment(context_, call_, {{step_.weights, alignment, "weights"}}));
    }

    /** Checks a mask that the step makes. */
    void check_made_mask(const MaskShape &shape) const {
        if (!step_.mask) {
            throw Failure{fail_null(context_, call_, "mask")};
        }
        if (&step_.mask->context != context_) {
            throw Failure{fail(context_, DISTILE_ERROR_BAD_MASK, "%s: the mask belongs to another context", call_)};
        }
        require(check_mask_shape(*step_.mask, call_, shape));
        check_words(shape);
        const MaskBytes &mirror = step_.mask->mirror;
        if (mirror.bytes) {
            require(check_strides(*step_.mask, call_, shape, mirror.stride_n, mirror.stride_h));
            step_.mask->check_bytes(shape, mirror);
        }
    }

    void check_halt(CheckedStep &checked) const {
        const distile_tensor &input = *step_.input;
        if (step_.residual || step_.reader || step_.later || step_.bias || raw(step_.weights_dtype) != 0 ||
            step_.spreads != 0 || step_.groups != 0 || step_.transient != 0) {
            throw bad_value(
                "halts have no residual, reader, later pixels or bias, and their type of weights, `spreads`, "
                "`groups` and `transient` are 0");
        }
        require(check_pointers(context_, call_, {{step_.totals, "totals"}}));
        require(check_alignment(context_, call_,
                                {{step_.totals, sizeof(float), "totals"}, {step_.limits, sizeof(float), "limits"}}));
        check_point();
        check_factors();
        checked.output = {input.batch, input.height, input.width};
        check_made_mask(checked.output);
        if (step_.from) {
            if (step_.from == step_.mask) {
                throw bad_value("a halt makes the mask of those that may go on");
            }
            require(check_same_shape(context_, call_, shape_of(step_.from, "mask of those that may go on"),
                                     checked.output));
        }
        if (step_.output) {
            check_step_tensor(step_.output, "output", input.channels, false);
            const distile_tensor &output = *step_.output;
            check_batch();
            if (output.height != input.height || output.width > input.width) {
                throw Failure{fail(context_, DISTILE_ERROR_BAD_SHAPE,
                                   "%s: the output has %d rows and %d columns, but the input %d and %d", call_,
                                   output.height, output.width, input.height, input.width)};
            }
            if (overlap(without_border(input), without_border(output))) {
                throw Failure{fail(context_, DISTILE_ERROR_ALIASING, "%s: the input overlaps the output", call_)};
            }
        }
    }

    void check_point() const {
        if (!is_point(step_.window)) {
            throw bad_value("the window is 1 x 1, without strides and padding");
        }
    }

    /** Checks that an output has the input's pixels and channels. */
    void check_same_output(CheckedStep &checked) const {
        const distile_tensor &input = *step_.input;
        check_step_tensor(step_.output, "output", input.channels, false);
        require(check_same_extents(context_, call_, input, *step_.output));
        check_batch();
        checked.output = {input.batch, input.height, input.width};
        check_words(checked.output);
        check_channels();
        if (step_.residual || step_.reader || step_.later || raw(step_.weights_dtype) != 0 || step_.groups != 0 ||
            step_.transient != 0 || raw(step_.activation) != DISTILE_ACTIVATION_NONE) {
            throw bad_value(
                "norms and attention have no residual, reader, later pixels or activation, and their type of "
                "weights, `groups` and `transient` are 0");
        }
    }

    void check_norm(CheckedStep &checked) const {
        check_point();
        check_same_output(checked);
        if (step_.input->channels > target_.most_normalized) {
            throw Failure{fail(context_, DISTILE_ERROR_BAD_CHANNELS,
                               "%s: the input has %d channels; norms have up to %d", call_, step_.input->channels,
                               target_.most_normalized)};
        }
        require(check_enumerator(context_, call_, "norm", step_.norm));
        require(check_epsilon(context_, call_, step_.epsilon));
        check_vector_alignment();
        require(check_alignment(context_, call_, {{step_.bias, sizeof(float), "bias"}}));
        check_epilogue(checked);
    }

    void check_attention(CheckedStep &checked) const {
        check_point();
        check_same_output(checked);
        const distile_tensor &input = *step_.input;
        check_step_tensor(step_.key, "key", input.channels, false);
        check_step_tensor(step_.value, "value", input.channels, false);
        const distile_tensor &key = *step_.key, &value = *step_.value;
        if (key.batch != input.batch || key.height != input.height || key.width != input.width ||
            value.batch != input.batch || value.height != input.height || value.width != input.width) {
            throw Failure{fail(context_, DISTILE_ERROR_BAD_SHAPE,
                               "%s: the key and the value do not have the input's extents", call_)};
        }
        if (key.stride_w != value.stride_w || key.stride_h != value.stride_h ||
            (key.batch > 1 && key.stride_n != value.stride_n)) {
            throw Failure{fail(context_, DISTILE_ERROR_BAD_STRIDE,
                               "%s: the key and the value have other strides than each other", call_)};
        }
        check_math(DISTILE_MATH_FLOAT32);
        const int32_t heads = step_.heads, of_head = heads > 0 ? input.channels / heads : 0;
        const int32_t most = target_.most_head_channels(input.dtype);
        if (heads < 1 || of_head * heads != input.channels || of_head % target_.head_channels != 0 || of_head > most) {
            throw Failure{fail(context_, DISTILE_ERROR_BAD_CHANNELS,
                               "%s: %d heads of %d channels; heads have multiples of %d, up to %d", call_, heads,
                               input.channels, target_.head_channels, most)};
        }
        if (!(step_.scale > 0) || !std::isfinite(step_.scale)) {
            throw bad_value("the scale is no number above 0");
        }
        if (step_.all_keys != 0 && step_.all_keys != 1) {
            throw bad_value("`all_keys` is 0 or 1");
        }
        if (step_.weights || step_.bias || step_.spreads != 0) {
            throw bad_value("attention has no weights or bias, and its `spreads` is 0");
        }
        if (step_.mask && stage_words(checked.output) > target_.most_attention_words) {
            throw Failure{fail(context_, DISTILE_ERROR_BAD_SHAPE,
                               "%s: masks of attention have up to %lld words of 32 pixels: run fewer images at a time",
                               call_, static_cast<long long>(target_.most_attention_words))};
        }
        check_epilogue(checked);
        for (const distile_tensor *const read : {step_.key, step_.value}) {
            if (overlap(without_border(*read), without_border(*step_.output))) {
                throw Failure{
                    fail(context_, DISTILE_ERROR_ALIASING, "%s: the key or the value overlaps the output", call_)};
            }
        }
    }

    /** Checks that fields are 0 that only other steps have. */
    void check_other_fields() const {
        const bool attends = step_.kind == DISTILE_STEP_ATTENTION, halts = step_.kind == DISTILE_STEP_HALT,
                   normalizes = step_.kind == DISTILE_STEP_NORMALIZE;
        if (!attends && (step_.key || step_.value || step_.heads != 0 || step_.scale != 0 || step_.all_keys != 0)) {
            throw bad_value("only attention has a key, a value, heads, a scale and `all_keys`");
        }
        if (!halts && (step_.from || step_.totals || step_.limits)) {
            throw bad_value("only halts have totals, limits and a mask of those that may go on");
        }
        if (!normalizes && (raw(step_.norm) != 0 || step_.epsilon != 0)) {
            throw bad_value("only norms have a kind of norm and an epsilon");
        }
    }

    void check_convolution(CheckedStep &checked) const {
        const distile_tensor &input = *step_.input;
        check_step_tensor(step_.output, "output", step_.output ? step_.output->channels : 0, false);
        const distile_tensor &output = *step_.output;
        checked.output = {output.batch, output.height, output.width};
        if (input.channels % channels_at_once() != 0 || output.channels % channels_at_once() != 0) {
            throw Failure{fail(context_, DISTILE_ERROR_BAD_CHANNELS,
                               "%s: a convolution from %d to %d channels; stages take multiples of %d", call_,
                               input.channels, output.channels, channels_at_once())};
        }
        const StageFilter filter = checked.filter();
        if (!target_.has_groups(filter)) {
            throw Failure{fail(context_, DISTILE_ERROR_BAD_CHANNELS,
                               "%s: a convolution from %d to %d channels in %d groups; stages take %s here", call_,
                               input.channels, output.channels, filter.groups, target_.group_text())};
        }
        if (!filter.is_depthwise()) {
            check_math(DISTILE_MATH_TF32);
        }
        if (is_quantized()) {
            check_quantized(checked);
        } else {
            check_weights_type(checked);
        }
        check_batch();
        if (!target_.reads_outside) {
            check_reach();
        }
        check_words(checked.output);
        if (!step_.weights) {
            throw Failure{fail_null(context_, call_, "weights")};
        }
        const size_t alignment = is_quantized() ? target_.quantized_alignment : target_.weight_alignment;
        require(check_alignment(context_, call_,
                                {{step_.weights, alignment, "weights"}, {step_.bias, sizeof(float), "bias"}}));
        check_epilogue(checked);
    }

    void check_quantized(CheckedStep &checked) const {
        if (step_.bias || step_.later || raw(step_.weights_dtype) != 0) {
            throw bad_value(
                "a quantized step takes no bias, later pixels or type of weights: its packed weights have the "
                "bias and the type");
        }
        checked.weights_dtype = DISTILE_INT8;
    }

    void check_batch() const {
        if (step_.input->batch != step_.output->batch) {
            throw Failure{fail(context_, DISTILE_ERROR_BAD_SHAPE, "%s: the output has %d images, but the input has %d",
                               call_, step_.output->batch, step_.input->batch)};
        }
    }

    void check_epilogue(CheckedStep &checked) const {
        require(check_enumerator(context_, call_, "activation", step_.activation));
        if (overlap(without_border(*step_.input), without_border(*step_.output))) {
            throw Failure{fail(context_, DISTILE_ERROR_ALIASING, "%s: the input overlaps the output", call_)};
        }
        check_residual();
        check_masks(checked);
    }

    /** Checks a step that takes each channel by itself. */
    void check_layer(CheckedStep &checked) const {
        const distile_tensor &input = *step_.input;
        check_step_tensor(step_.output, "output", input.channels, false);
        const distile_tensor &output = *step_.output;
        const distile_window &window = step_.window;
        checked.output = {output.batch, output.height, output.width};
        check_channels();
        if (step_.weights || step_.bias || step_.reader || step_.later || raw(step_.weights_dtype) != 0 ||
            step_.spreads != 0 || step_.groups != 0 || step_.transient != 0) {
            throw bad_value(
                "a step that takes each channel by itself has no weights, bias, reader or later pixels, and "
                "its `spreads`, `groups` and `transient` are 0");
        }
        check_batch();
        const bool pools = step_.kind == DISTILE_STEP_MAX_POOL || step_.kind == DISTILE_STEP_AVERAGE_POOL;
        const bool is_one_tap =
            window.kernel_h == 1 && window.kernel_w == 1 && window.pad_top == 0 && window.pad_left == 0;
        if (!pools && !is_one_tap) {
            throw bad_value("upsampling and sums have a window of 1 x 1 without padding");
        }
        if (step_.kind == DISTILE_STEP_SUM && !is_point(window)) {
            throw bad_value("sums have a window without strides");
        }
        if (step_.kind == DISTILE_STEP_UPSAMPLE) {
            const auto fits = [](int32_t extent, int32_t factor, int32_t larger) {
                return int64_t{extent} * factor >= larger;
            };
            if (!fits(input.height, window.stride_h, output.height) ||
                !fits(input.width, window.stride_w, output.width)) {
                throw Failure{fail(context_, DISTILE_ERROR_BAD_SHAPE,
                                   "%s: %d x %d pixels, upsampled by %d and %d, do not make %d x %d", call_,
                                   input.height, input.width, window.stride_h, window.stride_w, output.height,
                                   output.width)};
            }
        } else {
            require(check_pooled_pixels(context_, call_, window, input, output));
            if (!target_.reads_outside) {
                check_reach();
            }
        }
        check_words(checked.output);
        check_epilogue(checked);
    }

    void check_weights_type(CheckedStep &checked) const {
        // The caller's number may be no enumerator, so it is not read as one before.
        const int32_t given = raw(step_.weights_dtype), same = raw(step_.input->dtype);
        const bool is_known = given == 0 || (find_type(given) && target_.packs(step_.weights_dtype));
        if (!is_known || (!target_.mixes_types && given != 0 && given != same)) {
            throw Failure{fail(context_, DISTILE_ERROR_BAD_TYPE,
                               "%s: the weights are %s; with tensors of %s, stages take %s here", call_,
                               TypeText(given).text, TypeText(same).text,
                               target_.mixes_types ? target_.weight_types : "the same")};
        }
        checked.weights_dtype = given == 0 ? step_.input->dtype : step_.weights_dtype;
    }

    /** Checks that all windows stay within the input and its border. */
    void check_reach() const {
        const distile_tensor &input = *step_.input, &output = *step_.output;
        const distile_window &window = step_.window;
        const auto check_axis = [&](const char *axis, int32_t extent, int32_t before, int32_t behind, int32_t outputs,
                                    int32_t kernel, int32_t stride, int32_t dilation, int32_t pad) {
            const int64_t end = int64_t{outputs - 1} * stride - pad + int64_t{kernel - 1} * dilation;
            if (pad > before || end >= int64_t{extent} + behind) {
                throw Failure{fail(context_, DISTILE_ERROR_BAD_SHAPE,
                                   "%s: windows read %s %d to %lld of an input of %d with a border of %d and %d", call_,
                                   axis, -pad, static_cast<long long>(end), extent, before, behind)};
            }
        };
        check_axis("rows", input.height, input.border_top, input.border_bottom, output.height, window.kernel_h,
                   window.stride_h, window.dilation_h, window.pad_top);
        check_axis("columns", input.width, input.border_left, input.border_right, output.width, window.kernel_w,
                   window.stride_w, window.dilation_w, window.pad_left);
    }

    void check_residual() const {
        if (!step_.residual) {
            return;
        }
        const distile_tensor &output = *step_.output;
        check_step_tensor(step_.residual, "residual", output.channels, false);
        const distile_tensor &residual = *step_.residual;
        if (residual.batch != output.batch) {
            throw Failure{fail(context_, DISTILE_ERROR_BAD_SHAPE,
                               "%s: the residual has %d images, but the output has %d", call_, residual.batch,
                               output.batch)};
        }
        require(check_same_extents(context_, call_, residual, output));
        if (!same_view(residual, output) && overlap(without_border(residual), without_border(output))) {
            throw Failure{fail(context_, DISTILE_ERROR_ALIASING,
                               "%s: the residual overlaps the output, but is not the same view", call_)};
        }
    }

    /** The step that makes a mask; null if it is given. */
    const CheckedStep *maker_of(const distile_mask *mask) const {
        const auto found = std::find_if(before_.rbegin(), before_.rend(), [&](const CheckedStep &step) {
            return makes_mask(step.given) && step.given.mask == mask;
        });
        return found == before_.rend() ? nullptr : &*found;
    }

    MaskShape shape_of(const distile_mask *mask, const char *what) const {
        if (&mask->context != context_) {
            throw Failure{fail(context_, DISTILE_ERROR_BAD_MASK, "%s: the %s belongs to another context", call_, what)};
        }
        if (const CheckedStep *maker = maker_of(mask)) {
            return maker->output;
        }
        require(check_mask(context_, call_, mask, what));
        return mask->shape;
    }

    void check_masks(CheckedStep &checked) const {
        if (step_.later) {
            require(check_same_shape(context_, call_, shape_of(step_.later, "mask of later pixels"), checked.output));
        }
        if (!step_.mask) {
            if (step_.reader) {
                throw bad_value("there is a reader, but no mask");
            }
            return;
        }
        const MaskShape shape = shape_of(step_.mask, "mask");
        if (!step_.reader) {
            require(check_same_shape(context_, call_, shape, checked.output));
            return;
        }
        check_numbers(*step_.reader, "reader");
        if (shape.batch != checked.output.batch) {
            throw Failure{fail(context_, DISTILE_ERROR_BAD_SHAPE, "%s: the mask has %d images, but the output has %d",
                               call_, shape.batch, checked.output.batch)};
        }
    }

    /** Checks that this step reads the output of a step before it as that step promises. */
    void check_transient() const {
        if (step_.transient != 0 && step_.transient != 1) {
            throw bad_value("`transient` is 0 or 1");
        }
        if (before_.empty() || before_.back().given.transient == 0) {
            return;
        }
        // As it is given: where it spreads, the checked one has no mask.
        const distile_stage_step &maker = *(&step_ - 1);
        const bool is_reader = step_.kind == DISTILE_STEP_CONV2D && same_view(*step_.input, *maker.output) &&
                               step_.mask == maker.mask && !step_.reader && reads_what_is_made(maker);
        if (!is_reader || (step_.residual && overlap(*step_.residual, *maker.output))) {
            throw bad_value(
                "the step before it is `transient`, so it must be a convolution that reads the output of that "
                "step in no other way, where that step computes it: of 1 x 1 with the same mask, or of the "
                "window that is the reader there");
        }
    }
    bool reads_what_is_made(const distile_stage_step &maker) const {
        if (maker.reader || !maker.mask) {
            return !maker.reader || is_same_window(*maker.reader, step_.window);
        }
        return is_point(step_.window) && has_shape(*step_.output, *maker.output);
    }
    static bool has_shape(const distile_tensor &a, const distile_tensor &b) {
        return a.batch == b.batch && a.height == b.height && a.width == b.width;
    }

    /** Leaves out the mask where waiting for it takes as long as computing all pixels. */
    void spread(CheckedStep &checked) const {
        if (step_.spreads != 0 && (step_.spreads != 1 || step_.residual || step_.later)) {
            throw bad_value("it may write other pixels only if `spreads` is 1, without a residual and later pixels");
        }
        const int64_t numbers =
            int64_t{checked.output.batch} * checked.output.height * checked.output.width * step_.output->channels;
        if (step_.spreads != 0 && numbers <= target_.spread_numbers * context_->device->threads()) {
            checked.given.mask = nullptr;
            checked.given.reader = nullptr;
        }
    }

    void find_order(CheckedStep &checked) const {
        for (auto step = before_.rbegin(); step != before_.rend() && !checked.starts_level; ++step) {
            checked.starts_level = conflict(step->given, checked.given);
            if (step->starts_level) {
                break;
            }
        }
        checked.starts_launch = makes_mask(step_) &&
                                std::any_of(before_.begin(), before_.end(),
                                            [&](const CheckedStep &step) { return uses_mask(step.given, step_.mask); });
    }

    distile_context *context_;
    const StageTarget &target_;
    const distile_stage_step &step_;
    const std::vector<CheckedStep> &before_;
    const std::string name_;
    const char *call_;
};

}  // namespace

std::vector<int32_t> order_by_levels(Stage &stage) {
    const std::vector<CheckedStep> given = stage.steps;
    std::vector<int32_t> order(given.size());
    std::iota(order.begin(), order.end(), 0);
    if (std::any_of(given.begin(), given.end(), [](const CheckedStep &step) { return step.starts_launch; })) {
        return order;
    }
    std::vector<int32_t> levels(given.size(), 0);
    for (size_t i = 0; i < given.size(); i++) {
        for (size_t j = i; j-- > 0;) {
            // Most wait for the step before, and then only those of its level can be as late.
            if (levels[j] >= levels[i] && conflict(given[j].given, given[i].given)) {
                levels[i] = levels[j] + 1;
            }
        }
    }
    const auto place = [&](int32_t step) {
        const auto number = static_cast<size_t>(step);
        return std::pair(levels[number], makes_mask(given[number].given));
    };
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return place(a) < place(b); });
    for (size_t i = 0; i < order.size(); i++) {
        const auto number = static_cast<size_t>(order[i]);
        stage.steps[i] = given[number];
        stage.steps[i].starts_level = i > 0 && levels[number] != levels[static_cast<size_t>(order[i - 1])];
    }
    return order;
}

Stage checked_stage(distile_context *context, const distile_stage_args &args, const StageTarget &target) {
    constexpr const char *call = "distile_run_stage";
    if (!args.steps) {
        throw Failure{fail_null(context, call, "array of steps")};
    }
    if (args.num_steps < 1) {
        throw Failure{fail(context, DISTILE_ERROR_BAD_VALUE, "%s: there are %d steps; there must be at least 1", call,
                           args.num_steps)};
    }
    if (!is_reserved_zero(args.reserved) || args.reserved32 != 0) {
        throw Failure{fail(context, DISTILE_ERROR_BAD_VALUE, "%s: a reserved field of the arguments is not 0", call)};
    }
    if (args.teams < -1 || args.teams > 1) {
        throw Failure{
            fail(context, DISTILE_ERROR_BAD_VALUE, "%s: `teams` is %d; it must be 1, 0 or -1", call, args.teams)};
    }
    Stage stage{{}, args.tiles, args.teams};
    stage.steps.reserve(static_cast<size_t>(args.num_steps));
    for (int32_t number = 0; number < args.num_steps; number++) {
        stage.steps.push_back(StepCheck(context, target, args.steps[number], number, stage.steps).run());
    }
    if (stage.steps.back().given.transient != 0) {
        throw Failure{
            fail(context, DISTILE_ERROR_BAD_VALUE, "%s: the last step is `transient`, but nothing reads it", call)};
    }
    return stage;
}

}  // namespace distile
