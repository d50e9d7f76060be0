/** \file
 * What plans say of code that multiplies with the nonzero weights alone.
 */
#ifndef DISTILE_PLANS_NONZEROS_H
#define DISTILE_PLANS_NONZEROS_H

#include "plans/plan.h"
#include <functional>
#include <ostream>
#include <string>

namespace distile {

/** Whether there is such code for a type. That for quantized types is for CPUs. */
bool has_nonzeros(const DataType &type);

/** "", or why there is no such code for an operator. */
std::string why_no_nonzeros(const Operator &op);

/** Whether GPUs with such features, of compute capability 8.0 or later, run code for pruned weights. */
bool run_on_gpu(const std::string &features);

/** Whether plans multiply with an operator's nonzero weights: there is such code, and at least half of its typical
 * weights are 0, or for quantized operators of its quads of weights. On GPUs they do so in float32. */
bool skips_zeros(const Operator &op);

/** The target of code for nonzero weights of an operator, if it is for GPUs and a GPU with such features has some;
 * otherwise the target as it is. */
std::string with_nonzeros(const Operator &op, const std::string &target, const std::string &features);

/** The operator without zeros: plans multiply with all of its weights. */
Operator with_all_weights(const Operator &op);

/** In plans that skip zeros, names of variants that multiply with all weights begin so. */
constexpr const char *all_weights_prefix = "all_";

/** The number of its typical weights that are not 0, or for quantized operators of its quads; at least 1. */
int64_t typical_nonzeros(const Operator &op);

/** Visits what such code can leave out of an operator's weights, [output channel][kernel row][kernel column][input
 * channel]: each of them, or the quads of quantized operators. */
void visit_prunable(const Operator &op, const std::function<void(size_t first, size_t count)> &visit);

/** How CPUs with such features multiply a nonzero. */
struct ProductOfNonzeros {
    int channels;     /**< Input channels that it multiplies. */
    int instructions; /**< By which it multiplies a vector of pixels, beside one that loads this. */
};
ProductOfNonzeros product_of_nonzeros(const Operator &op, const std::string &features);

/** The object that holds the code of a plan's variants. */
const char *nonzeros_object(const Plan &plan);

/** The C function run_FUNCTION that calls the code of a variant. */
void emit_call_of_nonzeros(std::ostream &c, const Plan &plan, const PlanVariant &variant, const std::string &function);

/** The call of a plan's only variant as C, for people to read. */
std::string call_of_nonzeros(const Plan &plan);

}  // namespace distile

#endif
