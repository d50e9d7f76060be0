#include "schedules/cpu_depthwise.h"
#include "schedules/cpu.h"
#include "schedules/schedule_source.h"
#include <sstream>

namespace distile {

using namespace Halide;

std::string apply_cpu_depthwise_schedule(MaskedOperator &op, const Theta &theta, const Target &target) {
    const Problem problem = cpu_problem(op, target);
    std::ostringstream source;
    source << declare_knobs(op, cpu_depthwise_space(), problem, theta);
    const int pixels = theta.at("pixels"), channels = theta.at("channels"), unroll = theta.at("unroll");
    const int lanes = problem.vector_lanes;
    source << "const int lanes = " << lanes << ";\n";

    // The operator's input `threads` balances the tasks at run time.
    Expr threads = Internal::Variable::make(Int(32), "threads", Parameter(Int(32), false, 0, "threads"));

    Func output = op.output;
    Var co = output.args()[0], co_outer("co_outer"), co_inner("co_inner");
    for (MaskedStage &stage : op.stages) {
        const std::string prefix = "stage" + std::to_string(stage.update);
        RVar pixel(stage.pixels.var), task(prefix + "_task"), in_task(prefix + "_in_task");
        RVar register_tile(prefix + "_register_tile"), in_tile(prefix + "_in_tile");
        Stage update = output.update(stage.update);
        source << "\n// Update " << stage.update << " of the output\n"
               << "// task_pixels is a thread's share of the pixels, in whole register tiles, by `tasks`\n";
        Expr register_tiles = (stage.pixels.extent + (pixels - 1)) / pixels;
        Expr all_tasks = max(threads, 1) * theta.at("tasks");
        Expr task_pixels = max((register_tiles + all_tasks - 1) / all_tasks, 1) * pixels;

        DISTILE_APPLY(update.allow_race_conditions());
        DISTILE_APPLY(update.split(pixel, task, in_task, task_pixels, TailStrategy::GuardWithIf));
        DISTILE_APPLY(update.split(in_task, register_tile, in_tile, pixels, TailStrategy::GuardWithIf));
        DISTILE_APPLY(update.split(co, co_outer, co_inner, channels, TailStrategy::GuardWithIf));
        DISTILE_APPLY(update.reorder(co_inner, in_tile, co_outer, register_tile, task));
        DISTILE_APPLY(update.vectorize(co_inner, lanes).unroll(co_inner).unroll(in_tile));
        // Guard only the stores of the last register tile: a second copy of the loop would not be faster.
        DISTILE_APPLY(update.never_partition(task, register_tile, in_tile));
        DISTILE_APPLY(update.parallel(task));

        Func accumulator = stage.accumulator;
        Var c = accumulator.args()[0], p = accumulator.args()[1];
        RVar kx = stage.kernel_x, ky = stage.kernel_y;
        DISTILE_APPLY(accumulator.compute_at(output, co_outer).bound_extent(c, channels).bound_extent(p, pixels));
        DISTILE_APPLY(accumulator.vectorize(c, lanes).unroll(c).unroll(p));
        if (accumulator.dimensions() == 2) {
            DISTILE_APPLY(accumulator.update().reorder(c, p, kx, ky));
        } else {
            Var diagonal = accumulator.args()[2];
            DISTILE_APPLY(accumulator.unroll(diagonal));
            DISTILE_APPLY(accumulator.update().reorder(c, p, diagonal, kx, ky).unroll(diagonal));
        }
        DISTILE_APPLY(accumulator.update().vectorize(c, lanes).unroll(c).unroll(p));
        if (unroll != UnrollNothing) {
            DISTILE_APPLY(accumulator.update().unroll(kx));
        }
        if (unroll == UnrollKernel) {
            DISTILE_APPLY(accumulator.update().unroll(ky));
        }
    }
    return source.str();
}

}  // namespace distile
