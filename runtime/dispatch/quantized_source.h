/** \file
 * What sources of quantized weights must have.
 */
#ifndef DISTILE_QUANTIZED_SOURCE_H
#define DISTILE_QUANTIZED_SOURCE_H

#include "runtime/base/context.h"
#include <string>

namespace distile {

/** The types of what reads quantized weights, and its output channels. */
struct QuantizedNumbers {
    distile_dtype input, output;
    distile_dtype residual;  ///< DISTILE_FLOAT32 without one.
    int32_t out_channels;
};

/** Checks the filter's type and the quantization of a source. `name` is what it is for, in messages. */
distile_status check_quantization(distile_context *context, const char *call, const std::string &name,
                                  const distile_weights_source &source, const QuantizedNumbers &of);

}  // namespace distile

#endif
