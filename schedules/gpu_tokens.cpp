#include "schedules/gpu_tokens.h"
#include "schedules/gpu_passes.h"
#include "schedules/gpu_token_space.h"
#include "schedules/list_limits.h"
#include "schedules/schedule_source.h"
#include <sstream>
#include <utility>

namespace distile {

using namespace Halide;

namespace {

/** The state shared by the parts of a schedule while it is applied. Names match the source that the parts write. */
struct GpuTokens {
    GpuTokens(TokenOperator &op, const Theta &theta)
        : op(op), block_rows(theta.at("block_rows")), block_keys(theta.at("block_keys")),
          thread_rows(theta.at("thread_rows")), thread_keys(block_keys / key_threads),
          row_threads(block_rows / thread_rows), num_threads(token_threads(theta)), output(op.output) {
        source << "const int thread_keys = " << thread_keys << ", row_threads = " << row_threads
               << ", num_threads = " << num_threads << ", key_threads = " << key_threads << ", lanes = " << lanes
               << ";\n";
    }

    TokenOperator &op;
    const int block_rows, block_keys, thread_rows, thread_keys, row_threads, num_threads;
    static constexpr int lanes = 4;
    std::ostringstream source;
    Func output;

    Var row_block{"row_block"}, row_rest{"row_rest"}, row_thread{"row_thread"}, row_item{"row_item"},
        row_place{"row_place"};
    Var vector{"vector"}, group{"group"}, vector_thread{"vector_thread"}, head{"head"}, channel{"channel"},
        in_head{"in_head"};
    Var work{"work"}, turn{"turn"}, worker{"worker"}, worker_x{"worker_x"}, worker_y{"worker_y"};

    /** Tokens of the keys of a block, staged for a consumer. */
    void stage(const std::string &name, const LoopLevel &level, int row) {
        Func staged = op.funcs.at(name);
        const Var lane = staged.args()[0], v = staged.args()[1], j = staged.args()[2];
        source << "\n// The staged " << name << "\n";
        DISTILE_APPLY(staged.compute_at(level).store_in(MemoryType::GPUShared).bound_extent(j, block_keys));
        DISTILE_APPLY(staged.reorder_storage(lane, v, j).align_storage(v, row / lanes));
        DISTILE_APPLY(staged.vectorize(lane).fuse(v, j, work));
        DISTILE_APPLY(staged.split(work, turn, worker, num_threads, TailStrategy::GuardWithIf).unroll(turn));
        DISTILE_APPLY(staged.split(worker, worker_y, worker_x, key_threads));
        DISTILE_APPLY(staged.reorder(lane, turn, worker_x, worker_y).gpu_threads(worker_x, worker_y));
    }

    /** The dot products of a thread, in registers. */
    void multiply(const std::string &prefix, const LoopLevel &thread) {
        Func dots = op.funcs.at(prefix + "dots"), queries = op.funcs.at(prefix + "queries");
        const Var lane = queries.args()[0], query = queries.args()[2];
        const Var i = dots.args()[0], t = dots.args()[1], r = dots.args()[2];
        const RVar of_lane(dots.rvars(0)[0]), of_vector(dots.rvars(0)[1]);
        source << "\n// The products " << dots.name() << "\n";
        DISTILE_APPLY(dots.compute_at(thread).store_in(MemoryType::Register));
        DISTILE_APPLY(dots.bound_extent(i, thread_keys).bound_extent(t, 1).bound_extent(r, thread_rows));
        DISTILE_APPLY(dots.unroll(i).unroll(r));
        DISTILE_APPLY(dots.update().reorder(i, r, of_lane, of_vector).unroll(i).unroll(r).unroll(of_lane));
        DISTILE_APPLY(queries.compute_at(dots, of_vector).store_in(MemoryType::Register).bound_extent(lane, lanes));
        DISTILE_APPLY(queries.vectorize(lane).unroll(query));
    }

    void make_softmax() {
        Func softmax = op.funcs.at("softmax"), totals = op.funcs.at("totals"), shares = op.funcs.at("shares"),
             parts = op.funcs.at("parts");
        const Var sr = softmax.args()[0], sh = softmax.args()[1], sn = softmax.args()[2];
        Var image("image");
        source << "\n// The softmax\n";
        DISTILE_APPLY(softmax.compute_root().split(sr, row_block, row_rest, block_rows, TailStrategy::RoundUp));
        DISTILE_APPLY(softmax.split(row_rest, row_thread, row_place, thread_rows).rename(sn, image));
        DISTILE_APPLY(softmax.reorder(row_place, row_thread, row_block, sh, image));
        DISTILE_APPLY(softmax.gpu_blocks(row_block, sh, image).gpu_threads(row_place, row_thread));
        DISTILE_APPLY(totals.compute_at(softmax, row_place).store_in(MemoryType::Register));
        DISTILE_APPLY(totals.update().unroll(RVar(totals.rvars(0)[0])));

        const Var pt = parts.args()[0], pr = parts.args()[1], ht = shares.args()[0], hr = shares.args()[1];
        const RVar item(parts.rvars(0)[0]), block(parts.rvars(0)[1]);
        RVar key_tile("key_tile");
        DISTILE_APPLY(shares.compute_at(softmax, row_block).store_in(MemoryType::GPUShared));
        DISTILE_APPLY(shares.bound_extent(ht, key_threads).bound_extent(hr, block_rows));
        DISTILE_APPLY(shares.split(hr, row_thread, row_item, thread_rows).reorder(row_item, ht, row_thread));
        DISTILE_APPLY(shares.gpu_threads(ht, row_thread).unroll(row_item));
        DISTILE_APPLY(parts.compute_at(softmax, row_block).store_in(MemoryType::Register));
        DISTILE_APPLY(parts.bound_extent(pt, key_threads).bound_extent(pr, block_rows));
        DISTILE_APPLY(parts.split(pr, row_thread, row_item, thread_rows).reorder(row_item, pt, row_thread));
        DISTILE_APPLY(parts.gpu_threads(pt, row_thread).unroll(row_item));
        DISTILE_APPLY(parts.update().rename(block, key_tile).split(pr, row_thread, row_item, thread_rows));
        DISTILE_APPLY(parts.update().reorder(item, row_item, pt, row_thread, key_tile).unroll(item).unroll(row_item));
        DISTILE_APPLY(parts.update().gpu_threads(pt, row_thread));
        multiply("first_", LoopLevel(parts, pt));
        stage("first_keys", LoopLevel(parts, key_tile), op.head_dim + lanes);
    }

    /** What keys weigh, in shared memory. */
    void weigh(const LoopLevel &level) {
        Func weights = op.funcs.at("weights");
        const Var t = weights.args()[0], i = weights.args()[1], r = weights.args()[2];
        source << "\n// The weights\n";
        DISTILE_APPLY(weights.compute_at(level).store_in(MemoryType::GPUShared));
        DISTILE_APPLY(weights.bound_extent(t, key_threads).bound_extent(i, thread_keys).bound_extent(r, block_rows));
        DISTILE_APPLY(weights.split(r, row_thread, row_item, thread_rows).reorder(i, row_item, t, row_thread));
        DISTILE_APPLY(weights.gpu_threads(t, row_thread).unroll(i).unroll(row_item));
        if (op.product != TokenProduct::Values) {
            multiply("", LoopLevel(weights, t));
            stage("key_rows", level, op.head_dim + lanes);
        }
    }

    void sum_values() {
        const Var c = output.args()[0];
        Stage update = output.update();
        const RVar row(output.rvars(0)[0]), block(output.rvars(0)[1]), image_of(output.rvars(0)[2]);
        RVar of_row_block("row_block"), image("image"), of_row_thread("row_thread"), of_row_item("row_item");
        source << "\n// The output\n";
        DISTILE_APPLY(output.gpu_single_thread());
        DISTILE_APPLY(update.allow_race_conditions().rename(block, of_row_block).rename(image_of, image));
        DISTILE_APPLY(update.split(row, of_row_thread, of_row_item, thread_rows));
        DISTILE_APPLY(update.split(c, head, in_head, op.head_dim).split(in_head, vector, channel, lanes));
        DISTILE_APPLY(update.split(vector, group, vector_thread, key_threads, TailStrategy::GuardWithIf));
        DISTILE_APPLY(
            update.reorder(channel, group, of_row_item, vector_thread, of_row_thread, of_row_block, head, image));
        DISTILE_APPLY(update.gpu_blocks(of_row_block, head, image).gpu_threads(vector_thread, of_row_thread));
        DISTILE_APPLY(update.vectorize(channel).unroll(group).unroll(of_row_item));

        Func sums = op.funcs.at("sums");
        const Var lane = sums.args()[0], v = sums.args()[1], r = sums.args()[2], h = sums.args()[3];
        const int vectors = round_up(op.head_dim / lanes, key_threads);
        const RVar key(sums.rvars(0)[0]), item(sums.rvars(0)[1]), key_block(sums.rvars(0)[2]);
        RVar key_tile("key_tile");
        source << "\n// The sums\nconst int vectors = " << vectors << ";\n";
        DISTILE_APPLY(sums.compute_at(output, of_row_block).store_in(MemoryType::Register));
        DISTILE_APPLY(sums.bound(lane, 0, lanes).bound(v, 0, vectors).bound_extent(r, block_rows).bound_extent(h, 1));
        DISTILE_APPLY(sums.update().rename(key_block, key_tile));
        for (int stage = 0; stage < 2; stage++) {
            Stage sum = stage == 0 ? Stage(sums) : sums.update();
            source << "sum = " << (stage == 0 ? "Stage(sums)" : "sums.update()") << ";\n";
            DISTILE_APPLY(sum.split(v, group, vector_thread, key_threads).split(r, row_thread, row_item, thread_rows));
            if (stage == 0) {
                DISTILE_APPLY(sum.reorder(lane, group, row_item, vector_thread, row_thread));
            } else {
                DISTILE_APPLY(
                    sum.reorder(lane, group, row_item, key, item, vector_thread, row_thread, key_tile).unroll(key));
            }
            DISTILE_APPLY(sum.gpu_threads(vector_thread, row_thread).vectorize(lane).unroll(group).unroll(row_item));
        }
        stage("value_rows", LoopLevel(sums, key_tile), op.head_dim);
        weigh(LoopLevel(sums, key_tile));
    }

    void store_scores() {
        Stage update = output.update();
        const RVar key(output.rvars(0)[0]), row(output.rvars(0)[1]), key_block(output.rvars(0)[2]),
            of_row_block(output.rvars(0)[3]), image_of(output.rvars(0)[4]);
        const Var y = output.args()[2];
        const int elements = block_rows * block_keys / num_threads;
        RVar element("element"), block("block"), image("image"), of_turn("turn"), of_worker("worker"),
            of_worker_x("worker_x"), of_worker_y("worker_y");
        source << "\n// The output\nconst int elements = " << elements << ";\n";
        DISTILE_APPLY(output.gpu_single_thread());
        DISTILE_APPLY(update.allow_race_conditions().fuse(key, row, element).fuse(key_block, of_row_block, block));
        DISTILE_APPLY(update.rename(image_of, image).split(element, of_worker, of_turn, elements));
        DISTILE_APPLY(update.split(of_worker, of_worker_y, of_worker_x, key_threads));
        DISTILE_APPLY(update.gpu_blocks(block, image, y).gpu_threads(of_worker_x, of_worker_y));
        weigh(LoopLevel(output, block));
    }
};

}  // namespace

std::string apply_gpu_token_schedule(Pipeline pipeline, TokenOperator &op, const Problem &problem, const Theta &theta) {
    const std::string knobs = declare_knobs(gpu_token_space(), problem, theta);
    if (theta.at("block_rows") != op.block_rows || theta.at("block_keys") != op.block_keys) {
        throw CompileError("PolyKernel: the schedule is for blocks of " +
                           extents_of(theta, "block_rows", "block_keys") +
                           " rows and keys, but the pipeline was built for others. Pass the schedule's block_rows and "
                           "block_keys to the generator.\n");
    }
    GpuTokens schedule(op, theta);
    if (op.product == TokenProduct::Scores) {
        schedule.store_scores();
    } else {
        schedule.sum_values();
    }
    if (op.has("softmax")) {
        schedule.make_softmax();
    }
    // The pipeline takes ownership of its passes.
    // NOLINTBEGIN(cppcoreguidelines-owning-memory)
    pipeline.add_custom_lowering_pass(new PrivateRegisters);
    pipeline.add_custom_lowering_pass(new LimitToLists(theta.at("block_rows"), theta.at("block_keys"), op.causal));
    // NOLINTEND(cppcoreguidelines-owning-memory)
    return knobs + schedule.source.str();
}

}  // namespace distile
