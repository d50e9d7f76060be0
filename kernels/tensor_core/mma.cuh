/** \file
 * The instructions of tensor cores of compute capability 8.0 and later.
 */
#ifndef DISTILE_CUDA_TENSOR_CORE_MMA_CUH
#define DISTILE_CUDA_TENSOR_CORE_MMA_CUH

#include "kernels/tensor_core/elements.cuh"

namespace distile::tensor_core {

/** Loads four matrices of eight rows of 16 bytes each, whose addresses eight lanes have: 8 x 8 elements of 16 bits or
 * 8 x 4 of 32 bits. */
__device__ inline void load_matrices(uint32_t (&values)[4], uint32_t row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(values[0]), "=r"(values[1]), "=r"(values[2]), "=r"(values[3])
                 : "r"(row)
                 : "memory");
}

/** load_matrices() that transposes each matrix of 16-bit elements. */
__device__ inline void load_transposed(uint32_t (&values)[4], uint32_t row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(values[0]), "=r"(values[1]), "=r"(values[2]), "=r"(values[3])
                 : "r"(row)
                 : "memory");
}

/** The bits of the nearest number of TF32; of two, the one that is farther from 0. */
__device__ inline uint32_t round_to_tf32(float value) {
    uint32_t rounded;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(rounded) : "f"(value));
    return rounded;
}

/** Adds the product of 16 rows and 8 columns of 32 bytes. */
#define DISTILE_MULTIPLY(element, shape, types)                                                                        \
    __device__ inline void multiply_add(element, float(&sums)[4], const uint32_t(&a)[4], const uint32_t *b) {          \
        asm("mma.sync.aligned." shape ".row.col.f32." types ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "      \
            "{%0, %1, %2, %3};"                                                                                        \
            : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])                                               \
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));                                       \
    }
DISTILE_MULTIPLY(Float16, "m16n8k16", "f16.f16")
DISTILE_MULTIPLY(Bfloat16, "m16n8k16", "bf16.bf16")
DISTILE_MULTIPLY(Tf32, "m16n8k8", "tf32.tf32")
#undef DISTILE_MULTIPLY

/** Adds the product of 16 rows and 8 columns of 32 bytes of integers, whose sums wrap around. */
#define DISTILE_MULTIPLY(element, type)                                                                                \
    __device__ inline void multiply_add(element, int32_t(&sums)[4], const uint32_t(&a)[4], const uint32_t *b) {        \
        asm("mma.sync.aligned.m16n8k32.row.col.s32." type ".s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "     \
            "{%0, %1, %2, %3};"                                                                                        \
            : "+r"(sums[0]), "+r"(sums[1]), "+r"(sums[2]), "+r"(sums[3])                                               \
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));                                       \
    }
DISTILE_MULTIPLY(uint8_t, "u8")
DISTILE_MULTIPLY(int8_t, "s8")
#undef DISTILE_MULTIPLY

}  // namespace distile::tensor_core

#endif
