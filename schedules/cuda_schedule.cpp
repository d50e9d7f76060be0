#include "schedules/cuda_schedule.h"
#include "schedules/gpu_output.h"
#include "schedules/gpu_passes.h"
#include "schedules/schedule_source.h"
#include <algorithm>
#include <sstream>
#include <utility>

namespace distile {

using namespace Halide;

namespace {

/** The state shared by the parts of a schedule while it is applied. Names match the source that the parts write. */
struct CudaSchedule {
    CudaSchedule(MaskedOperator &op, const Problem &problem, const Theta &theta);

    MaskedOperator &op;
    const Theta &theta;
    const Problem &problem;
    std::ostringstream source;
    MaskedStage &stage;

    // The knobs and the values derived from them.
    const int block_pixels, block_channels, thread_pixels, chunk, splits, padding;
    const bool halo;
    const int channel_threads, pixel_threads, num_threads, lanes, in_lanes, lookups, pixels_per_tile;

    Func output, accumulator, weights, lookup;
    Func staging;    /**< The staged Func, either the windows or the pixels of one tap; the other is inlined. */
    Func sums;       /**< The sums that a block holds in registers ... */
    LoopLevel level; /**< ... computed at this loop over blocks. */
    RVar reduced;    /**< The input channels that a block sums. */
    IdleBlocks idle_blocks;

    Var lane{"lane"}, vector{"vector"}, group{"group"}, co_block{"co_block"}, co_rest{"co_rest"},
        co_thread{"co_thread"};
    Var p_block{"p_block"}, p_rest{"p_rest"}, p_thread{"p_thread"}, p_item{"p_item"}, part{"part"};
    RVar ci_part{"ci_part"}, ci_rest{"ci_rest"}, step{"step"};
    Var work{"work"}, turn{"turn"}, worker{"worker"}, worker_x{"worker_x"}, worker_y{"worker_y"};

    void compute_in_blocks();
    void compute_in_parts();
    void keep_sums_in_registers();
    void look_up_tiles();
    void stage_inputs();
    void stage_weights();
    void add_passes(Pipeline pipeline);

private:
    void name_idle_blocks(const std::string &function, int update, int pixels);
};

CudaSchedule::CudaSchedule(MaskedOperator &op, const Problem &problem, const Theta &theta)
    : op(op), theta(theta), problem(problem), stage(op.stages[0]), block_pixels(theta.at("block_pixels")),
      block_channels(theta.at("block_channels")), thread_pixels(theta.at("thread_pixels")), chunk(theta.at("chunk")),
      splits(theta.at("splits")), padding(theta.at("padding")), halo(theta.at("halo") != 0),
      channel_threads(distile::channel_threads(theta)), pixel_threads(distile::pixel_threads(theta)),
      num_threads(channel_threads * pixel_threads), lanes(problem.vector_lanes), in_lanes(input_lanes(theta, problem)),
      lookups(looked_up_tiles(theta, problem)),
      pixels_per_tile(theta.at("tile_h") * theta.at("tile_w") / problem.phases()), output(op.output),
      accumulator(stage.accumulator), weights(stage.weights), lookup(stage.lookup),
      staging(halo ? stage.window : stage.staging), sums(accumulator),
      reduced(stage.in_channel), idle_blocks{{}, pixels_per_tile} {
    source << "const int channel_threads = " << channel_threads << ", pixel_threads = " << pixel_threads
           << ", num_threads = " << num_threads << ", lanes = " << lanes << ", in_lanes = " << in_lanes
           << ", lookups = " << lookups << ";\n";
}

void CudaSchedule::name_idle_blocks(const std::string &function, int update, int pixels) {
    idle_blocks.pixels[function + ".s" + std::to_string(update) + "."] = pixels;
}

/** One kernel: a block sums all input channels and stores its pixels. */
void CudaSchedule::compute_in_blocks() {
    Stage update = output.update(stage.update);
    Var co = output.args()[0];
    RVar pixel(stage.pixels.var), block("p_block"), rest("p_rest"), thread("p_thread"), item("p_item");
    DISTILE_APPLY(update.split(pixel, block, rest, block_pixels, TailStrategy::GuardWithIf));
    DISTILE_APPLY(update.split(rest, thread, item, thread_pixels));
    DISTILE_APPLY(update.split(vector, co_block, co_rest, block_channels / lanes, TailStrategy::GuardWithIf));
    DISTILE_APPLY(update.split(co_rest, group, co_thread, channel_threads));
    if (op.groups_in_blocks == GroupForm::Padded) {
        Var own_group = output.args()[4];
        DISTILE_APPLY(update.reorder(lane, group, item, co_thread, thread, block, co_block, own_group));
        DISTILE_APPLY(update.gpu_blocks(block, co_block, own_group).gpu_threads(co_thread, thread));
    } else if (op.phases() == 1) {
        DISTILE_APPLY(update.reorder(lane, group, item, co_thread, thread, block, co_block));
        DISTILE_APPLY(update.gpu_blocks(block, co_block).gpu_threads(co_thread, thread));
    } else {
        RVar phase = stage.phase;
        DISTILE_APPLY(update.reorder(lane, group, item, co_thread, thread, block, co_block, phase));
        DISTILE_APPLY(update.gpu_blocks(block, co_block, phase).gpu_threads(co_thread, thread));
    }
    DISTILE_APPLY(update.unroll(group).unroll(item));
    level = LoopLevel(output, block);
    name_idle_blocks(output.name(), stage.update + 1, block_pixels);
}

/** Two kernels: `splits` blocks share the input channels and pass their sums through global memory. */
void CudaSchedule::compute_in_parts() {
    Stage update = output.update(stage.update);
    Var co = output.args()[0], c = accumulator.args()[0], p = accumulator.args()[1];
    RVar ci = stage.in_channel;
    // The parts of the reduction become a separate Func in global memory, to which a block copies its sums.
    Func reader;
    DISTILE_APPLY(accumulator.update().split(ci, ci_part, ci_rest, op.in_channels / splits));
    DISTILE_APPLY(sums = accumulator.update().rfactor(ci_part, part));
    DISTILE_APPLY(reader = sums.in());
    DISTILE_APPLY(reader.compute_root().split(p, p_block, p_rest, block_pixels, TailStrategy::RoundUp));
    DISTILE_APPLY(reader.split(p_rest, p_thread, p_item, thread_pixels));
    DISTILE_APPLY(reader.split(c, vector, lane, lanes, TailStrategy::RoundUp));
    DISTILE_APPLY(reader.split(vector, co_block, co_rest, block_channels / lanes, TailStrategy::RoundUp));
    DISTILE_APPLY(reader.split(co_rest, group, co_thread, channel_threads));
    DISTILE_APPLY(reader.reorder(lane, group, p_item, co_thread, p_thread, p_block, co_block, part));
    DISTILE_APPLY(reader.gpu_blocks(p_block, co_block, part).gpu_threads(co_thread, p_thread));
    DISTILE_APPLY(reader.vectorize(lane).unroll(group).unroll(p_item));
    DISTILE_APPLY(sums.bound_extent(part, 1));
    level = LoopLevel(reader, p_block);
    reduced = ci_rest;
    name_idle_blocks(reader.name(), 0, block_pixels);

    // The second kernel has one thread per vector of the output.
    const int add_threads = std::min(32, round_up(op.out_channels, lanes) / lanes), add_pixels = 4;
    RVar pixel(stage.pixels.var), block("p_block"), thread("p_thread");
    source << "\n// The sum of the parts\n";
    DISTILE_APPLY(update.split(pixel, block, thread, add_pixels, TailStrategy::GuardWithIf));
    DISTILE_APPLY(update.split(vector, co_block, co_thread, add_threads, TailStrategy::GuardWithIf));
    DISTILE_APPLY(update.reorder(lane, co_thread, thread, block, co_block));
    DISTILE_APPLY(update.gpu_blocks(block, co_block).gpu_threads(co_thread, thread));
    DISTILE_APPLY(accumulator.compute_at(output, co_thread).bound_extent(c, lanes).bound_extent(p, 1));
    DISTILE_APPLY(accumulator.vectorize(c, lanes).update().vectorize(c, lanes).unroll(ci_part));
    name_idle_blocks(output.name(), stage.update + 1, add_pixels);
}

void CudaSchedule::keep_sums_in_registers() {
    Var c = accumulator.args()[0], p = accumulator.args()[1];
    RVar kx = stage.kernel_x, ky = stage.kernel_y, ci_outer("ci_outer"), ci_inner("ci_inner");
    source << "\n// The sums of a block\n";
    DISTILE_APPLY(sums.compute_at(level).store_in(MemoryType::Register));
    DISTILE_APPLY(sums.bound_extent(c, block_channels).bound_extent(p, block_pixels));
    for (int i = 0; i < 2; i++) {
        Stage sum = i == 0 ? Stage(sums) : sums.update();
        source << "sum = " << (i == 0 ? "Stage(sums)" : "sums.update()") << ";\n";
        DISTILE_APPLY(sum.split(c, vector, lane, lanes).split(vector, group, co_thread, channel_threads));
        DISTILE_APPLY(sum.split(p, p_thread, p_item, thread_pixels));
        if (i == 0) {
            DISTILE_APPLY(sum.reorder(lane, group, p_item, co_thread, p_thread));
        } else {
            DISTILE_APPLY(sum.split(reduced, ci_outer, ci_inner, chunk).unroll(ci_inner));
            if (halo) {
                // Neighbouring pixels read the same inputs with neighbouring kernel columns; unrolling loads them once.
                DISTILE_APPLY(sum.rename(ci_outer, step).unroll(kx));
                DISTILE_APPLY(sum.reorder(lane, group, p_item, ci_inner, kx, ky, co_thread, p_thread, step));
            } else {
                DISTILE_APPLY(sum.reorder(lane, group, p_item, ci_inner, co_thread, p_thread, ci_outer, kx, ky));
                DISTILE_APPLY(sum.fuse(ci_outer, kx, step).fuse(step, ky, step));
            }
        }
        DISTILE_APPLY(sum.gpu_threads(co_thread, p_thread).vectorize(lane).unroll(group).unroll(p_item));
    }
}

void CudaSchedule::look_up_tiles() {
    Var l_tile = lookup.args()[0];
    source << "\n// The tiles of a block\n";
    DISTILE_APPLY(lookup.compute_at(level).store_in(MemoryType::GPUShared).bound_extent(l_tile, lookups));
    DISTILE_APPLY(lookup.split(l_tile, turn, worker, num_threads, TailStrategy::GuardWithIf));
    DISTILE_APPLY(lookup.split(worker, worker_y, worker_x, channel_threads).reorder(turn, worker_x, worker_y));
    DISTILE_APPLY(lookup.gpu_threads(worker_x, worker_y));
}

/** All threads stage together, in turns. One pixel of one tap is a 1 x 1 window. */
void CudaSchedule::stage_inputs() {
    const int width = halo ? window_width(theta, problem) : 1, height = halo ? window_height(theta, problem) : 1;
    const int windows = halo ? block_pixels / pixels_per_tile : block_pixels;
    source << "\n// The inputs of a block\n"
           << "const int width = " << width << ", height = " << height << ", windows = " << windows << ";\n";
    Var s_ci = staging.args()[0], s_x = staging.args()[1], s_y = staging.args()[2], s_window = staging.args()[3];
    DISTILE_APPLY(staging.compute_at(sums, step).store_in(MemoryType::GPUShared).bound_extent(s_ci, chunk));
    DISTILE_APPLY(staging.bound_extent(s_x, width).bound_extent(s_y, height).bound_extent(s_window, windows));
    if (!theta.at("transposed")) {
        DISTILE_APPLY(staging.reorder_storage(s_ci, s_x, s_y, s_window).align_storage(s_ci, chunk + padding));
    } else if (halo) {
        DISTILE_APPLY(staging.reorder_storage(s_x, s_y, s_window, s_ci).align_storage(s_x, width + padding));
    } else {
        DISTILE_APPLY(staging.reorder_storage(s_window, s_ci, s_x, s_y).align_storage(s_window, windows + padding));
    }
    DISTILE_APPLY(staging.split(s_ci, vector, lane, in_lanes).vectorize(lane));
    DISTILE_APPLY(staging.fuse(vector, s_x, work).fuse(work, s_y, work).fuse(work, s_window, work));
    DISTILE_APPLY(staging.split(work, turn, worker, num_threads, TailStrategy::GuardWithIf).unroll(turn));
    DISTILE_APPLY(staging.split(worker, worker_y, worker_x, channel_threads));
    DISTILE_APPLY(staging.reorder(lane, turn, worker_x, worker_y).gpu_threads(worker_x, worker_y));
}

void CudaSchedule::stage_weights() {
    Var w_c = weights.args()[0], w_ci = weights.args()[1], w_kx = weights.args()[2], w_ky = weights.args()[3];
    Var w_block = weights.args()[4];
    source << "\n// The weights of a block\n";
    DISTILE_APPLY(weights.compute_at(sums, step).store_in(MemoryType::GPUShared));
    DISTILE_APPLY(weights.bound_extent(w_c, op.channel_block).bound_extent(w_ci, chunk));
    DISTILE_APPLY(weights.bound_extent(w_block, block_channels / op.channel_block));
    DISTILE_APPLY(weights.reorder_storage(w_c, w_block, w_ci, w_kx, w_ky));
    DISTILE_APPLY(weights.split(w_c, vector, lane, lanes).vectorize(lane));
    DISTILE_APPLY(weights.fuse(vector, w_ci, work).fuse(work, w_block, work));
    if (halo) {
        DISTILE_APPLY(weights.bound_extent(w_kx, op.kernel_w).bound_extent(w_ky, op.kernel_h));
    }
    DISTILE_APPLY(weights.fuse(work, w_kx, work).fuse(work, w_ky, work));
    DISTILE_APPLY(weights.split(work, turn, worker, num_threads, TailStrategy::GuardWithIf).unroll(turn));
    DISTILE_APPLY(weights.split(worker, worker_y, worker_x, channel_threads));
    DISTILE_APPLY(weights.reorder(lane, turn, worker_x, worker_y).gpu_threads(worker_x, worker_y));
}

void CudaSchedule::add_passes(Pipeline pipeline) {
    // The pipeline takes ownership of its passes.
    // NOLINTBEGIN(cppcoreguidelines-owning-memory)
    pipeline.add_custom_lowering_pass(new PrivateRegisters);
    pipeline.add_custom_lowering_pass(new HoistLookups(staging.name()));
    if (theta.at("prefetch")) {
        pipeline.add_custom_lowering_pass(new PrefetchStaged({staging.name(), weights.name()}));
    }
    pipeline.add_custom_lowering_pass(new SkipIdleBlocks(idle_blocks));
    // NOLINTEND(cppcoreguidelines-owning-memory)
}

}  // namespace

std::string apply_cuda_schedule(Pipeline pipeline, MaskedOperator &op, const Problem &problem, const Theta &theta) {
    const std::string knobs = declare_knobs(op, cuda_space(), problem, theta);
    check_gpu_stages(op);
    if (!op.stages[0].window.defined()) {
        throw CompileError("PolyKernel: on a GPU a masked operator must stage its input and look up its tiles.\n");
    }
    CudaSchedule schedule(op, problem, theta);
    vectorize_gpu_output(op, schedule.lanes, schedule.source);
    if (schedule.splits == 1) {
        schedule.compute_in_blocks();
    } else {
        schedule.compute_in_parts();
    }
    schedule.keep_sums_in_registers();
    schedule.look_up_tiles();
    schedule.stage_inputs();
    if (theta.at("weights_staged")) {
        schedule.stage_weights();
    }
    schedule.add_passes(std::move(pipeline));
    return knobs + schedule.source.str();
}

}  // namespace distile
