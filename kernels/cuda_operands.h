/** \file
 * The operands of layers with weights whose kernels for NVIDIA GPUs read the operator at run time, as launchers have
 * them.
 */
#ifndef DISTILE_KERNELS_CUDA_OPERANDS_H
#define DISTILE_KERNELS_CUDA_OPERANDS_H

#include "kernels/cuda_call.h"
#include "kernels/cuda_tensor.h"
#include "kernels/dot_products.h"

namespace distile {

/** The dimensions of an activation, and the places of the operands. The residual, if any, and the output follow. */
enum Dimension { Channel, X, Y };
enum Operand { Input, PackedWeights, Bias, Residual };

inline int32_t divide_up(int32_t a, int32_t b) {
    return (a + b - 1) / b;
}

inline const distile_array &output_of(const distile_kernel_call &call) {
    return call.operands[call.num_operands - 1];
}

/** Sets the call, the activations and their channels, and the bias of a kernel's arguments. */
template<class Arguments> void set_operands(Arguments &a, const distile_kernel_call &call, int32_t epilogue) {
    const distile_array &input = call.operands[Input], &output = output_of(call);
    static_cast<CudaCall &>(a) = cuda_call_of(call, epilogue);
    a.input = cuda_tensor_of(input);
    a.output = cuda_tensor_of(output);
    if (call.num_operands > Residual + 1) {
        a.residual = cuda_tensor_of(call.operands[Residual]);
    }
    a.bias = static_cast<const float *>(call.operands[Bias].data);
    a.in_channels = input.dim[Channel].extent;
    a.out_channels = output.dim[Channel].extent;
}

/** An axis of a convolution, as arguments have it. */
template<class Axis> Axis axis_of(const distile_array &input, Dimension dimension, int32_t stride,
                                  const distile_taps &taps, int32_t tile, int32_t extent) {
    const int32_t begin = input.dim[dimension].min;
    return {stride, taps.first, taps.step, taps.taps, begin, begin + input.dim[dimension].extent, tile, extent};
}

}  // namespace distile

#endif
