#include "schedules/attention_space.h"
#include "schedules/multiprocessor.h"
#include <algorithm>

namespace distile {

namespace {

constexpr int most_head_dim = 128;
constexpr int64_t registers = 1 << 16;  // The registers of a multiprocessor.

/** The channels of a head that there is room for. */
int stored_channels(const OperatorFacts &op) {
    return round_up(op.head_dim, 32);
}

/** What there is of attention's two products. */
bool has_scores(const OperatorFacts &op) {
    return op.product != TokenProduct::Values;
}
bool has_values(const OperatorFacts &op) {
    return op.product != TokenProduct::Scores;
}

/** How often 16 rows a warp has in the code for 8.0. */
int parts_of(const Theta &theta) {
    return std::max(1, value_of(theta, "warp_rows") / 16);
}

template<TensorCores cores> std::string describe_attention(const Theta &theta) {
    std::string text = "tensor cores, blocks of " + count_of(theta, "block_rows", "row") + " x " +
                       count_of(theta, "block_keys", "key") + ", " + count_of(theta, "stages", "stage");
    text += cores == TensorCores::Sm80 ? "; warps of " + count_of(theta, "warp_rows", "row") : "";
    text += value_of(theta, "overlapped") != 0 ? "; values beside the next softmax" : "";
    text += value_of(theta, "ordered") != 0 ? "; warp groups in turn" : "";
    text += value_of(theta, "balanced") != 0 ? "; balanced" : "";
    return text + "; " + count_of(theta, "blocks", "block") + " a multiprocessor";
}

Space make_space(TensorCores cores) {
    const bool sm90 = cores == TensorCores::Sm90;
    using Values = std::vector<int>;
    const auto with_warps = [&](std::vector<std::string> knobs) {
        knobs.insert(knobs.end(), sm90 ? 0 : 1, "warp_rows");
        return knobs;
    };
    Space space{{{"tile_h", "height of a tile: tokens have one row", {1}},
                 {"tile_w", "width of a tile: tokens are listed one by one", {1}},
                 {"block_rows", "query rows per block", sm90 ? Values{64, 128, 192, 256} : Values{64, 128}},
                 {"block_keys", "keys per step", sm90 ? Values{64, 96, 128, 192, 256} : Values{32, 64, 128}},
                 {"stages", "blocks of keys in shared memory", {2, 3, 4, 5, 6}},
                 {"blocks", "blocks of a multiprocessor", {1, 2, 3}}},
                {{"stages that fit the shared memory of a multiprocessor, for all of its blocks",
                  [cores](const Theta &theta, const Problem &problem) {
                      const int64_t bytes = attention_block(cores, theta, problem).shared_bytes;
                      return theta.at("blocks") * (bytes + reserved_bytes) <= all_shared_bytes(cores);
                  },
                  {"block_rows", "block_keys", "stages", "blocks"}},
                 {"block_rows and blocks with at most 768 threads a multiprocessor",
                  [cores](const Theta &theta, const Problem &problem) {
                      return theta.at("blocks") * attention_block(cores, theta, problem).threads <= 768;
                  },
                  with_warps({"block_rows", "blocks"})},
                 {"registers for the queries, the scores of block_keys, their probabilities and the sums of a head",
                  [cores, sm90](const Theta &theta, const Problem &problem) {
                      // Warps that copy leave some of their registers to warps that multiply.
                      const int threads = attention_block(cores, theta, problem).threads - (sm90 ? 128 : 0);
                      const int64_t each = std::min<int64_t>(registers / (int64_t{theta.at("blocks")} * threads), 255);
                      const int keys = theta.at("block_keys"), channels = stored_channels(problem);
                      const int queries = has_scores(problem) ? channels * problem.bytes_per_element / 8 : 0;
                      const int sums = has_values(problem) ? channels / 2 : 0;
                      return int64_t{parts_of(theta)} * (keys / 2 + (sm90 ? keys / 4 : queries) + sums) <= each;
                  },
                  with_warps({"block_rows", "block_keys", "blocks"})}},
                sm90 ? describe_attention<TensorCores::Sm90> : describe_attention<TensorCores::Sm80>,
                {}};
    if (!sm90) {
        space.knobs.push_back({"warp_rows", "query rows of a warp", {16, 32}});
    } else {
        space.knobs.push_back({"overlapped", "1: products with values beside the softmax of the next scores", {0, 1}});
        space.knobs.push_back({"ordered", "1: warp groups issue their products in turn", {0, 1}});
        space.knobs.push_back({"balanced", "1: blocks share the keys of the last items", {0, 1}});
        space.constraints.push_back({"groups of 64 rows that can be ordered",
                                     [](const Theta &theta, const Problem &) {
                                         return theta.at("ordered") == 0 || theta.at("block_rows") > 64;
                                     },
                                     {"ordered", "block_rows"}});
    }
    for (const Knob &knob : space.knobs) {
        space.constraints.insert(space.constraints.begin(), one_of(knob));
    }
    return space;
}

}  // namespace

bool has_attention(const OperatorFacts &op, TensorCores cores) {
    return op.product != TokenProduct::None && op.head_dim % 8 == 0 && op.head_dim <= most_head_dim &&
           (cores == TensorCores::Sm80 || (op.bytes_per_element == 2 && op.product == TokenProduct::Attention));
}

const Space &attention_space(TensorCores cores) {
    static const Space sm80 = make_space(TensorCores::Sm80), sm90 = make_space(TensorCores::Sm90);
    return cores == TensorCores::Sm90 ? sm90 : sm80;
}

AttentionBlock attention_block(TensorCores cores, const Theta &theta, const OperatorFacts &op) {
    const int64_t rows = value_of(theta, "block_rows"), keys = value_of(theta, "block_keys"),
                  stages = value_of(theta, "stages"), row_bytes = int64_t{op.bytes_per_element} * stored_channels(op);
    AttentionBlock block{};
    if (cores == TensorCores::Sm80) {
        // Queries are where keys and values are later. Scores that are loaded or stored have rows besides.
        const int64_t tokens = (has_scores(op) && has_values(op) ? 2 : 1) * stages * keys;
        block.shared_bytes = std::max(has_scores(op) ? rows : 0, tokens) * row_bytes;
        block.shared_bytes += has_scores(op) && has_values(op) ? 0 : rows * (keys + 8) * op.bytes_per_element;
        block.threads = static_cast<int>(2 * rows / parts_of(theta));
    } else {
        // Two buffers of rows, alignment and barriers. Four more warps copy.
        block.shared_bytes = 2 * (rows + stages * keys) * row_bytes + 1024 + 32 * stages + 56;
        block.threads = static_cast<int>(2 * rows) + 128;
        // Sums of channels, and maxima and sums of rows.
        block.part_bytes = value_of(theta, "balanced") == 0 ? 0 : 2 * rows * (stored_channels(op) / 8 + 1) * 16;
    }
    return block;
}

}  // namespace distile
