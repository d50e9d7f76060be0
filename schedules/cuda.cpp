#include "cuda.h"
#include "gpu_passes.h"
#include <algorithm>
#include <sstream>

namespace distile {

namespace {

using namespace Halide;

int round_up(int value, int multiple) {
    return (value + multiple - 1) / multiple * multiple;
}

/** Threads along the channels, along the pixels, and in all. */
int channel_threads(const Theta &theta) {
    return theta.at("block_channels") / theta.at("thread_channels");
}

int pixel_threads(const Theta &theta) {
    return theta.at("block_pixels") / theta.at("thread_pixels");
}

int threads(const Theta &theta) {
    return channel_threads(theta) * pixel_threads(theta);
}

/** Elements of shared memory from one staged pixel, or channel if they are transposed, to the next. */
int staged_row(const Theta &theta) {
    return (theta.at("transposed") ? theta.at("block_pixels") : theta.at("chunk")) + theta.at("padding");
}

int shared_bytes(const Theta &theta, const Problem &problem) {
    const int inputs = staged_row(theta) * (theta.at("transposed") ? theta.at("chunk") : theta.at("block_pixels"));
    const int weights = theta.at("weights_staged") ? theta.at("chunk") * theta.at("block_channels") : 0;
    const int lookups = 3 * theta.at("block_pixels");
    return (inputs + weights) * (16 / problem.vector_lanes) + lookups * 4;
}

/** What a thread holds at once: its sums, and the inputs and weights of one channel. Addresses and what is
 * on its way from memory come on top. */
int sum_registers(const Theta &theta) {
    const int pixels = theta.at("thread_pixels"), channels = theta.at("thread_channels");
    return pixels * channels + pixels + channels;
}

}  // namespace

const Space &cuda_space() {
    static const Space space{
        "cuda",
        {
            {"tile_h", "height of a tile in output pixels", {1, 2, 4, 8}},
            {"tile_w", "width of a tile in output pixels", {1, 2, 4, 8}},
            {"block_pixels", "virtual pixels of a block", {16, 32, 64, 128, 256}},
            {"block_channels", "output channels of a block", {32, 64, 128, 256}},
            {"thread_pixels", "virtual pixels of a thread", {2, 4, 8, 16}},
            {"thread_channels", "output channels of a thread", {4, 8, 16}},
            {"chunk", "input channels that are staged at once", {4, 8, 16, 32, 64}},
            {"splits", "blocks that share the reduction", {1, 2, 4, 8, 16}},
            {"weights_staged", "1 if weights go through shared memory, 0 if only through the cache", {0, 1}},
            {"transposed",
             "1 if the pixels of a staged channel are contiguous, 0 if the channels of a pixel are",
             {0, 1}},
            {"padding", "elements between the rows of the staged inputs, against conflicts of banks", {0, 4}},
            {"prefetch", "1 to load what is staged next while computing with what is staged now", {0, 1}},
        },
        {
            {"at least 1 for every knob but weights_staged, transposed, padding and prefetch",
             [](const Theta &theta, const Problem &) {
                 return std::all_of(theta.begin(), theta.end(), [](const auto &knob) {
                     return knob.second >= 1 || knob.first == "weights_staged" || knob.first == "transposed" ||
                            knob.first == "padding" || knob.first == "prefetch";
                 });
             }},
            {"thread_channels that are whole vectors of 4, and thread_pixels that are 1, 2 or whole vectors of 4",
             [](const Theta &theta, const Problem &) {
                 const int pixels = theta.at("thread_pixels");
                 return theta.at("thread_channels") % 4 == 0 && (pixels <= 2 || pixels % 4 == 0);
             }},
            {"block_pixels and block_channels that its thread_pixels and thread_channels divide",
             [](const Theta &theta, const Problem &) {
                 return theta.at("block_pixels") % theta.at("thread_pixels") == 0 &&
                        theta.at("block_channels") % theta.at("thread_channels") == 0;
             }},
            {"block_channels that divide the output channels, rounded up to whole blocks of the weights, and are "
             "such blocks themselves",
             [](const Theta &theta, const Problem &problem) {
                 const int channels = theta.at("block_channels"),
                           padded = round_up(problem.out_channels, problem.channel_block);
                 return padded % channels == 0 && channels % problem.channel_block == 0;
             }},
            {"32 to 1024 threads a block, in whole warps",
             [](const Theta &theta, const Problem &) { return threads(theta) <= 1024 && threads(theta) % 32 == 0; }},
            {"a chunk that divides the input channels of a split",
             [](const Theta &theta, const Problem &problem) {
                 return problem.in_channels % (theta.at("chunk") * theta.at("splits")) == 0;
             }},
            {"a chunk and padding that are whole vectors, where the input channels are",
             [](const Theta &theta, const Problem &problem) {
                 return problem.in_channels % problem.vector_lanes != 0 ||
                        (theta.at("chunk") % problem.vector_lanes == 0 &&
                         theta.at("padding") % problem.vector_lanes == 0);
             }},
            {"threads that stage equal shares of a chunk of the block's pixels",
             [](const Theta &theta, const Problem &problem) {
                 const int lanes = problem.in_channels % problem.vector_lanes == 0 ? problem.vector_lanes : 1;
                 return theta.at("block_pixels") * theta.at("chunk") / lanes % threads(theta) == 0;
             }},
            {"sums and operands that fit a thread's 255 registers and, for all threads, a multiprocessor's 65536",
             [](const Theta &theta, const Problem &) {
                 const int registers = sum_registers(theta) + 32;
                 return registers <= 255 && registers * threads(theta) <= 65536;
             }},
            {"staged inputs and weights that fit 48 KB of shared memory",
             [](const Theta &theta, const Problem &problem) { return shared_bytes(theta, problem) <= 48 * 1024; }},
            {"tiles of at most 4096 pixels",
             [](const Theta &theta, const Problem &) {
                 return int64_t{theta.at("tile_h")} * theta.at("tile_w") <= 4096;
             }},
        }};
    return space;
}

Problem cuda_problem(const MaskedOperator &op) {
    Problem problem;
    problem.in_channels = op.in_channels;
    problem.out_channels = op.out_channels;
    problem.kernel_h = op.kernel_h;
    problem.kernel_w = op.kernel_w;
    problem.channel_block = op.channel_block;
    problem.vector_lanes = 16 / op.bytes_per_element;
    problem.vector_registers = 0;
    return problem;
}

std::string apply_cuda_schedule(Pipeline pipeline, MaskedOperator &op, const Theta &theta) {
    const Problem problem = cuda_problem(op);
    const std::string illegal = cuda_space().why_illegal(theta, problem);
    if (!illegal.empty()) {
        throw CompileError("PolyKernel: the theta is not legal for this operator and target: " + illegal + ".\n");
    }
    if (op.stages.size() != 1 || !op.stages[0].staging.defined() || !op.stages[0].lookup.defined()) {
        throw CompileError("PolyKernel: on a GPU a masked operator has one stage, which stages its input and looks up "
                           "its pixels.\n");
    }
    std::ostringstream source;
    for (const auto &[knob, value] : theta) {
        source << "const int " << knob << " = " << value << ";\n";
    }
    const int block_pixels = theta.at("block_pixels"), block_channels = theta.at("block_channels");
    const int thread_pixels = theta.at("thread_pixels"), chunk = theta.at("chunk"), splits = theta.at("splits");
    const int channel_threads = distile::channel_threads(theta), pixel_threads = distile::pixel_threads(theta);
    const int num_threads = channel_threads * pixel_threads;
    const int lanes = problem.vector_lanes;
    const int in_lanes = op.in_channels % lanes == 0 ? lanes : 1;
    source << "const int channel_threads = " << channel_threads << ", pixel_threads = " << pixel_threads
           << ", num_threads = " << num_threads << ", lanes = " << lanes << ", in_lanes = " << in_lanes << ";\n";

// The source is the very statements that are applied.
#define DISTILE_APPLY(statement)                                                                                       \
    do {                                                                                                               \
        statement;                                                                                                     \
        source << #statement << ";\n";                                                                                 \
    } while (false)

    MaskedStage &stage = op.stages[0];
    Func output = op.output, accumulator = stage.accumulator, staging = stage.staging, lookup = stage.lookup;
    Func weights = stage.weights;
    Var co = output.args()[0], c = accumulator.args()[0], p = accumulator.args()[1];
    Var lane("lane"), vector("vector"), group("group"), co_block("co_block"), co_rest("co_rest"),
        co_thread("co_thread");
    Var p_block("p_block"), p_rest("p_rest"), p_thread("p_thread"), p_item("p_item"), part("part");
    RVar ci = stage.in_channel, kx = stage.kernel_x, ky = stage.kernel_y;
    RVar ci_part("ci_part"), ci_rest("ci_rest"), ci_outer("ci_outer"), ci_inner("ci_inner"), step("step");
    RVar pixel(stage.pixels.var), block("p_block"), rest("p_rest"), thread("p_thread"), item("p_item");
    Stage update = output.update(stage.update);
    IdleBlocks idle_blocks{{}, theta.at("tile_h") * theta.at("tile_w")};

    // It stores nothing, but it must not seem to store from the host.
    DISTILE_APPLY(output.gpu_single_thread());

    // `sums` is what a block holds in registers, `reader` what reads it in the same kernel, at the loop `level`
    // over the blocks.
    Func sums = accumulator, reader = output;
    LoopLevel level(output, block);
    RVar reduced = ci;
    DISTILE_APPLY(update.allow_race_conditions().split(co, vector, lane, lanes, TailStrategy::GuardWithIf));
    if (op.out_channels % lanes == 0) {
        DISTILE_APPLY(update.vectorize(lane));
    } else {
        DISTILE_APPLY(update.unroll(lane));
    }
    if (splits == 1) {
        DISTILE_APPLY(update.split(pixel, block, rest, block_pixels, TailStrategy::GuardWithIf));
        DISTILE_APPLY(update.split(rest, thread, item, thread_pixels));
        DISTILE_APPLY(update.split(vector, co_block, co_rest, block_channels / lanes, TailStrategy::GuardWithIf));
        DISTILE_APPLY(update.split(co_rest, group, co_thread, channel_threads));
        DISTILE_APPLY(update.reorder(lane, group, item, co_thread, thread, block, co_block));
        DISTILE_APPLY(update.gpu_blocks(block, co_block).gpu_threads(co_thread, thread));
        DISTILE_APPLY(update.unroll(group).unroll(item));
        idle_blocks.pixels[output.name() + ".s" + std::to_string(stage.update + 1) + "."] = block_pixels;
    } else {
        // The parts of the reduction become a Func of their own, and the sums of a block a copy of it in global memory.
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
        idle_blocks.pixels[reader.name() + ".s0."] = block_pixels;

        // The second kernel: a thread for every vector of the output.
        const int add_threads = std::min(32, round_up(op.out_channels, lanes) / lanes), add_pixels = 4;
        source << "\n// The sum of the parts\n";
        DISTILE_APPLY(update.split(pixel, block, thread, add_pixels, TailStrategy::GuardWithIf));
        DISTILE_APPLY(update.split(vector, co_block, co_thread, add_threads, TailStrategy::GuardWithIf));
        DISTILE_APPLY(update.reorder(lane, co_thread, thread, block, co_block));
        DISTILE_APPLY(update.gpu_blocks(block, co_block).gpu_threads(co_thread, thread));
        DISTILE_APPLY(accumulator.compute_at(output, co_thread).bound_extent(c, lanes).bound_extent(p, 1));
        DISTILE_APPLY(accumulator.vectorize(c, lanes).update().vectorize(c, lanes).unroll(ci_part));
        idle_blocks.pixels[output.name() + ".s" + std::to_string(stage.update + 1) + "."] = add_pixels;
    }

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
            DISTILE_APPLY(sum.reorder(lane, group, p_item, ci_inner, co_thread, p_thread, ci_outer, kx, ky));
            DISTILE_APPLY(sum.fuse(ci_outer, kx, step).fuse(step, ky, step));
        }
        DISTILE_APPLY(sum.gpu_threads(co_thread, p_thread).vectorize(lane).unroll(group).unroll(p_item));
    }

    source << "\n// The pixels, the inputs and the weights of a block\n";
    Var work("work"), turn("turn"), worker("worker"), worker_x("worker_x"), worker_y("worker_y");
    Var s_ci = staging.args()[0], s_kx = staging.args()[1], s_ky = staging.args()[2], s_p = staging.args()[3];
    Var l_p = lookup.args()[0];
    DISTILE_APPLY(lookup.compute_at(level).store_in(MemoryType::GPUShared).bound_extent(l_p, block_pixels));
    DISTILE_APPLY(lookup.split(l_p, turn, worker, num_threads, TailStrategy::GuardWithIf));
    DISTILE_APPLY(lookup.split(worker, worker_y, worker_x, channel_threads).reorder(turn, worker_x, worker_y));
    DISTILE_APPLY(lookup.gpu_threads(worker_x, worker_y));

    DISTILE_APPLY(staging.compute_at(sums, step).store_in(MemoryType::GPUShared));
    DISTILE_APPLY(staging.bound_extent(s_ci, chunk).bound_extent(s_p, block_pixels));
    if (theta.at("transposed")) {
        DISTILE_APPLY(staging.reorder_storage(s_p, s_ci, s_kx, s_ky));
        DISTILE_APPLY(staging.align_storage(s_p, block_pixels + theta.at("padding")));
    } else {
        DISTILE_APPLY(staging.reorder_storage(s_ci, s_p, s_kx, s_ky));
        DISTILE_APPLY(staging.align_storage(s_ci, chunk + theta.at("padding")));
    }
    DISTILE_APPLY(staging.split(s_ci, vector, lane, in_lanes).vectorize(lane).fuse(vector, s_p, work));
    DISTILE_APPLY(staging.split(work, turn, worker, num_threads).unroll(turn));
    DISTILE_APPLY(staging.split(worker, worker_y, worker_x, channel_threads));
    DISTILE_APPLY(staging.reorder(lane, turn, worker_x, worker_y, s_kx, s_ky).gpu_threads(worker_x, worker_y));

    if (theta.at("weights_staged")) {
        Var w_c = weights.args()[0], w_ci = weights.args()[1], w_kx = weights.args()[2], w_ky = weights.args()[3];
        Var w_block = weights.args()[4];
        DISTILE_APPLY(weights.compute_at(sums, step).store_in(MemoryType::GPUShared));
        DISTILE_APPLY(weights.bound_extent(w_c, op.channel_block).bound_extent(w_ci, chunk));
        DISTILE_APPLY(weights.bound_extent(w_block, block_channels / op.channel_block));
        DISTILE_APPLY(weights.reorder_storage(w_c, w_block, w_ci, w_kx, w_ky));
        DISTILE_APPLY(weights.split(w_c, vector, lane, lanes).vectorize(lane));
        DISTILE_APPLY(weights.fuse(vector, w_ci, work).fuse(work, w_block, work));
        DISTILE_APPLY(weights.split(work, turn, worker, num_threads, TailStrategy::GuardWithIf).unroll(turn));
        DISTILE_APPLY(weights.split(worker, worker_y, worker_x, channel_threads));
        DISTILE_APPLY(weights.reorder(lane, turn, worker_x, worker_y, w_kx, w_ky).gpu_threads(worker_x, worker_y));
    }
#undef DISTILE_APPLY

    // The pipeline owns its passes.
    // NOLINTBEGIN(cppcoreguidelines-owning-memory)
    pipeline.add_custom_lowering_pass(new PrivateRegisters);
    pipeline.add_custom_lowering_pass(new HoistLookups(staging.name()));
    if (theta.at("prefetch")) {
        pipeline.add_custom_lowering_pass(new PrefetchStaged({staging.name(), weights.name()}));
    }
    pipeline.add_custom_lowering_pass(new SkipIdleBlocks(idle_blocks));
    // NOLINTEND(cppcoreguidelines-owning-memory)
    return source.str();
}

}  // namespace distile
