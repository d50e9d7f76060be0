// Numbers of a described stage, as exported programs and ONNX models keep them: they are refused, or their steps run,
// one by one, and read and write only what they say.
#include "bindings/stage_program.h"
#include "tests/fuzz/fuzz.h"
#include <distile/distile.hpp>
#include <memory>
#include <stdexcept>

using namespace distile;

namespace {

constexpr int64_t most_numbers = 1 << 16;

/** Mostly a number that may be right. */
int64_t drawn(Bytes &bytes, int32_t usual) {
    switch (bytes.choice(40)) {
    case 0:
        return bytes.take<int64_t>();
    case 1:
        return -1;
    default:
        return bytes.choice(usual);
    }
}

/** The numbers behind the kind of a norm, attention or a halt. */
void add_step_of_tokens(Bytes &bytes, int32_t things, std::vector<int64_t> &steps) {
    const bool attends = steps.back() == 5, halts = steps.back() == 6;
    steps.push_back(drawn(bytes, things));
    for (int i = 0; i < 2; i++) {  // Sums and totals.
        steps.push_back(!halts || bytes.flag() ? -1 : drawn(bytes, things));
    }
    steps.push_back(bytes.flag() ? -1 : drawn(bytes, things));
    steps.push_back(halts ? -1 : bytes.choice(1));
    steps.insert(steps.end(), 6, 1);   // The window.
    steps.insert(steps.end(), 12, 0);  // Its padding, and no reader.
    for (int i = 0; i < 2; i++) {      // Weights and bias.
        steps.push_back(attends || (bytes.flag() && !(halts && i == 0)) ? -1 : drawn(bytes, things));
    }
    steps.push_back(1 + drawn(bytes, 2));
}

std::vector<int64_t> drawn_steps(Bytes &bytes, size_t count, int32_t things) {
    std::vector<int64_t> steps;
    for (size_t step = 0; step < count; step++) {
        steps.push_back(drawn(bytes, bytes.flag() ? 0 : 6));  // Its kind.
        if (steps.back() >= 4 && bytes.choice(3) > 0) {
            add_step_of_tokens(bytes, things, steps);
            continue;
        }
        const auto scored = steps.back() == 1 && bytes.choice(3) > 0;
        steps.push_back(drawn(bytes, things));
        for (int i = 0; i < 4; i++) {  // Residual, base, mask and later pixels.
            steps.push_back(scored || bytes.flag() ? -1 : drawn(bytes, things));
        }
        for (int i = 0; i < 6; i++) {
            steps.push_back(scored ? 1 : 1 + drawn(bytes, 2));
        }
        for (int i = 0; i < 4; i++) {
            steps.push_back(scored ? 0 : drawn(bytes, 2));
        }
        const bool read = !scored && bytes.choice(3) == 0;
        for (int i = 0; i < 8; i++) {
            steps.push_back(read ? (i < 6 ? 1 + drawn(bytes, 2) : drawn(bytes, 1)) : 0);
        }
        steps.push_back(drawn(bytes, things));
        steps.push_back(scored || bytes.flag() ? -1 : drawn(bytes, things));
        steps.push_back(bytes.flag() ? 1 : drawn(bytes, 4));
    }
    return steps;
}

/** The images of a stage, each in memory of its own, and its masks. */
class Run {
public:
    Run(const bindings::StageProgram &program, Bytes &bytes) : program_(program), context_(make_context({})) {
        for (const bindings::StageImage &image : program.images()) {
            const auto extent = [&](size_t axis) { return static_cast<int32_t>(image.sizes[axis]); };
            memory_.emplace_back(static_cast<size_t>(elements(image)), 1.0f);
            images_.push_back(distile_tensor_make(memory_.back().data(), extent(0), extent(2), extent(3), extent(1)));
        }
        size_t masks = program.given_masks();
        for (const bindings::StageStep &step : program.steps()) {
            masks += step.makes_image() ? 0 : 1;
        }
        for (size_t i = 0; i < masks; i++) {
            distile_mask *made = nullptr;
            require(distile_mask_create(context_.get(), &made) == DISTILE_OK, "a mask cannot be made");
            masks_.emplace_back(made);
        }
        for (size_t i = 0; i < program.given_masks(); i++) {
            const auto sizes = program.images().front().sizes;
            std::vector<uint8_t> active(static_cast<size_t>(sizes[0] * sizes[2] * sizes[3]));
            for (uint8_t &one : active) {
                one = static_cast<uint8_t>(bytes.choice(1));
            }
            const auto height = static_cast<int32_t>(sizes[2]), width = static_cast<int32_t>(sizes[3]);
            require(distile_mask_set_bytes(masks_[i].get(), active.data(), static_cast<int32_t>(sizes[0]), height,
                                           width, int64_t{height} * width, width) == DISTILE_OK,
                    "a mask cannot be set");
        }
    }

    static int64_t elements(const bindings::StageImage &image) {
        return image.sizes[0] * image.sizes[1] * image.sizes[2] * image.sizes[3];
    }

    void run(const bindings::StageStep &step) {
        if (step.kind == bindings::StageKind::algebra || step.kind == bindings::StageKind::layer) {
            return;
        }
        if (step.kind == bindings::StageKind::norm || step.kind == bindings::StageKind::attention) {
            run_step_of_tokens(step);
            return;
        }
        if (step.kind == bindings::StageKind::halt) {
            run_halt(step);
            return;
        }
        const bool scored = step.kind == bindings::StageKind::scores;
        distile_stage_step made{};
        made.kind = scored ? DISTILE_STEP_SCORES : DISTILE_STEP_CONV2D;
        made.window = step.window;
        made.input = image(step.input);
        made.activation = step.activation.function;
        made.slope = &step.activation.slope;
        const int32_t in = made.input->channels, out = scored ? 1 : image(step.result)->channels;
        std::vector<float> filter(static_cast<size_t>(int64_t{in} * out * step.window.kernel_h * step.window.kernel_w),
                                  .5f);
        std::vector<float> packed, bias(static_cast<size_t>(out), 1);
        if (scored) {
            made.activation = DISTILE_ACTIVATION_NONE;
            made.mask = mask(step.result);
            made.weights = filter.data();
        } else {
            packed.resize(static_cast<size_t>(distile_stage_weights_bytes(context_.get(), DISTILE_FLOAT32, out, in,
                                                                          step.window.kernel_h, step.window.kernel_w,
                                                                          step.groups)) /
                          sizeof(float));
            require(distile_pack_stage_weights(context_.get(), DISTILE_FLOAT32, out, in, step.window.kernel_h,
                                               step.window.kernel_w, step.groups, filter.data(),
                                               packed.data()) == DISTILE_OK,
                    "weights cannot be packed");
            made.weights = packed.data();
            made.bias = step.bias >= 0 ? bias.data() : nullptr;
            made.output = image(step.result);
            made.residual = image(step.residual);
            made.mask = mask(step.mask);
            made.later = mask(step.later);
            made.reader = step.has_reader() ? &step.reader : nullptr;
            made.groups = step.groups;
        }
        run_alone(made);
    }

private:
    distile_tensor *image(int32_t number) {
        return number < 0 ? nullptr : &images_[static_cast<size_t>(number)];
    }
    distile_mask *mask(int32_t number) {
        return number < 0 ? nullptr : masks_[static_cast<size_t>(number)].get();
    }

    void run_halt(const bindings::StageStep &step) {
        const std::vector<float> factors(static_cast<size_t>(image(step.input)->channels), .5f);
        const std::vector<float> limits(
            static_cast<size_t>(Run::elements(program_.images()[static_cast<size_t>(step.totals.made)])), .4f);
        distile_stage_step made{};
        made.kind = DISTILE_STEP_HALT;
        made.window = step.window;
        made.input = image(step.input);
        made.output = image(step.sums.made);
        made.mask = mask(step.result);
        made.from = mask(step.mask);
        made.weights = factors.data();
        made.limits = step.bias < 0 ? nullptr : limits.data();
        made.totals = static_cast<float *>(image(step.totals.made)->data);
        made.threshold = .5f;
        run_alone(made);
    }

    void run_alone(const distile_stage_step &step) {
        distile_stage_args args{};
        args.steps = &step;
        args.num_steps = 1;
        (void)distile_run_stage(context_.get(), &args);  // Masks of other sizes, and that nobody has made, are refused.
    }

    void run_step_of_tokens(const bindings::StageStep &step) {
        distile_tensor parts[] = {images_[static_cast<size_t>(step.input)], {}, {}};
        const distile_tensor &output = images_[static_cast<size_t>(step.result)];
        const std::vector<float> factors(static_cast<size_t>(output.channels), .5f);
        distile_stage_step made{};
        made.kind = DISTILE_STEP_NORMALIZE;
        made.window = step.window;
        made.input = &parts[0];
        made.output = &output;
        made.mask = step.mask < 0 ? nullptr : masks_[static_cast<size_t>(step.mask)].get();
        if (step.kind == bindings::StageKind::norm) {
            made.weights = step.weights < 0 ? nullptr : factors.data();
            made.bias = step.bias < 0 ? nullptr : factors.data();
            made.norm = step.norm;
            made.epsilon = step.epsilon < 0 ? 1e-6f : step.epsilon;
        } else {
            made.kind = DISTILE_STEP_ATTENTION;
            parts[0].channels = output.channels;
            parts[1] = parts[2] = parts[0];
            parts[1].data = static_cast<float *>(parts[0].data) + output.channels;
            parts[2].data = static_cast<float *>(parts[0].data) + int64_t{2} * output.channels;
            made.key = &parts[1];
            made.value = &parts[2];
            made.heads = step.heads;
            made.scale = step.scale > 0 ? step.scale : 1;
            made.all_keys = step.all_keys ? 1 : 0;
        }
        run_alone(made);
    }

    const bindings::StageProgram &program_;
    Context context_;
    std::vector<std::vector<float>> memory_;
    std::vector<distile_tensor> images_;
    std::vector<Mask> masks_;
};

void check(const bindings::StageProgram &program) {
    const auto images = static_cast<int32_t>(program.images().size());
    for (const bindings::StageStep &step : program.steps()) {
        for (const int32_t image :
             {step.input, step.residual, step.base, step.totals.to, step.sums.to, step.totals.made, step.sums.made}) {
            require(image >= -1 && image < images, "a step names an image that is not there");
        }
        require((step.input >= 0) == (step.kind != bindings::StageKind::algebra), "a step has no input");
        require(!step.takes_base || (step.base >= 0 && program.images()[static_cast<size_t>(step.base)].maker >= 0),
                "a step writes into what is given");
        for (const bindings::StageStep::Added &added : {step.totals, step.sums}) {
            require(!added.takes || (added.to >= 0 && program.images()[static_cast<size_t>(added.to)].maker >= 0),
                    "a halt changes what is given");
        }
        require(!program.spreads(step, true) ||
                    (step.mask >= 0 && !program.images()[static_cast<size_t>(step.result)].is_output),
                "a step writes pixels that others read");
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    Bytes bytes(data, size);
    const size_t given = 1 + bytes.choice(1), masks = bytes.choice(2), parameters = 1 + bytes.choice(3);
    const size_t count = 1 + bytes.choice(4);
    const std::vector<int64_t> steps = drawn_steps(bytes, count, static_cast<int32_t>(given + count) - 1);
    std::string activations;
    for (size_t step = 0; step < count; step++) {
        const char *const names[] = {"none", "relu", "silu", "leaky_relu(0.2)", "swish", ""};
        activations += (step == 0 ? "" : ",") + std::string(names[bytes.choice(5)]);
    }
    const std::vector<int64_t> outputs{static_cast<int64_t>(given) + bytes.choice(2)};
    try {
        bindings::StageProgram program(steps, std::vector<double>(2 * count, 0), activations, outputs,
                                       {given, masks, parameters});
        check(program);
        const int64_t height = 1 + bytes.choice(5), width = 1 + bytes.choice(40), batch = bytes.choice(2);
        std::vector<bindings::ImageSizes> sizes(given, {batch, 1 + bytes.choice(4), height, width});
        std::vector<int64_t> channels;
        for (size_t i = 0; i < parameters; i++) {
            channels.push_back(1 + bytes.choice(4));
        }
        program.find_sizes(sizes, std::vector<bindings::MaskSizes>(masks, {batch, height, width}), channels);
        for (const bindings::StageImage &image : program.images()) {
            if (image.is_empty() || Run::elements(image) > most_numbers) {
                return 0;
            }
        }
        for (const bindings::StageStep &step : program.steps()) {
            if (int64_t{step.window.kernel_h} * step.window.kernel_w > most_numbers) {
                return 0;
            }
        }
        Run run(program, bytes);
        for (const bindings::StageStep &step : program.steps()) {
            run.run(step);
        }
    } catch (const std::runtime_error &) {
        return 0;  // It was refused.
    }
    return 0;
}
