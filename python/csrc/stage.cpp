#include "python/csrc/operators.h"
#include "python/csrc/stage_masks.h"
#include "python/csrc/stage_trace.h"
#include <distile/stage.h>

namespace distile::python {

using stages::find;

namespace {

/** The numbers of a step, as python/distile/stages.py writes them. -1 stands for none. */
struct StepNumbers {
    static constexpr size_t integers = 35, reals = 5;

    StepNumbers(const Ints &program, const std::vector<double> &numbers, size_t step)
        : at(program.begin() + static_cast<std::ptrdiff_t>(step * integers)),
          real(numbers.begin() + static_cast<std::ptrdiff_t>(step * reals)) {
    }

    int64_t next() {
        return *at++;
    }
    distile_window window() {
        distile_window window{};
        for (int32_t *const number : {&window.kernel_h, &window.kernel_w, &window.stride_h, &window.stride_w,
                                      &window.dilation_h, &window.dilation_w, &window.pad_top, &window.pad_left}) {
            *number = static_cast<int32_t>(next());
        }
        return window;
    }

    Ints::const_iterator at;
    std::vector<double>::const_iterator real;
};

/** The tensors, with borders of this many pixels on each side. */
std::vector<distile_tensor> views_of(const std::vector<Tensor> &tensors, const Ints &borders) {
    std::vector<distile_tensor> views;
    for (size_t i = 0; i < tensors.size(); i++) {
        views.push_back(output_view(tensors[i], type_of(tensors[i]).value_or(DISTILE_FLOAT32)));
        distile_tensor &view = views.back();
        view.border_top = view.border_bottom = view.border_left = view.border_right = static_cast<int32_t>(borders[i]);
    }
    return views;
}

}  // namespace

void run_stage(const std::vector<Tensor> &tensors, const std::vector<Tensor> &parameters,
               const std::vector<Tensor> &mask_tensors, const Ints &borders, const Ints &made, const Ints &program,
               const std::vector<double> &numbers) {
    const size_t count = program.size() / StepNumbers::integers;
    if (tensors.empty() || borders.size() != tensors.size() || made.size() != mask_tensors.size() ||
        program.size() != count * StepNumbers::integers || numbers.size() != count * StepNumbers::reals) {
        fail("the lists of a stage have lengths that do not fit");
    }
    Session &session = Session::of(tensors.front());
    const std::vector<distile_tensor> views = views_of(tensors, borders);
    const stages::Masks masks(session, mask_tensors, made);
    std::vector<distile_stage_step> steps(count);
    std::vector<distile_window> readers(count);
    std::vector<float> slopes(count);
    for (size_t i = 0; i < count; i++) {
        distile_stage_step &step = steps[i];
        StepNumbers from(program, numbers, i);
        step.kind = static_cast<distile_step_kind>(from.next());
        step.input = find(views, from.next());
        step.output = find(views, from.next());
        step.residual = find(views, from.next());
        step.mask = masks.at(from.next());
        step.later = masks.at(from.next());
        step.window = from.window();
        readers[i] = from.window();
        step.reader = readers[i].kernel_h > 0 ? &readers[i] : nullptr;
        const Tensor *const weights = find(parameters, from.next()), *const bias = find(parameters, from.next());
        step.weights = weights ? weights->const_data_ptr() : nullptr;
        step.bias = bias ? static_cast<const float *>(bias->const_data_ptr()) : nullptr;
        step.activation = static_cast<distile_activation>(from.next());
        step.spreads = static_cast<int32_t>(from.next());
        step.groups = static_cast<int32_t>(from.next());
        step.norm = static_cast<distile_norm>(from.next());
        step.key = find(views, from.next());
        step.value = find(views, from.next());
        step.heads = static_cast<int32_t>(from.next());
        step.all_keys = static_cast<int32_t>(from.next());
        step.from = masks.at(from.next());
        const Tensor *const totals = find(parameters, from.next()), *const limits = find(parameters, from.next());
        step.totals = totals ? static_cast<float *>(totals->mutable_data_ptr()) : nullptr;
        step.limits = limits ? static_cast<const float *>(limits->const_data_ptr()) : nullptr;
        step.epsilon = static_cast<float>(from.real[3]);
        step.scale = static_cast<float>(from.real[4]);
        slopes[i] = static_cast<float>(from.real[0]);
        step.slope = &slopes[i];
        step.score_bias = static_cast<float>(from.real[1]);
        step.threshold = static_cast<float>(from.real[2]);
    }
    distile_stage_args args{};
    args.steps = steps.data();
    args.num_steps = static_cast<int32_t>(count);
    run_steps(session.context(), args);
}

Tensor pack_stage_weights(const Tensor &weight, int64_t dtype, int64_t groups, const Tensor &like) {
    if (weight.dim() != 4 || weight.scalar_type() != ScalarType::Float || !weight.is_contiguous() || weight.is_cuda()) {
        fail("weights of a stage are packed from a contiguous float32 tensor [out, in, rows, columns] on the CPU");
    }
    const auto size = [&](int64_t dimension) { return static_cast<int32_t>(weight.size(dimension)); };
    const auto inputs = static_cast<int32_t>(weight.size(1) * groups), count = static_cast<int32_t>(groups);
    const Session &session = Session::of(like);
    const auto type = static_cast<distile_dtype>(dtype);
    const Tensor packed =
        empty(weight, {distile_stage_weights_bytes(session.context(), type, size(0), inputs, size(2), size(3), count)},
              ScalarType::Byte);
    check(distile_pack_stage_weights(session.context(), type, size(0), inputs, size(2), size(3), count,
                                     static_cast<const float *>(weight.const_data_ptr()), packed.mutable_data_ptr()),
          session.context());
    return packed;
}

}  // namespace distile::python
