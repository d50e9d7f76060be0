/** \file
 * What plans say of code for dot-product and matrix instructions of CPUs.
 */
#ifndef DISTILE_PLANS_DOT_PRODUCT_H
#define DISTILE_PLANS_DOT_PRODUCT_H

#include "plans/plan.h"
#include "schedules/dot_product_space.h"
#include <ostream>
#include <string>

namespace distile {

/** "", or why there is no such code for an operator. */
std::string why_no_dot_products(const Operator &op);

/** Whether there is code that multiplies an operator by some instructions. */
bool multiplies(DotProducts instructions, const Operator &op);

/** The best instructions for an operator that CPUs with such features have; nothing if they have none. Every CPU has
 * some for quantized operators. */
std::optional<DotProducts> dot_products_of(const Operator &op, const std::string &features);
/** Which dot products multiply operators of a type, if features have some for it. */
std::optional<DotProducts> dot_products_of(const DataType &type, const std::string &features);

/** Whether such features include one that only code for dot products uses. */
bool has_words_of_dot_products(const std::string &features);

/** The target with a word for the best instructions for an operator that devices with such features have, if they need
 * one; otherwise the target as it is. */
std::string with_dot_products(const Operator &op, const std::string &target, const std::string &features);

/** The targets of all such code for an operator on CPUs of one level, which is the target of code from Halide for them;
 * the best first. */
std::vector<std::string> targets_of_dot_products(const Operator &op, const Platform &platform,
                                                 const std::string &level);

/** The word for such instructions in a target; "" if it has none. */
std::string word_of_dot_products(const std::string &target);

/** The object that holds the code of a plan's variants. */
const char *dot_product_object(const Plan &plan);

/** A block of pixels and output channels, and how many of these are staged at a time. */
struct BlockExtents {
    int pixels, channels, staged;
};

/** A C function run_FUNCTION that calls `code_function` with a distile_dot_product_code for a variant. */
void emit_dot_product_code(std::ostream &c, const Plan &plan, const PlanVariant &variant, const BlockExtents &block,
                           const char *code_function, const std::string &function);

/** The C function run_FUNCTION that calls the code of a variant. */
void emit_call_of_dot_products(std::ostream &c, const Plan &plan, const PlanVariant &variant,
                               const std::string &function);

/** The call of a plan's only variant as C, for people to read. */
std::string call_of_dot_products(const Plan &plan);

}  // namespace distile

#endif
