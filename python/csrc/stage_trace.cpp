#include "python/csrc/stage_trace.h"
#include "python/csrc/operators.h"
#include "python/csrc/session.h"
#include <algorithm>
#include <atomic>
#include <mutex>

namespace distile::python {

namespace {

/** The numbers of an item, as python/distile/stage_trace.py reads them: the stage's number, the step's, its kind,
 * output channels and kernel, and then what distile_stage_item has. */
constexpr size_t columns = 14;

struct Traces {
    std::atomic<bool> are_wanted{false};
    std::mutex mutex;
    std::vector<int64_t> rows;
    int64_t stages = 0;
};

Traces &traces() {
    static Traces all;
    return all;
}

void keep(const distile_stage_args &args, const std::vector<distile_stage_item> &items) {
    Traces &all = traces();
    const std::lock_guard<std::mutex> lock(all.mutex);
    for (const distile_stage_item &item : items) {
        const distile_stage_step &step = args.steps[item.step];
        const int64_t channels = step.output ? step.output->channels : 0;
        const int64_t row[columns] = {
            all.stages,    item.step,   step.kind, channels,   step.window.kernel_h, step.window.kernel_w, item.worker,
            item.prepares, item.listed, item.open, item.begun, item.multiplied,      item.stored,          item.told};
        all.rows.insert(all.rows.end(), row, row + columns);
    }
    all.stages++;
}

thread_local int32_t wanted_teams = 0;  ///< distile_stage_args::teams of this thread's stages.

}  // namespace

int64_t set_stage_teams(int64_t teams) {
    const int64_t before = wanted_teams;
    wanted_teams = static_cast<int32_t>(teams);
    return before;
}

void run_steps(distile_context *context, const distile_stage_args &given) {
    distile_stage_args args = given;
    args.teams = wanted_teams;
    if (!traces().are_wanted) {
        bindings::check(distile_run_stage(context, &args), context);
        return;
    }
    constexpr int64_t room = int64_t{1} << 20;
    std::vector<distile_stage_item> items(room);
    int64_t count = 0;
    bindings::check(distile_trace_stage(context, &args, items.data(), room, &count), context);
    items.resize(static_cast<size_t>(std::min(count, room)));
    keep(args, items);
}

Tensor trace_stages(bool begins, const Tensor &like) {
    Traces &all = traces();
    const std::lock_guard<std::mutex> lock(all.mutex);
    if (begins && all.are_wanted) {
        fail("stages are traced already: end that trace first");
    }
    const Tensor rows =
        empty(like, {static_cast<int64_t>(all.rows.size() / columns), static_cast<int64_t>(columns)}, ScalarType::Long);
    std::copy(all.rows.begin(), all.rows.end(), static_cast<int64_t *>(rows.mutable_data_ptr()));
    all.rows.clear();
    all.stages = 0;
    all.are_wanted = begins;
    return rows;
}

}  // namespace distile::python
