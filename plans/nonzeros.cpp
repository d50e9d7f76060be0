#include "plans/nonzeros.h"
#include "facts/zeros.h"
#include "kernels/dot_products.h"
#include "plans/dot_product.h"
#include "plans/operator_schema.h"
#include "runtime/kinds/nonzeros_layout.h"
#include "runtime/kinds/operator_kind.h"
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <set>
#include <sstream>
#include <stdexcept>

namespace distile {

namespace {

/** Each instruction set, the best first of each kind of operators. */
constexpr struct {
    bool quantized;       /**< Multiplies quads of quantized operators. */
    const char *features; /**< What code needs of a CPU. */
    int lanes;            /**< Pixels of a vector. */
    int instructions;     /**< By which a vector is multiplied, beside one that loads it. */
    const char *function, *object;
} known_nonzeros[] = {{false, "avx512f avx512bw avx512dq avx512vl fma avx2", 16, 1, "distile_call_avx512_nonzeros",
                       "distile_avx512_nonzeros.o"},
                      {false, "avx2 fma", 8, 1, "distile_call_avx2_nonzeros", "distile_avx2_nonzeros.o"},
                      {false, "", 4, 1, "distile_call_portable_nonzeros", "distile_portable_nonzeros.o"},
                      {true, "avx512f avx512bw avx512dq avx512vl fma avx2 avx512_vnni", 16, 1,
                       "distile_call_avx512_vnni_nonzeros", "distile_avx512_vnni_nonzeros.o"},
                      {true, "avx2 avx_vnni", 8, 1, "distile_call_avx_vnni_nonzeros", "distile_avx_vnni_nonzeros.o"},
                      {true, "avx2", 8, 6, "distile_call_avx2_int8_nonzeros", "distile_avx2_int8_nonzeros.o"},
                      {true, "", 4, 13, "distile_call_portable_int8_nonzeros", "distile_portable_int8_nonzeros.o"}};

bool includes(const std::set<std::string> &has, const std::string &needed) {
    std::istringstream words(needed);
    for (std::string word; words >> word;) {
        if (has.count(word) == 0) {
            return false;
        }
    }
    return true;
}

/** The code for GPUs. */
constexpr const char *nonzeros_gpu_target = "cuda-cuda_capability_80",
                     *nonzeros_gpu_function = "distile_call_cuda_nonzeros",
                     *nonzeros_gpu_object = "distile_cuda_nonzeros.o";

bool is_for_gpu(const Plan &plan) {
    return plan.backend == cuda_backend().name;
}

const auto &nonzeros_row_of(const Operator &op, const std::string &features) {
    std::istringstream words(features);
    std::set<std::string> has;
    for (std::string word; words >> word;) {
        has.insert(word);
    }
    for (const auto &row : known_nonzeros) {
        if (row.quantized == op.is_quantized() && includes(has, row.features)) {
            return row;
        }
    }
    throw std::logic_error("every CPU has code for nonzero weights");
}

}  // namespace

bool has_nonzeros(const DataType &type) {
    return type.dtype == DISTILE_FLOAT32 || type.dtype == DISTILE_FLOAT16 || type.dtype == DISTILE_BFLOAT16 ||
           type.is_quantized();
}

std::string why_no_nonzeros(const Operator &op) {
    const WeightPacking *const weights = find_operator_kind(op.schema().kind)->weights;
    const auto packs = [&](WeightOrder order) { return weights->packs(op.schema().op(op).get(), order); };
    const bool has_code = weights && has_nonzeros(op.dtype()) && !facts_of(op).depthwise &&
                          (op.is_quantized() ? packs(WeightOrder::NonzeroQuads)
                                             : packs(WeightOrder::Nonzeros) && packs(WeightOrder::PairedNonzeros) &&
                                                   op.weights_dtype().dtype == DISTILE_FLOAT32);
    return has_code
               ? ""
               : "there is no code for nonzero weights for this operator: it computes linear layers and "
                 "convolutions, in float32, float16 and bfloat16 with weights of float32, and quantized ones on CPUs";
}

bool run_on_gpu(const std::string &features) {
    constexpr int least_capability = 80;
    const std::string beginning = "sm_";
    return features.compare(0, beginning.size(), beginning) == 0 &&
           std::atoi(features.c_str() + beginning.size()) >= least_capability;
}

bool skips_zeros(const Operator &op) {
    return op.typical_zeros >= DISTILE_LEAST_ZEROS && why_no_nonzeros(op).empty();
}

Operator with_all_weights(const Operator &op) {
    Operator plain = op;
    plain.typical_zeros = 0;
    plain.typical_pattern = WeightPattern::None;
    return plain;
}

int64_t typical_nonzeros(const Operator &op) {
    const auto [kind, conv] = op.schema().convolution(op);
    const int64_t all =
        op.is_quantized()
            ? count_quads({conv.out_channels, conv.in_channels / conv.groups, conv.kernel_h, conv.kernel_w},
                          conv.groups)
            : op.filter_elements();
    return std::max<int64_t>(1, std::llround(static_cast<double>(all) * (1 - op.typical_zeros)));
}

void visit_prunable(const Operator &op, const std::function<void(size_t first, size_t count)> &visit) {
    const auto [kind, conv] = op.schema().convolution(op);
    const int32_t width = op.is_quantized() ? quad_channels : 1, channels = conv.in_channels / conv.groups,
                  group_outputs = conv.out_channels / conv.groups, taps = conv.kernel_h * conv.kernel_w;
    size_t first = 0;
    for (int32_t o = 0; o < conv.out_channels; o++) {
        for (int32_t tap = 0; tap < taps; tap++) {
            for (int32_t i = 0, count = 0; i < channels; i += count, first += count) {
                count = std::min(width - (o / group_outputs * channels + i) % width, channels - i);
                visit(first, count);
            }
        }
    }
}

ProductOfNonzeros product_of_nonzeros(const Operator &op, const std::string &features) {
    return {op.is_quantized() ? quad_channels : 1, nonzeros_row_of(op, features).instructions};
}

std::string with_nonzeros(const Operator &op, const std::string &target, const std::string &features) {
    // Tensor cores multiply all weights of narrow types faster.
    const bool has_code = &backend_of_target(target) == &cuda_backend() && op.dtype().dtype == DISTILE_FLOAT32 &&
                          skips_zeros(op) && run_on_gpu(features);
    return has_code ? find_platform(target)->target(nonzeros_gpu_target) : target;
}

const char *nonzeros_object(const Plan &plan) {
    return is_for_gpu(plan) ? nonzeros_gpu_object : nonzeros_row_of(plan.op, plan.features()).object;
}

void emit_call_of_nonzeros(std::ostream &c, const Plan &plan, const PlanVariant &variant, const std::string &function) {
    if (is_for_gpu(plan)) {
        emit_dot_product_code(c, plan, variant, {variant.theta.at("pixels"), variant.theta.at("channels"), 1},
                              nonzeros_gpu_function, function);
        return;
    }
    const auto &row = nonzeros_row_of(plan.op, plan.features());
    emit_dot_product_code(c, plan, variant, {variant.theta.at("vectors") * row.lanes, DISTILE_NONZERO_BLOCK, 1},
                          row.function, function);
}

std::string call_of_nonzeros(const Plan &plan) {
    std::ostringstream c;
    emit_call_of_nonzeros(c, plan, plan.variants.front(), plan.variants.front().name);
    return c.str();
}

}  // namespace distile
