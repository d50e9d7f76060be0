/** \file
 * What all kinds of convolutions share.
 */
#ifndef DISTILE_PLANS_CONV_PARAMS_H
#define DISTILE_PLANS_CONV_PARAMS_H

#include "plans/operator_schema.h"

namespace distile {

/** The parameters of a filter: its kernel, strides, padding and dilations. */
std::vector<IntegerParam> filter_params();
/** The filter's parameters as a descriptor, with one group. The strides' parameters may have other names. */
distile_conv2d filter_of(const Operator &op, const char *stride_h = "stride_h", const char *stride_w = "stride_w");

/** Describes a convolution in words. `groups` follows the channels, and `stride` is what users call its strides. */
std::string describe_convolution(const Operator &op, const distile_conv2d &conv, const std::string &groups = "",
                                 const char *stride = "stride");
/** distile_conv2d, as C writes it. */
CStruct c_struct_of(const Operator &op, const distile_conv2d &conv);
OperatorFacts facts_of_conv(const distile_conv2d &conv);
/** "", or what is wrong with the groups of a convolution. */
std::string why_groups_illegal(const distile_conv2d &conv);

}  // namespace distile

#endif
