#include "schedules/cpu_tokens.h"
#include "schedules/cpu.h"
#include "schedules/schedule_source.h"
#include "schedules/token_space.h"
#include <algorithm>
#include <sstream>

namespace distile {

using namespace Halide;

namespace {

/** The register tiles of scores: tokens in lanes, whole vectors of them, and the others. */
struct ScoreTile {
    int lanes, tokens, others, unroll;
};

/** Transposes the tokens in lanes in registers, at a level where there are `tokens` of them; 0: any number. */
void stage_lane_tokens(TokenOperator &op, const LoopLevel &level, int lanes, int tokens, std::ostream &source) {
    constexpr int channel_lanes = 4;
    source << "const int channel_lanes = " << channel_lanes << ";\n";
    Func lane_tokens = op.funcs.at("lane_tokens"), columns = op.funcs.at("lane_columns"),
         lane_rows = op.funcs.at("lane_rows");
    Var t = lane_tokens.args()[0], d = lane_tokens.args()[1], lane("lane"), vector("vector"), channel("channel"),
        channel_vector("channel_vector");
    DISTILE_APPLY(lane_tokens.compute_at(level));
    if (tokens > 0) {
        DISTILE_APPLY(lane_tokens.bound_extent(t, tokens));
    }
    DISTILE_APPLY(lane_tokens.split(t, vector, lane, lanes, TailStrategy::RoundUp)
                      .split(d, channel_vector, channel, channel_lanes));
    DISTILE_APPLY(lane_tokens.reorder(lane, channel, channel_vector, vector).vectorize(lane).unroll(channel));
    DISTILE_APPLY(
        columns.compute_at(lane_tokens, channel_vector).bound_extent(t, lanes).bound_extent(d, channel_lanes));
    DISTILE_APPLY(columns.vectorize(t).vectorize(d));
    DISTILE_APPLY(lane_rows.compute_at(lane_tokens, channel_vector).vectorize(lane_rows.args()[0], channel_lanes));
    DISTILE_APPLY(lane_rows.unroll(lane_rows.args()[1]));
    if (op.bytes_per_element != 4) {
        // Converted once for all tokens in lanes.
        Func other_rows = op.funcs.at("other_rows");
        DISTILE_APPLY(other_rows.compute_root().vectorize(other_rows.args()[0], 8));
    }
}

/** The products of a register tile, in a loop over such tiles. */
void multiply(TokenOperator &op, const LoopLevel &tile, const ScoreTile &of, std::ostream &source) {
    const int lanes = of.lanes, unroll = of.unroll;
    Func dots = op.funcs.at("dots");
    Var t = dots.args()[0], other = dots.args()[1];
    const RVar of_head(dots.rvars(0)[0]);
    DISTILE_APPLY(dots.compute_at(tile).vectorize(t, lanes).unroll(t).unroll(other));
    DISTILE_APPLY(dots.update().reorder(t, other, of_head).vectorize(t, lanes).unroll(t).unroll(other));
    if (unroll > 1) {
        DISTILE_APPLY(dots.update().unroll(of_head, unroll));
    }
}

/** Keeps scores in memory. */
void schedule_scores(TokenOperator &op, const ScoreTile &tile, const LoopLevel &level, std::ostream &source) {
    const auto [lanes, tokens, others, unroll] = tile;
    Func scores = op.funcs.at("scores");
    Var t = scores.args()[0], o = scores.args()[1], token_tile("token_tile"), token("token"), other_tile("other_tile"),
        other("other");
    DISTILE_APPLY(scores.compute_at(level)
                      .split(t, token_tile, token, tokens, TailStrategy::RoundUp)
                      .split(o, other_tile, other, others, TailStrategy::RoundUp));
    DISTILE_APPLY(scores.reorder(token, other, other_tile, token_tile).vectorize(token, lanes));
    DISTILE_APPLY(scores.unroll(token).unroll(other));
    if (op.has("parts")) {
        // Once for all blocks of the others.
        stage_lane_tokens(op, LoopLevel::root(), lanes, 0, source);
    } else {
        stage_lane_tokens(op, LoopLevel(scores, token_tile), lanes, tokens, source);
    }
    multiply(op, LoopLevel(scores, other_tile), tile, source);
}

/** A Func of rows in lanes that reduces over keys: all rows of a register tile are summed at once. */
void schedule_reduction(Func reduction, const LoopLevel &level, int rows, int lanes, std::ostream &source) {
    Var r = reduction.args()[0], outer("outer"), inner("inner");
    const RVar key(reduction.rvars(0)[0]);
    DISTILE_APPLY(reduction.compute_at(level)
                      .split(r, outer, inner, rows, TailStrategy::RoundUp)
                      .vectorize(inner, lanes)
                      .unroll(inner));
    DISTILE_APPLY(reduction.update().split(r, outer, inner, rows, TailStrategy::RoundUp).reorder(inner, key, outer));
    DISTILE_APPLY(reduction.update().vectorize(inner, lanes).unroll(inner));
}

/** A softmax with rows in lanes. */
void schedule_softmax_of_rows(TokenOperator &op, const LoopLevel &level, int rows, int lanes, std::ostream &source) {
    schedule_reduction(op.funcs.at("most"), level, rows, lanes, source);
    schedule_reduction(op.funcs.at("sum"), level, rows, lanes, source);
    Func weights = op.funcs.at("weights");
    Var r = weights.args()[0], j = weights.args()[1], outer("outer"), inner("inner");
    DISTILE_APPLY(weights.compute_at(level)
                      .split(r, outer, inner, rows, TailStrategy::RoundUp)
                      .reorder(inner, j, outer)
                      .vectorize(inner, lanes)
                      .unroll(inner));
}

/** A softmax with keys in lanes: row by row. */
void schedule_softmax_of_keys(TokenOperator &op, int lanes, std::ostream &source) {
    Func weights = op.funcs.at("weights"), inverse = op.funcs.at("inverse"), most = op.funcs.at("most");
    Var j = weights.args()[0], r = inverse.args()[0];
    for (const char *name : {"most_lanes", "sum_lanes"}) {
        Func parts = op.funcs.at(name), whole = op.funcs.at(name == std::string("most_lanes") ? "most" : "inverse");
        Var lane = parts.args()[0];
        source << "parts = " << name << ";\n";
        DISTILE_APPLY(parts.compute_at(whole, r).bound_extent(lane, lanes).vectorize(lane, lanes));
        DISTILE_APPLY(parts.update().vectorize(lane, lanes));
    }
    DISTILE_APPLY(most.compute_root());
    DISTILE_APPLY(weights.compute_root().vectorize(j, lanes, TailStrategy::RoundUp));
    DISTILE_APPLY(inverse.compute_root());
}

/** The output of scores. */
void store_scores(TokenOperator &op, const ScoreTile &tile, std::ostream &source) {
    const auto [lanes, tokens, others, unroll] = tile;
    Func output = op.output;
    Stage stage = output.update();
    DISTILE_APPLY(stage.allow_race_conditions());
    const bool from_memory = op.has("most") || !op.packed_columns;
    if (from_memory) {
        schedule_scores(op, tile, LoopLevel::root(), source);
    }
    if (op.has("most")) {
        schedule_softmax_of_keys(op, lanes, source);
    }
    if (!op.packed_columns) {
        const RVar row(output.rvars(0)[0]);
        DISTILE_APPLY(stage.unroll(row));
        return;
    }
    const RVar key(output.rvars(0)[0]), row(output.rvars(0)[1]);
    if (from_memory) {
        DISTILE_APPLY(stage.vectorize(key, lanes, TailStrategy::Predicate));
        return;
    }
    RVar key_tile("key_tile"), tile_key("tile_key"), row_tile("row_tile"), tile_row("tile_row");
    DISTILE_APPLY(stage.split(key, key_tile, tile_key, tokens, TailStrategy::Predicate));
    DISTILE_APPLY(stage.split(row, row_tile, tile_row, others, TailStrategy::GuardWithIf));
    DISTILE_APPLY(stage.reorder(tile_key, tile_row, row_tile, key_tile).vectorize(tile_key, lanes));
    DISTILE_APPLY(stage.unroll(tile_key).unroll(tile_row));
    Func dots = op.funcs.at("dots");
    DISTILE_APPLY(dots.bound_extent(dots.args()[0], tokens).bound_extent(dots.args()[1], others));
    stage_lane_tokens(op, LoopLevel(output, key_tile), lanes, tokens, source);
    multiply(op, LoopLevel(output, row_tile), tile, source);
}

/** Sums with values, in register tiles of `rows` x `channels` and in blocks of keys: the values of a block stay in the
 * cache nearest to the core, while all rows of the task read them. */
void sum_blocks_of_keys(Func sums, int keys, int rows, int channels, int lanes, std::ostream &source) {
    source << "const int keys = " << keys << ";\n";
    Var d = sums.args()[0], r = sums.args()[1], block("block"), row_tile("row_tile"), tile_row("tile_row"),
        channel_tile("channel_tile"), tile_channel("tile_channel");
    const RVar key(sums.rvars(0)[0]);
    RVar key_block("key_block"), block_key("block_key");
    DISTILE_APPLY(sums.update().split(key, key_block, block_key, keys, TailStrategy::GuardWithIf));
    Func block_sums;
    DISTILE_APPLY(block_sums = sums.update().rfactor(key_block, block));
    DISTILE_APPLY(sums.compute_root().vectorize(d, lanes));
    DISTILE_APPLY(sums.update()
                      .split(r, row_tile, tile_row, rows, TailStrategy::RoundUp)
                      .split(d, channel_tile, tile_channel, channels));
    DISTILE_APPLY(sums.update().reorder(tile_channel, tile_row, channel_tile, row_tile, key_block));
    DISTILE_APPLY(sums.update().vectorize(tile_channel, lanes).unroll(tile_channel).unroll(tile_row));
    DISTILE_APPLY(block_sums.compute_at(sums, channel_tile).vectorize(d, lanes).unroll(d).unroll(r));
    DISTILE_APPLY(block_sums.update().reorder(d, r, block_key).vectorize(d, lanes).unroll(d).unroll(r));
}

/** Sums with values, in the registers of a tile. */
void sum_in_registers(Func sums, const LoopLevel &tile, int lanes, int unroll, std::ostream &source) {
    Var d = sums.args()[0], r = sums.args()[1];
    const RVar key(sums.rvars(0)[0]);
    DISTILE_APPLY(sums.compute_at(tile).vectorize(d, lanes).unroll(d).unroll(r));
    DISTILE_APPLY(sums.update().reorder(d, r, key).vectorize(d, lanes).unroll(d).unroll(r));
    if (unroll > 1) {
        DISTILE_APPLY(sums.update().unroll(key, unroll, TailStrategy::GuardWithIf));
    }
}

/** The values of all keys, or of a product with them alone. */
void schedule_values(TokenOperator &op, int update, const Theta &theta, int lanes, int vectors, std::ostream &source) {
    const std::string name = op.has("values") && update == 0 ? "values" : "last_values";
    const int rows = theta.at("value_rows"), channels = vectors * lanes,
              unroll = theta.at(op.product == TokenProduct::Attention ? "value_unroll" : "unroll");
    source << "\n// Update " << update << " of the output\nconst int lanes = " << lanes << ", channels = " << channels
           << ", rows = " << rows << ";\n";
    Func output = op.output, values = op.funcs.at(name), sums = op.funcs.at(name + "_sums");
    Stage stage = output.update(update);
    const RVar channel(output.rvars(update)[0]), row(output.rvars(update)[1]);
    RVar row_tile(name + "_tile"), tile_row(name + "_tile_row");
    DISTILE_APPLY(stage.allow_race_conditions().vectorize(channel, lanes));
    if (theta.at("value_keys") > 0) {
        sum_blocks_of_keys(sums, theta.at("value_keys"), rows, channels, lanes, source);
        return;
    }
    DISTILE_APPLY(stage.split(row, row_tile, tile_row, rows, TailStrategy::GuardWithIf));
    Var d = values.args()[0], r = values.args()[1], channel_tile("channel_tile"), tile_channel("tile_channel");
    DISTILE_APPLY(values.compute_at(output, row_tile).bound_extent(r, rows));
    DISTILE_APPLY(values.split(d, channel_tile, tile_channel, channels).reorder(tile_channel, r, channel_tile));
    DISTILE_APPLY(values.vectorize(tile_channel, lanes).unroll(tile_channel).unroll(r));
    sum_in_registers(sums, LoopLevel(values, channel_tile), lanes, unroll, source);
}

/** The values of a block of keys in attention, and the sums over all blocks. */
void schedule_block_values(TokenOperator &op, int update, const Theta &theta, int lanes, int vectors,
                           std::ostream &source) {
    const std::string name = op.has("values") && update == 0 ? "values" : "last_values";
    const int rows = theta.at("value_rows"), channels = vectors * lanes, unroll = theta.at("value_unroll");
    source << "\n// Update " << update << " of the output and of a block\nconst int lanes = " << lanes
           << ", channels = " << channels << ", rows = " << rows << ";\n";
    Func block = op.funcs.at("block"), sums = op.funcs.at(name + "_sums"), output = op.output,
         values = op.funcs.at(name);
    Var r = block.args()[1], row_tile("row_tile"), tile_row("tile_row");
    const RVar channel(block.rvars(update)[0]);
    RVar channel_tile(name + "_channel_tile"), tile_channel(name + "_tile_channel");
    DISTILE_APPLY(block.update(update)
                      .allow_race_conditions()
                      .split(channel, channel_tile, tile_channel, channels)
                      .split(r, row_tile, tile_row, rows, TailStrategy::RoundUp));
    DISTILE_APPLY(block.update(update).reorder(tile_channel, tile_row, channel_tile, row_tile));
    DISTILE_APPLY(block.update(update).vectorize(tile_channel, lanes).unroll(tile_channel).unroll(tile_row));
    sum_in_registers(sums, LoopLevel(block, channel_tile), lanes, unroll, source);
    const RVar output_channel(output.rvars(update)[0]), output_row(output.rvars(update)[1]);
    Var d = values.args()[0];
    DISTILE_APPLY(output.update(update).allow_race_conditions().vectorize(output_channel, lanes));
    DISTILE_APPLY(values.compute_at(output, output_row).vectorize(d, lanes));
    DISTILE_APPLY(values.update().reorder(d, RVar(values.rvars(0)[0])).vectorize(d, lanes));
}

/** Attention without the values: blocks of keys one after the other, in each all rows of the task, `rows` at most. */
void schedule_blocks(TokenOperator &op, const ScoreTile &tile, int rows, std::ostream &source) {
    Func parts = op.funcs.at("parts"), block = op.funcs.at("block");
    Var c = parts.args()[0], b = parts.args()[2];
    // A copy of its body for the last block would be half of the code, and compilers optimize long functions less.
    DISTILE_APPLY(parts.compute_root().vectorize(c, tile.lanes, TailStrategy::RoundUp).never_partition(b));
    const LoopLevel of_block(parts, b);
    DISTILE_APPLY(block.compute_at(of_block));
    for (int update = block.num_update_definitions() - 2; update < block.num_update_definitions(); update++) {
        source << "update = " << update << ";\n";
        DISTILE_APPLY(block.update(update).unscheduled());
    }
    schedule_scores(op, tile, of_block, source);
    schedule_softmax_of_rows(op, of_block, tile.tokens, tile.lanes, source);
    // Register tiles of values read weights of more rows than there are, so behind those of the last key there is
    // memory.
    const int stored_keys = op.softmax_keys + tile.others;
    source << "const int rows = " << rows << ", stored_keys = " << stored_keys << ";\n";
    for (const char *name : {"scores", "weights"}) {
        source << "stored = " << name << ";\n";
        Func stored = op.funcs.at(name);
        DISTILE_APPLY(stored.bound_storage(stored.args()[1], stored_keys));
    }
    for (const char *name : {"block", "scores", "most", "weights", "sum"}) {
        source << "hoisted = " << name << ";\n";
        Func hoisted = op.funcs.at(name);
        DISTILE_APPLY(hoisted.hoist_storage_root());
    }
    Func factors = op.funcs.at("factors");
    DISTILE_APPLY(factors.compute_root().vectorize(factors.args()[0], tile.lanes, TailStrategy::GuardWithIf));
    for (const char *name : {"top", "total", "inverse"}) {
        source << "of_row = " << name << ";\n";
        Func of_row = op.funcs.at(name);
        DISTILE_APPLY(of_row.compute_root());
    }
    // Memory of constant size is on the stack where it is small, and has constant strides.
    for (const char *name : {"lane_tokens", "most", "sum", "top", "total", "inverse"}) {
        source << "bounded = " << name << ";\n";
        Func bounded = op.funcs.at(name);
        DISTILE_APPLY(bounded.bound_storage(bounded.args()[0], rows));
    }
}

}  // namespace

Problem cpu_problem(const TokenOperator &op, const Target &target) {
    const bool wide_file = target.arch == Target::ARM || target.has_feature(Target::AVX512);
    return cpu_problem(static_cast<const OperatorFacts &>(op), target.natural_vector_size<float>(),
                       wide_file ? 32 : 16);
}

std::string apply_cpu_token_schedule(TokenOperator &op, const Theta &theta, const Target &target) {
    const Problem problem = cpu_problem(op, target);
    if (value_of(theta, "softmax_keys") != op.softmax_keys) {
        throw CompileError("PolyKernel: the schedule has " + count_of(theta, "softmax_keys", "key") +
                           " in a softmax, but the operator has " + std::to_string(op.softmax_keys) +
                           ": give softmax_keys to the generator.\n");
    }
    std::ostringstream source;
    source << declare_knobs(cpu_token_space(op.product), problem, theta);
    const int lanes = problem.vector_lanes;
    if (op.product == TokenProduct::Values) {
        Func weights = op.funcs.at("weights");
        if (op.bytes_per_element != 4) {
            DISTILE_APPLY(weights.compute_root());
        }
    } else {
        const bool alone = op.product == TokenProduct::Scores;
        const ScoreTile tile = {lanes, theta.at(alone ? "key_vectors" : "row_vectors") * lanes,
                                theta.at(alone ? "score_rows" : "score_keys"), theta.at("unroll")};
        source << "const int lanes = " << lanes << ", tokens = " << tile.tokens << ", others = " << tile.others
               << ";\n";
        if (alone) {
            store_scores(op, tile, source);
        } else if (op.softmax_keys > 0) {
            schedule_blocks(op, tile, theta.at("rows"), source);
        } else {
            schedule_scores(op, tile, LoopLevel::root(), source);
            schedule_softmax_of_rows(op, LoopLevel::root(), tile.tokens, lanes, source);
            Func inverse = op.funcs.at("inverse");
            DISTILE_APPLY(inverse.compute_root().vectorize(inverse.args()[0], lanes, TailStrategy::RoundUp));
        }
    }
    if (op.product != TokenProduct::Scores) {
        const int whole = whole_channels(problem), rest = op.head_dim - whole;
        const auto schedule = op.softmax_keys > 0 ? schedule_block_values : schedule_values;
        if (whole > 0) {
            schedule(op, 0, theta, lanes, theta.at("value_vectors"), source);
        }
        if (rest > 0) {
            schedule(op, whole > 0 ? 1 : 0, theta, rest, 1, source);
        }
    }
    return source.str();
}

}  // namespace distile
