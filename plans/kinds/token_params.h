/** \file
 * Shared by the kinds of operators that read a key or a value.
 */
#ifndef DISTILE_TOKEN_PARAMS_H
#define DISTILE_TOKEN_PARAMS_H

#include "plans/operator_schema.h"

namespace distile {

inline std::vector<IntegerParam> head_params() {
    return {{"heads", 1, 1, 1 << 12}, {"head_dim", 64, 1, 1 << 12}};
}

/** The channels of the tokens. */
inline int channels_of_heads(const Operator &op) {
    return op.param("heads") * op.param("head_dim");
}

inline std::string why_heads_illegal(const Operator &op) {
    return op.param("head_dim") % 8 == 0 ? ""
                                         : "the parameter \"head_dim\" is " + std::to_string(op.param("head_dim")) +
                                               ", but must be a multiple of 8";
}

inline OperatorFacts facts_of_heads(const Operator &op, TokenProduct product) {
    OperatorFacts facts;
    facts.product = product;
    facts.heads = op.param("heads");
    facts.head_dim = op.param("head_dim");
    facts.in_channels = facts.out_channels = channels_of_heads(op);
    return facts;
}

inline std::string describe_heads(const Operator &op) {
    return std::string(op.schema().noun) + ", " + std::to_string(op.param("heads")) + " heads of " +
           std::to_string(op.param("head_dim")) + " channels";
}

}  // namespace distile

#endif
