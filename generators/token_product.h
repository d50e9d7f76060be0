/** \file
 * Shared by the generators of operators that read a key or a value, on CPUs. Their code computes the listed rows of a
 * block for one head of an image (distile_call_row_blocks in polykernel.h). The Funcs have the names and forms that
 * schedules/token_operator.h describes; r counts the rows of the block and j the active keys.
 */
#ifndef DISTILE_TOKEN_PRODUCT_H
#define DISTILE_TOKEN_PRODUCT_H

#include "Halide.h"
#include "storage_type.h"
#include <functional>

namespace distile {

/** A base class of generators, in addition to Halide's. It declares a generator's first arguments. The operands with
 * their names follow. */
class TokenProduct {
public:
    Halide::GeneratorParam<Halide::Type> dtype{"dtype", Halide::Float(32)};
    Halide::GeneratorParam<int> heads{"heads", 1, 1, 1 << 12};
    Halide::GeneratorParam<int> head_dim{"head_dim", 64, 1, 1 << 12};

    // The queries [d, x], or the probabilities [key, x].
    Halide::GeneratorInput<Halide::Buffer<>> input{"input", 2};
    // The x of each row of the block, and of each active key.
    Halide::GeneratorInput<Halide::Buffer<uint32_t>> rows{"rows", 1};
    Halide::GeneratorInput<Halide::Buffer<uint32_t>> keys{"keys", 1};
    Halide::GeneratorInput<int32_t> num_rows{"num_rows"};
    Halide::GeneratorInput<int32_t> num_keys{"num_keys"};
    // A causal operator's row x sees the keys up to x + last_of_first.
    Halide::GeneratorInput<int32_t> last_of_first{"last_of_first"};
    Halide::GeneratorInput<float> scale{"scale"};

protected:
    TokenProduct() = default;
    ~TokenProduct() = default;

    /** For configure(): adds the key and the value, if the operator has them, and the output. */
    void add_operands(Halide::Internal::GeneratorBase &generator, bool has_key, bool has_value);
    /** For generate(): the output of a product with values, where weights(r, j) are those of a key, and factor(r) those
     * of a row. */
    void define_values(const std::function<Halide::Expr(const Halide::Expr &, const Halide::Expr &)> &weight,
                       const std::function<Halide::Expr(const Halide::Expr &)> &factor);
    /** For generate(): the output of scores. */
    void define_scores(const std::function<Halide::Expr(const Halide::Expr &, const Halide::Expr &)> &score);
    /** For schedule(). */
    void estimate();

    /** The scores (r, j), in units of log(2) if they are for a softmax. */
    Halide::Func scores(bool for_softmax);
    /** The numerators of a softmax of such scores, and the inverse of their sum. */
    struct Softmax {
        Halide::Func weights, inverse;
    };
    Softmax softmax(const Halide::Func &scores, bool causal);

    /** A row of the block: a register tile may have more rows than are left, which repeat the last one. */
    Halide::Expr listed_row(const Halide::Expr &row);
    Halide::Expr row_x(const Halide::Expr &row);
    Halide::Expr key_x(const Halide::Expr &key);
    /** The probabilities of an input, as float32. */
    Halide::Expr load_input(const Halide::Expr &channel, const Halide::Expr &token);

    Halide::Var d{"d"}, r{"r"}, j{"j"}, x{"x"};

private:
    Halide::GeneratorInput<Halide::Buffer<>> *key = nullptr, *value = nullptr;
    Halide::GeneratorOutput<Halide::Buffer<>> *output = nullptr;
    StorageConversion conversion;
    int lanes = 1;
};

}  // namespace distile

#endif
