/** \file
 * What the tools know of each kind of operator. A further kind is one file that defines its OperatorSchema, and one
 * line in operator_schema.cpp.
 */
#ifndef DISTILE_OPERATOR_SCHEMA_H
#define DISTILE_OPERATOR_SCHEMA_H

#include <distile/polykernel.h>
#include <functional>
#include <string>
#include <vector>

namespace distile {

struct IntegerParam {
    const char *name;
    int fallback, least, most;
};

/** The value of an integer parameter, which must be one of the kind's. */
using ParamValue = std::function<int(const char *name)>;

/** A kind of operator, known by its generator. */
struct OperatorSchema {
    const char *generator;
    distile_operator_kind kind; /**< As the runtime knows it. */
    const char *noun;           /**< What people call it. */
    /** The generator's integer parameters, their defaults and ranges. All have dtype, epilogue and residual beside. */
    std::vector<IntegerParam> params;
    bool depthwise; /**< Every channel is computed from its own alone, in loops of their own. */
    /** The operator as the runtime sees it, but for epilogue and residual. */
    distile_conv2d (*conv2d)(const ParamValue &param);
    /** "", or a sentence that says which parameters do not go together. */
    std::string (*why_illegal)(const distile_conv2d &conv);
    /** Output pixels along an axis for an input; 0 if there are none. */
    int (*output_extent)(int input, int pads, int kernel, int stride, int dilation);
};

const OperatorSchema &conv2d_schema();
const OperatorSchema &depthwise_conv2d_schema();
const OperatorSchema &conv_transpose2d_schema();
const OperatorSchema &upsample_conv2d_schema();

/** The schema of a generator; null if there is none. */
const OperatorSchema *find_schema(const std::string &generator);
/** The names of all generators, for messages. */
std::string known_generators();

// What kinds share.

/** The parameters of a filter: its kernel, strides, padding and dilations. */
std::vector<IntegerParam> filter_params();
/** The same in a descriptor, with one group. */
distile_conv2d filter_conv2d(const ParamValue &param);
/** A convolution's output pixels along an axis. */
int conv_output_extent(int input, int pads, int kernel, int stride, int dilation);

}  // namespace distile

#endif
