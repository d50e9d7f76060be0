/** \file
 * Scores of attention, or the probabilities that a softmax makes of them:
 *
 *     output(h, j, row) = scale * query(h, row) . key(h, j)
 *
 * at the listed rows and the active keys j.
 */
#include "token_product.h"

namespace {

using namespace Halide;

class MaskedScores : public Generator<MaskedScores>, public distile::TokenProduct {
public:
    GeneratorParam<bool> softmax_param{"softmax", false};

    void configure() {
        add_operands(*this, true, false);
    }

    void generate() {
        if (on_gpu()) {
            define_scores_on_gpu(softmax_param);
            return;
        }
        const Func scores_of_block = scores(softmax_param);
        if (softmax_param) {
            const Softmax made = softmax(scores_of_block, false);
            define_scores(
                [&](const Expr &row, const Expr &of_key) { return made.weights(row, of_key) * made.inverse(row); });
        } else {
            define_scores([&](const Expr &row, const Expr &of_key) { return scores_of_block(row, of_key); });
        }
    }

    void schedule() {
        estimate();
    }
};

}  // namespace

HALIDE_REGISTER_GENERATOR(MaskedScores, masked_scores)
