#include "schedules/token_space.h"
#include "schedules/tile_knobs.h"

namespace distile {

namespace {

std::string describe_token(const Theta &theta) {
    std::string text = "blocks of " + count_of(theta, "rows", "row");
    if (theta.count("score_rows") != 0) {
        text += "; register tiles of " + count_of(theta, "score_rows", "row") + " x " +
                count_of(theta, "key_vectors", "vector") + " of keys, " + count_of(theta, "unroll", "channel") +
                " unrolled";
    }
    if (theta.count("score_keys") != 0) {
        text += "; register tiles of " + count_of(theta, "row_vectors", "vector") + " of rows x " +
                count_of(theta, "score_keys", "key") + ", " + count_of(theta, "unroll", "channel") + " unrolled";
    }
    if (theta.count("value_rows") != 0) {
        text += "; register tiles of " + count_of(theta, "value_rows", "row") + " x " +
                count_of(theta, "value_vectors", "vector") + " of channels, " +
                count_of(theta, theta.count("value_unroll") != 0 ? "value_unroll" : "unroll", "key") + " unrolled";
    }
    if (value_of(theta, "value_keys") != 0) {
        text += "; values of " + count_of(theta, "value_keys", "key") + " at a time";
    }
    if (value_of(theta, "softmax_keys") != 0) {
        text += "; a softmax for every " + count_of(theta, "softmax_keys", "key");
    }
    return text;
}

/** The knobs and constraints of scores, with rows in vector lanes or, for scores alone, keys. */
void add_scores(Space &space, const char *vectors, const char *vectors_meaning, const char *others,
                const char *others_meaning) {
    space.knobs.push_back({vectors, vectors_meaning, {1, 2, 4}});
    space.knobs.push_back({others, others_meaning, {3, 4, 5, 6, 8, 10, 12, 13, 14, 24}});
    space.knobs.push_back({"unroll", "channels of a head whose products are unrolled", {1, 2, 4, 8}});
    space.constraints.push_back({std::string(vectors) + " times " + others + " that fit the vector registers",
                                 [vectors, others](const Theta &theta, const Problem &problem) {
                                     return theta.at(vectors) * (theta.at(others) + 1) < problem.vector_registers;
                                 },
                                 {vectors, others}});
    space.constraints.push_back(
        {"an unroll that divides the channels of a head",
         [](const Theta &theta, const Problem &problem) { return problem.head_dim % theta.at("unroll") == 0; },
         {"unroll"}});
}

Space make_space(bool scores, bool values) {
    // A plan's variants have granularities; those of tokens are single tokens.
    Space space{{{"tile_h", "height of a tile, a token", {1}},
                 {"tile_w", "width of a tile, a token", {1}},
                 {"rows", "most rows in a block, which one task computes for one head", {16, 32, 48, 64, 96, 128}}},
                {tile_of_one_token()},
                describe_token,
                {}};
    if (scores && values) {
        add_scores(space, "row_vectors", "vectors of rows in a register tile of scores", "score_keys",
                   "keys in a register tile of scores");
        space.constraints.push_back({"rows that are whole register tiles of scores",
                                     [](const Theta &theta, const Problem &problem) {
                                         return theta.at("rows") % row_step(theta, problem.vector_lanes) == 0;
                                     },
                                     {"rows", "row_vectors"}});
    } else if (scores) {
        add_scores(space, "key_vectors", "vectors of keys in a register tile", "score_rows", "rows in a register tile");
        space.constraints.push_back(
            {"rows of at least a register tile",
             [](const Theta &theta, const Problem &) { return theta.at("rows") >= theta.at("score_rows"); },
             {"rows", "score_rows"}});
    }
    if (values) {
        space.knobs.push_back(
            {"value_rows", "rows in a register tile of values", {1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14}});
        space.knobs.push_back(
            {"value_vectors", "vectors of channels in a register tile of values", {1, 2, 3, 4, 5, 6, 8}});
        space.knobs.push_back(
            {"value_keys", "keys whose values all rows read before others; 0: every key", {0, 64, 128}});
        if (scores) {
            space.knobs.push_back({"softmax_keys",
                                   "keys of a block with a softmax of its own; 0: all keys have one",
                                   {0, 48, 192, 384, 768}});
            space.constraints.push_back({"at most one of value_keys and softmax_keys",
                                         [](const Theta &theta, const Problem &) {
                                             return theta.at("value_keys") == 0 || theta.at("softmax_keys") == 0;
                                         },
                                         {"value_keys", "softmax_keys"}});
        }
        // Compilers reorder the sums of unrolled keys, for which they lack registers.
        space.knobs.push_back({scores ? "value_unroll" : "unroll", "keys that are unrolled", {1}});
        space.constraints.push_back({"value_vectors that divide those of a head",
                                     [](const Theta &theta, const Problem &problem) {
                                         const int vectors = whole_channels(problem) / problem.vector_lanes;
                                         return vectors == 0 ? theta.at("value_vectors") == 1
                                                             : vectors % theta.at("value_vectors") == 0;
                                     },
                                     {"value_vectors"}});
        space.constraints.push_back({"value_rows times value_vectors that fit the vector registers",
                                     [](const Theta &theta, const Problem &problem) {
                                         return (theta.at("value_rows") + 1) * theta.at("value_vectors") <
                                                problem.vector_registers;
                                     },
                                     {"value_rows", "value_vectors"}});
    }
    return space;
}

}  // namespace

int row_step(const Theta &theta, int lanes) {
    return theta.count("row_vectors") != 0  ? theta.at("row_vectors") * lanes
           : theta.count("score_rows") != 0 ? theta.at("score_rows")
                                            : theta.at("value_rows");
}

int more_rows(TokenProduct product) {
    // Scores alone transpose all keys, which takes as long as about 8 rows, as measured.
    return product == TokenProduct::Scores ? 8 : product == TokenProduct::Values ? 1 : 0;
}

int whole_channels(const Problem &problem) {
    return problem.head_dim / problem.vector_lanes * problem.vector_lanes;
}

const Space &cpu_token_space(TokenProduct product) {
    static const Space attention = make_space(true, true), scores = make_space(true, false),
                       values = make_space(false, true);
    return product == TokenProduct::Attention ? attention : product == TokenProduct::Scores ? scores : values;
}

}  // namespace distile
