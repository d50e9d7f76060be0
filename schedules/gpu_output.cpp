#include "schedules/gpu_output.h"
#include "schedules/schedule_source.h"

namespace distile {

void check_gpu_stages(const MaskedOperator &op) {
    if (op.stages.size() != 1) {
        throw Halide::CompileError("PolyKernel: on a GPU a masked operator has one stage, not " +
                                   std::to_string(op.stages.size()) + ".\n");
    }
}

void vectorize_gpu_output(MaskedOperator &op, int lanes, std::ostream &source) {
    Halide::Func output = op.output;
    Halide::Stage update = output.update(op.stages[0].update);
    Halide::Var co = output.args()[0], vector("vector"), lane("lane");
    using Halide::TailStrategy;
    // It stores nothing, but must not appear to store from the host.
    DISTILE_APPLY(output.gpu_single_thread());
    DISTILE_APPLY(update.allow_race_conditions().split(co, vector, lane, lanes, TailStrategy::GuardWithIf));
    const int channels = op.groups_in_blocks == GroupForm::Padded ? op.out_channels / op.groups : op.out_channels;
    if (channels % lanes == 0) {
        DISTILE_APPLY(update.vectorize(lane));
    } else {
        DISTILE_APPLY(update.unroll(lane));
    }
}

}  // namespace distile
