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

}  // namespace distile
