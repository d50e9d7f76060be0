/** \file
 * Shared by the generators of operators that read a key or a value. The Funcs have the names and forms that
 * schedules/token_operator.h describes; r counts listed rows and j active keys.
 *
 * On a CPU the code computes the listed rows of a block for one head of an image (distile_call_row_blocks in
 * kernels/halide/code.h). On a GPU it computes all (distile_call_token_lists), because only the device knows the lists.
 */
#ifndef DISTILE_TOKEN_PRODUCT_H
#define DISTILE_TOKEN_PRODUCT_H

#include "Halide.h"
#include "generators/storage_type.h"
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace distile {

/** A base class of generators, in addition to Halide's. It declares a generator's first arguments. The operands with
 * their names follow. */
class TokenProduct {
public:
    Halide::GeneratorParam<distile_dtype> dtype{"dtype", DISTILE_FLOAT32, float_types_by_name()};
    Halide::GeneratorParam<int> heads{"heads", 1, 1, 1 << 12};
    Halide::GeneratorParam<int> head_dim{"head_dim", 64, 1, 1 << 12};

    // On a GPU, the rows and keys of an image that a block takes at a time; keys are multiples of key_threads.
    Halide::GeneratorParam<int> block_rows{"block_rows", 32, 1, 1024};
    Halide::GeneratorParam<int> block_keys{"block_keys", 32, 8, 1024};
    // In attention on a CPU, the keys that have a softmax of their own, one such block after the other; 0: all keys
    // have one.
    Halide::GeneratorParam<int> softmax_keys{"softmax_keys", 0, 0, 1 << 16};

    // The queries [d, x], or the probabilities [key, x]. On a GPU, of all heads and images: [channel, x, 0, image] or
    // [key, x, head, image]. So are the other operands.
    Halide::GeneratorInput<Halide::Buffer<>> input{"input"};
    // The x of each row of the block, and of each active key; on a GPU, of all images.
    Halide::GeneratorInput<Halide::Buffer<uint32_t>> rows{"rows", 1};
    Halide::GeneratorInput<Halide::Buffer<uint32_t>> keys{"keys", 1};
    // The numbers of both; on a GPU, the blocks that they fill at most in an image.
    Halide::GeneratorInput<int32_t> num_rows{"num_rows"};
    Halide::GeneratorInput<int32_t> num_keys{"num_keys"};
    // A causal operator's row x sees the keys up to x + last_of_first.
    Halide::GeneratorInput<int32_t> last_of_first{"last_of_first"};
    Halide::GeneratorInput<float> scale{"scale"};

protected:
    TokenProduct() = default;
    ~TokenProduct() = default;

    /** For configure(): adds what only GPUs have, the key and the value, if the operator has them, and the output. */
    void add_operands(Halide::Internal::GeneratorBase &generator, bool has_key, bool has_value);
    /** For generate(): the output of a product with values, where weight(r, j) is that of a key. */
    void define_values(const std::function<Halide::Expr(const Halide::Expr &, const Halide::Expr &)> &weight);
    /** For generate(): attention. */
    void define_attention(bool causal);
    /** For generate(): the output of scores, where score(j, r) is that of a key and a row. */
    void define_scores(const std::function<Halide::Expr(const Halide::Expr &, const Halide::Expr &)> &score);
    /** For schedule(). */
    void estimate();

    bool on_gpu() const {
        return gpu;
    }
    /** For generate() on a GPU: the whole operator. */
    void define_attention_on_gpu(bool causal);
    void define_scores_on_gpu(bool softmax);
    void define_values_on_gpu();

    /** The scores (j, r), with keys in vector lanes; in units of log(2) if they are for a softmax. */
    Halide::Func scores_of_keys(bool for_softmax);
    /** The numerators of a softmax of such scores, with the same arguments, and the inverse of their sum. */
    struct Softmax {
        Halide::Func weights, inverse;
    };
    Softmax softmax_of_keys(const Halide::Func &scores);

    /** A row of the block: a register tile may have more rows than are left, which repeat the last one. */
    Halide::Expr listed_row(const Halide::Expr &row);
    Halide::Expr row_x(const Halide::Expr &row);
    Halide::Expr key_x(const Halide::Expr &key);
    /** Where a row of scores has the one of a key. */
    Halide::Expr column(const Halide::Expr &key);
    /** The probabilities of an input, as float32. */
    Halide::Expr load_input(const Halide::Expr &channel, const Halide::Expr &token);

    Halide::Var d{"d"}, r{"r"}, j{"j"}, x{"x"}, b{"b"};
    /** Whether column j of scores is that of the j-th active key, else that of key j. */
    bool packed_columns = false;

private:
    /** The estimates of a vision transformer's tokens, of which a third are active. */
    static constexpr int estimated_tokens = 197, estimated_rows = 64;
    /** What no score is less than. Finite, because infinities minus themselves are NaN. */
    static constexpr float least_score = -3e38f;
    static constexpr float log2_of_e = 1.44269504f;
    /** Threads of a GPU's block that share the keys of a row: thread t takes the keys t, t + key_threads, ... */
    static constexpr int key_threads = 8;
    /** Channels that a GPU loads at once. */
    static constexpr int channel_lanes = 4;

    Halide::GeneratorInput<Halide::Buffer<>> *key = nullptr, *value = nullptr;
    Halide::GeneratorOutput<Halide::Buffer<>> *output = nullptr;
    // On a GPU: where each image's rows and keys begin in the lists, and a last number; the number of listed rows, all
    // images together; and the number of keys if each is active, else 0: they are listed.
    Halide::GeneratorInput<Halide::Buffer<uint32_t>> *row_starts = nullptr, *key_starts = nullptr,
                                                     *tile_count = nullptr;
    Halide::GeneratorInput<int32_t> *every_key = nullptr;
    StorageConversion conversion;
    int lanes = 1;
    bool gpu = false;

    // On a GPU, in blocks: a channel is number `lane` of vector v, a key number i of key thread t.
    Halide::Var lane{"lane"}, v{"v"}, i{"i"}, t{"t"}, h{"h"}, n{"n"}, c{"c"}, y{"y"};

    /** Dot products of the tokens in vector lanes with the others: (lane's token, other token), and the block of the
     * others if they have one. */
    Halide::Func products(const Halide::Func &lane_rows, const Halide::Func &other_rows);
    /** On a CPU, of all keys or of each block of them: a row's greatest score, the weights (r, j) of its keys relative
     * to that, and their sum. The block is the last argument of each. */
    struct PartialSoftmax {
        Halide::Func most, weights, sum;
    };
    PartialSoftmax partial_softmax(bool causal);
    /** The sums (d, r) of the values of all keys, or of a block, for channels from `first` on. */
    Halide::Func sums_of_values(const std::string &name, const PartialSoftmax &softmax, int first);
    /** The sums (c, r, b) of the values of a block, and behind those of a head's channels the greatest score and the
     * sum of the weights. */
    Halide::Func parts_of_blocks(const PartialSoftmax &softmax);
    void define_attention_of_blocks(const PartialSoftmax &softmax);
    /** The inverse (r) of a row's sum of weights. */
    Halide::Func inverse_of(const Halide::Func &sum);
    /** Key j of a block, among all. */
    Halide::Expr key_of_block(const Halide::Expr &key);
    /** The domain of all keys, or of those of a block. */
    Halide::RDom keys_of_softmax(const std::string &name);
    /** Its key, as what bounds those that Funcs compute: there, Halide does not see the domain's condition. */
    Halide::Expr near_key(const Halide::RDom &of_keys);
    /** Arguments, and the block behind them if there are blocks. */
    std::vector<Halide::Var> with_block(std::vector<Halide::Var> args);
    std::vector<Halide::Expr> of_block(std::vector<Halide::Expr> args);
    /** The channels of a head that fill vectors, and the others: the first and their number. Not those that are none.
     */
    std::vector<std::pair<int, int>> parts_of_head() const;
    /** An update of the output: channels from `first` on of the listed rows. */
    void store_values(const Halide::Func &values, int first, int channels, const Halide::Func &factor);
    Halide::Expr listed_key(const Halide::Expr &key);
    /** 2 to the power of an expression that is at most 0, with a relative error of 1e-7; NaN of NaN. */
    static Halide::Expr exp2_of(const Halide::Expr &value);

    int vectors() const {
        return head_dim / channel_lanes;
    }
    Halide::Expr listed_rows(const Halide::Expr &image);
    Halide::Expr listed_keys(const Halide::Expr &image);
    Halide::Expr row_x(const Halide::Expr &row, const Halide::Expr &image);
    Halide::Expr listed_key(const Halide::Expr &key_index, const Halide::Expr &image);
    Halide::Expr key_x(const Halide::Expr &key_index, const Halide::Expr &image);
    Halide::Expr column(const Halide::Expr &key_index, const Halide::Expr &image);
    Halide::Expr seen(const Halide::Expr &key_index, bool causal);
    Halide::Func head_rows(const std::string &name, Halide::GeneratorInput<Halide::Buffer<>> &tokens, bool zero_beyond);
    Halide::Func dots_with(const Halide::Func &staged, const std::string &prefix);
    Halide::Func softmax_on_gpu(bool causal);
    Halide::Expr probability(const Halide::Func &dots, const Halide::Func &softmax);
    void sum_values(const Halide::Func &weights);
    void constrain_gpu_buffers();
    void estimate_on_gpu();
};

}  // namespace distile

#endif
