/** \file
 * The structure that schedules expect of an operator that reads a key or a value, for one head and one block of rows,
 * and the code that recognises it in a pipeline by the names of its Funcs.
 *
 * Scores have the Funcs
 *  - query_rows(d, r), the scaled queries of the block, query_columns(r, d), the same transposed, and queries(r, d),
 * the same again;
 *  - key_rows(d, j), the keys as float32;
 *  - dots(r, j), an accumulator with one update over d, and scores(r, j), the same;
 *  - with a softmax, most(r), weights(r, j), sum(r) and inverse(r), where most and sum have one update over the keys.
 *
 * A product with values has an update of the output for the channels that fill whole vectors, and one for the others.
 * Each scatters over the channels and the rows of the block, and reads values(d, r), or last_values(d, r), which reads
 * an accumulator of the same name with `_sums` with one update over the keys. That reads weights(r, j).
 */
#ifndef DISTILE_SCHEDULES_TOKEN_OPERATOR_H
#define DISTILE_SCHEDULES_TOKEN_OPERATOR_H

#include "Halide.h"
#include "space.h"
#include <map>
#include <string>

namespace distile {

struct TokenOperator : OperatorFacts {
    Halide::Func output;
    std::map<std::string, Halide::Func> funcs;

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
