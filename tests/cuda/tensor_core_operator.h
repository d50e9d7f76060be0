/** \file
 * A PolyKernel for tensor cores as the build writes it, whose code only the fake driver takes.
 */
#ifndef DISTILE_TESTS_TENSOR_CORE_OPERATOR_H
#define DISTILE_TESTS_TENSOR_CORE_OPERATOR_H

#include "kernels/tensor_core/code.h"
#include <array>
#include <distile/polykernel.h>

namespace distile {

inline const char tensor_core_cubin[] = "\177ELF of all variants";
inline const char *const tensor_core_cubin_end = tensor_core_cubin + sizeof(tensor_core_cubin) - 1;

/** Two variants for single pixels, with 64 pixels by 32 channels a block and two blocks a reduction, which share a
 * kernel. Between them one for tiles of 2 x 2 in boxes, in balance instead of in pairs, and without an early start. */
inline const std::array<distile_tensor_core_code, 3> tensor_core_codes = {
    {{tensor_core_cubin, tensor_core_cubin_end, "distile_masked_0", 0, 64, 32, 1, 2, 0, 256, 1, 100000, 1, 1, 0, 0, 1},
     {tensor_core_cubin, tensor_core_cubin_end, "distile_masked_1", 0, 64, 32, 1, 1, 1, 256, 2, 60000, 2, 2, 1, 1, 0},
     {tensor_core_cubin, tensor_core_cubin_end, "distile_masked_0", 1, 64, 32, 1, 2, 0, 256, 1, 100000, 1, 1, 0, 0,
      1}}};

template<int variant> int run_tensor_core(const distile_kernel_call *call) {
    return distile_call_tensor_core(&tensor_core_codes[variant], call);
}
inline int run_chosen_on_tensor_cores(const distile_kernel_call *calls, const int32_t *variants, int32_t num_calls,
                                      const distile_gpu_choice *choice) {
    return distile_choose_tensor_core(tensor_core_codes.data(), calls, variants, num_calls, choice);
}

/** A convolution from 64 to 24 channels with a residual; in float32, as TF32. */
struct TensorCoreOperator {
    explicit TensorCoreOperator(distile_dtype dtype)
        : operands{{{DISTILE_ROLE_INPUT, dtype, 64},
                    {DISTILE_ROLE_WEIGHTS, DISTILE_FLOAT32, 64},
                    {DISTILE_ROLE_BIAS, DISTILE_FLOAT32, 24},
                    {DISTILE_ROLE_RESIDUAL, dtype, 24},
                    {DISTILE_ROLE_OUTPUT, dtype, 24}}} {
        const bool is_tf32 = dtype == DISTILE_FLOAT32;
        const char *layout = is_tf32 ? "cuda-k32" : "cuda-k16";
        variants = {{{"fine", 1, 1, 0, layout, run_tensor_core<0>, {}, 4096, 0, 0},
                     {"coarse", 2, 2, 0, layout, run_tensor_core<1>, {}, 0, 0, 0},
                     {"dense", 1, 1, 1, layout, run_tensor_core<2>, {}, 4096, 0, 0}}};
        polykernel.version = DISTILE_POLYKERNEL_VERSION;
        polykernel.name = "tensor_core_operator";
        polykernel.kind = DISTILE_MASKED_CONV2D;
        polykernel.op = &conv;
        polykernel.num_operands = static_cast<int32_t>(operands.size());
        polykernel.operands = operands.data();
        polykernel.device = DISTILE_CUDA;
        polykernel.features = "sm_90a";
        polykernel.math = is_tf32 ? DISTILE_MATH_TF32 : DISTILE_MATH_FLOAT32;
        polykernel.num_variants = static_cast<int32_t>(variants.size());
        polykernel.variants = variants.data();
        polykernel.run_chosen = run_chosen_on_tensor_cores;
    }
    TensorCoreOperator(const TensorCoreOperator &) = delete;
    TensorCoreOperator &operator=(const TensorCoreOperator &) = delete;

    distile_conv2d conv = {64, 24, 1, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1, DISTILE_ACTIVATION_NONE, 1};
    std::array<distile_operand, 5> operands;
    std::array<distile_variant, 3> variants{};
    distile_polykernel polykernel{};
};

}  // namespace distile

#endif
