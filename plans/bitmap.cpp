#include "plans/bitmap.h"
#include "facts/zeros.h"
#include "plans/dot_product.h"
#include "plans/nonzeros.h"
#include "plans/operator_schema.h"
#include "runtime/kinds/operator_kind.h"
#include <sstream>

namespace distile {

bool has_bitmap(const DataType &type) {
    return type.dtype == DISTILE_FLOAT16 || type.dtype == DISTILE_BFLOAT16;
}

std::string why_no_bitmap(const Operator &op) {
    const WeightPacking *const weights = find_operator_kind(op.schema().kind)->weights;
    return weights && has_bitmap(op.dtype()) && op.weights_dtype().dtype == DISTILE_FLOAT32 &&
                   weights->packs(op.schema().op(op).get(), WeightOrder::NonzeroBitmap)
               ? ""
               : "there is no code for a bitmap of weights for this operator: it computes linear layers in float16 and "
                 "bfloat16, with weights of float32";
}

bool reads_bitmap(const Operator &op) {
    const bool few = int64_t{op.typical_batch} * op.typical_height * op.typical_width <= DISTILE_MOST_BITMAP_TOKENS;
    return few && op.typical_zeros >= DISTILE_LEAST_BITMAP_ZEROS && why_no_bitmap(op).empty();
}

std::string with_bitmap(const Operator &op, const std::string &target, const std::string &features) {
    const bool has_code = &backend_of_target(target) == &cuda_backend() && reads_bitmap(op) && run_on_gpu(features);
    return has_code ? find_platform(target)->target("cuda-cuda_capability_80") : target;
}

const char *bitmap_object() {
    return "distile_cuda_bitmap.o";
}

void emit_call_of_bitmap(std::ostream &c, const Plan &plan, const PlanVariant &variant, const std::string &function) {
    emit_dot_product_code(c, plan, variant,
                          {variant.theta.at("pixels"), variant.theta.at("channels"), variant.theta.at("ahead")},
                          "distile_call_cuda_bitmap", function);
}

std::string call_of_bitmap(const Plan &plan) {
    std::ostringstream c;
    emit_call_of_bitmap(c, plan, plan.variants.front(), plan.variants.front().name);
    return c.str();
}

}  // namespace distile
