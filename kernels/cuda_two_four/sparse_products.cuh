/** \file
 * The instructions that multiply weights of the pattern 2:4. In step 0 the first two of four neighbouring lanes have
 * the places of kept values, in step 1 the last two.
 */
#ifndef DISTILE_CUDA_TWO_FOUR_SPARSE_PRODUCTS_CUH
#define DISTILE_CUDA_TWO_FOUR_SPARSE_PRODUCTS_CUH

#include "kernels/tensor_core/wgmma.cuh"

namespace distile::cuda_two_four {

/** Adds the product of 16 rows, of 32 columns each of which 16 are kept, and 8 columns. */
#define DISTILE_SPARSE_PRODUCT(Element, types)                                                                         \
    template<int32_t Step> __device__ inline void multiply_add_sparse(                                                 \
        tensor_core::Element, float(&sums)[4], const uint32_t(&a)[4], const uint32_t(&b)[4], uint32_t places) {        \
        asm("mma.sp::ordered_metadata.sync.aligned.m16n8k32.row.col.f32." types ".f32 {%0, %1, %2, %3}, "              \
            "{%4, %5, %6, %7}, {%8, %9, %10, %11}, {%0, %1, %2, %3}, %12, %13;"                                        \
            : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])                                               \
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(b[2]), "r"(b[3]), "r"(places),     \
              "n"(Step));                                                                                              \
    }
DISTILE_SPARSE_PRODUCT(Float16, "f16.f16")
DISTILE_SPARSE_PRODUCT(Bfloat16, "bf16.bf16")
#undef DISTILE_SPARSE_PRODUCT

/** Begins to add the product of 64 such rows and some columns, both in shared memory. The numbers are those of the
 * columns, of a thread's sums, and of the operands that are the rows, the columns, the places and the step. The places
 * stay as they are until the product is done. */
#define DISTILE_SPARSE_PRODUCT(Element, types, n, half, r, c, m, s)                                                    \
    template<int32_t Step> __device__ inline void multiply_add_sparse(                                                 \
        tensor_core::Element, float(&sums)[half], uint64_t rows, uint64_t columns, uint32_t places) {                  \
        asm volatile("{\n\t.reg .pred adds;\n\tsetp.ne.b32 adds, 1, 0;\n\t"                                            \
                     "wgmma.mma_async.sp.sync.aligned.m64n" #n "k32.f32." types " {" DISTILE_LIST_##half               \
                     "}, %" #r ", %" #c ", %" #m ", %" #s ", adds, 1, 1, 0, 0;\n\t}"                                   \
                     : DISTILE_SUMS_##half("+f", 0)                                                                    \
                     : "l"(rows), "l"(columns), "r"(places), "n"(Step));                                               \
    }
#define DISTILE_SPARSE_PRODUCTS(...)                                                                                   \
    DISTILE_SPARSE_PRODUCT(__VA_ARGS__, 64, 32, 32, 33, 34, 35)                                                        \
    DISTILE_SPARSE_PRODUCT(__VA_ARGS__, 128, 64, 64, 65, 66, 67)                                                       \
    DISTILE_SPARSE_PRODUCT(__VA_ARGS__, 256, 128, 128, 129, 130, 131)
DISTILE_SPARSE_PRODUCTS(Float16, "f16.f16")
DISTILE_SPARSE_PRODUCTS(Bfloat16, "bf16.bf16")
#undef DISTILE_SPARSE_PRODUCTS
#undef DISTILE_SPARSE_PRODUCT

}  // namespace distile::cuda_two_four

#endif
