/** \file
 * What the runtime asks of an operator's types.
 */
#ifndef DISTILE_QUANTIZED_OPERATOR_H
#define DISTILE_QUANTIZED_OPERATOR_H

#include "runtime/kinds/operator_kind.h"

namespace distile {

/** Whether an operator's input is quantized. */
bool is_quantized(const distile_polykernel &polykernel);
/** What the packing of a quantized operator's weights depends on. */
QuantizedOperator quantized_operator(const distile_polykernel &polykernel);
/** What is wrong with the types of an operator's operands; "" if nothing. */
std::string why_types_illegal(const distile_polykernel &polykernel);

}  // namespace distile

#endif
