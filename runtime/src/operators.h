/** \file
 * How the runtime checks and calls operators, and what is peculiar to each kind of them. A further kind is one file
 * that defines its OperatorKind, and one line in operators.cpp.
 */
#ifndef DISTILE_OPERATORS_H
#define DISTILE_OPERATORS_H

#include "kernel.h"

namespace distile {

/** The geometry of an operator along one axis, in pixels. */
struct Axis {
    int64_t kernel, stride, dilation, pad_before, pad_after;
};

Axis rows_of(const distile_conv2d &conv);
Axis columns_of(const distile_conv2d &conv);

/** Pixels [first, last). */
struct PixelRange {
    int64_t first, last;
};

/** What the geometry of a kind of operator says along one axis. */
struct OperatorKind {
    /** Output pixels for an input; 0 if there are none. */
    int64_t (*output_extent)(const Axis &axis, int64_t input);
    /** The output pixels whose reads all lie among the pixels `readable` of the input, which may be negative in a
     * border. May be empty, or reach beyond the output. */
    PixelRange (*interior)(const Axis &axis, const PixelRange &readable);
};

extern const OperatorKind conv2d_kind, conv_transpose2d_kind, upsample_conv2d_kind;

/** Null if this library does not know the kind. */
const OperatorKind *find_operator_kind(int32_t kind);

/** Checks for the API function `call` that this library knows a PolyKernel's version and kind. */
distile_status check_polykernel(distile_context *context, const char *call, const distile_polykernel &polykernel);

/** What of a call is not peculiar to where it runs. */
struct OperatorTensors {
    const distile_tensor *input, *residual, *output;
    int32_t inactive, store; /**< As numbers, because a caller's may be no enumerator. */
};

/** Checks the tensors and options of a masked operator for the API function `call`. */
distile_status check_tensors(const distile_kernel &kernel, const char *call, const OperatorTensors &args);
/** Stores that a variant failed in the API function `call`, and why if its code reported it, and returns the status. */
distile_status fail_variant(const distile_kernel &kernel, const char *call, distile_status status,
                            const Variant &variant, int code);
/** Checks every argument of distile_run. Writes nothing but the context's message. */
distile_status check_run(const distile_kernel &kernel, const distile_run_args &args);
/** Runs the variant of an index on arguments that were checked. */
distile_status run_variant(distile_kernel &kernel, const distile_run_args &args, int32_t index);

}  // namespace distile

#endif
