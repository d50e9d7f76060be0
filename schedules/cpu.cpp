#include "schedules/cpu.h"
#include "schedules/schedule_source.h"
#include <algorithm>
#include <sstream>

namespace distile {

using namespace Halide;

Problem cpu_problem(const MaskedOperator &op, const Target &target) {
    const bool wide_file = target.arch == Target::ARM || target.has_feature(Target::AVX512);
    return cpu_problem(op, target.natural_vector_size<float>(), wide_file ? 32 : 16);
}

namespace {

/** Schedules the sums of a register tile. */
void schedule_sums(const MaskedStage &stage, const Func &output, const RVar &register_tile, const Theta &theta,
                   int lanes, std::ostream &source) {
    const int pixels = theta.at("pixels"), channels = theta.at("channels"), unroll = theta.at("unroll");
    Func accumulator = stage.accumulator;
    Var c = accumulator.args()[0], p = accumulator.args()[1];
    RVar ci = stage.in_channel, kx = stage.kernel_x, ky = stage.kernel_y;
    DISTILE_APPLY(accumulator.compute_at(output, register_tile).bound_extent(c, channels).bound_extent(p, pixels));
    DISTILE_APPLY(accumulator.vectorize(c, lanes).unroll(c).unroll(p));
    if (theta.at("order") == KyKxCi) {
        DISTILE_APPLY(accumulator.update().reorder(c, p, ci, kx, ky));
    } else if (theta.at("order") == CiKyKx) {
        DISTILE_APPLY(accumulator.update().reorder(c, p, kx, ky, ci).unroll(kx).unroll(ky));
    } else {
        DISTILE_APPLY(accumulator.update().reorder(c, p, kx, ci, ky).unroll(kx));
    }
    DISTILE_APPLY(accumulator.update().vectorize(c, lanes).unroll(c).unroll(p));
    if (unroll > 1) {
        DISTILE_APPLY(accumulator.update().unroll(ci, unroll));
    }
}

}  // namespace

std::string apply_cpu_schedule(MaskedOperator &op, const Theta &theta, const Target &target) {
    const Problem problem = cpu_problem(op, target);
    std::ostringstream source;
    source << declare_knobs(op, cpu_space(), problem, theta);
    const int pixels = theta.at("pixels"), channels = theta.at("channels");
    const int lanes = problem.vector_lanes;
    source << "const int lanes = " << lanes << ";\n";

    // A task that stages its input reads the copy for all output channels, so it should fit half of a typical L2 cache.
    constexpr int64_t staging_bytes = 512 << 10;
    const int64_t bytes_per_register_tile =
        int64_t{pixels} * op.in_channels * op.groups * op.kernel_h * op.kernel_w * problem.bytes_per_input;
    const int staged_group =
        static_cast<int>(std::clamp<int64_t>(staging_bytes / bytes_per_register_tile, 1, theta.at("group")));

    // The operator's input `threads` balances the tasks at run time.
    Expr threads = Internal::Variable::make(Int(32), "threads", Parameter(Int(32), false, 0, "threads"));

    Func output = op.output;
    Var co = output.args()[0], co_split, co_block, co_outer("co_outer"), co_inner("co_inner");
    const bool groups_apart = op.groups_in_blocks == GroupForm::Padded;
    for (MaskedStage &stage : op.stages) {
        const std::string prefix = "stage" + std::to_string(stage.update);
        RVar pixel(stage.pixels.var), task(prefix + "_task"), in_task(prefix + "_in_task");
        RVar register_tile(prefix + "_register_tile"), in_tile(prefix + "_in_tile");
        Stage update = output.update(stage.update);
        source << "\n// Update " << stage.update << " of the output\n";

        // Each share of the threads gets an equal part of the register tiles, in as few tasks as `group` allows. Where
        // these are fewer than the shares of many threads, the output channels are split further.
        const bool staged = stage.staging.defined();
        const int group = staged ? staged_group : theta.at("group");
        const int channel_blocks = groups_apart ? op.groups : num_channel_tiles(op, channels);
        const int most_blocks = channel_blocks / theta.at("channel_splits");
        Expr few = threads <= few_threads, shares = select(few, threads, shares_of_many * threads);
        Expr register_tiles = (stage.pixels.extent + (pixels - 1)) / pixels;
        Expr shares_of_tile = (shares + max(register_tiles, 1) - 1) / max(register_tiles, 1);
        Expr split_blocks = select(few, most_blocks, clamp(channel_blocks / shares_of_tile, 1, most_blocks));
        Expr channel_splits = (channel_blocks + split_blocks - 1) / split_blocks;
        Expr workers = max(shares / channel_splits, 1);
        Expr share = max((register_tiles + workers - 1) / workers, 1);
        Expr tasks = (share + (group - 1)) / group;
        Expr task_pixels = (share + tasks - 1) / tasks * pixels;
        source << "// task_pixels is a share of the pixels, cut to at most " << group
               << " register tiles a task; split_blocks is a part of the "
               << (groups_apart ? "groups" : "blocks of output channels") << ", at most " << most_blocks << "\n";

        DISTILE_APPLY(update.allow_race_conditions());
        DISTILE_APPLY(update.split(pixel, task, in_task, task_pixels, TailStrategy::GuardWithIf));
        DISTILE_APPLY(update.split(in_task, register_tile, in_tile, pixels, TailStrategy::GuardWithIf));
        DISTILE_APPLY(update.split(co, co_block, co_inner, channels, TailStrategy::GuardWithIf));
        // What is split for the threads: with groups apart whole groups, with all blocks of one before the next.
        Var co_whole = groups_apart ? output.args()[4] : co_block;
        DISTILE_APPLY(update.split(co_whole, co_split, co_outer, split_blocks, TailStrategy::GuardWithIf));
        if (groups_apart) {
            DISTILE_APPLY(update.reorder(co_inner, in_tile, register_tile, co_block, co_outer, task, co_split));
        } else if (op.scale_h * op.scale_w == 1) {
            DISTILE_APPLY(update.reorder(co_inner, in_tile, register_tile, co_outer, task, co_split));
        } else {
            // All tiles in one phase, then all in the next: tiles of a phase share weights and taps.
            RVar phase = stage.phase;
            DISTILE_APPLY(update.reorder(co_inner, in_tile, register_tile, co_outer, task, phase, co_split));
        }
        DISTILE_APPLY(update.vectorize(co_inner, lanes).unroll(co_inner).unroll(in_tile));
        // Guard only the stores of the last register tile: a second copy of the loop would not be faster.
        DISTILE_APPLY(update.never_partition(task, register_tile, in_tile));
        DISTILE_APPLY(update.parallel(task));
        if (channel_blocks > 1) {
            DISTILE_APPLY(update.parallel(co_split));
        }

        schedule_sums(stage, output, register_tile, theta, lanes, source);
        if (staged) {
            Func staging = stage.staging;
            Var staged_channel = staging.args()[0];
            if (most_blocks == 1 && num_channel_tiles(op, channels) == channel_blocks) {
                // Read once, so it need not outlive its register tile.
                DISTILE_APPLY(staging.compute_at(output, register_tile));
            } else {
                DISTILE_APPLY(staging.compute_at(output, task));
            }
            if (op.in_channels * op.groups >= lanes) {
                DISTILE_APPLY(staging.vectorize(staged_channel, lanes, TailStrategy::GuardWithIf));
            }
        }
    }
    return source.str();
}

}  // namespace distile
