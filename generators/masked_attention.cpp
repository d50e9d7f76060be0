/** \file
 * Masked attention over tokens:
 *
 *     output(h, d, row) = sum over active keys j of softmax(scale * query(h, row) . key(h, j)) * value(h, d, j)
 *
 * at the listed rows.
 */
#include "generators/token_product.h"

namespace {

using namespace Halide;

class MaskedAttention : public Generator<MaskedAttention>, public distile::TokenProduct {
public:
    GeneratorParam<bool> causal{"causal", false};

    void configure() {
        add_operands(*this, true, true);
    }

    void generate() {
        if (on_gpu()) {
            define_attention_on_gpu(causal);
            return;
        }
        define_attention(causal);
    }

    void schedule() {
        estimate();
    }
};

}  // namespace

HALIDE_REGISTER_GENERATOR(MaskedAttention, masked_attention)
