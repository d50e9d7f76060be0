/** \file
 * What the tools know of each kind of operator. A further kind is a row in facts/kinds.h, one file in kinds/ that
 * defines its OperatorSchema, and one row in operator_schema.cpp.
 */
#ifndef DISTILE_OPERATOR_SCHEMA_H
#define DISTILE_OPERATOR_SCHEMA_H

#include "plans/operator.h"
#include "schedules/space.h"
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace distile {

struct IntegerParam {
    const char *name;
    int fallback, least, most;
};

struct Channels {
    int in, out;
};

/** A struct of polykernel.h as C writes it: its name, and the values of its members. */
struct CStruct {
    const char *name;
    std::vector<std::pair<const char *, std::string>> members;
};

/** A convolution that computes the same, for the plain loops in reference/. */
struct Convolution {
    distile_operator_kind kind;
    distile_conv2d conv;
};

/** A kind of operator, known by its generator. What it computes, the runtime's OperatorKind knows. */
struct OperatorSchema {
    const char *generator;
    distile_operator_kind kind;
    const char *noun; /**< What people call it. */
    /** The generator's integer parameters, their defaults and ranges. Every kind also has dtype, and those with weights
     * epilogue and residual. */
    std::vector<IntegerParam> params;
    /** What operator files call the extents of the input, besides "batch": height and width, or the width of one row.
     */
    std::vector<const char *> extents;
    /** "", or a sentence that says which parameters do not go together. */
    std::string (*why_illegal)(const Operator &op);
    Channels (*channels)(const Operator &op);
    /** The struct that a descriptor's `op` points to, and the same in C. */
    std::shared_ptr<const void> (*op)(const Operator &op);
    CStruct (*c_struct)(const Operator &op);
    /** What schedules depend on. */
    OperatorFacts (*facts)(const Operator &op);
    Convolution (*convolution)(const Operator &op); /**< Null for kinds that read keys. */
    /** What the summary says before residual and epilogue. */
    std::string (*describe)(const Operator &op);
    std::vector<const char *> flags; /**< Parameters that are true or false, by default false. */
    /** The operands of a kind that reads a key or a value, which has neither weights nor epilogue nor residual, and
     * whose typical size has "key_tokens"; null for all others. */
    std::vector<Operand> (*operands_with_keys)(const Operator &op) = nullptr;
};

const OperatorSchema &conv2d_schema();
const OperatorSchema &depthwise_conv2d_schema();
const OperatorSchema &conv_transpose2d_schema();
const OperatorSchema &upsample_conv2d_schema();
const OperatorSchema &linear_schema();
const OperatorSchema &attention_schema();
const OperatorSchema &scores_schema();
const OperatorSchema &values_schema();

/** The schema of a generator; null if there is none. */
const OperatorSchema *find_schema(const std::string &generator);
/** The names of all generators, quoted, for messages. */
std::string known_generators();

/** The facts of an operator for every backend: the kind's, and the size of an element. */
OperatorFacts facts_of(const Operator &op);

}  // namespace distile

#endif
