#include "generators/token_product.h"

namespace distile {

using namespace Halide;

namespace {

/** Combines the lanes of a row as a balanced tree. */
Expr over_lanes(const Func &lanes, int first, int count,
                const std::function<Expr(const Expr &, const Expr &)> &combine) {
    if (count == 1) {
        return lanes(first, Var("r"));
    }
    return combine(over_lanes(lanes, first, count / 2, combine),
                   over_lanes(lanes, first + count / 2, count - count / 2, combine));
}

}  // namespace

Expr TokenProduct::exp2_of(const Expr &value) {
    // Smaller powers are subnormal. As a strict comparison it keeps NaN.
    const Expr power = strict_float(select(value < -126.0f, -126.0f, value));
    // Adding it leaves no fraction, so that the last bits are the rounded number.
    constexpr float rounding = 0x1.8p23f;
    const Expr shifted = strict_float(power + rounding), rest = power - strict_float(shifted - rounding);
    Expr result = 0.00132669704f;
    for (const float coefficient : {0.00967545975f, 0.0555074262f, 0.240221218f, 0.693146949f, 1.0f}) {
        result = result * rest + coefficient;
    }
    return result * reinterpret(Float(32), (reinterpret(Int(32), shifted) + 127) << 23);
}

void TokenProduct::add_operands(Internal::GeneratorBase &generator, bool has_key, bool has_value) {
    const Target target = generator.context().target();
    const Type type = stored_type(dtype);
    gpu = target.has_gpu_feature();
    const int dimensions = gpu ? 4 : 2;
    conversion = StorageConversion(target);
    lanes = target.natural_vector_size<float>();
    input.set_type(type);
    input.set_dimensions(dimensions);
    if (gpu) {
        row_starts = generator.add_input<Buffer<uint32_t>>("row_starts", 1);
        key_starts = generator.add_input<Buffer<uint32_t>>("key_starts", 1);
        tile_count = generator.add_input<Buffer<uint32_t>>("tile_count", 1);
        every_key = generator.add_input<int32_t>("every_key");
    }
    if (has_key) {
        key = generator.add_input<Buffer<>>("key", type, dimensions);
    }
    if (has_value) {
        value = generator.add_input<Buffer<>>("value", type, dimensions);
    }
    output = generator.add_output<Buffer<>>("output", type, dimensions);
}

Expr TokenProduct::listed_row(const Expr &row) {
    return unsafe_promise_clamped(min(row, num_rows - 1), 0, num_rows - 1);
}

Expr TokenProduct::row_x(const Expr &row) {
    return unsafe_promise_clamped(cast<int>(rows(listed_row(row))), 0, input.dim(1).extent() - 1);
}

Expr TokenProduct::listed_key(const Expr &key_index) {
    return unsafe_promise_clamped(min(key_index, num_keys - 1), 0, max(num_keys - 1, 0));
}

Expr TokenProduct::key_x(const Expr &key_index) {
    const Expr tokens = (key ? key->dim(1) : value->dim(1)).extent();
    return unsafe_promise_clamped(cast<int>(keys(listed_key(key_index))), 0, tokens - 1);
}

Expr TokenProduct::column(const Expr &key_index) {
    return packed_columns ? key_index : key_x(key_index);
}

Expr TokenProduct::load_input(const Expr &channel, const Expr &token) {
    return conversion.to_float32(input(channel, token), dtype);
}

Func TokenProduct::products(const Func &lane_rows, const Func &other_rows) {
    RDom t(0, head_dim, "t");
    Var lane_token("lane_token"), other("other");
    std::vector<Var> args = {lane_token, other};
    std::vector<Expr> of_other = {t, other};
    for (size_t place = 2; place < other_rows.args().size(); place++) {
        args.push_back(other_rows.args()[place]);
        of_other.push_back(other_rows.args()[place]);
    }
    Func lane_columns("lane_columns"), lane_tokens("lane_tokens"), dots("dots"), scores("scores");
    lane_columns(lane_token, d) = lane_rows(d, lane_token);
    lane_tokens(lane_token, d) = lane_columns(lane_token, d);
    dots(args) += lane_tokens(lane_token, t) * other_rows(of_other);
    scores(args) = dots(args);
    input.dim(0).set_bounds(0, head_dim).set_stride(1);
    input.dim(1).set_min(0);
    return scores;
}

Func TokenProduct::scores_of_keys(bool for_softmax) {
    Func lane_rows("lane_rows"), other_rows("other_rows");
    lane_rows(d, j) = conversion.to_float32((*key)(d, key_x(j)), dtype) * (for_softmax ? scale * log2_of_e : scale);
    other_rows(d, r) = load_input(d, row_x(r));
    return products(lane_rows, other_rows);
}

std::vector<Var> TokenProduct::with_block(std::vector<Var> args) {
    if (softmax_keys > 0) {
        args.push_back(b);
    }
    return args;
}

std::vector<Expr> TokenProduct::of_block(std::vector<Expr> args) {
    if (softmax_keys > 0) {
        args.emplace_back(b);
    }
    return args;
}

Expr TokenProduct::key_of_block(const Expr &key) {
    return softmax_keys > 0 ? b * softmax_keys + key : key;
}

RDom TokenProduct::keys_of_softmax(const std::string &name) {
    if (softmax_keys == 0) {
        return RDom(0, num_keys, name);
    }
    RDom of_block(0, softmax_keys, name);
    of_block.where(key_of_block(of_block) < num_keys);
    return of_block;
}

Expr TokenProduct::near_key(const RDom &of_keys) {
    return softmax_keys > 0 ? unsafe_promise_clamped(of_keys, 0, num_keys - 1 - key_of_block(0)) : Expr(of_keys);
}

TokenProduct::PartialSoftmax TokenProduct::partial_softmax(bool causal) {
    Func lane_rows("lane_rows"), other_rows("other_rows");
    lane_rows(d, r) = load_input(d, row_x(r)) * (scale * log2_of_e);
    other_rows(with_block({d, j})) = conversion.to_float32((*key)(d, key_x(key_of_block(j))), dtype);
    const Func scores = products(lane_rows, other_rows);
    const auto seen = [&](const Expr &key_index) {
        return causal ? key_x(key_of_block(key_index)) <= row_x(r) + last_of_first : Expr(cast<bool>(true));
    };
    const RDom of_most = keys_of_softmax("of_most"), of_sum = keys_of_softmax("of_sum");
    PartialSoftmax softmax = {Func("most"), Func("weights"), Func("sum")};
    const std::vector<Var> of_row = with_block({r});
    softmax.most(of_row) = least_score;
    const Expr score = scores(of_block({Expr(r), near_key(of_most)}));
    softmax.most(of_row) =
        strict_float(max(softmax.most(of_row), causal ? select(seen(of_most), score, least_score) : score));
    const Expr power = exp2_of(scores(of_block({r, j})) - softmax.most(of_row));
    softmax.weights(with_block({r, j})) = causal ? select(seen(j), power, 0.0f) : power;
    softmax.sum(of_row) = 0.0f;
    softmax.sum(of_row) += softmax.weights(of_block({Expr(r), near_key(of_sum)}));
    return softmax;
}

Func TokenProduct::sums_of_values(const std::string &name, const PartialSoftmax &softmax, int first) {
    const RDom of_keys = keys_of_softmax(name + "_key");
    // A register tile may have more rows than there are, whose sums nobody reads.
    const Expr row = softmax_keys > 0 ? unsafe_promise_clamped(r, 0, num_rows - 1) : listed_row(r);
    Func sums(name + "_sums");
    sums(with_block({d, r})) += softmax.weights(of_block({row, near_key(of_keys)})) *
                                conversion.to_float32((*value)(d + first, key_x(key_of_block(of_keys))), dtype);
    return sums;
}

Func TokenProduct::parts_of_blocks(const PartialSoftmax &softmax) {
    const int dim = head_dim;
    Func block("block"), parts("parts");
    block(c, r, b) = undef<float>();
    for (const auto &[first, channels] : parts_of_head()) {
        const std::string name = first == 0 ? "values" : "last_values";
        RDom of_channels(0, channels, name + "_channel");
        block(of_channels + first, r, b) = sums_of_values(name, softmax, first)(of_channels, r, b);
    }
    RDom of_rows(0, num_rows, "of_rows");
    block(dim, of_rows, b) = softmax.most(of_rows, b);
    block(dim + 1, of_rows, b) = softmax.sum(of_rows, b);
    parts(c, r, b) = block(c, r, b);
    return parts;
}

void TokenProduct::define_attention_of_blocks(const PartialSoftmax &softmax) {
    const int dim = head_dim;
    const Func parts = parts_of_blocks(softmax);
    const Expr num_blocks = (num_keys + softmax_keys - 1) / softmax_keys;
    RDom of_top(0, num_blocks, "of_top"), of_total(0, num_blocks, "of_total");
    Func top("top"), factors("factors"), total("total");
    top(r) = least_score;
    top(r) = strict_float(max(top(r), parts(dim, r, of_top)));
    factors(r, b) = exp2_of(parts(dim, r, b) - top(r));
    total(r) = 0.0f;
    total(r) += parts(dim + 1, r, of_total) * factors(r, of_total);
    const Func inverse = inverse_of(total);
    for (const auto &[first, channels] : parts_of_head()) {
        RDom of_parts(0, num_blocks, "of_parts");
        Func values(first == 0 ? "values" : "last_values");
        values(d, r) += parts(d + first, r, of_parts) * factors(r, of_parts);
        store_values(values, first, channels, inverse);
    }
}

Func TokenProduct::inverse_of(const Func &sum) {
    Func inverse("inverse");
    // A row that sees no key is 0.
    inverse(r) = strict_float(select(sum(r) == 0.0f, 0.0f, 1.0f / sum(r)));
    return inverse;
}

void TokenProduct::define_attention(bool causal) {
    const PartialSoftmax softmax = partial_softmax(causal);
    (*output)(d, x) = undef(stored_type(dtype));
    if (softmax_keys > 0) {
        define_attention_of_blocks(softmax);
        return;
    }
    const Func inverse = inverse_of(softmax.sum);
    for (const auto &[first, channels] : parts_of_head()) {
        const std::string name = first == 0 ? "values" : "last_values";
        Func values(name);
        values(d, r) = sums_of_values(name, softmax, first)(d, r);
        store_values(values, first, channels, inverse);
    }
}

TokenProduct::Softmax TokenProduct::softmax_of_keys(const Func &scores) {
    RDom of_most(0, (num_keys + lanes - 1) / lanes, "of_most"), of_sum(0, (num_keys + lanes - 1) / lanes, "of_sum");
    Func most_lanes("most_lanes"), most("most"), weights("weights"), sum_lanes("sum_lanes"), sum("sum"),
        inverse("inverse");
    const auto larger = [](const Expr &a, const Expr &b) { return strict_float(max(a, b)); };
    const auto added = [](const Expr &a, const Expr &b) { return strict_float(a + b); };
    most_lanes(lane, r) = least_score;
    // Scores beyond the last key repeat it.
    most_lanes(lane, r) = larger(most_lanes(lane, r), scores(of_most * lanes + lane, r));
    most(r) = over_lanes(most_lanes, 0, lanes, larger);
    weights(j, r) = select(j < num_keys, exp2_of(scores(j, r) - most(r)), 0.0f);
    sum_lanes(lane, r) = 0.0f;
    sum_lanes(lane, r) += weights(of_sum * lanes + lane, r);
    sum(r) = over_lanes(sum_lanes, 0, lanes, added);
    inverse(r) = strict_float(1.0f / sum(r));
    return {weights, inverse};
}

std::vector<std::pair<int, int>> TokenProduct::parts_of_head() const {
    const int dim = head_dim, whole = dim / lanes * lanes;
    std::vector<std::pair<int, int>> parts;
    for (const auto &[first, channels] : {std::pair<int, int>{0, whole}, {whole, dim - whole}}) {
        if (channels > 0) {
            parts.emplace_back(first, channels);
        }
    }
    return parts;
}

void TokenProduct::store_values(const Func &values, int first, int channels, const Func &factor) {
    const int dim = head_dim;
    RDom of_block(0, channels, 0, num_rows, values.name() + "_row");
    const Expr sum = values(of_block.x, of_block.y);
    const Expr result = factor.defined() ? sum * factor(of_block.y) : sum;
    (*output)(of_block.x + first, row_x(of_block.y)) = conversion.from_float32(result, dtype);
    value->dim(0).set_bounds(0, dim).set_stride(1);
    value->dim(1).set_min(0);
    output->dim(0).set_bounds(0, dim).set_stride(1);
    output->dim(1).set_bounds(0, input.dim(1).extent());
}

void TokenProduct::define_values(const std::function<Expr(const Expr &, const Expr &)> &weight) {
    (*output)(d, x) = undef(stored_type(dtype));
    // Channels that fill no vector are a stage of their own, of narrower vectors.
    for (const auto &[first, channels] : parts_of_head()) {
        const std::string name = first == 0 ? "values" : "last_values";
        RDom of_keys(0, num_keys, name + "_key");
        Func sums(name + "_sums"), values(name);
        sums(d, r) +=
            weight(listed_row(r), of_keys) * conversion.to_float32((*value)(d + first, key_x(of_keys)), dtype);
        values(d, r) = sums(d, r);
        store_values(values, first, channels, Func());
    }
}

void TokenProduct::define_scores(const std::function<Expr(const Expr &, const Expr &)> &score) {
    (*output)(j, x) = undef(stored_type(dtype));
    if (packed_columns) {
        RDom of_block(0, num_keys, 0, num_rows, "score");
        (*output)(of_block.x, row_x(of_block.y)) = conversion.from_float32(score(of_block.x, of_block.y), dtype);
    } else {
        // Some rows at once, so that the place of a key is found once for all of them. The last ones may repeat.
        constexpr int rows_at_once = 4;
        RDom of_block(0, rows_at_once, 0, num_keys, 0, (num_rows + rows_at_once - 1) / rows_at_once, "score");
        const Expr row = listed_row(of_block.z * rows_at_once + of_block.x);
        (*output)(key_x(of_block.y), row_x(row)) = conversion.from_float32(score(of_block.y, row), dtype);
    }
    output->dim(0).set_min(0).set_stride(1);
    output->dim(1).set_bounds(0, input.dim(1).extent());
}

void TokenProduct::estimate() {
    if (on_gpu()) {
        estimate_on_gpu();
        return;
    }
    const int dim = head_dim;
    input.set_estimates({{0, key ? dim : estimated_tokens}, {0, estimated_tokens}});
    rows.set_estimates({{0, estimated_rows}});
    keys.set_estimates({{0, estimated_rows}});
    num_rows.set_estimate(estimated_rows);
    num_keys.set_estimate(estimated_rows);
    last_of_first.set_estimate(0);
    scale.set_estimate(1);
    if (key) {
        key->set_estimates({{0, dim}, {0, estimated_tokens}});
    }
    if (value) {
        value->set_estimates({{0, dim}, {0, estimated_tokens}});
    }
    output->set_estimates({{0, value ? dim : estimated_tokens}, {0, estimated_tokens}});
}

}  // namespace distile
