/** \file
 * The structure that schedules expect of an operator that reads a key or a value, and the code that recognises it in a
 * pipeline by the names of its Funcs.
 *
 * On a CPU, for one head and one block of rows, tokens t in vector lanes meet the others o. For attention, rows are in
 * lanes, and for scores alone, which are stored along the keys, keys are. There are the Funcs
 *  - lane_rows(d, t), the scaled tokens in lanes, lane_columns(t, d), the same transposed, and lane_tokens(t, d), the
 * same again;
 *  - other_rows(d, o), the others as float32;
 *  - dots(t, o), an accumulator with one update over d, and scores(t, o), the same;
 *  - with a softmax, most(r), weights(t, o), sum(r) and inverse(r). With rows in lanes, most and sum have one update
 * over the keys. With keys in lanes, they combine the lanes of most_lanes(lane, r) and sum_lanes(lane, r), which have
 * one update over the vectors of keys.
 * Where blocks b of keys have a softmax of their own, all of these but lane_* and inverse have it as their last
 * argument. block(c, r, b) gets the sums of a block's values, one update for each accumulator, and then the greatest
 * score and the sum of weights in two more; parts(c, r, b) is the same. They are united by top(r), factors(r, b) and
 * total(r).
 *
 * The output of scores alone has an update over the keys and the rows of the block. Where it scatters keys, the update
 * is over the rows that it stores at once, the keys, and the groups of such rows. A product with values has an update
 * of the output for the channels that fill whole vectors, and one for the others. Each scatters over the channels and
 * the rows of the block, and reads values(d, r), or last_values(d, r), which reads an accumulator of the same name with
 * `_sums` with one update over the keys. That reads weights(r, j).
 *
 * On a GPU, where h is a head and n an image, a channel is number `lane` of vector v, and key j is item i of thread t:
 *  - key_rows(lane, v, j, h, n) and value_rows, the tokens at the listed keys, as float32;
 *  - queries(lane, v, r, h, n), those of the listed rows;
 *  - dots(i, t, r, h, n), an accumulator with one update over lane and v;
 *  - weights(t, i, r, h, n), what a product with values weighs keys with, or what scores store;
 *  - sums(lane, v, r, h, n), an accumulator with one update over t, the items of a block of keys, and the blocks;
 *  - with a softmax, first_keys, first_queries and first_dots, like key_rows, queries and dots; parts(t, r, h, n), with
 * one update over the items of a block and the blocks; shares, the same; totals(r, h, n), with one update over t; and
 * softmax(r, h, n). The output of a product with values has an update over the rows of a block, the blocks and the
 * images, that of scores over the keys and rows of a block, the blocks of both, and the images.
 */
#ifndef DISTILE_SCHEDULES_TOKEN_OPERATOR_H
#define DISTILE_SCHEDULES_TOKEN_OPERATOR_H

#include "Halide.h"
#include "schedules/space.h"
#include <map>
#include <string>

namespace distile {

struct TokenOperator : OperatorFacts {
    Halide::Func output;
    std::map<std::string, Halide::Func> funcs;
    int block_rows = 0, block_keys = 0; /**< The block on a GPU. */
    bool causal = false;                /**< Set on a GPU for causal operators. */
    int softmax_keys = 0;        /**< On a CPU, of attention: the keys of a block with its own softmax; 0: all. */
    bool packed_columns = false; /**< On a CPU, of scores: they are stored next to each other. */

    bool has(const std::string &name) const {
        return funcs.count(name) != 0;
    }
};

/** Whether the Funcs of a pipeline have these names. */
bool is_token_operator(const Halide::Pipeline &pipeline);

/** Recognises the operator. Throws Halide::CompileError where its output has no constant number of channels. */
TokenOperator recognise_token_operator(const Halide::Pipeline &pipeline);

}  // namespace distile

#endif
