#include "bindings/stage_program.h"
#include "python/csrc/channel_vector.h"
#include "python/csrc/dense.h"
#include "python/csrc/layers.h"
#include "python/csrc/operators.h"
#include "python/csrc/stage_masks.h"
#include "python/csrc/stage_trace.h"
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <mutex>

namespace distile::python {

namespace {

using bindings::ImageSizes;
using bindings::MaskAlgebra;
using bindings::MaskSizes;
using bindings::StageImage;
using bindings::StageKind;
using bindings::StageLayer;
using bindings::StageProgram;
using bindings::StageStep;

/** How the steps run: together, each by its masked operator, or each dense with the mask after it. */
enum class Way : int64_t { measured = -1, stage = 0, layers = 1, dense = 2 };

constexpr size_t row_numbers = 4; /**< A row of measured times has a density, and a time for each way. */

/** The fastest way at a density, between two measured ones by what lies between their times. */
Way fastest(const std::vector<double> &times, double density) {
    const size_t rows = times.size() / row_numbers;
    size_t above = 0;
    while (above < rows && times[above * row_numbers] < density) {
        above++;
    }
    const double *const high = &times[std::min(above, rows - 1) * row_numbers];
    const double *const low = &times[(above == 0 ? 0 : above - 1) * row_numbers];
    const double share = high[0] > low[0] ? std::clamp((density - low[0]) / (high[0] - low[0]), 0.0, 1.0) : 1;
    const auto time = [&](size_t way) { return low[1 + way] + share * (high[1 + way] - low[1 + way]); };
    size_t best = 0;
    for (const size_t way : {1, 2}) {
        best = time(way) < time(best) ? way : best;
    }
    return static_cast<Way>(best);
}

double density_of(const std::vector<Tensor> &masks) {
    int64_t active = 0, pixels = 0;
    for (const Tensor &mask : masks) {
        const Tensor plain = torch::stable::contiguous(mask);
        const auto *const bytes = static_cast<const uint8_t *>(plain.const_data_ptr());
        active += std::count_if(bytes, bytes + plain.numel(), [](uint8_t byte) { return byte != 0; });
        pixels += plain.numel();
    }
    return pixels == 0 ? 0 : static_cast<double>(active) / static_cast<double>(pixels);
}

/** How dense the masks were that a stage made in its last call, by the place of its first step. */
class Densities {
public:
    double of(int64_t place) {
        const std::lock_guard lock(mutex_);
        const auto found = found_.find(place);
        return found == found_.end() ? 0 : found->second;
    }
    void note(int64_t place, double density) {
        const std::lock_guard lock(mutex_);
        found_[place] = density;
    }

private:
    std::mutex mutex_;
    std::map<int64_t, double> found_;
};

Densities &densities() {
    static auto &densities = *new Densities;
    return densities;
}

ImageSizes sizes_of(const Tensor &tensor) {
    return {tensor.size(0), tensor.size(1), tensor.size(2), tensor.size(3)};
}

/** Images with 0 where a mask is not active, in their own memory: their bits are cleared, which takes a sixth of the
 * time of a selection. */
Tensor cleared(const Tensor &images, const Tensor &mask) {
    const auto bytes = images.element_size();
    const ScalarType bits = bytes == 4 ? ScalarType::Int : ScalarType::Short;
    if (bytes != 4 && bytes != 2) {
        const Tensor active = torch::stable::unsqueeze(torch::stable::to(mask, ScalarType::Bool), 1);
        return call("aten::where", "self", active, images, torch::stable::new_zeros(images, Ints{}));
    }
    // All bits of -1 are set.
    const Tensor active = torch::stable::to(torch::stable::to(mask, ScalarType::Bool), bits);
    const Tensor words = call("aten::neg", "", torch::stable::unsqueeze(active, 1));
    call("aten::bitwise_and_", "Tensor", call("aten::view", "dtype", images, bits), words);
    return images;
}

Tensor inverse(const Tensor &mask) {
    return call("aten::logical_not", "", mask);
}

/** The epsilon of a norm that has none of its own: the distance from 1 to the type's next number. */
float epsilon_of(ScalarType type) {
    return type == ScalarType::Half ? 0x1p-10f : type == ScalarType::BFloat16 ? 0x1p-7f : 0x1p-23f;
}

/** Tokens [N, T, C] as an image of one row, [N, C, 1, T]. */
Tensor image_of_tokens(const Tensor &tokens) {
    return torch::stable::unsqueeze(torch::stable::transpose(tokens, 1, 2), 2);
}
Tensor tokens_of_image(const Tensor &image) {
    return torch::stable::transpose(torch::stable::squeeze(image, 2), 1, 2);
}
/** Totals [N, T] as an image of one row and one channel. */
Tensor image_of_totals(const Tensor &totals) {
    return torch::stable::unsqueeze(torch::stable::unsqueeze(totals, 1), 1);
}
Tensor totals_of_image(const Tensor &image) {
    return torch::stable::squeeze(torch::stable::squeeze(image, 1), 1);
}

/** Images and masks as steps have them: tokens are images of one row. */
struct AsImages {
    AsImages(const std::vector<Tensor> &given, const std::vector<Tensor> &given_masks) {
        for (const Tensor &tensor : given) {
            are_tokens.push_back(tensor.dim() == 3 || tensor.dim() == 2);
            are_totals.push_back(tensor.dim() == 2);
            images.push_back(tensor.dim() == 3   ? image_of_tokens(tensor)
                             : tensor.dim() == 2 ? image_of_totals(tensor)
                                                 : tensor);
        }
        for (const Tensor &mask : given_masks) {
            are_of_tokens.push_back(mask.dim() == 2);
            masks.push_back(mask.dim() == 2 ? torch::stable::unsqueeze(mask, 1) : mask);
        }
    }
    std::vector<Tensor> images, masks;
    std::vector<bool> are_tokens, are_totals, are_of_tokens;
};

[[noreturn]] void fail_inputs() {
    fail(
        "the inputs of a stage are images [N, C, H, W] or tokens [N, T, C] of one type, and totals of tokens [N, T] of "
        "float32");
}

class StageCall {
public:
    StageCall(const AsImages &given, const std::vector<Tensor> &parameters, const Ints &places, StageProgram &program)
        : given_(given.images), masks_(given.masks), parameters_(parameters), places_(places), program_(program),
          session_(Session::of(given_.front())), images_(given_), are_tokens_(given.are_tokens),
          are_of_tokens_(given.are_of_tokens) {
        for (size_t i = 0; i < given_.size(); i++) {
            if (given.are_totals[i] != program_.images()[i].is_totals) {
                fail_inputs();
            }
        }
        find_tokens();
        check();
        images_.reserve(program_.images().size());
    }

    /** Whether the device has stages of these types and shapes. */
    bool can_run() const {
        const std::optional<distile_dtype> type = type_of(given_.front());
        if (!type) {
            return false;
        }
        for (const StageStep &step : program_.steps()) {
            const auto [batch, height, width] = program_.pixels(step);
            if (step.kind == StageKind::algebra || step.kind == StageKind::layer) {
                if (batch * height * width == 0 || (step.input >= 0 && image(step.input).is_empty())) {
                    return false;
                }
                continue;
            }
            const StageImage &input = image(step.input);
            if (!may_multiply(step) || input.is_empty() || (step.sums.to >= 0 && image(step.sums.to).is_empty())) {
                return false;
            }
            if (on_gpu() && batch * height * ((width + 31) / 32) > DISTILE_STAGE_WORDS) {
                return false;
            }
            if (are_tokens(step.input) && width > largest_extent) {
                return false;
            }
            if (step.kind == StageKind::scores || step.kind == StageKind::halt) {
                if (on_gpu() && input.sizes[1] % vector_channels() != 0) {
                    return false;
                }
                continue;
            }
            if (step.kind == StageKind::norm || step.kind == StageKind::attention) {
                if (on_gpu() && !fits_gpu(step)) {
                    return false;
                }
                continue;
            }
            const Tensor &weight = parameter(step.weights);
            const std::optional<distile_dtype> weights = weights_type(weight, *type);
            if (!weights ||
                distile_stage_weights_bytes(session_.context(), *weights, static_cast<int32_t>(weight.size(0)),
                                            static_cast<int32_t>(input.sizes[1]), step.window.kernel_h,
                                            step.window.kernel_w, step.groups) == 0) {
                return false;
            }
        }
        return on_gpu() || *type == DISTILE_FLOAT32;
    }

    std::vector<Tensor> run_together() {
        make_mask_tensors();
        Ints made(masks_.size(), 0);
        for (size_t i = program_.given_masks(); i < made.size(); i++) {
            made[i] = 1;
        }
        const stages::Masks masks(session_, masks_, made);
        const distile_dtype type = *type_of(given_.front());
        for (size_t i = 0; i < given_.size(); i++) {
            const StageImage &described = image(static_cast<int32_t>(i));
            images_[i] = described.is_totals ? given_[i] : readable(given_[i], described);
        }
        for (const StageStep &step : program_.steps()) {
            if (step.kind == StageKind::conv2d) {
                copy_for_chain(step);
                images_.push_back(target(step));
            }
            if (step.kind == StageKind::algebra) {
                combine_masks(step, masks);
            } else if (step.kind == StageKind::layer && is_step(step)) {
                images_.push_back(make_image(image(step.result)));
                add_layer(step, masks, type);
            } else if (step.kind == StageKind::layer) {
                flush();
                const Tensor made = layer(step);
                images_.push_back(border_of(image(step.result)) > 0 ? copy_of(made, image(step.result)) : made);
            } else if (step.kind == StageKind::norm || step.kind == StageKind::attention) {
                images_.push_back(make_image(image(step.result)));
                add_tokens(step, masks, type);
            } else if (step.kind == StageKind::halt) {
                add_halt(step, masks, type);
            } else {
                add(step, masks, type);
            }
        }
        flush();
        return results();
    }

    std::vector<Tensor> run_apart(Way way) {
        for (const StageStep &step : program_.steps()) {
            if (step.kind == StageKind::scores) {
                masks_.push_back(scores(step));
            } else if (step.kind == StageKind::algebra) {
                masks_.push_back(combined(step));
            } else if (step.kind == StageKind::layer) {
                images_.push_back(layer(step));
            } else if (step.kind == StageKind::norm) {
                images_.push_back(normalized(step));
            } else if (step.kind == StageKind::attention) {
                images_.push_back(attended(step));
            } else if (step.kind == StageKind::halt) {
                halt(step);
            } else if (are_tokens(step.input)) {
                images_.push_back(without_later(step, linear(step, way)));
            } else {
                images_.push_back(without_later(step, convolution(step, way)));
            }
        }
        return results();
    }

    /** How dense the masks are that the stage made. */
    double made_density() const {
        return density_of({masks_.begin() + static_cast<std::ptrdiff_t>(program_.given_masks()), masks_.end()});
    }

private:
    static constexpr int64_t vector_bytes = 16;
    static constexpr int64_t head_channels = 8;      ///< A head has multiples of these on a GPU.
    static constexpr int64_t most_head_bytes = 256;  ///< At most.
    static constexpr int64_t most_kept = 256 << 10;  ///< The numbers of an image for each thread that caches keep.

    bool on_gpu() const {
        return !given_.front().is_cpu();
    }
    /** Tensors on a GPU have multiples of these channels. */
    int64_t vector_channels() const {
        return vector_bytes / given_.front().element_size();
    }
    int64_t most_head_channels() const {
        return most_head_bytes / given_.front().element_size();
    }
    /** Whether a step may multiply: float32 on a GPU as TF32, if the math allows it for what runs in its place. */
    bool may_multiply(const StageStep &step) const {
        const bool by_default = step.kind == StageKind::conv2d && !are_tokens(step.input);
        const bool has_products =
            step.kind == StageKind::attention || (step.kind == StageKind::conv2d && step.groups == 1);
        return !on_gpu() || given_.front().scalar_type() != ScalarType::Float || !has_products ||
               session_.math() == DISTILE_MATH_TF32 || (by_default && session_.math() == DISTILE_MATH_DEFAULT);
    }
    const StageImage &image(int32_t number) const {
        return program_.images()[static_cast<size_t>(number)];
    }
    const Tensor &parameter(int32_t number) const {
        return parameters_[static_cast<size_t>(number)];
    }
    int64_t place(const StageStep &step) const {
        return places_[static_cast<size_t>(&step - program_.steps().data())];
    }

    bool are_tokens(int32_t number) const {
        return are_tokens_[static_cast<size_t>(number)];
    }

    /** Finds which images are tokens, and which masks are of them. */
    void find_tokens() {
        for (size_t number = 0; number < program_.steps().size(); number++) {
            const StageStep &step = program_.steps()[number];
            const std::string where = "step " + std::to_string(number) + " of a stage ";
            if (step.kind == StageKind::algebra) {
                const auto of = [&](int32_t mask) { return are_of_tokens_[static_cast<size_t>(mask)]; };
                const bool changes_size = step.algebra == MaskAlgebra::dilate || step.algebra == MaskAlgebra::pool;
                if ((step.later >= 0 && of(step.later) != of(step.mask)) || (changes_size && of(step.mask))) {
                    fail(where +
                         "makes a mask of one of tokens and one of an image, or dilates or pools one of tokens");
                }
                are_of_tokens_.push_back(of(step.mask));
                continue;
            }
            const bool tokens = are_tokens(step.input);
            const bool takes_both = step.kind == StageKind::norm ||
                                    (step.kind == StageKind::layer && step.layer == StageLayer::sum) ||
                                    (step.kind == StageKind::conv2d && is_point(step));
            const bool takes_tokens = step.kind == StageKind::attention || step.kind == StageKind::halt;
            if ((tokens && !takes_both && !takes_tokens) || (!tokens && takes_tokens)) {
                fail(where + (tokens ? "takes images, and not tokens" : "takes tokens, and not images"));
            }
            for (const int32_t other : {step.residual, step.base, step.sums.to}) {
                if (other >= 0 && are_tokens(other) != tokens) {
                    fail(where + "adds tokens to an image, or an image to tokens");
                }
            }
            for (const int32_t mask : {step.mask, step.later}) {
                if (mask >= 0 && are_of_tokens_[static_cast<size_t>(mask)] != tokens) {
                    fail(where + "has a mask " + (tokens ? "[N, H, W], and tokens" : "[N, T], and an image"));
                }
            }
            if (step.makes_image()) {
                are_tokens_.push_back(tokens);
            } else {
                are_tokens_.insert(are_tokens_.end(), (step.totals.made >= 0 ? 1 : 0) + (step.sums.made >= 0 ? 1 : 0),
                                   true);
                are_of_tokens_.push_back(tokens);
            }
        }
    }
    int32_t spreads(const StageStep &step) const {
        return program_.spreads(step, are_tokens(step.input)) ? 1 : 0;
    }
    static bool is_point(const StageStep &step) {
        const distile_window &window = step.window;
        return window.kernel_h == 1 && window.kernel_w == 1 && window.stride_h == 1 && window.stride_w == 1 &&
               window.pad_top == 0 && window.pad_left == 0 && step.pad_bottom == 0 && step.pad_right == 0 &&
               step.groups == 1 && !step.has_reader();
    }

    /** Whether a GPU has a step of tokens. */
    bool fits_gpu(const StageStep &step) const {
        const auto [batch, height, width] = program_.pixels(step);
        const int64_t channels = image(step.result).sizes[1];
        if (step.kind == StageKind::norm) {
            return channels % vector_channels() == 0 && channels <= DISTILE_STAGE_NORMALIZED;
        }
        const int64_t of_head = channels / step.heads;
        return of_head % head_channels == 0 && of_head <= most_head_channels() &&
               batch * height * ((width + 31) / 32) <= DISTILE_STAGE_ATTENTION_WORDS;
    }

    /** Checks what the operators of layers would check, and finds all sizes. */
    void check() const {
        std::vector<ImageSizes> sizes;
        for (const Tensor &tensor : given_) {
            const bool is_totals = program_.images()[sizes.size()].is_totals;
            if (tensor.dim() != 4 ||
                tensor.scalar_type() != (is_totals ? ScalarType::Float : given_.front().scalar_type())) {
                fail_inputs();
            }
            session_.check_device(tensor, "an input");
            sizes.push_back(sizes_of(tensor));
        }
        Ints channels;
        for (const Tensor &parameter : parameters_) {
            session_.check_device(parameter, "a parameter");
            channels.push_back(parameter.dim() > 0 ? parameter.size(0) : 0);
        }
        std::vector<MaskSizes> masks;
        for (const Tensor &mask : masks_) {
            session_.check_mask(mask);
            if (mask.dim() != 3) {
                fail("the masks of a stage are [N, H, W], or [N, T] of tokens");
            }
            masks.push_back({mask.size(0), mask.size(1), mask.size(2)});
        }
        program_.find_sizes(sizes, masks, channels);
        for (const StageStep &step : program_.steps()) {
            if (step.kind == StageKind::conv2d || step.kind == StageKind::scores || step.kind == StageKind::halt) {
                check_parameters(step);
            }
            for (const int32_t vector : {step.weights, step.bias}) {
                if (step.kind == StageKind::norm && vector >= 0 &&
                    !have_sizes_of(parameter(vector), {image(step.input).sizes[1]})) {
                    fail("the weights of a norm must have one element for each channel");
                }
            }
            if (step.makes_image()) {
                check_mask_sizes(step.has_reader() ? -1 : step.mask, program_.pixels(step));
                check_mask_sizes(step.later, program_.pixels(step));
            }
        }
    }

    void check_mask_sizes(int32_t mask, const MaskSizes &pixels) const {
        if (mask >= 0 && program_.mask_sizes(mask) != pixels) {
            const MaskSizes &sizes = program_.mask_sizes(mask);
            fail("the mask is " + text_of({sizes.begin(), sizes.end()}) + ", but the output has the pixels " +
                 text_of({pixels.begin(), pixels.end()}) + ": give one boolean for each");
        }
    }

    void check_parameters(const StageStep &step) const {
        const Tensor &weight = parameter(step.weights);
        int64_t channels = image(step.input).sizes[1];
        if (step.kind == StageKind::scores || step.kind == StageKind::halt) {
            if (!have_sizes_of(weight, {channels})) {
                fail("the weights of scores must have one element for each channel");
            }
            if (step.bias >= 0 && !have_sizes_of(parameter(step.bias), {image(step.input).sizes[3]})) {
                fail("the limits of a halt must have one element for each token");
            }
            return;
        }
        channels /= step.groups;
        const distile_window &window = step.window;
        const int64_t made = image(step.result).sizes[1];
        const bool fits = are_tokens(step.input)
                              ? have_sizes_of(weight, {made, channels})
                              : have_sizes_of(weight, {made, channels, window.kernel_h, window.kernel_w});
        if (!fits) {
            fail("the weights of a step of a stage are no " + std::to_string(window.kernel_h) + " x " +
                 std::to_string(window.kernel_w) + " filter that reads " + std::to_string(channels) + " channels");
        }
        if (step.bias >= 0 && !have_sizes_of(parameter(step.bias), {weight.size(0)})) {
            fail("the bias must have one element for each output channel");
        }
    }

    static bool have_sizes_of(const Tensor &tensor, const Ints &sizes) {
        return tensor.dim() == static_cast<int64_t>(sizes.size()) && have_sizes(tensor, sizes);
    }

    /** The type in which weights are packed: on a CPU their own if products with it are of the same numbers. */
    static std::optional<distile_dtype> weights_type(const Tensor &weight, distile_dtype type) {
        const std::optional<distile_dtype> own = type_of(weight);
        if (!own) {
            return std::nullopt;
        }
        return weight.is_cpu() && *own == DISTILE_BFLOAT16 ? *own : type;
    }

    /** A CPU needs none. */
    int32_t border_of(const StageImage &described) const {
        return on_gpu() ? described.border : 0;
    }
    /** Memory for an image, inside its border. */
    Tensor make_image(const StageImage &described) const {
        return make_image(described, described.needs_zeros);
    }
    Tensor make_image(const StageImage &described, bool zeros) const {
        const auto [batch, channels, height, width] = described.sizes;
        const int32_t border = border_of(described);
        Tensor whole =
            empty_images(given_.front(), batch, channels, height + int64_t{2} * border, width + int64_t{2} * border);
        if (border == 0) {
            return zeros ? zeroed(whole) : whole;
        }
        const bool leaves = described.leaves_outside;
        whole = leaves ? torch::stable::fill_(whole, -std::numeric_limits<double>::infinity()) : zeroed(whole);
        Tensor inside = torch::stable::narrow(whole, 2, border, height);
        inside = torch::stable::narrow(inside, 3, border, width);
        return leaves && zeros ? zeroed(inside) : inside;
    }
    /** A copy of what is to be such an image, with its border. */
    Tensor copy_of(const Tensor &tensor, const StageImage &described) const {
        Tensor copy = make_image(described, false);
        torch::stable::copy_(copy, tensor);
        return copy;
    }
    Tensor copy_of(const Tensor &tensor) const {
        StageImage described;
        described.sizes = sizes_of(tensor);
        return copy_of(tensor, described);
    }

    /** A given image as steps read it. */
    Tensor readable(const Tensor &tensor, const StageImage &described) const {
        if (!on_gpu()) {
            return fits(tensor) ? tensor : copy_of(tensor);
        }
        const auto elements = vector_bytes / static_cast<int64_t>(tensor.element_size());
        const bool aligned = reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) % vector_bytes == 0;
        bool whole = true;
        for (const int64_t axis : {0, 2, 3}) {
            whole = whole && (tensor.size(axis) == 1 || tensor.stride(axis) % elements == 0);
        }
        return described.border == 0 && aligned && whole && fits(tensor) ? tensor : copy_of(tensor, described);
    }

    /** Copies the base of the step that ends a chain, if the step that begins it reads that: one that overwrites it
     * could not pass on what the others make. Where caches keep what they make, this is not worth a copy. */
    void copy_for_chain(const StageStep &step) {
        const StageStep *const end = &step + 2;
        const auto number = static_cast<size_t>(&step - program_.steps().data());
        if (on_gpu() || number + 2 >= program_.steps().size() || !program_.is_transient(step) ||
            !program_.is_transient(*(&step + 1)) || !end->takes_base || end->base != step.input) {
            return;
        }
        const auto [batch, channels, height, width] = image(step.result).sizes;
        const bool is_pending = !pending_.empty() && pending_.back().transient != 0;
        if (batch * channels * height * width > most_kept * distile_context_threads(session_.context()) &&
            !is_pending) {
            flush();  // It must be there.
            copied_.emplace(end->result, copy_of(images_[static_cast<size_t>(end->base)]));
        }
    }

    /** Where a convolution writes. */
    Tensor target(const StageStep &step) {
        if (const auto copied = copied_.find(step.result); copied != copied_.end()) {
            return copied->second;
        }
        const StageImage &result = image(step.result);
        if (step.base < 0) {
            return border_of(result) > 0 && is_free(step.result) ? share_image(step) : make_image(result);
        }
        const Tensor &base = images_[static_cast<size_t>(step.base)];
        if (step.takes_base) {
            return base;
        }
        if (image(step.base).maker >= 0 && on_gpu()) {
            const Tensor copy = make_image(result, false);
            distile_stage_step copies = pixel_step(DISTILE_STEP_SUM);
            copies.input = view_of_image(step.base, *type_of(base));
            copies.output = view_of(copy, border_of(result), *type_of(base));
            pending_.push_back(copies);
            return copy;
        }
        if (image(step.base).maker >= 0) {
            flush();  // It must be there.
        }
        return copy_of(base, result);
    }

    /** Whether nobody reads what a step has not written of an image, or takes its memory. */
    bool is_free(int32_t number) const {
        const auto &steps = program_.steps();
        return !image(number).needs_zeros && !image(number).is_output &&
               std::none_of(steps.begin(), steps.end(),
                            [&](const StageStep &step) { return step.base == number || step.sums.to == number; });
    }

    /** Memory that no step reads any more, with its border: writing that takes as long as a small step. */
    Tensor share_image(const StageStep &step) {
        const auto number = static_cast<int32_t>(&step - program_.steps().data());
        const StageImage &result = image(step.result);
        const auto found = std::find_if(shared_.begin(), shared_.end(), [&](const SharedImage &one) {
            return one.made_as.sizes == result.sizes && one.made_as.border == result.border &&
                   one.made_as.leaves_outside == result.leaves_outside && one.last_use < number;
        });
        if (found != shared_.end()) {
            found->last_use = result.last_use;
            return found->memory;
        }
        shared_.push_back({make_image(result, false), result, result.last_use});
        return shared_.back().memory;
    }

    /** Whether a layer is a step of the library's stages: on a GPU, if the pixels outside that it reads do not count.
     */
    bool is_step(const StageStep &step) const {
        const auto [batch, height, width] = program_.pixels(step);
        const bool pools = step.layer == StageLayer::max_pool;
        return !on_gpu() ||
               ((!pools || program_.can_pool(step)) && image(step.input).sizes[1] % vector_channels() == 0 &&
                batch * height * ((width + 31) / 32) <= DISTILE_STAGE_WORDS);
    }

    /** A step of the library that takes each channel by itself, with a window of a pixel. */
    static distile_stage_step pixel_step(distile_step_kind kind) {
        distile_stage_step step{};
        step.kind = kind;
        step.window = {1, 1, 1, 1, 1, 1, 0, 0, DISTILE_WINDOW_CONV};
        return step;
    }

    void add_layer(const StageStep &step, const stages::Masks &masks, distile_dtype type) {
        distile_stage_step added = pixel_step(DISTILE_STEP_SUM);
        if (step.layer == StageLayer::upsample) {
            added.kind = DISTILE_STEP_UPSAMPLE;
            added.window.stride_h = step.window.pad_top;
            added.window.stride_w = step.window.pad_left;
        } else if (step.layer != StageLayer::sum) {
            added.kind = step.layer == StageLayer::max_pool ? DISTILE_STEP_MAX_POOL : DISTILE_STEP_AVERAGE_POOL;
            added.window = step.window;
        }
        added.input = view_of_image(step.input, type);
        added.output = view_of_image(step.result, type);
        added.residual = view_of_image(step.residual, type);
        added.mask = masks.at(step.mask);
        added.activation = step.activation.function;
        added.slope = &step.activation.slope;
        pending_.push_back(added);
    }

    /** Adds a norm or attention. */
    void add_tokens(const StageStep &step, const stages::Masks &masks, distile_dtype type) {
        const bool normalizes = step.kind == StageKind::norm;
        distile_stage_step added = pixel_step(normalizes ? DISTILE_STEP_NORMALIZE : DISTILE_STEP_ATTENTION);
        added.output = view_of_image(step.result, type);
        added.mask = masks.at(step.mask);
        if (normalizes) {
            added.input = view_of_image(step.input, type);
            added.weights = vector_of(step, step.weights);
            added.bias = vector_of(step, step.bias);
            added.norm = step.norm;
            added.epsilon = epsilon(step);
            added.spreads = spreads(step);
        } else {
            const int64_t channels = image(step.result).sizes[1];
            Tensor parts = images_[static_cast<size_t>(step.input)];
            const auto part = [&](int64_t number) {
                return view_of(torch::stable::narrow(parts, 1, number * channels, channels), 0, type);
            };
            added.input = part(0);
            added.key = part(1);
            added.value = part(2);
            added.heads = step.heads;
            added.scale = scale(step);
            added.all_keys = step.all_keys ? 1 : 0;
        }
        pending_.push_back(added);
    }
    /** Adds a halt, with memory for its totals and sums that nobody else reads. */
    void add_halt(const StageStep &step, const stages::Masks &masks, distile_dtype type) {
        if (step.totals.to < 0) {
            images_.push_back(no_totals(step));
        } else {
            images_.push_back(own(step.totals));
        }
        if (step.sums.to >= 0) {
            images_.push_back(own(step.sums));
        }
        distile_stage_step added = pixel_step(DISTILE_STEP_HALT);
        added.input = view_of_image(step.input, type);
        added.output = view_of_image(step.sums.made, type);
        added.mask = masks.at(step.result);
        added.from = masks.at(step.mask);
        added.weights = vector_of(step, step.weights);
        added.limits = vector_of(step, step.bias);
        added.totals = static_cast<float *>(images_[static_cast<size_t>(step.totals.made)].mutable_data_ptr());
        added.score_bias = step.score_bias;
        added.threshold = step.threshold;
        pending_.push_back(added);
    }
    Tensor no_totals(const StageStep &step) const {
        const auto [batch, height, width] = program_.pixels(step);
        return torch::stable::new_zeros(given_.front(), Ints{batch, 1, height, width}, ScalarType::Float);
    }
    /** What a halt adds to, where it may be changed. */
    Tensor own(const StageStep::Added &added) {
        const Tensor &before = images_[static_cast<size_t>(added.to)];
        if (added.takes) {
            return before;
        }
        if (image(added.to).maker >= 0) {
            flush();  // It must be there.
        }
        if (!image(added.to).is_totals) {
            return copy_of(before);
        }
        Tensor copy = empty(before, {before.size(0), 1, before.size(2), before.size(3)}, ScalarType::Float);
        return torch::stable::copy_(copy, before);
    }
    float epsilon(const StageStep &step) const {
        return step.epsilon < 0 ? epsilon_of(given_.front().scalar_type()) : step.epsilon;
    }
    float scale(const StageStep &step) const {
        const auto of_head = static_cast<float>(image(step.result).sizes[1] / step.heads);
        return step.scale == 0 ? 1 / std::sqrt(of_head) : step.scale;
    }

    const distile_tensor *view_of_image(int32_t number, distile_dtype type) {
        if (number < 0) {
            return nullptr;
        }
        return view_of(images_[static_cast<size_t>(number)], border_of(image(number)), type);
    }
    const distile_tensor *view_of(const Tensor &tensor, int32_t border, distile_dtype type) {
        distile_tensor view = output_view(tensor, type);
        view.border_top = view.border_bottom = view.border_left = view.border_right = border;
        views_.push_back(std::make_unique<distile_tensor>(view));
        return views_.back().get();
    }

    const void *weights_of(const StageStep &step, distile_dtype type) {
        const Tensor &weight = parameter(step.weights);
        const Tensor packed = stage_parameter(weight, StageParameter::weights, type, place(step), [&] {
            Tensor on_host = torch::stable::contiguous(to_host(weight));
            if (weight.dim() == 2) {  // A linear layer's.
                on_host = torch::stable::unsqueeze(torch::stable::unsqueeze(on_host, 2), 3);
            }
            const Tensor bytes = pack_stage_weights(on_host, type, step.groups, given_.front());
            return on_gpu() ? torch::stable::to(bytes, given_.front().device()) : bytes;
        });
        kept_.push_back(packed);
        return packed.const_data_ptr();
    }

    static Tensor to_host(const Tensor &tensor) {
        const Tensor wide = torch::stable::to(tensor, ScalarType::Float);
        return wide.is_cpu() ? wide
                             : torch::stable::to(wide, torch::stable::Device(torch::headeronly::DeviceType::CPU));
    }

    const float *vector_of(const StageStep &step, int32_t number) {
        if (number < 0) {
            return nullptr;
        }
        const Tensor &source = parameter(number);
        const bool as_it_is = source.scalar_type() == ScalarType::Float && source.is_contiguous();
        const auto make = [&] { return torch::stable::contiguous(torch::stable::to(source, ScalarType::Float)); };
        kept_.push_back(as_it_is ? source
                                 : stage_parameter(source, StageParameter::vector, DISTILE_FLOAT32, place(step), make));
        return static_cast<const float *>(kept_.back().const_data_ptr());
    }

    void add(const StageStep &step, const stages::Masks &masks, distile_dtype type) {
        const bool scored = step.kind == StageKind::scores;
        distile_stage_step added{};
        added.kind = scored ? DISTILE_STEP_SCORES : DISTILE_STEP_CONV2D;
        added.window = step.window;
        added.input = view_of_image(step.input, type);
        if (scored) {
            added.mask = masks.at(step.result);
            added.weights = vector_of(step, step.weights);
        } else {
            added.output = view_of_image(step.result, type);
            const bool in_place = step.residual >= 0 && step.residual == step.base;
            added.residual = in_place ? added.output : view_of_image(step.residual, type);
            added.mask = masks.at(step.mask);
            added.later = masks.at(step.later);
            added.reader = step.has_reader() ? &step.reader : nullptr;
            added.spreads = spreads(step);
            added.groups = step.groups;
            added.transient = program_.is_transient(step) ? 1 : 0;
            added.weights_dtype = *weights_type(parameter(step.weights), type);
            added.weights = weights_of(step, added.weights_dtype);
            added.bias = vector_of(step, step.bias);
            added.activation = step.activation.function;
            added.slope = &step.activation.slope;
        }
        added.score_bias = step.score_bias;
        added.threshold = step.threshold;
        pending_.push_back(added);
    }

    /** Makes a mask of others, which the steps before may make. */
    void combine_masks(const StageStep &step, const stages::Masks &masks) {
        flush();
        distile_mask *const made = masks.at(step.result), *const a = masks.at(step.mask),
                            *const b = masks.at(step.later);
        const int32_t rows = step.window.pad_top, columns = step.window.pad_left;
        const distile_status status = [&] {
            switch (step.algebra) {
            case MaskAlgebra::unite:
                return distile_mask_unite(made, a, b);
            case MaskAlgebra::intersect:
                return distile_mask_intersect(made, a, b);
            case MaskAlgebra::subtract:
                return distile_mask_subtract(made, a, b);
            case MaskAlgebra::invert:
                return distile_mask_invert(made, a);
            case MaskAlgebra::dilate:
                return distile_mask_dilate(made, a, rows, columns);
            default:
                return distile_mask_pool(made, a, rows, columns);
            }
        }();
        bindings::check(status, session_.context());
    }

    void flush() {
        if (pending_.empty()) {
            return;
        }
        distile_stage_args args{};
        args.steps = pending_.data();
        args.num_steps = static_cast<int32_t>(pending_.size());
        run_steps(session_.context(), args);
        pending_.clear();
    }

    void make_mask_tensors() {
        for (const StageStep &step : program_.steps()) {
            if (!step.makes_image()) {
                const auto [batch, height, width] = program_.pixels(step);
                masks_.push_back(empty(given_.front(), {batch, height, width}, ScalarType::Bool));
            }
        }
    }

    std::vector<Tensor> results() const {
        std::vector<Tensor> found;
        for (const int64_t output : program_.outputs()) {
            if (output < 0) {
                const auto mask = static_cast<size_t>(-1 - output);
                found.push_back(are_of_tokens_[mask] ? torch::stable::squeeze(masks_[mask], 1) : masks_[mask]);
                continue;
            }
            const auto number = static_cast<int32_t>(output);
            const Tensor &made = images_[static_cast<size_t>(output)];
            const Tensor result = border_of(image(number)) > 0 ? copy_of(made) : made;
            found.push_back(image(number).is_totals ? totals_of_image(result)
                            : are_tokens(number)    ? tokens_of_image(result)
                                                    : result);
        }
        return found;
    }

    // ---- Step by step

    Tensor scores(const StageStep &step) const {
        Tensor input = images_[static_cast<size_t>(step.input)];
        const std::optional<int64_t> all;
        input = call("aten::slice", "Tensor", input, int64_t{2}, all, all, int64_t{step.window.stride_h});
        input = call("aten::slice", "Tensor", input, int64_t{3}, all, all, int64_t{step.window.stride_w});
        return mask_scores(input, parameter(step.weights), step.score_bias, step.threshold);
    }

    /** A mask of others. */
    Tensor combined(const StageStep &step) const {
        const Tensor a = torch::stable::to(masks_[static_cast<size_t>(step.mask)], ScalarType::Bool);
        OptionalTensor b;
        if (step.later >= 0) {
            b = torch::stable::to(masks_[static_cast<size_t>(step.later)], ScalarType::Bool);
        }
        switch (step.algebra) {
        case MaskAlgebra::unite:
            return call("aten::logical_or", "", a, *b);
        case MaskAlgebra::intersect:
            return call("aten::logical_and", "", a, *b);
        case MaskAlgebra::subtract:
            return call("aten::logical_and", "", a, inverse(*b));
        case MaskAlgebra::invert:
            return inverse(a);
        case MaskAlgebra::dilate:
            return mask_dilate(a, step.window.pad_top, step.window.pad_left);
        default:
            return mask_pool(a, step.window.pad_top, step.window.pad_left);
        }
    }

    /** What is no step of the library's stages, at the pixels of its mask; elsewhere 0. */
    Tensor layer(const StageStep &step) const {
        const Tensor &input = images_[static_cast<size_t>(step.input)];
        const distile_window &window = step.window;
        const Ints kernel{window.kernel_h, window.kernel_w}, stride{window.stride_h, window.stride_w};
        const Ints padding{window.pad_top, window.pad_left}, dilation{window.dilation_h, window.dilation_w};
        const Tensor mask = active(step);
        switch (step.layer) {
        case StageLayer::max_pool:
            return max_pool2d(input, mask, kernel, stride, padding, dilation);
        case StageLayer::average_pool:
            return avg_pool2d(input, mask, kernel, stride, padding, true);
        case StageLayer::upsample:
            return upsample_nearest(input, mask, padding);
        default:
            return as_image(step, python::add(as_layers_have(step.input), as_layers_have(step.residual),
                                              active_of_layer(step), step.activation_name));
        }
    }

    // Layers of tokens take them as [N, T, C].

    Tensor as_layers_have(int32_t number) const {
        const Tensor &found = images_[static_cast<size_t>(number)];
        return are_tokens(number) ? tokens_of_image(found) : found;
    }
    /** What a layer has made of a step's input. */
    Tensor as_image(const StageStep &step, const Tensor &made) const {
        return are_tokens(step.input) ? image_of_tokens(made) : made;
    }
    Tensor active_of_layer(const StageStep &step) const {
        const Tensor found = active(step);
        return are_tokens(step.input) ? torch::stable::squeeze(found, 1) : found;
    }
    OptionalTensor optional_parameter(int32_t number) const {
        return number < 0 ? OptionalTensor{} : OptionalTensor{parameter(number)};
    }

    Tensor normalized(const StageStep &step) const {
        const Tensor input = as_layers_have(step.input), mask = active_of_layer(step);
        const OptionalTensor weight = optional_parameter(step.weights);
        return as_image(step, step.norm == DISTILE_RMS_NORM
                                  ? rms_norm(input, mask, weight, epsilon(step))
                                  : layer_norm(input, mask, weight, optional_parameter(step.bias), epsilon(step)));
    }

    Tensor attended(const StageStep &step) const {
        Tensor parts = as_layers_have(step.input);
        const Tensor mask = active_of_layer(step);
        const int64_t channels = image(step.result).sizes[1];
        const auto part = [&](int64_t number) {
            const Tensor own = torch::stable::narrow(parts, 2, number * channels, channels);
            const Ints sizes{own.size(0), own.size(1), step.heads, channels / step.heads};
            return torch::stable::transpose(torch::stable::reshape(own, sizes), 1, 2);
        };
        const OptionalTensor keys = step.all_keys ? OptionalTensor{} : OptionalTensor{mask};
        const Tensor made = attention(part(0), part(1), part(2), mask, keys, scale(step), false);
        return image_of_tokens(torch::stable::flatten(torch::stable::transpose(made, 1, 2), 2, 3));
    }

    /** A halt by PyTorch's operators, as python/distile/halting.py has it. */
    void halt(const StageStep &step) {
        const Tensor input = torch::stable::to(as_layers_have(step.input), ScalarType::Float);
        const Tensor weight = torch::stable::to(parameter(step.weights), ScalarType::Float);
        const auto filled = [&](const Tensor &like, double value) {
            Tensor made = torch::stable::new_zeros(like, Ints{}, ScalarType::Float);
            return torch::stable::fill_(made, value);
        };
        Tensor score = call("aten::matmul", "", input, weight);
        score = call("aten::sigmoid", "", torch::stable::subtract(score, filled(score, step.score_bias), -1));
        if (step.bias >= 0) {
            score = call("aten::minimum", "", score, torch::stable::to(parameter(step.bias), ScalarType::Float));
        }
        const Tensor before =
            totals_of_image(step.totals.to < 0 ? no_totals(step) : images_[static_cast<size_t>(step.totals.to)]);
        const Tensor left = torch::stable::to(active_of_layer(step), ScalarType::Bool);
        const Tensor total = torch::stable::subtract(before, score, -1);
        const Tensor is_below = call("aten::lt", "Tensor", total, filled(total, step.threshold));
        const Tensor going = call("aten::logical_and", "", left, is_below);
        images_.push_back(image_of_totals(call("aten::where", "self", left, total, before)));
        if (step.sums.to >= 0) {
            const Tensor rest = torch::stable::subtract(filled(before, 1), before);
            const Tensor part =
                call("aten::where", "self", left, call("aten::where", "self", going, score, rest), filled(before, 0));
            images_.push_back(summed(step, input, part));
        }
        masks_.push_back(torch::stable::unsqueeze(going, 1));
    }
    /** Sums with the first tokens times their parts. */
    Tensor summed(const StageStep &step, const Tensor &input, const Tensor &part) const {
        const Tensor before = as_layers_have(step.sums.to);
        const int64_t first = before.size(1);
        Tensor all = input, parts = part;
        const Tensor tokens = torch::stable::narrow(all, 1, 0, first);
        const Tensor factors = torch::stable::unsqueeze(torch::stable::narrow(parts, 1, 0, first), 2);
        const Tensor zero = torch::stable::new_zeros(factors, Ints{}, ScalarType::Float);
        const Tensor none = call("aten::eq", "Tensor", factors, zero);
        const Tensor added = call("aten::where", "self", none, zero, call("aten::mul", "Tensor", tokens, factors));
        const Tensor sum = torch::stable::subtract(torch::stable::to(before, ScalarType::Float), added, -1);
        return image_of_tokens(torch::stable::to(sum, before.scalar_type()));
    }

    Tensor linear(const StageStep &step, Way way) const {
        const Tensor input = as_layers_have(step.input), mask = active_of_layer(step);
        const Tensor &weight = parameter(step.weights);
        const OptionalTensor bias = optional_parameter(step.bias);
        OptionalTensor residual, out;
        if (step.residual >= 0) {
            residual = as_layers_have(step.residual);
        }
        if (step.base >= 0) {
            const Tensor &base = images_[static_cast<size_t>(step.base)];
            out = tokens_of_image(step.takes_base ? base : copy_of(base));
            residual = step.residual == step.base ? out : residual;
        }
        const std::string activation = step.later >= 0 ? "none" : step.activation_name;
        const bool is_dense = way == Way::dense && !image(step.result).is_empty();
        const Tensor made =
            is_dense ? dense_linear({input, weight, bias, mask, residual, 0, out ? &*out : nullptr, !out}, activation)
            : out    ? linear_out(input, weight, bias, mask, residual, activation, place(step), false, *out)
                     : python::linear(input, weight, bias, mask, residual, activation, place(step));
        return image_of_tokens(made);
    }

    /** What a convolution has made, with the activation where no later step adds to it. */
    Tensor without_later(const StageStep &step, const Tensor &made) const {
        if (step.later < 0) {
            return made;
        }
        Tensor rest = inverse(masks_[static_cast<size_t>(step.later)]);
        if (step.mask >= 0) {
            rest = call("aten::logical_and", "", rest, active(step));
        }
        return activate_out(made, rest, step.activation_name, false, made);
    }

    /** The pixels that a step computes. */
    Tensor active(const StageStep &step) const {
        const auto [batch, height, width] = program_.pixels(step);
        if (step.mask < 0) {
            return inverse(torch::stable::new_zeros(given_.front(), Ints{batch, height, width}, ScalarType::Bool));
        }
        const Tensor &mask = masks_[static_cast<size_t>(step.mask)];
        if (!step.has_reader()) {
            return mask;
        }
        const distile_window &reader = step.reader;
        return mask_needed_input(mask, {height, width}, {reader.kernel_h, reader.kernel_w},
                                 {reader.stride_h, reader.stride_w}, {reader.dilation_h, reader.dilation_w},
                                 {reader.pad_top, reader.pad_left}, DISTILE_WINDOW_CONV);
    }

    Tensor convolution(const StageStep &step, Way way) const {
        const Tensor mask = active(step), &input = images_[static_cast<size_t>(step.input)];
        OptionalTensor bias, residual, out;
        if (step.bias >= 0) {
            bias = parameter(step.bias);
        }
        if (step.residual >= 0) {
            residual = images_[static_cast<size_t>(step.residual)];
        }
        if (step.base >= 0) {
            const Tensor &base = images_[static_cast<size_t>(step.base)];
            out = step.takes_base ? base : copy_of(base);
            residual = step.residual == step.base ? out : residual;
        }
        const distile_window &window = step.window;
        const Ints stride{window.stride_h, window.stride_w}, dilation{window.dilation_h, window.dilation_w};
        const Ints padding{window.pad_top, step.pad_bottom, window.pad_left, step.pad_right};
        const std::string activation = step.later >= 0 ? "none" : step.activation_name;
        const Tensor &weight = parameter(step.weights);
        if (way == Way::dense && !image(step.result).is_empty() && !out) {
            const WeightedCall weighted{input, weight, bias, mask, residual, 0, nullptr, true};
            const Tensor made = torch::stable::contiguous(
                unmasked_conv2d(weighted, {stride, padding, dilation, step.groups}, activation),
                torch::headeronly::MemoryFormat::ChannelsLast);
            return step.mask < 0 ? made : cleared(made, mask);
        }
        if (way == Way::dense && !image(step.result).is_empty()) {
            const WeightedCall weighted{input, weight, bias, mask, residual, 0, &*out, false};
            return dense_conv2d(weighted, {stride, padding, dilation, step.groups}, activation);
        }
        return out ? conv2d_out(input, weight, bias, mask, residual, stride, padding, dilation, step.groups, activation,
                                place(step), false, *out)
                   : conv2d(input, weight, bias, mask, residual, stride, padding, dilation, step.groups, activation,
                            place(step));
    }

    const std::vector<Tensor> &given_;
    std::vector<Tensor> masks_;
    const std::vector<Tensor> &parameters_;
    const Ints &places_;
    StageProgram &program_;
    Session &session_;
    std::vector<Tensor> images_, kept_;
    std::vector<bool> are_tokens_;     ///< Images that are tokens.
    std::vector<bool> are_of_tokens_;  ///< Masks of tokens.
    std::vector<std::unique_ptr<distile_tensor>> views_;
    std::vector<distile_stage_step> pending_;
    struct SharedImage {
        Tensor memory;
        StageImage made_as;
        int32_t last_use;
    };
    std::vector<SharedImage> shared_;
    std::map<int32_t, Tensor> copied_;  ///< Copies of bases, by the images that take them.
};

}  // namespace

std::vector<Tensor> stage(const std::vector<Tensor> &tensors, const std::vector<Tensor> &masks,
                          const std::vector<Tensor> &parameters, const Ints &steps, const std::vector<double> &numbers,
                          const std::string &activations, const Ints &outputs, const Ints &places,
                          const std::vector<double> &times, int64_t way) {
    if (tensors.empty() || places.size() * StageProgram::integers != steps.size() || times.size() % row_numbers != 0 ||
        way < static_cast<int64_t>(Way::measured) || way > static_cast<int64_t>(Way::dense)) {
        fail("a stage has inputs, a place for each step, measured times in rows of 4, and a way from -1 to 2");
    }
    StageProgram program(steps, numbers, activations, outputs, {tensors.size(), masks.size(), parameters.size()});
    const AsImages given(tensors, masks);
    StageCall call(given, parameters, places, program);
    auto chosen = static_cast<Way>(way);
    const bool chooses = chosen == Way::measured && !times.empty() && tensors.front().is_cpu();
    if (chooses) {
        chosen = fastest(times, masks.empty() ? densities().of(places.front()) : density_of(masks));
    }
    const bool together = (chosen == Way::measured || chosen == Way::stage) && call.can_run();
    if (way == static_cast<int64_t>(Way::stage) && !together) {
        fail("the device has no stage of these types and sizes; with way=-1, the layers run there");
    }
    std::vector<Tensor> results = together ? call.run_together() : call.run_apart(chosen);
    if (chooses && masks.empty()) {
        densities().note(places.front(), call.made_density());
    }
    return results;
}

}  // namespace distile::python
