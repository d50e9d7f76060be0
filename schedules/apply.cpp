#include "schedules/apply.h"
#include "schedules/cpu.h"
#include "schedules/cpu_depthwise.h"
#include "schedules/cpu_passes.h"
#include "schedules/cpu_space.h"
#include "schedules/cpu_tokens.h"
#include "schedules/cuda_direct.h"
#include "schedules/cuda_schedule.h"
#include "schedules/gpu_passes.h"
#include "schedules/gpu_tokens.h"

namespace distile {

namespace {

std::string extents(int height, int width) {
    return std::to_string(height) + " x " + std::to_string(width);
}

/** The constraints of spaces take the groups as GroupBlocks has them. */
void check_groups(const MaskedOperator &op, GroupReaders readers) {
    if (!op.depthwise && op.groups_in_blocks != group_blocks(op, readers).form()) {
        throw Halide::CompileError("PolyKernel: " + std::to_string(op.groups) + " groups of " +
                                   std::to_string(op.out_channels / op.groups) +
                                   " output channels do not lie in the pipeline's blocks of " +
                                   std::to_string(op.channel_block) + " as GroupBlocks says.\n");
    }
}

/** What OpenCL needs besides; `most` as for LoopAroundBarriers. */
void add_opencl_passes(Halide::Pipeline pipeline, const Halide::Target &target, const Halide::Expr &most) {
    if (target.has_feature(Halide::Target::OpenCL)) {
        // The pipeline takes ownership of its passes.
        // NOLINTBEGIN(cppcoreguidelines-owning-memory)
        pipeline.add_custom_lowering_pass(new LoopAroundBarriers(most));
        pipeline.add_custom_lowering_pass(new AccessOpenClBuffers);
        pipeline.add_custom_lowering_pass(new CompareFloats);
        // NOLINTEND(cppcoreguidelines-owning-memory)
    }
}

}  // namespace

std::string declare_knobs(const Space &space, const Problem &problem, const Theta &theta) {
    const std::string illegal = space.why_illegal(theta, problem);
    if (!illegal.empty()) {
        throw Halide::CompileError("PolyKernel: the schedule is not legal for this operator and target: " + illegal +
                                   ".\n");
    }
    std::string source;
    for (const auto &[knob, value] : theta) {
        source += "const int " + knob + " = " + std::to_string(value) + ";\n";
    }
    return source;
}

std::string declare_knobs(const MaskedOperator &op, const Space &space, const Problem &problem, const Theta &theta) {
    std::string source = declare_knobs(space, problem, theta);
    // The caller lists tiles of the theta's size; a pipeline for another size would compute too few or too many pixels.
    if (theta.at("tile_h") != op.tile_h || theta.at("tile_w") != op.tile_w) {
        throw Halide::CompileError("PolyKernel: the schedule is for tiles of " +
                                   extents(theta.at("tile_h"), theta.at("tile_w")) +
                                   " pixels, but the pipeline was built for tiles of " + extents(op.tile_h, op.tile_w) +
                                   ". Pass the schedule's tile_h and tile_w to the generator.\n");
    }
    return source;
}

Problem problem_on(const MaskedOperator &op, const Halide::Target &target) {
    return target.has_feature(Halide::Target::OpenCL) ? opencl_problem(op)
           : target.has_gpu_feature()                 ? cuda_problem(op)
                                                      : cpu_problem(op, target);
}

Problem problem_on(const TokenOperator &op, const Halide::Target &target) {
    return target.has_feature(Halide::Target::OpenCL) ? opencl_problem(op)
           : target.has_gpu_feature()                 ? cuda_problem(op)
                                                      : cpu_problem(op, target);
}

std::string apply_schedule(const Halide::Pipeline &pipeline, TokenOperator &op, const Theta &theta,
                           const Halide::Target &target) {
    if (!target.has_gpu_feature()) {
        return apply_cpu_token_schedule(op, theta, target);
    }
    std::string source = apply_gpu_token_schedule(pipeline, op, problem_on(op, target), theta);
    const auto blocks = [](const char *number, int size) {
        return Halide::Internal::Variable::make(Halide::Int(32), number) * size;
    };
    add_opencl_passes(pipeline, target, blocks("num_rows", op.block_rows) + blocks("num_keys", op.block_keys));
    return source;
}

std::string apply_schedule(const Halide::Pipeline &pipeline, MaskedOperator &op, const Theta &theta,
                           const Halide::Target &target) {
    if (target.has_gpu_feature()) {
        check_groups(op, GroupReaders::Threads);
        const Problem problem = problem_on(op, target);
        std::string source = runs_direct(op) ? apply_cuda_direct_schedule(pipeline, op, problem, theta)
                                             : apply_cuda_schedule(pipeline, op, problem, theta);
        add_opencl_passes(pipeline, target,
                          Halide::Internal::Variable::make(Halide::Int(32), "num_tiles") * (op.tile_h * op.tile_w));
        return source;
    }
    // The pipeline takes ownership of its passes.
    // NOLINTNEXTLINE(cppcoreguidelines-owning-memory)
    Halide::Pipeline(pipeline).add_custom_lowering_pass(new HoistAddresses);
    check_groups(op, GroupReaders::Vectors);
    if (!reads_own_channels(op)) {
        return apply_cpu_schedule(op, theta, target);
    }
    if (!op.depthwise) {
        // NOLINTNEXTLINE(cppcoreguidelines-owning-memory)
        Halide::Pipeline(pipeline).add_custom_lowering_pass(new ShuffleLoads(target.natural_vector_size<float>()));
    }
    return apply_cpu_depthwise_schedule(op, theta, target);
}

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
