#include "reference/token_reference.h"
#include "reference/conv2d_reference.h"
#include <algorithm>
#include <cmath>

namespace distile {

namespace {

bool is_active(const uint8_t *key_mask, int32_t keys, int32_t n, int32_t j) {
    return !key_mask || key_mask[int64_t{n} * keys + j] != 0;
}

/** A row's weights of the keys: scores, or probabilities. */
struct KeyWeights {
    std::vector<bool> seen;
    std::vector<double> weight, scale;
    double most = 0;  ///< The largest scale of a score.
};

KeyWeights scores_of(const TokenOperator &op, const TokenArgs &args, int32_t n, int32_t head, int32_t x) {
    const int32_t keys = args.key->width, shift = keys - args.input->width;
    const double scale = args.scale != 0 ? args.scale : 1 / std::sqrt(static_cast<float>(op.head_dim));
    KeyWeights row{std::vector<bool>(keys), std::vector<double>(keys), std::vector<double>(keys)};
    for (int32_t j = 0; j < keys; j++) {
        row.seen[j] = is_active(args.key_mask, keys, n, j) && (!op.causal || j <= x + shift);
        for (int32_t d = 0; row.seen[j] && d < op.head_dim; d++) {
            const int32_t channel = head * op.head_dim + d;
            const double product = scale * read_element(*args.input, n, 0, x, channel) *
                                   static_cast<double>(read_element(*args.key, n, 0, j, channel));
            row.weight[j] += product;
            row.scale[j] += std::abs(product);
        }
        row.most = std::max(row.most, row.scale[j]);
    }
    return row;
}

void apply_softmax(KeyWeights &row) {
    double most = -INFINITY, sum = 0;
    for (size_t j = 0; j < row.seen.size(); j++) {
        most = row.seen[j] && !(row.weight[j] <= most) ? row.weight[j] : most;
    }
    for (size_t j = 0; j < row.seen.size(); j++) {
        row.weight[j] = row.seen[j] ? std::exp(row.weight[j] - most) : 0;
        sum += row.weight[j];
    }
    for (size_t j = 0; j < row.seen.size(); j++) {
        row.weight[j] = row.seen[j] ? row.weight[j] / sum : 0;
        // An error of the scores is one of the exponent, of this probability and of the sum.
        row.scale[j] = std::abs(row.weight[j]) * (1 + 2 * row.most);
    }
}

KeyWeights probabilities_of(const TokenOperator &op, const TokenArgs &args, int32_t n, int32_t head, int32_t x) {
    const int32_t keys = args.value->width;
    const std::vector<int32_t> key_of = keys_of_columns(op, args.key_mask, keys, n);
    KeyWeights row{std::vector<bool>(keys), std::vector<double>(keys), std::vector<double>(keys)};
    for (int32_t column = 0; column < keys; column++) {
        const int32_t j = key_of[column];
        if (j >= 0) {
            row.seen[j] = true;
            row.weight[j] = read_element(*args.input, n, head, x, column);
            row.scale[j] = std::abs(row.weight[j]);
        }
    }
    return row;
}

}  // namespace

TokenOperator token_operator_of(distile_operator_kind kind, const void *op) {
    if (kind == DISTILE_MASKED_ATTENTION) {
        const auto &attention = *static_cast<const distile_attention *>(op);
        return {true, true, true, attention.causal != 0, false, attention.heads, attention.head_dim};
    }
    const auto &matmul = *static_cast<const distile_matmul *>(op);
    const bool scores = matmul.product == DISTILE_SCORES;
    return {scores, !scores, matmul.softmax != 0, false, matmul.packed_columns != 0, matmul.heads, matmul.head_dim};
}

std::vector<int32_t> keys_of_columns(const TokenOperator &op, const uint8_t *key_mask, int32_t keys, int32_t n) {
    std::vector<int32_t> key_of(keys, -1);
    int32_t active = 0;
    for (int32_t j = 0; j < keys; j++) {
        if (is_active(key_mask, keys, n, j)) {
            key_of[op.packed_columns ? active : j] = j;
            active++;
        }
    }
    return key_of;
}

std::vector<TokenResult> reference_token_row(const TokenOperator &op, const TokenArgs &args, int32_t n, int32_t y,
                                             int32_t x) {
    std::vector<TokenResult> results;
    const int32_t first = op.values ? 0 : y, end = op.values ? op.heads : y + 1;
    for (int32_t head = first; head < end; head++) {
        KeyWeights row = op.scores ? scores_of(op, args, n, head, x) : probabilities_of(op, args, n, head, x);
        if (op.scores && op.softmax) {
            apply_softmax(row);
        }
        const auto keys = static_cast<int32_t>(row.seen.size());
        if (!op.values) {
            for (const int32_t j : keys_of_columns(op, args.key_mask, keys, n)) {
                results.push_back(j < 0 ? TokenResult{} : TokenResult{true, row.weight[j], row.scale[j]});
            }
        }
        for (int32_t d = 0; op.values && d < op.head_dim; d++) {
            TokenResult result{true, 0, 0};
            for (int32_t j = 0; j < keys; j++) {
                if (row.seen[j]) {
                    const double value = read_element(*args.value, n, 0, j, head * op.head_dim + d);
                    result.value += row.weight[j] * value;
                    result.scale += row.scale[j] * std::abs(value);
                    result.sum += std::abs(row.weight[j] * value);
                }
            }
            results.push_back(result);
        }
    }
    return results;
}

}  // namespace distile
