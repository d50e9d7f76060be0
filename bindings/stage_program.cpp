#include "bindings/stage_program.h"
#include "bindings/errors.h"
#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

namespace distile::bindings {

namespace {

constexpr int64_t largest_number = INT16_MAX;

[[noreturn]] void fail_step(size_t step, const std::string &what) {
    fail("step " + std::to_string(step) + " of a stage " + what);
}

/** The integers of a step, one after the other. */
class Numbers {
public:
    Numbers(const int64_t *at, size_t step) : at_(at), step_(step) {
    }

    /** A number below a count; -1 for none if it is optional. */
    int32_t index(size_t count, const char *what, bool optional) {
        const int64_t number = *at_++;
        if (number >= static_cast<int64_t>(count) || number < (optional ? -1 : 0)) {
            fail_step(step_, std::string("names ") + what + " " + std::to_string(number) + ", which is not there");
        }
        return static_cast<int32_t>(number);
    }
    int32_t positive(const char *what, int64_t least = 1) {
        const int64_t number = *at_++;
        if (number < least || number > largest_number) {
            fail_step(step_, std::string("has the ") + what + " " + std::to_string(number) + ", which is out of range");
        }
        return static_cast<int32_t>(number);
    }
    int64_t kind() {
        return *at_++;
    }
    /** Kernel, stride and dilation. A kernel of 0 stands for none, if that is possible. */
    distile_window window(bool optional) {
        distile_window found{};
        const int64_t least = optional && *at_ == 0 ? 0 : 1;
        for (int32_t *const number : {&found.kernel_h, &found.kernel_w, &found.stride_h, &found.stride_w,
                                      &found.dilation_h, &found.dilation_w}) {
            *number = positive("number of a window", least);
        }
        return found;
    }

private:
    const int64_t *at_;
    size_t step_;
};

std::vector<std::string> parts_of(const std::string &text) {
    std::vector<std::string> parts;
    for (size_t begin = 0; begin <= text.size();) {
        const size_t end = std::min(text.find(',', begin), text.size());
        parts.push_back(text.substr(begin, end - begin));
        begin = end + 1;
    }
    return parts;
}

/** The outputs of a convolution along one axis. */
int64_t outputs_of(int64_t extent, int64_t before, int64_t behind, int64_t kernel, int64_t stride, int64_t dilation) {
    const int64_t room = extent + before + behind - dilation * (kernel - 1) - 1;
    return room < 0 ? 0 : room / stride + 1;
}

/** How far windows read outside of an image along one axis. */
int64_t reach_of(int64_t extent, int64_t outputs, int64_t before, int64_t kernel, int64_t stride, int64_t dilation) {
    const int64_t last = (outputs - 1) * stride - before + (kernel - 1) * dilation;
    return std::max({int64_t{0}, before, last - (extent - 1)});
}

bool is_one_pixel(const distile_window &window) {
    return window.kernel_h == 1 && window.kernel_w == 1 && window.stride_h == 1 && window.stride_w == 1 &&
           window.pad_top == 0 && window.pad_left == 0;
}

bool equal(const distile_window &a, const distile_window &b) {
    return a.kernel_h == b.kernel_h && a.kernel_w == b.kernel_w && a.stride_h == b.stride_h &&
           a.stride_w == b.stride_w && a.dilation_h == b.dilation_h && a.dilation_w == b.dilation_w &&
           a.pad_top == b.pad_top && a.pad_left == b.pad_left;
}

}  // namespace

StageProgram::StageProgram(const std::vector<int64_t> &steps, const std::vector<double> &numbers,
                           const std::string &activations, const std::vector<int64_t> &outputs,
                           const StageCounts &given)
    : given_(given), images_(given.images), mask_sizes_(given.masks), outputs_(outputs) {
    const std::vector<std::string> names = parts_of(activations);
    const size_t count = steps.size() / integers;
    if (count == 0 || steps.size() != count * integers || numbers.size() != count * reals || names.size() != count) {
        fail("the numbers of a stage are not those of its steps");
    }
    for (size_t step = 0; step < count; step++) {
        read_step(&steps[step * integers], &numbers[step * reals], names[step]);
    }
    const auto num_images = static_cast<int64_t>(images_.size());
    const auto num_masks = static_cast<int64_t>(mask_sizes_.size());
    for (const int64_t output : outputs_) {
        if (output >= num_images || output < -num_masks || (output >= 0 && output < int64_t(given_.images)) ||
            (output < 0 && -1 - output < int64_t(given_.masks))) {
            fail("a stage returns " + std::to_string(output) + ", which none of its steps makes");
        }
        if (output >= 0) {
            images_[static_cast<size_t>(output)].is_output = true;
        }
    }
    check_totals();
    find_uses();
    find_early();
}

void StageProgram::read_step(const int64_t *integers, const double *reals, const std::string &activation) {
    const size_t number = steps_.size(), masks = mask_sizes_.size();
    Numbers from(integers, number);
    StageStep step{};
    const int64_t kind = from.kind();
    if (kind < static_cast<int64_t>(StageKind::conv2d) || kind > static_cast<int64_t>(StageKind::halt)) {
        fail_step(number, "has the kind " + std::to_string(kind) + ", which does not exist");
    }
    step.kind = static_cast<StageKind>(kind);
    const bool convolves = step.kind == StageKind::conv2d, scores = step.kind == StageKind::scores;
    const bool combines = step.kind == StageKind::algebra, is_layer = step.kind == StageKind::layer;
    const bool normalizes = step.kind == StageKind::norm, attends = step.kind == StageKind::attention;
    const bool halts = step.kind == StageKind::halt;
    if (combines) {
        constexpr auto algebras = static_cast<size_t>(MaskAlgebra::pool) + 1;
        step.algebra = static_cast<MaskAlgebra>(from.index(algebras, "the algebra of masks", false));
        step.input = -1;
    } else {
        step.input = from.index(images_.size(), "the image", false);
    }
    step.residual = from.index(convolves || is_layer || halts ? images_.size() : 0, "the residual", true);
    step.base = from.index(convolves || halts ? images_.size() : 0, "the base", true);
    step.mask = from.index(scores ? 0 : masks, "the mask", !combines);
    const bool is_alone = combines && step.algebra > MaskAlgebra::subtract;
    if (is_layer) {
        constexpr auto layers = static_cast<size_t>(StageLayer::sum) + 1;
        step.layer = static_cast<StageLayer>(from.index(layers, "the layer", false));
        step.later = -1;
    } else if (normalizes || attends) {
        const int32_t choice = from.index(2, normalizes ? "the norm" : "the choice of keys", false);
        step.norm = normalizes && choice == 1 ? DISTILE_RMS_NORM : DISTILE_LAYER_NORM;
        step.all_keys = attends && choice == 1;
        step.later = -1;
    } else {
        step.later =
            from.index(scores || is_alone || halts ? 0 : masks, "the mask of later pixels", !combines || is_alone);
    }
    step.window = from.window(combines || is_layer);
    step.window.pad_top = from.positive("padding", 0);
    step.pad_bottom = from.positive("padding", 0);
    step.window.pad_left = from.positive("padding", 0);
    step.pad_right = from.positive("padding", 0);
    step.reader = from.window(true);
    step.reader.pad_top = from.positive("padding", 0);
    step.reader.pad_left = from.positive("padding", 0);
    const bool has_weights = convolves || scores || normalizes || halts;
    step.weights = from.index(has_weights ? given_.parameters : 0, "the parameter", !has_weights || normalizes);
    const bool has_bias = convolves || halts || (normalizes && step.norm == DISTILE_LAYER_NORM);
    step.bias = from.index(has_bias ? given_.parameters : 0, "the parameter", true);
    step.groups = convolves ? from.positive("number of groups") : 0;
    step.heads = attends ? from.positive("number of heads") : 0;
    step.epsilon = static_cast<float>(reals[0]);
    step.scale = std::max(static_cast<float>(reals[0]), 0.0f);
    step.activation = activation_of(activation);
    step.activation_name = activation;
    step.score_bias = static_cast<float>(reals[0]);
    step.threshold = static_cast<float>(reals[1]);
    if (step.has_reader() && (step.mask < 0 || !convolves)) {
        fail_step(number, "has a reader and no mask, or is no convolution");
    }
    if (halts) {
        read_halt(step);
    }
    if (step.base >= 0 && step.mask < 0) {
        fail_step(number, "has a base and no mask: it writes every pixel");
    }
    const distile_window &window = step.window;
    if (scores && (window.kernel_h != 1 || window.kernel_w != 1 || window.pad_top != 0 || window.pad_left != 0 ||
                   step.has_reader())) {
        fail_step(number, "makes scores with a window other than 1 x 1");
    }
    if (combines && step.algebra == MaskAlgebra::pool && std::min(window.pad_top, window.pad_left) < 1) {
        fail_step(number, "makes a smaller mask by a factor of 0");
    }
    if (is_layer) {
        read_layer(step);
    }
    if ((normalizes || attends || halts) &&
        (!is_one_pixel(window) || step.pad_bottom != 0 || step.pad_right != 0 || !std::isfinite(reals[0]))) {
        fail_step(number, "has a window other than 1 x 1, or a number that is not finite");
    }
    if (step.makes_image()) {
        step.result = add_image(number);
    } else {
        step.result = static_cast<int32_t>(masks);
        mask_sizes_.emplace_back();
    }
    steps_.push_back(step);
}

int32_t StageProgram::add_image(size_t maker) {
    images_.emplace_back();
    images_.back().maker = static_cast<int32_t>(maker);
    return static_cast<int32_t>(images_.size()) - 1;
}

void StageProgram::read_halt(StageStep &step) {
    step.totals.to = std::exchange(step.base, -1);
    step.sums.to = std::exchange(step.residual, -1);
    if (std::isnan(step.score_bias) || std::isnan(step.threshold) || step.has_reader()) {
        fail_step(steps_.size(), "halts by a bias or a threshold that is no number, or has a reader");
    }
    if (step.totals.to >= 0) {
        images_[static_cast<size_t>(step.totals.to)].is_totals = true;
    }
    step.totals.made = add_image(steps_.size());
    images_.back().is_totals = true;
    if (step.sums.to >= 0) {
        step.sums.made = add_image(steps_.size());
    }
}

void StageProgram::check_totals() const {
    const auto are = [&](int32_t image) { return image >= 0 && images_[static_cast<size_t>(image)].is_totals; };
    for (size_t number = 0; number < steps_.size(); number++) {
        const StageStep &step = steps_[number];
        const int32_t totals = step.totals.to;
        const int32_t maker = totals < 0 ? -1 : images_[static_cast<size_t>(totals)].maker;
        const bool is_other = maker >= 0 && steps_[static_cast<size_t>(maker)].totals.made != totals;
        if (is_other || are(step.input) || are(step.residual) || are(step.base) || are(step.sums.to)) {
            fail_step(number, "takes totals as an image, or an image as totals");
        }
    }
    if (given_.images == 0 || images_.front().is_totals) {
        fail("the first input of a stage is an image or tokens");
    }
}

void StageProgram::read_layer(const StageStep &step) const {
    const size_t number = steps_.size();
    const distile_window &window = step.window;
    const bool pools = step.layer == StageLayer::max_pool || step.layer == StageLayer::average_pool;
    if ((step.residual >= 0) != (step.layer == StageLayer::sum)) {
        fail_step(number, "adds an image, or is a sum and adds none");
    }
    if (pools && (window.kernel_h < 1 || window.pad_top != step.pad_bottom || window.pad_left != step.pad_right ||
                  2 * window.pad_top > window.kernel_h || 2 * window.pad_left > window.kernel_w)) {
        fail_step(number, "pools by a window of no pixels, or with padding of more than half of it or of one side");
    }
    if (step.layer == StageLayer::upsample && std::min(window.pad_top, window.pad_left) < 1) {
        fail_step(number, "makes a larger image by a factor of 0");
    }
}

void StageProgram::note_use(int32_t image, int32_t step) {
    if (image >= 0) {
        images_[static_cast<size_t>(image)].last_use = step;
    }
}

bool StageProgram::spreads(const StageStep &step, bool tokens) const {
    if (tokens) {
        return step.is_early;
    }
    const StageImage &image = images_[static_cast<size_t>(step.result)];
    const bool is_depthwise = step.groups > 1 && step.groups == image.sizes[1];  // It takes little to compute all.
    return step.kind == StageKind::conv2d && (step.has_reader() || (is_depthwise && step.mask >= 0)) && is_free(step);
}

bool StageProgram::is_free(const StageStep &step) const {
    const StageImage &image = images_[static_cast<size_t>(step.result)];
    return !image.needs_zeros && !image.is_output && step.residual < 0 && step.base < 0 && step.later < 0;
}

void StageProgram::find_early() {
    std::vector<bool> is_awaited(mask_sizes_.size(), false);
    for (StageStep &step : steps_) {
        if (!step.makes_image() || step.mask < 0) {
            continue;
        }
        const auto mask = static_cast<size_t>(step.mask);
        const bool can_be = step.kind == StageKind::norm || step.kind == StageKind::conv2d;
        step.is_early = can_be && !is_awaited[mask] && is_free(step);
        is_awaited[mask] = is_awaited[mask] || !step.is_early;
    }
}

bool StageProgram::is_within(int32_t mask, int32_t other) const {
    while (mask >= 0 && mask != other) {
        const auto maker = std::find_if(steps_.begin(), steps_.end(), [&](const StageStep &step) {
            return step.kind == StageKind::halt && step.result == mask;
        });
        mask = maker == steps_.end() ? -1 : maker->mask;
    }
    return mask == other;
}

bool StageProgram::is_transient(const StageStep &step) const {
    const auto number = static_cast<size_t>(&step - steps_.data());
    if (step.kind != StageKind::conv2d || step.base >= 0 || number + 1 == steps_.size()) {
        return false;
    }
    const StageImage &image = images_[static_cast<size_t>(step.result)];
    const StageStep &next = steps_[number + 1];
    const bool reads_alone = !image.is_output && image.last_use == static_cast<int32_t>(number) + 1 &&
                             next.kind == StageKind::conv2d && next.input == step.result &&
                             next.residual != step.result && next.base != step.result;
    const bool copies_first = next.base >= 0 && !next.takes_base && images_[static_cast<size_t>(next.base)].maker >= 0;
    if (!reads_alone || copies_first || next.mask != step.mask || next.has_reader()) {
        return false;
    }
    const bool is_point = is_one_pixel(next.window) && next.pad_bottom == 0 && next.pad_right == 0;
    return step.has_reader() ? equal(step.reader, next.window) : step.mask < 0 || is_point;
}

bool StageProgram::reads_written(const StageStep &maker, const StageStep &reader) const {
    const bool reads_by_mask = reader.kind == StageKind::conv2d || reader.kind == StageKind::norm ||
                               reader.kind == StageKind::halt ||
                               (reader.kind == StageKind::attention && !reader.all_keys);
    if (!reads_by_mask || !is_within(reader.mask, maker.mask) || reader.has_reader()) {
        return false;
    }
    const int32_t image = maker.result;
    if (reader.base == image) {
        return false;
    }
    if (reader.residual == image && maker.has_reader()) {
        return false;
    }
    return reader.input != image ||
           (maker.has_reader() ? equal(reader.window, maker.reader) : is_one_pixel(reader.window));
}

void StageProgram::find_uses() {
    std::vector<bool> reads_more(images_.size(), false);
    for (size_t number = 0; number < steps_.size(); number++) {
        const StageStep &step = steps_[number];
        for (const int32_t image : {step.input, step.residual, step.base, step.sums.to, step.totals.to}) {
            note_use(image, static_cast<int32_t>(number));
            const int32_t maker = image < 0 ? -1 : images_[static_cast<size_t>(image)].maker;
            if (image == step.sums.to && maker >= 0) {
                reads_more[static_cast<size_t>(image)] = true;
            }
            if (maker >= 0 && !reads_written(steps_[static_cast<size_t>(maker)], step)) {
                reads_more[static_cast<size_t>(image)] = true;
            }
        }
    }
    for (size_t i = 0; i < images_.size(); i++) {
        StageImage &image = images_[i];
        if (image.maker < 0) {
            image.needs_zeros = false;
            continue;
        }
        const StageStep &maker = steps_[static_cast<size_t>(image.maker)];
        if (maker.kind == StageKind::halt) {
            image.needs_zeros = false;  // It has what totals and sums were before.
            continue;
        }
        image.needs_zeros = maker.mask >= 0 && maker.base < 0 && (image.is_output || reads_more[i]);
    }
    for (size_t number = 0; number < steps_.size(); number++) {
        StageStep &step = steps_[number];
        if (step.base >= 0) {
            const StageImage &base = images_[static_cast<size_t>(step.base)];
            step.takes_base = base.maker >= 0 && !base.is_output && step.input != step.base &&
                              base.last_use == static_cast<int32_t>(number);
        }
        for (StageStep::Added *const added : {&step.totals, &step.sums}) {
            if (added->to >= 0) {
                const StageImage &before = images_[static_cast<size_t>(added->to)];
                added->takes = before.maker >= 0 && !before.is_output && step.input != added->to &&
                               before.last_use == static_cast<int32_t>(number);
            }
        }
    }
}

void StageProgram::find_sizes(const std::vector<ImageSizes> &given, const std::vector<MaskSizes> &masks,
                              const std::vector<int64_t> &channels) {
    for (size_t i = 0; i < given_.images; i++) {
        images_[i].sizes = given[i];
    }
    std::copy(masks.begin(), masks.end(), mask_sizes_.begin());
    for (size_t number = 0; number < steps_.size(); number++) {
        if (steps_[number].kind == StageKind::conv2d) {
            find_image(steps_[number], number, channels);
        } else if (steps_[number].kind == StageKind::layer) {
            find_layer(steps_[number], number);
        } else if (steps_[number].kind == StageKind::norm) {
            const StageStep &norm = steps_[number];
            images_[static_cast<size_t>(norm.result)].sizes = images_[static_cast<size_t>(norm.input)].sizes;
        } else if (steps_[number].kind == StageKind::attention) {
            find_attention(steps_[number], number);
        } else if (steps_[number].kind == StageKind::halt) {
            find_halt(steps_[number], number);
        } else {
            find_mask(steps_[number]);
        }
    }
    find_outside();
    // Memory that a result takes over has the border that the result needs.
    for (auto step = steps_.rbegin(); step != steps_.rend(); ++step) {
        if (step->takes_base) {
            int32_t &border = images_[static_cast<size_t>(step->base)].border;
            border = std::max(border, images_[static_cast<size_t>(step->result)].border);
        }
    }
}

bool StageProgram::makes_negative(const StageStep &step) const {
    const auto is_negative = [&](int32_t image) { return images_[static_cast<size_t>(image)].is_negative; };
    const bool activates = step.later < 0 && (step.activation.function == DISTILE_ACTIVATION_RELU ||
                                              step.activation.function == DISTILE_ACTIVATION_RELU6);
    if (step.kind == StageKind::conv2d) {
        return !activates || (step.base >= 0 && is_negative(step.base));
    }
    if (step.kind != StageKind::layer) {
        return true;
    }
    return !activates && (is_negative(step.input) || (step.residual >= 0 && is_negative(step.residual)) ||
                          step.activation.function != DISTILE_ACTIVATION_NONE);
}

bool StageProgram::has_own_memory(int32_t image) const {
    return std::none_of(steps_.begin(), steps_.end(), [&](const StageStep &step) {
        return step.takes_base && (step.base == image || step.result == image);
    });
}

void StageProgram::find_outside() {
    for (const StageStep &step : steps_) {
        if (step.makes_image()) {
            images_[static_cast<size_t>(step.result)].is_negative = makes_negative(step);
        }
    }
    for (const StageStep &step : steps_) {
        if (step.kind != StageKind::layer || step.layer != StageLayer::max_pool) {
            continue;
        }
        StageImage &input = images_[static_cast<size_t>(step.input)];
        const int32_t outside = reach(step, images_[static_cast<size_t>(step.result)].sizes);
        const bool leaves = outside > 0 && input.is_negative && !input.reads_zeros && has_own_memory(step.input);
        input.leaves_outside = input.leaves_outside || leaves;
        if (leaves || !input.is_negative) {
            input.border = std::max(input.border, outside);
        }
    }
}

bool StageProgram::can_pool(const StageStep &step) const {
    const StageImage &input = images_[static_cast<size_t>(step.input)];
    return !input.is_negative || input.leaves_outside ||
           reach(step, images_[static_cast<size_t>(step.result)].sizes) == 0;
}

void StageProgram::find_mask(const StageStep &step) {
    MaskSizes &made = mask_sizes_[static_cast<size_t>(step.result)];
    const auto places = [](int64_t extent, int64_t stride) { return (extent + stride - 1) / stride; };
    if (step.kind == StageKind::scores) {
        const ImageSizes &sizes = images_[static_cast<size_t>(step.input)].sizes;
        made = {sizes[0], places(sizes[2], step.window.stride_h), places(sizes[3], step.window.stride_w)};
        return;
    }
    made = mask_sizes(step.mask);
    if (step.later >= 0 && mask_sizes(step.later) != made) {
        fail("a stage makes a mask of two that have other sizes");
    }
    if (step.algebra == MaskAlgebra::pool) {
        made = {made[0], places(made[1], step.window.pad_top), places(made[2], step.window.pad_left)};
    }
}

ImageSizes StageProgram::outputs(const StageStep &step, size_t number) const {
    const ImageSizes &input = images_[static_cast<size_t>(step.input)].sizes;
    const distile_window &window = step.window;
    const ImageSizes found{
        input[0], input[1],
        outputs_of(input[2], window.pad_top, step.pad_bottom, window.kernel_h, window.stride_h, window.dilation_h),
        outputs_of(input[3], window.pad_left, step.pad_right, window.kernel_w, window.stride_w, window.dilation_w)};
    if (found[2] < 1 || found[3] < 1) {
        fail_step(number, "has windows larger than its input of " + std::to_string(input[2]) + " x " +
                              std::to_string(input[3]) + " pixels and their padding");
    }
    return found;
}

int32_t StageProgram::reach(const StageStep &step, const ImageSizes &made) const {
    const ImageSizes &input = images_[static_cast<size_t>(step.input)].sizes;
    const distile_window &window = step.window;
    return static_cast<int32_t>(
        std::max(reach_of(input[2], made[2], window.pad_top, window.kernel_h, window.stride_h, window.dilation_h),
                 reach_of(input[3], made[3], window.pad_left, window.kernel_w, window.stride_w, window.dilation_w)));
}

void StageProgram::find_layer(const StageStep &step, size_t number) {
    StageImage &input = images_[static_cast<size_t>(step.input)];
    ImageSizes sizes = input.sizes;
    switch (step.layer) {
    case StageLayer::max_pool:
        sizes = outputs(step, number);
        break;
    case StageLayer::average_pool:
        sizes = outputs(step, number);
        input.border = std::max(input.border, reach(step, sizes));
        input.reads_zeros = input.reads_zeros || reach(step, sizes) > 0;
        break;
    case StageLayer::upsample:
        sizes[2] *= step.window.pad_top;
        sizes[3] *= step.window.pad_left;
        if (std::max(sizes[2], sizes[3]) > INT32_MAX) {
            fail_step(number, "makes an image of 2^31 rows or columns");
        }
        break;
    case StageLayer::sum:
        if (images_[static_cast<size_t>(step.residual)].sizes != sizes) {
            fail_step(number, "adds to an image of another shape than its own");
        }
    }
    images_[static_cast<size_t>(step.result)].sizes = sizes;
}

void StageProgram::find_attention(const StageStep &step, size_t number) {
    constexpr int64_t parts = 3;
    ImageSizes sizes = images_[static_cast<size_t>(step.input)].sizes;
    if (sizes[1] % (parts * step.heads) != 0) {
        fail_step(number, "has " + std::to_string(step.heads) + " heads, which do not divide a third of its " +
                              std::to_string(sizes[1]) + " channels");
    }
    sizes[1] /= parts;
    images_[static_cast<size_t>(step.result)].sizes = sizes;
}

void StageProgram::find_halt(const StageStep &step, size_t number) {
    const ImageSizes &input = images_[static_cast<size_t>(step.input)].sizes;
    const ImageSizes totals{input[0], 1, input[2], input[3]};
    if (step.totals.to >= 0 && images_[static_cast<size_t>(step.totals.to)].sizes != totals) {
        fail_step(number, "has totals that are not a number for each of its tokens");
    }
    images_[static_cast<size_t>(step.totals.made)].sizes = totals;
    if (step.sums.to >= 0) {
        const ImageSizes &sums = images_[static_cast<size_t>(step.sums.to)].sizes;
        if (sums[0] != input[0] || sums[1] != input[1] || sums[2] != input[2] || sums[3] > input[3]) {
            fail_step(number, "has sums that are not those of its first tokens");
        }
        images_[static_cast<size_t>(step.sums.made)].sizes = sums;
    }
    mask_sizes_[static_cast<size_t>(step.result)] = {input[0], input[2], input[3]};
    if (step.mask >= 0 && mask_sizes(step.mask) != mask_sizes(step.result)) {
        fail_step(number, "has a mask that is not of its tokens");
    }
}

void StageProgram::find_image(const StageStep &step, size_t number, const std::vector<int64_t> &channels) {
    StageImage &input = images_[static_cast<size_t>(step.input)];
    ImageSizes sizes = outputs(step, number);
    sizes[1] = channels[static_cast<size_t>(step.weights)];
    if (input.sizes[1] % step.groups != 0 || sizes[1] % step.groups != 0) {
        fail_step(number, "has " + std::to_string(step.groups) + " groups, which do not divide its " +
                              std::to_string(input.sizes[1]) + " and " + std::to_string(sizes[1]) + " channels");
    }
    input.border = std::max(input.border, reach(step, sizes));
    input.reads_zeros = input.reads_zeros || reach(step, sizes) > 0;
    for (const int32_t other : {step.residual, step.base}) {
        if (other >= 0 && images_[static_cast<size_t>(other)].sizes != sizes) {
            fail_step(number, "adds to an image of another shape than its own");
        }
    }
    images_[static_cast<size_t>(step.result)].sizes = sizes;
}

MaskSizes StageProgram::pixels(const StageStep &step) const {
    if (!step.makes_image()) {
        return mask_sizes(step.result);
    }
    const ImageSizes &sizes = images_[static_cast<size_t>(step.result)].sizes;
    return {sizes[0], sizes[2], sizes[3]};
}

}  // namespace distile::bindings
