#include "bindings/stage_program.h"
#include "onnxruntime/tensors.h"
#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <limits>
#include <mutex>
#include <numeric>

namespace distile::ort {

namespace {

using bindings::StageImage;
using bindings::StageKind;
using bindings::StageLayer;
using bindings::StageProgram;
using bindings::StageStep;

constexpr size_t most_images = 4, most_masks = 8, most_results = 4;
constexpr size_t input_first = 0, input_parameters = 1, input_more = 2, input_masks = input_more + most_images - 1;
constexpr size_t first_memory = 32;  ///< The scratch memory behind that of other operators.

/** The inputs from a first one on, as many as the node has: they leave no gaps. */
size_t count_inputs(const NodeView &node, size_t first, size_t most) {
    size_t count = 0;
    while (count < most && node.has_input(first + count)) {
        count++;
    }
    return count;
}

/** Which scratch memory each image lies in. Images share one where the later is made when nobody reads the other, and
 * neither needs zeros where its step computes nothing: zeros are written before all steps. */
class Memories {
public:
    explicit Memories(const StageProgram &program) : roots_(program.images().size()), at_(program.images().size(), -1) {
        std::iota(roots_.begin(), roots_.end(), 0);
        const auto &images = program.images();
        for (const StageStep &step : program.steps()) {
            if (step.takes_base) {
                roots_[static_cast<size_t>(step.result)] = root(step.base);
            }
        }
        std::vector<int32_t> last(images.size(), -1);
        is_output_.resize(images.size());
        for (size_t i = 0; i < images.size(); i++) {
            const auto own = static_cast<size_t>(root(static_cast<int32_t>(i)));
            last[own] = std::max(last[own], images[i].last_use);
            is_output_[own] = is_output_[own] || images[i].is_output;
        }
        std::vector<int32_t> free_from;  // For each memory, the step from which on nobody reads what is in it.
        for (const StageStep &step : program.steps()) {
            const auto number = static_cast<int32_t>(&step - program.steps().data());
            const auto result = static_cast<size_t>(step.result);
            if (step.takes_base || is_output_[result]) {
                continue;
            }
            const bool alone = images[result].needs_zeros;
            const auto found =
                alone ? free_from.end()
                      : std::find_if(free_from.begin(), free_from.end(), [&](int32_t free) { return free < number; });
            const auto place = static_cast<size_t>(found - free_from.begin());
            if (found == free_from.end()) {
                free_from.push_back(0);
                bytes_.push_back(0);
            }
            free_from[place] = alone ? INT32_MAX : std::max(last[result], number);
            at_[result] = static_cast<int32_t>(place);
            const auto &sizes = images[result].sizes;
            bytes_[place] =
                std::max(bytes_[place], static_cast<size_t>(sizes[0] * sizes[1] * sizes[2] * sizes[3]) * sizeof(float));
        }
    }

    /** The image that began to be in the memory of another. */
    int32_t root(int32_t image) const {
        return roots_[static_cast<size_t>(image)];
    }
    /** Whether the memory of an image is that of an output. */
    bool is_output(int32_t root) const {
        return is_output_[static_cast<size_t>(root)];
    }
    int32_t place(int32_t root) const {
        return at_[static_cast<size_t>(root)];
    }
    const std::vector<size_t> &bytes() const {
        return bytes_;
    }

private:
    std::vector<int32_t> roots_, at_;
    std::vector<bool> is_output_;
    std::vector<size_t> bytes_;
};

/** Convolutions, or layers of tokens, under masks as one stage: images in NHWC or tokens [N, T, C], of float32. Tokens
 * are images of one row. */
class StageKernel : public LeasingKernel {
public:
    explicit StageKernel(const Setup &setup)
        : LeasingKernel(setup), channels_(setup.node.all_integers("channels")),
          input_channels_(setup.node.all_integers("input_channels")),
          parameters_(setup.node.constant(input_parameters)),
          program_(setup.node.all_integers("steps"), numbers_of(setup.node), setup.node.text("activations", ""),
                   setup.node.all_integers("results"),
                   {1 + count_inputs(setup.node, input_more, most_images - 1),
                    count_inputs(setup.node, input_masks, most_masks), channels_.size()}) {
        if (setup.type != DISTILE_FLOAT32 || !parameters_ || parameters_->type != float32) {
            fail("a stage has images of float32, and parameters that are an initializer of float32");
        }
        const auto &outputs = program_.outputs();
        if (outputs.empty() || outputs.size() > most_results || *std::min_element(outputs.begin(), outputs.end()) < 0) {
            fail("a stage has 1 to " + std::to_string(most_results) + " outputs, which are images");
        }
        find_parameters();
    }

    void compute(const Call &call) override {
        const Lease lease = lease_for(call);
        std::call_once(packed_, [&] { pack(lease->context()); });
        StageProgram program = program_;
        std::vector<distile_tensor> images = given_images(call, program);
        if (!add_made(call, lease, program, images)) {
            return;
        }
        const ImageLayout layout = layout_of(call.input(input_first), ImageLayout::nhwc);
        std::vector<distile_mask *> masks;
        for (size_t i = 0; i < program.given_masks(); i++) {
            const auto role = static_cast<int32_t>(i);
            masks.push_back(mask_of(lease, call.input(input_masks + i), layout, images.front().batch, role));
        }
        std::vector<distile_stage_step> pending;
        std::deque<distile_tensor> parts;
        for (const StageStep &step : program.steps()) {
            copy_base(lease, step, images, pending);
            pending.push_back(described(step, images, masks, parts));
        }
        run(lease, pending);
    }

private:
    /** The numbers of the steps; without the attribute, they have none. */
    static std::vector<double> numbers_of(const NodeView &node) {
        const std::vector<float> given = node.all_numbers("numbers");
        const size_t all = node.all_integers("steps").size() / StageProgram::integers * StageProgram::reals;
        return given.empty() ? std::vector<double>(all, 0) : std::vector<double>(given.begin(), given.end());
    }

    /** Finds where each parameter begins in their tensor. Fails if that does not hold them. */
    void find_parameters() {
        Shape channels = input_channels_, sizes(channels_.size(), 0);
        const bool has_others =
            std::any_of(program_.steps().begin(), program_.steps().end(), [](const StageStep &step) {
                return !step.makes_image() || (step.kind == StageKind::layer && step.layer != StageLayer::sum);
            });
        if (has_others || channels.size() != program_.images().size() - program_.steps().size()) {
            fail("a stage of ONNX Runtime has the channels of its inputs, and steps that are convolutions, linear "
                 "layers, norms, attention and sums");
        }
        bool fits = true;
        for (const StageStep &step : program_.steps()) {
            const int64_t in = number(channels[static_cast<size_t>(step.input)], "the number of channels");
            const bool convolves = step.kind == StageKind::conv2d;
            const int64_t out = convolves                           ? channels_[static_cast<size_t>(step.weights)]
                                : step.kind == StageKind::attention ? in / 3
                                                                    : in;
            if (step.weights >= 0) {
                const int64_t taps = int64_t{step.window.kernel_h} * step.window.kernel_w;
                fits = fits && channels_[static_cast<size_t>(step.weights)] == out;
                sizes[static_cast<size_t>(step.weights)] = convolves ? out * (in / step.groups) * taps : out;
            }
            if (step.bias >= 0) {
                fits = fits && channels_[static_cast<size_t>(step.bias)] == out;
                sizes[static_cast<size_t>(step.bias)] = out;
            }
            channels.push_back(out);
        }
        int64_t all = 0;
        for (const int64_t size : sizes) {
            begins_.push_back(all);
            all += size;
            fits = fits && size > 0 && all <= parameters_->elements();
        }
        if (!fits || all != parameters_->elements()) {
            fail("the parameters of a stage are not those of its steps");
        }
    }

    const float *parameter(int32_t number) const {
        return number < 0 ? nullptr : parameters_->as<float>() + begins_[static_cast<size_t>(number)];
    }

    void pack(distile_context *context) {
        Shape channels = input_channels_;
        for (const StageStep &step : program_.steps()) {
            weights_.emplace_back();
            const auto in = static_cast<int32_t>(channels[static_cast<size_t>(step.input)]);
            if (step.kind != StageKind::conv2d) {
                channels.push_back(step.kind == StageKind::attention ? in / 3 : in);
                continue;
            }
            const auto out = number(channels_[static_cast<size_t>(step.weights)], "the number of channels");
            const distile_window &window = step.window;
            const int64_t bytes = distile_stage_weights_bytes(context, DISTILE_FLOAT32, out, in, window.kernel_h,
                                                              window.kernel_w, step.groups);
            weights_.back().resize(static_cast<size_t>(bytes) / sizeof(float));
            check(distile_pack_stage_weights(context, DISTILE_FLOAT32, out, in, window.kernel_h, window.kernel_w,
                                             step.groups, parameter(step.weights), weights_.back().data()),
                  context);
            channels.push_back(out);
        }
    }

    /** The images of a call, and the sizes of all. */
    std::vector<distile_tensor> given_images(const Call &call, StageProgram &program) const {
        std::vector<distile_tensor> images;
        std::vector<bindings::ImageSizes> sizes;
        for (size_t i = 0; i < input_channels_.size(); i++) {
            const Tensor tensor = call.input(i == 0 ? input_first : input_more + i - 1);
            const Shape &shape = tensor.shape;
            const bool are_tokens = shape.size() == 3 && !has_windows();
            if ((shape.size() != 4 && !are_tokens) || shape.back() != input_channels_[i]) {
                fail("an image of a stage is [N, H, W, C], and tokens are [N, T, C], with " +
                     std::to_string(input_channels_[i]) + " channels");
            }
            if (shape.size() != call.input(input_first).shape.size()) {
                fail("a stage has images, or tokens, and not both");
            }
            sizes.push_back({shape[0], shape.back(), are_tokens ? 1 : shape[1], are_tokens ? shape[1] : shape[2]});
            images.push_back(image_at(tensor.data, sizes.back()));
        }
        program.find_sizes(sizes, std::vector<bindings::MaskSizes>(program.given_masks()), channels_);
        return images;
    }

    /** Whether steps read more than a pixel, and so no tokens. */
    bool has_windows() const {
        return std::any_of(program_.steps().begin(), program_.steps().end(), [](const StageStep &step) {
            const distile_window &window = step.window;
            return step.kind == StageKind::conv2d &&
                   (std::max({window.kernel_h, window.kernel_w, window.stride_h, window.stride_w}) > 1 ||
                    std::max({window.pad_top, window.pad_left, step.pad_bottom, step.pad_right}) > 0);
        });
    }

    static distile_tensor image_at(void *data, const bindings::ImageSizes &sizes) {
        return distile_tensor_make(static_cast<float *>(data), number(sizes[0], "the batch"),
                                   number(sizes[2], "a height"), number(sizes[3], "a width"),
                                   number(sizes[1], "the number of channels"));
    }

    /** Adds the images that steps make: in outputs, or in scratch memory. False if they have no pixels. */
    static bool add_made(const Call &call, const Lease &lease, const StageProgram &program,
                         std::vector<distile_tensor> &images) {
        const Memories memories(program);
        std::vector<void *> of_outputs(program.images().size(), nullptr), of_places;
        for (size_t i = 0; i < program.outputs().size(); i++) {
            const auto image = static_cast<int32_t>(program.outputs()[i]);
            const bindings::ImageSizes &sizes = program.images()[static_cast<size_t>(image)].sizes;
            const bool are_tokens = call.input(input_first).shape.size() == 3;
            const Shape shape =
                are_tokens ? Shape{sizes[0], sizes[3], sizes[1]} : Shape{sizes[0], sizes[2], sizes[3], sizes[1]};
            of_outputs[static_cast<size_t>(memories.root(image))] = call.output(shape, float32, i).data;
        }
        for (size_t i = 0; i < memories.bytes().size(); i++) {
            of_places.push_back(lease.scratch(first_memory + i, memories.bytes()[i]));
        }
        for (size_t i = images.size(); i < program.images().size(); i++) {
            const StageImage &image = program.images()[i];
            const int32_t root = memories.root(static_cast<int32_t>(i));
            images.push_back(image_at(memories.is_output(root) ? of_outputs[static_cast<size_t>(root)]
                                                               : of_places[static_cast<size_t>(memories.place(root))],
                                      image.sizes));
            if (image.needs_zeros) {
                std::memset(images.back().data, 0, bytes_of(images.back()));
            }
        }
        return std::none_of(program.images().begin(), program.images().end(),
                            [](const StageImage &image) { return image.is_empty(); });
    }

    static size_t bytes_of(const distile_tensor &image) {
        return static_cast<size_t>(image.batch) * static_cast<size_t>(image.stride_n) * sizeof(float);
    }

    /** Copies what a step's result is where the step computes nothing, if that is not in its memory. */
    static void copy_base(const Lease &lease, const StageStep &step, const std::vector<distile_tensor> &images,
                          std::vector<distile_stage_step> &pending) {
        if (step.base >= 0 && !step.takes_base) {
            run(lease, pending);  // These steps may make it, or read what was in the memory of the result.
            const distile_tensor &result = images[static_cast<size_t>(step.result)];
            std::memcpy(result.data, images[static_cast<size_t>(step.base)].data, bytes_of(result));
        }
    }

    /** A step as the library has it. `parts` keeps what attention reads of its input. */
    distile_stage_step described(const StageStep &step, const std::vector<distile_tensor> &images,
                                 const std::vector<distile_mask *> &masks, std::deque<distile_tensor> &parts) const {
        const auto image = [&](int32_t number) { return number < 0 ? nullptr : &images[static_cast<size_t>(number)]; };
        const auto mask = [&](int32_t number) { return number < 0 ? nullptr : masks[static_cast<size_t>(number)]; };
        distile_stage_step made{};
        made.input = image(step.input);
        made.output = image(step.result);
        made.residual = step.residual >= 0 && step.residual == step.base ? made.output : image(step.residual);
        made.mask = mask(step.mask);
        made.window = {1, 1, 1, 1, 1, 1, 0, 0, DISTILE_WINDOW_CONV};
        made.bias = parameter(step.bias);
        made.activation = step.activation.function;
        made.slope = &step.activation.slope;
        switch (step.kind) {
        case StageKind::norm:
            made.kind = DISTILE_STEP_NORMALIZE;
            made.weights = parameter(step.weights);
            made.norm = step.norm;
            made.epsilon = step.epsilon < 0 ? std::numeric_limits<float>::epsilon() : step.epsilon;
            break;
        case StageKind::attention: {
            made.kind = DISTILE_STEP_ATTENTION;
            const int32_t channels = made.output->channels;
            for (const distile_tensor **const part : {&made.input, &made.key, &made.value}) {
                parts.push_back(*image(step.input));
                const auto number = static_cast<int64_t>(part == &made.input ? 0 : part == &made.key ? 1 : 2);
                parts.back().channels = channels;
                parts.back().data = static_cast<float *>(parts.back().data) + number * channels;
                *part = &parts.back();
            }
            made.heads = step.heads;
            made.scale = step.scale == 0 ? 1 / std::sqrt(static_cast<float>(channels) / static_cast<float>(step.heads))
                                         : step.scale;
            made.all_keys = step.all_keys ? 1 : 0;
            break;
        }
        case StageKind::layer:
            made.kind = DISTILE_STEP_SUM;
            break;
        default:
            made.kind = DISTILE_STEP_CONV2D;
            made.later = mask(step.later);
            made.reader = step.has_reader() ? &step.reader : nullptr;
            made.window = step.window;
            made.groups = step.groups;
            made.weights = weights_[static_cast<size_t>(step.result) - input_channels_.size()].data();
        }
        return made;
    }

    static void run(const Lease &lease, std::vector<distile_stage_step> &pending) {
        if (pending.empty()) {
            return;
        }
        distile_stage_args args{};
        args.steps = pending.data();
        args.num_steps = static_cast<int32_t>(pending.size());
        check(distile_run_stage(lease->context(), &args), lease->context());
        pending.clear();
    }

    Shape channels_, input_channels_;
    std::optional<Tensor> parameters_;
    StageProgram program_;
    Shape begins_;
    std::once_flag packed_;
    std::vector<std::vector<float>> weights_;
};

}  // namespace

std::vector<OperatorType> stage_types() {
    std::vector<Input> inputs{{}, {float32}};
    inputs.resize(input_masks, {any_type, optional});
    inputs.resize(input_masks + most_masks, {boolean, optional});
    OperatorType type{"Stage", inputs, {any_type}, make_kernel<StageKernel>, true};
    type.more_outputs = most_results - 1;
    return {type};
}

}  // namespace distile::ort
