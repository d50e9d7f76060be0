/** \file
 * Probabilities times values:
 *
 *     output(h, d, row) = sum over active keys j of input(h, j, row) * value(h, d, j)
 *
 * at the listed rows. With packed columns, the input has the active keys next to each other.
 */
#include "generators/token_product.h"

namespace {

using namespace Halide;

class MaskedValues : public Generator<MaskedValues>, public distile::TokenProduct {
public:
    GeneratorParam<bool> packed_param{"packed_columns", false};

    void configure() {
        packed_columns = packed_param;
        add_operands(*this, false, true);
    }

    void generate() {
        if (on_gpu()) {
            define_values_on_gpu();
            return;
        }
        Func weights("weights");
        weights(r, j) = load_input(column(j), row_x(r));
        define_values([&](const Expr &row, const Expr &of_key) { return weights(row, of_key); });
        input.dim(0).set_min(0).set_stride(1);
        input.dim(1).set_min(0);
    }

    void schedule() {
        estimate();
    }
};

}  // namespace

HALIDE_REGISTER_GENERATOR(MaskedValues, masked_values)
