#include "cpu_tokens.h"
#include "apply.h"
#include "cpu.h"
#include "token_space.h"
#include <algorithm>
#include <sstream>

namespace distile {

using namespace Halide;

namespace {

/** A Func of one dimension that reduces over the keys: rows are lanes, and all rows of a register tile are summed at
 * once. */
void schedule_reduction(Func reduction, int rows, int lanes, std::ostream &source) {
    Var r = reduction.args()[0], outer("outer"), inner("inner");
    const RVar key(reduction.rvars(0)[0]);
    DISTILE_APPLY(reduction.compute_root()
                      .split(r, outer, inner, rows, TailStrategy::RoundUp)
                      .vectorize(inner, lanes)
                      .unroll(inner));
    DISTILE_APPLY(reduction.update().split(r, outer, inner, rows, TailStrategy::RoundUp).reorder(inner, key, outer));
    DISTILE_APPLY(reduction.update().vectorize(inner, lanes).unroll(inner));
}

void schedule_scores(TokenOperator &op, const Problem &problem, const Theta &theta, std::ostream &source) {
    const int lanes = problem.vector_lanes, rows = theta.at("row_vectors") * lanes;
    const int keys = theta.at("score_keys"), unroll = theta.at("unroll");
    constexpr int channel_lanes = 4;
    source << "const int rows = " << rows << ", channel_lanes = " << channel_lanes << ";\n";

    // Transposed in registers, and stored by vectors of rows: with a stride that is not constant, transposed vectors
    // would be stored one by one.
    Func queries = op.funcs.at("queries"), columns = op.funcs.at("query_columns"),
         query_rows = op.funcs.at("query_rows");
    Var r = queries.args()[0], d = queries.args()[1], lane("lane"), row_vector("row_vector"), channel("channel"),
        channel_vector("channel_vector");
    DISTILE_APPLY(queries.compute_root().align_bounds(r, rows));
    DISTILE_APPLY(queries.split(r, row_vector, lane, lanes, TailStrategy::RoundUp)
                      .split(d, channel_vector, channel, channel_lanes));
    DISTILE_APPLY(queries.reorder(lane, channel, channel_vector, row_vector).vectorize(lane).unroll(channel));
    DISTILE_APPLY(columns.compute_at(queries, channel_vector).bound_extent(r, lanes).bound_extent(d, channel_lanes));
    DISTILE_APPLY(columns.vectorize(r).vectorize(d));
    DISTILE_APPLY(query_rows.compute_at(queries, channel_vector).vectorize(query_rows.args()[0], channel_lanes));
    DISTILE_APPLY(query_rows.unroll(query_rows.args()[1]));

    if (op.bytes_per_element != 4) {
        // Converted once for all rows.
        Func key_rows = op.funcs.at("key_rows");
        DISTILE_APPLY(key_rows.compute_root().vectorize(key_rows.args()[0], 8));
    }

    Func dots = op.funcs.at("dots"), scores = op.funcs.at("scores");
    Var sr = scores.args()[0], sj = scores.args()[1], row_tile("row_tile"), row("row"), key_tile("key_tile"),
        key("key");
    DISTILE_APPLY(scores.compute_root()
                      .split(sr, row_tile, row, rows, TailStrategy::RoundUp)
                      .split(sj, key_tile, key, keys, TailStrategy::RoundUp));
    DISTILE_APPLY(scores.reorder(row, key, key_tile, row_tile).vectorize(row, lanes).unroll(row).unroll(key));
    Var dr = dots.args()[0], dj = dots.args()[1];
    const RVar of_head(dots.rvars(0)[0]);
    DISTILE_APPLY(dots.compute_at(scores, key_tile).vectorize(dr, lanes).unroll(dr).unroll(dj));
    DISTILE_APPLY(dots.update().reorder(dr, dj, of_head).vectorize(dr, lanes).unroll(dr).unroll(dj));
    if (unroll > 1) {
        DISTILE_APPLY(dots.update().unroll(of_head, unroll));
    }

    if (op.has("most")) {
        schedule_reduction(op.funcs.at("most"), rows, lanes, source);
        schedule_reduction(op.funcs.at("sum"), rows, lanes, source);
        Func weights = op.funcs.at("weights"), inverse = op.funcs.at("inverse");
        Var wr = weights.args()[0], ir = inverse.args()[0], outer("outer"), inner("inner");
        DISTILE_APPLY(weights.compute_root()
                          .split(wr, outer, inner, rows, TailStrategy::RoundUp)
                          .reorder(inner, weights.args()[1], outer));
        DISTILE_APPLY(weights.vectorize(inner, lanes).unroll(inner));
        DISTILE_APPLY(inverse.compute_root().vectorize(ir, lanes, TailStrategy::RoundUp));
    }
}

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
    DISTILE_APPLY(stage.split(row, row_tile, tile_row, rows, TailStrategy::GuardWithIf));
    Var d = values.args()[0], r = values.args()[1], channel_tile("channel_tile"), tile_channel("tile_channel");
    DISTILE_APPLY(values.compute_at(output, row_tile).bound_extent(r, rows));
    DISTILE_APPLY(values.split(d, channel_tile, tile_channel, channels).reorder(tile_channel, r, channel_tile));
    DISTILE_APPLY(values.vectorize(tile_channel, lanes).unroll(tile_channel).unroll(r));
    Var sd = sums.args()[0], sr = sums.args()[1];
    const RVar key(sums.rvars(0)[0]);
    DISTILE_APPLY(sums.compute_at(values, channel_tile).vectorize(sd, lanes).unroll(sd).unroll(sr));
    DISTILE_APPLY(sums.update().reorder(sd, sr, key).vectorize(sd, lanes).unroll(sd).unroll(sr));
    if (unroll > 1) {
        DISTILE_APPLY(sums.update().unroll(key, unroll, TailStrategy::GuardWithIf));
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
    std::ostringstream source;
    source << declare_knobs(cpu_token_space(op.product), problem, theta);
    if (op.product != TokenProduct::Values) {
        schedule_scores(op, problem, theta, source);
    } else {
        Func weights = op.funcs.at("weights");
        if (op.bytes_per_element != 4) {
            DISTILE_APPLY(weights.compute_root());
        }
    }
    if (op.product == TokenProduct::Scores) {
        const RVar row(op.output.rvars(0)[0]);
        DISTILE_APPLY(op.output.update().allow_race_conditions().unroll(row));
    }
    if (op.product != TokenProduct::Scores) {
        const int lanes = problem.vector_lanes, whole = whole_channels(problem), rest = op.head_dim - whole;
        if (whole > 0) {
            schedule_values(op, 0, theta, lanes, theta.at("value_vectors"), source);
        }
        if (rest > 0) {
            schedule_values(op, whole > 0 ? 1 : 0, theta, rest, 1, source);
        }
    }
    return source.str();
}

}  // namespace distile
