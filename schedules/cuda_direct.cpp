#include "schedules/cuda_direct.h"
#include "schedules/cuda_space.h"
#include "schedules/depthwise_space.h"
#include "schedules/gpu_output.h"
#include "schedules/gpu_passes.h"
#include "schedules/schedule_source.h"
#include <sstream>

namespace distile {

using namespace Halide;

std::string apply_cuda_direct_schedule(Pipeline pipeline, MaskedOperator &op, const Problem &problem,
                                       const Theta &theta) {
    std::ostringstream source;
    source << declare_knobs(op, cuda_direct_space(), problem, theta);
    check_gpu_stages(op);
    const int block_pixels = theta.at("block_pixels"), thread_pixels = theta.at("thread_pixels");
    const int block_channels = theta.at("block_channels"), lanes = problem.vector_lanes;
    const int channel_threads = block_channels / theta.at("thread_channels");
    const int unroll = theta.at("unroll");
    source << "const int lanes = " << lanes << ", channel_threads = " << channel_threads << ";\n";

    MaskedStage &stage = op.stages[0];
    Func output = op.output, accumulator = stage.accumulator;
    Var c = accumulator.args()[0], p = accumulator.args()[1];
    Var vector("vector"), co_block("co_block"), co_rest("co_rest"), group("group"), co_thread("co_thread"),
        lane("lane");
    RVar pixel(stage.pixels.var), block("p_block"), rest("p_rest"), thread("p_thread"), item("p_item");
    RVar ci = stage.in_channel, kx = stage.kernel_x, ky = stage.kernel_y;
    Stage update = output.update(stage.update);

    vectorize_gpu_output(op, lanes, source);
    DISTILE_APPLY(update.split(pixel, block, rest, block_pixels, TailStrategy::GuardWithIf));
    DISTILE_APPLY(update.split(rest, thread, item, thread_pixels));
    DISTILE_APPLY(update.split(vector, co_block, co_rest, block_channels / lanes, TailStrategy::GuardWithIf));
    DISTILE_APPLY(update.split(co_rest, group, co_thread, channel_threads));
    DISTILE_APPLY(update.reorder(lane, item, group, co_thread, thread, block, co_block));
    DISTILE_APPLY(update.gpu_blocks(block, co_block).gpu_threads(co_thread, thread).unroll(item).unroll(group));

    source << "\n// The sums of a thread\n";
    DISTILE_APPLY(accumulator.compute_at(output, group).bound_extent(c, lanes).bound_extent(p, thread_pixels));
    DISTILE_APPLY(accumulator.vectorize(c, lanes).unroll(p));
    if (op.depthwise) {
        DISTILE_APPLY(accumulator.update().reorder(c, p, kx, ky));
    } else {
        DISTILE_APPLY(accumulator.update().reorder(c, p, kx, ky, ci));
    }
    DISTILE_APPLY(accumulator.update().vectorize(c, lanes).unroll(p));
    if (unroll != UnrollNothing) {
        DISTILE_APPLY(accumulator.update().unroll(kx));
    }
    if (unroll == UnrollKernel) {
        DISTILE_APPLY(accumulator.update().unroll(ky));
    }

    const std::string loop = output.name() + ".s" + std::to_string(stage.update + 1) + ".";
    // The pipeline takes ownership of its passes.
    // NOLINTNEXTLINE(cppcoreguidelines-owning-memory)
    pipeline.add_custom_lowering_pass(new SkipIdleBlocks({{{loop, block_pixels}}, op.tile_h * op.tile_w}));
    return source.str();
}

}  // namespace distile
