#include "plans/two_four.h"
#include "plans/bitmap.h"
#include "plans/dot_product.h"
#include "plans/nonzeros.h"
#include "plans/operator_schema.h"
#include "plans/tensor_core.h"
#include "runtime/kinds/operator_kind.h"
#include <sstream>

namespace distile {

bool has_two_four(const DataType &type) {
    return type.dtype == DISTILE_FLOAT16 || type.dtype == DISTILE_BFLOAT16;
}

std::string why_no_two_four(const Operator &op) {
    const WeightPacking *const weights = find_operator_kind(op.schema().kind)->weights;
    return weights && has_two_four(op.dtype()) && op.weights_dtype().dtype == DISTILE_FLOAT32 &&
                   !facts_of(op).depthwise && weights->packs(op.schema().op(op).get(), WeightOrder::TwoFour)
               ? ""
               : "there is no code for weights of the pattern 2:4 for this operator: it computes linear layers and "
                 "convolutions without groups in float16 and bfloat16, with weights of float32, channels that are "
                 "multiples of 8 and a kernel of at most 16 x 16";
}

bool keeps_two_of_four(const Operator &op) {
    return op.typical_pattern == WeightPattern::TwoFour && !reads_bitmap(op) && why_no_two_four(op).empty();
}

std::string with_two_four(const Operator &op, const std::string &target, const std::string &features) {
    if (&backend_of_target(target) != &cuda_backend() || !keeps_two_of_four(op) || !run_on_gpu(features)) {
        return target;
    }
    return find_platform(target)->target(features == "sm_90" || features == "sm_90a" ? "cuda-cuda_capability_90a"
                                                                                     : "cuda-cuda_capability_80");
}

const char *two_four_object() {
    return "distile_cuda_two_four.o";
}

void emit_call_of_two_four(std::ostream &c, const Plan &plan, const PlanVariant &variant, const std::string &function) {
    emit_dot_product_code(c, plan, variant, {variant.theta.at("pixels"), variant.theta.at("channels"), 1},
                          tensor_cores_of(plan) == TensorCores::Sm90 ? "distile_call_cuda_two_four_sm90"
                                                                     : "distile_call_cuda_two_four",
                          function);
}

std::string call_of_two_four(const Plan &plan) {
    std::ostringstream c;
    emit_call_of_two_four(c, plan, plan.variants.front(), plan.variants.front().name);
    return c.str();
}

}  // namespace distile
