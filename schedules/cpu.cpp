#include "cpu.h"
#include <algorithm>
#include <sstream>

namespace distile {

namespace {

using namespace Halide;

int round_up(int value, int multiple) {
    return (value + multiple - 1) / multiple * multiple;
}

/** How the accumulator's reduction is nested, outermost first. */
enum ReductionOrder {
    KyKxCi = 0, /**< Nothing unrolled but `unroll` input channels. */
    CiKyKx = 1, /**< The kernel unrolled inside the input channels. */
    KyCiKx = 2  /**< One kernel row unrolled inside the input channels. */
};

/** Registers that a register tile takes: its accumulators, a vector of weights for each column, and one
 * for the broadcast of an input (an AVX-512 FMA broadcasts from memory, so that it is rarely needed). */
int tile_registers(const Theta &theta, const Problem &problem) {
    const int vectors = theta.at("channels") / problem.vector_lanes;
    return theta.at("pixels") * vectors + vectors + (problem.vector_registers > 16 ? 0 : 1);
}

}  // namespace

const Space &cpu_space() {
    static const Space space{
        "cpu",
        {
            {"tile_h", "height of a tile in output pixels", {1, 2, 4, 8}},
            {"tile_w", "width of a tile in output pixels", {1, 2, 4, 8, 16}},
            {"pixels",
             "virtual pixels in a register tile",
             {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 16, 20, 24, 28}},
            {"channels", "output channels in a register tile", {16, 32, 48, 64}},
            {"group",
             "register tiles that one task may run over before it takes the next channels",
             {1, 2, 4, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64}},
            {"channel_splits", "parts into which the output channels are cut for the threads", {1, 2, 4, 8, 16}},
            {"order", "nesting of the reduction: 0 for ky, kx, ci; 1 for ci, ky, kx; 2 for ky, ci, kx", {0, 1, 2}},
            {"unroll", "input channels that are unrolled", {1, 2, 4, 8}},
        },
        {
            {"at least 1 for every knob but the order",
             [](const Theta &theta, const Problem &) {
                 return std::all_of(theta.begin(), theta.end(),
                                    [](const auto &knob) { return knob.first == "order" || knob.second >= 1; });
             }},
            {"an order from 0 to 2", [](const Theta &theta, const Problem &) { return theta.at("order") <= KyCiKx; }},
            {"channels that are whole vectors",
             [](const Theta &theta, const Problem &problem) {
                 return theta.at("channels") % problem.vector_lanes == 0;
             }},
            {"channels times channel_splits that divide the output channels, rounded up to whole blocks of the weights",
             [](const Theta &theta, const Problem &problem) {
                 const int padded = round_up(problem.out_channels, problem.channel_block);
                 return padded % (theta.at("channels") * theta.at("channel_splits")) == 0;
             }},
            {"pixels times channels that fit the vector registers",
             [](const Theta &theta, const Problem &problem) {
                 return tile_registers(theta, problem) <= problem.vector_registers;
             }},
            {"an unroll that divides the input channels",
             [](const Theta &theta, const Problem &problem) { return problem.in_channels % theta.at("unroll") == 0; }},
            {"at most 64 unrolled steps of the reduction, or the code grows beyond the instruction cache",
             [](const Theta &theta, const Problem &problem) {
                 const int kernel = theta.at("order") == CiKyKx   ? problem.kernel_h * problem.kernel_w
                                    : theta.at("order") == KyCiKx ? problem.kernel_w
                                                                  : 1;
                 return theta.at("unroll") * kernel <= 64;
             }},
            {"tiles of at most 4096 pixels",
             [](const Theta &theta, const Problem &) {
                 return int64_t{theta.at("tile_h")} * theta.at("tile_w") <= 4096;
             }},
        }};
    return space;
}

Problem cpu_problem(const MaskedOperator &op, const Target &target) {
    Problem problem;
    problem.in_channels = op.in_channels;
    problem.out_channels = op.out_channels;
    problem.kernel_h = op.kernel_h;
    problem.kernel_w = op.kernel_w;
    problem.channel_block = op.channel_block;
    problem.vector_lanes = target.natural_vector_size(op.output.type());
    const bool wide_file = target.arch == Target::ARM || target.has_feature(Target::AVX512);
    problem.vector_registers = wide_file ? 32 : 16;
    return problem;
}

std::string apply_cpu_schedule(MaskedOperator &op, const Theta &theta, const Target &target) {
    const Problem problem = cpu_problem(op, target);
    const std::string illegal = cpu_space().why_illegal(theta, problem);
    if (!illegal.empty()) {
        throw CompileError("PolyKernel: the theta is not legal for this operator and target: " + illegal + ".\n");
    }
    std::ostringstream source;
    for (const auto &[knob, value] : theta) {
        source << "const int " << knob << " = " << value << ";\n";
    }
    const int pixels = theta.at("pixels"), channels = theta.at("channels");
    const int unroll = theta.at("unroll");
    const int lanes = problem.vector_lanes;
    source << "const int lanes = " << lanes << ";\n";

// The source is the very statements that are applied.
#define DISTILE_APPLY(statement)                                                                                       \
    do {                                                                                                               \
        statement;                                                                                                     \
        source << #statement << ";\n";                                                                                 \
    } while (false)

    // A staged tile is copied once and read by all output channels: bound a task's copy to a half of a
    // typical level 2 cache.
    constexpr int64_t staging_bytes = 512 << 10;
    const int64_t bytes_per_register_tile =
        int64_t{pixels} * op.in_channels * op.kernel_h * op.kernel_w * op.bytes_per_element;
    const int staged_group =
        static_cast<int>(std::clamp<int64_t>(staging_bytes / bytes_per_register_tile, 1, theta.at("group")));

    // The input `threads` of the operator: balances the tasks at run time.
    Expr threads = Internal::Variable::make(Int(32), "threads", Parameter(Int(32), false, 0, "threads"));

    Func output = op.output;
    Var co = output.args()[0], co_split, co_rest, co_outer("co_outer"), co_inner("co_inner");
    for (MaskedStage &stage : op.stages) {
        const std::string prefix = "stage" + std::to_string(stage.update);
        RVar pixel(stage.pixels.var), task(prefix + "_task"), in_task(prefix + "_in_task");
        RVar register_tile(prefix + "_register_tile"), in_tile(prefix + "_in_tile");
        Stage update = output.update(stage.update);
        source << "\n// Update " << stage.update << " of the output\n";

        // Each thread gets an equal share of the register tiles, in as few tasks as `group` allows.
        // Parts of the channels would each stage the tiles again, so that a staged update has only one.
        const bool staged = stage.staging.defined();
        const int group = staged ? staged_group : theta.at("group");
        const int channel_splits = staged ? 1 : theta.at("channel_splits");
        const int split_channels = round_up(op.out_channels, op.channel_block) / channel_splits;
        Expr register_tiles = (stage.pixels.extent + (pixels - 1)) / pixels;
        Expr workers = max(threads / channel_splits, 1);
        Expr share = max((register_tiles + workers - 1) / workers, 1);
        Expr tasks = (share + (group - 1)) / group;
        Expr task_pixels = (share + tasks - 1) / tasks * pixels;
        source << "// task_pixels is a thread's share of the pixels, cut to at most " << group
               << " register tiles a task\nconst int split_channels = " << split_channels << ";\n";

        DISTILE_APPLY(update.allow_race_conditions());
        DISTILE_APPLY(update.split(pixel, task, in_task, task_pixels, TailStrategy::GuardWithIf));
        DISTILE_APPLY(update.split(in_task, register_tile, in_tile, pixels, TailStrategy::GuardWithIf));
        DISTILE_APPLY(update.split(co, co_split, co_rest, split_channels, TailStrategy::GuardWithIf));
        DISTILE_APPLY(update.split(co_rest, co_outer, co_inner, channels, TailStrategy::GuardWithIf));
        DISTILE_APPLY(update.reorder(co_inner, in_tile, register_tile, co_outer, task, co_split));
        DISTILE_APPLY(update.vectorize(co_inner, lanes).unroll(co_inner).unroll(in_tile));
        // Only the stores of the last register tile are guarded: a second copy of the loop would not be faster.
        DISTILE_APPLY(update.never_partition(task, register_tile, in_tile));
        DISTILE_APPLY(update.parallel(task));
        if (channel_splits > 1) {
            DISTILE_APPLY(update.parallel(co_split));
        }

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

        if (staged) {
            Func staging = stage.staging;
            Var staged_channel = staging.args()[0];
            DISTILE_APPLY(staging.compute_at(output, task));
            if (op.in_channels >= lanes) {
                DISTILE_APPLY(staging.vectorize(staged_channel, lanes, TailStrategy::GuardWithIf));
            }
        }
    }
#undef DISTILE_APPLY
    return source.str();
}

}  // namespace distile
