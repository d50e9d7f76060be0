/** \file
 * Scores of attention, or the probabilities that a softmax makes of them:
 *
 *     output(h, j, row) = scale * query(h, row) . key(h, j)
 *
 * at the listed rows and the active keys j. With packed columns, j counts them.
 */
#include "generators/token_product.h"

namespace {

using namespace Halide;

class MaskedScores : public Generator<MaskedScores>, public distile::TokenProduct {
public:
    GeneratorParam<bool> softmax_param{"softmax", false};
    GeneratorParam<bool> packed_param{"packed_columns", false};

    void configure() {
        packed_columns = packed_param;
        add_operands(*this, true, false);
    }

    void generate() {
        if (on_gpu()) {
            define_scores_on_gpu(softmax_param);
            return;
        }
        const Func scores = scores_of_keys(softmax_param);
        if (softmax_param) {
            const Softmax made = softmax_of_keys(scores);
            define_scores(
                [&](const Expr &of_key, const Expr &row) { return made.weights(of_key, row) * made.inverse(row); });
        } else {
            define_scores([&](const Expr &of_key, const Expr &row) { return scores(of_key, row); });
        }
    }

    void schedule() {
        estimate();
    }
};

}  // namespace

HALIDE_REGISTER_GENERATOR(MaskedScores, masked_scores)
