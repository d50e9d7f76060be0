/** \file
 * A PolyKernel for tensor cores as the build writes it, whose code only the fake driver takes.
 */
#ifndef DISTILE_TESTS_TENSOR_CORE_OPERATOR_H
#define DISTILE_TESTS_TENSOR_CORE_OPERATOR_H

#include <array>
#include <distile/polykernel.h>

namespace distile {

inline const char fine_cubin[] = "\177ELF of single pixels", coarse_cubin[] = "\177ELF of tiles";

/** 64 pixels by 32 channels a block, two blocks a reduction. */
inline const distile_tensor_core_code fine_code = {
    fine_cubin, sizeof(fine_cubin) - 1, "distile_masked", 64, 32, 2, 0, 256, 1, 100000, 1, 1, 0, 0, 1};
/** The same for tiles of 2 x 2 in boxes, in balance instead of in pairs, and without an early start. */
inline const distile_tensor_core_code coarse_code = {
    coarse_cubin, sizeof(coarse_cubin) - 1, "distile_masked", 64, 32, 1, 1, 256, 2, 60000, 2, 2, 1, 1, 0};

template<const distile_tensor_core_code *code> int run_tensor_core(const distile_kernel_call *call) {
    return distile_call_tensor_core(code, call);
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
        variants = {{{"fine", 1, 1, 0, layout, run_tensor_core<&fine_code>, {}, 4096},
                     {"coarse", 2, 2, 0, layout, run_tensor_core<&coarse_code>, {}, 0},
                     {"dense", 1, 1, 1, layout, run_tensor_core<&fine_code>, {}, 4096}}};
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
    }
    TensorCoreOperator(const TensorCoreOperator &) = delete;
    TensorCoreOperator &operator=(const TensorCoreOperator &) = delete;

    distile_conv2d conv = {64, 24, 1, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1, DISTILE_EPILOGUE_NONE, 1};
    std::array<distile_operand, 5> operands;
    std::array<distile_variant, 3> variants{};
    distile_polykernel polykernel{};
};

}  // namespace distile

#endif
