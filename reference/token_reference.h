/** \file
 * Attention and its two products by definition: plain loops with sums in double precision over the active keys.
 */
#ifndef DISTILE_TOKEN_REFERENCE_H
#define DISTILE_TOKEN_REFERENCE_H

#include <cstdint>
#include <distile/polykernel.h>
#include <vector>

namespace distile {

/** What an operator that reads a key or a value computes. */
struct TokenOperator {
    bool scores, values;  ///< Which products; attention has both.
    bool softmax, causal;
    bool packed_columns;  ///< Column j of scores is that of the image's j-th active key.
    int32_t heads, head_dim;
};

/** The keys of an image that are active, by their columns; -1 where a column has none. */
std::vector<int32_t> keys_of_columns(const TokenOperator &op, const uint8_t *key_mask, int32_t keys, int32_t n);

TokenOperator token_operator_of(distile_operator_kind kind, const void *op);

/** What it reads. */
struct TokenArgs {
    const distile_tensor *input, *key, *value;  ///< The key or the value may be null, as in a call.
    const uint8_t *key_mask;                    ///< [batch][key tokens]; null: every key is active.
    float scale;                                ///< 0: the usual one.
};

/** An element of a row. Without a result, the operator writes none. */
struct TokenResult {
    bool written;
    double value;
    double scale;  ///< For judging errors: the sum of the absolute values of all terms, with the errors of the scores.
    double sum = 0;  ///< For a product with values: `scale` without the errors of the scores.
};

/** The channels of row (n, y, x) of the output. */
std::vector<TokenResult> reference_token_row(const TokenOperator &op, const TokenArgs &args, int32_t n, int32_t y,
                                             int32_t x);

}  // namespace distile

#endif
