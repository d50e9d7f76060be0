/** \file
 * The products of compute capability 9.0. Four warps multiply 64 rows and some columns of 32 bytes each and add to the
 * sums, while they go on. Thread t has the sums of rows t / 32 * 16 + t % 32 / 4 and 8 below: of columns
 * 8 j + 2 (t % 4) and the next one, at [4 j] and [4 j + 2].
 */
#ifndef DISTILE_CUDA_TENSOR_CORE_WGMMA_CUH
#define DISTILE_CUDA_TENSOR_CORE_WGMMA_CUH

#include "kernels/tensor_core/elements.cuh"

namespace distile::tensor_core {

/** A matrix in shared memory, as products name it. Its lines of 32, 64 or 128 bytes lie in groups of eight without
 * gaps; their pieces of 16 bytes are swizzled. */
class SharedMatrix {
public:
    /** `address` is that of the first line of a group. Lines of a matrix that is multiplied transposed may go on
     * `column_bytes` later. */
    __device__ SharedMatrix(uint32_t address, uint32_t line_bytes, uint32_t column_bytes = 16)
        : bits_(uint64_t{line_bytes == 128  ? 1u
                         : line_bytes == 64 ? 2u
                                            : 3u}
                    << 62 |
                uint64_t{8 * line_bytes / 16} << 32 | uint64_t{column_bytes / 16} << 16 | address / 16) {
    }
    /** The matrix that begins `pieces` later. */
    __device__ uint64_t at(uint32_t pieces) const {
        // The lower word has room for any address in shared memory.
        return (bits_ & ~uint64_t{0xffffffff}) | static_cast<uint32_t>(static_cast<uint32_t>(bits_) + pieces);
    }

private:
    uint64_t bits_;
};

/** Keeps the compiler from moving accesses of registers past this place. Called before and after products that read or
 * write them. */
__device__ inline void fence_registers(float &value) {
    asm volatile("" : "+f"(value)::"memory");
}
__device__ inline void fence_registers(int32_t &value) {
    asm volatile("" : "+r"(value)::"memory");
}
__device__ inline void fence_registers(uint32_t &value) {
    asm volatile("" : "+r"(value)::"memory");
}
template<class Value, int Count> __device__ inline void fence_registers(Value (&values)[Count]) {
#pragma unroll
    for (int i = 0; i < Count; i++) {
        fence_registers(values[i]);
    }
}

/** Orders the accesses of registers before the products that follow. */
__device__ inline void begin_products() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
/** Makes a group of the products since the last call. */
__device__ inline void commit_products() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/** Waits until no more than the last `Groups` groups are on their way. */
template<int Groups> __device__ inline void wait_for_products() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Groups) : "memory");
}

// The operands of instructions: a thread's sums, by their number.
#define DISTILE_LIST_16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define DISTILE_LIST_32                                                                                                \
    DISTILE_LIST_16                                                                                                    \
    ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define DISTILE_LIST_48                                                                                                \
    DISTILE_LIST_32                                                                                                    \
    ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define DISTILE_LIST_64                                                                                                \
    DISTILE_LIST_48                                                                                                    \
    ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define DISTILE_LIST_96                                                                                                \
    DISTILE_LIST_64                                                                                                    \
    ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"                                 \
    ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define DISTILE_LIST_128                                                                                               \
    DISTILE_LIST_96                                                                                                    \
    ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111"                     \
    ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define DISTILE_SUMS_4(type, i) type(sums[i]), type(sums[i + 1]), type(sums[i + 2]), type(sums[i + 3])
#define DISTILE_SUMS_8(type, i) DISTILE_SUMS_4(type, i), DISTILE_SUMS_4(type, i + 4)
#define DISTILE_SUMS_16(type, i) DISTILE_SUMS_8(type, i), DISTILE_SUMS_8(type, i + 8)
#define DISTILE_SUMS_32(type, i) DISTILE_SUMS_16(type, i), DISTILE_SUMS_16(type, i + 16)
#define DISTILE_SUMS_48(type, i) DISTILE_SUMS_32(type, i), DISTILE_SUMS_16(type, i + 32)
#define DISTILE_SUMS_64(type, i) DISTILE_SUMS_32(type, i), DISTILE_SUMS_32(type, i + 32)
#define DISTILE_SUMS_96(type, i) DISTILE_SUMS_64(type, i), DISTILE_SUMS_32(type, i + 64)
#define DISTILE_SUMS_128(type, i) DISTILE_SUMS_64(type, i), DISTILE_SUMS_64(type, i + 64)

/** An instruction up to its rows: for `n` columns, of whose sums a thread has `half`. Operand p is whether it adds. */
#define DISTILE_WGMMA(types, n, half, p)                                                                               \
    "{\n\t.reg .pred adds;\n\tsetp.ne.b32 adds, %" #p ", 0;\n\t"                                                       \
    "wgmma.mma_async.sync.aligned.m64n" #n types " {" DISTILE_LIST_##half "}, "

/** Multiplies rows and columns of shared memory, both along their lines, and adds the product to the sums or sets them
 * to it. The numbers are those above, and r and c, the operands that are the rows and columns. */
#define DISTILE_PRODUCT(Element, Sum, type, types, how, n, half, r, c, p)                                              \
    __device__ inline void multiply_add(Element, Sum(&sums)[half], uint64_t rows, uint64_t columns, bool adds) {       \
        asm volatile(DISTILE_WGMMA(types, n, half, p) "%" #r ", %" #c ", adds" how ";\n\t}"                            \
                     : DISTILE_SUMS_##half(type, 0)                                                                    \
                     : "l"(rows), "l"(columns), "r"(static_cast<int32_t>(adds)));                                      \
    }
#define DISTILE_PRODUCTS(...)                                                                                          \
    DISTILE_PRODUCT(__VA_ARGS__, 32, 16, 16, 17, 18)                                                                   \
    DISTILE_PRODUCT(__VA_ARGS__, 64, 32, 32, 33, 34)                                                                   \
    DISTILE_PRODUCT(__VA_ARGS__, 96, 48, 48, 49, 50)                                                                   \
    DISTILE_PRODUCT(__VA_ARGS__, 128, 64, 64, 65, 66)                                                                  \
    DISTILE_PRODUCT(__VA_ARGS__, 192, 96, 96, 97, 98)                                                                  \
    DISTILE_PRODUCT(__VA_ARGS__, 256, 128, 128, 129, 130)
DISTILE_PRODUCTS(Float16, float, "+f", "k16.f32.f16.f16", ", 1, 1, 0, 0")
DISTILE_PRODUCTS(Bfloat16, float, "+f", "k16.f32.bf16.bf16", ", 1, 1, 0, 0")
DISTILE_PRODUCTS(Tf32, float, "+f", "k8.f32.tf32.tf32", ", 1, 1")
DISTILE_PRODUCTS(uint8_t, int32_t, "+r", "k32.s32.u8.s8", "")
DISTILE_PRODUCTS(int8_t, int32_t, "+r", "k32.s32.s8.s8", "")
#undef DISTILE_PRODUCTS
#undef DISTILE_PRODUCT

/** Multiplies rows in registers, which a thread has in pairs of columns as it has sums, and columns of shared memory:
 * multiply_add() across its lines, multiply_along() along them. */
#define DISTILE_PRODUCT_OF(name, across, Element, types, n, half, r0, r1, r2, r3, c, p)                                \
    __device__ inline void name(Element, float(&sums)[half], const uint32_t(&rows)[4], uint64_t columns, bool adds) {  \
        asm volatile(DISTILE_WGMMA(types, n, half, p) "{%" #r0 ", %" #r1 ", %" #r2 ", %" #r3 "}, %" #c                 \
                                                      ", adds, 1, 1, " #across ";\n\t}"                                \
                     : DISTILE_SUMS_##half("+f", 0)                                                                    \
                     : "r"(rows[0]), "r"(rows[1]), "r"(rows[2]), "r"(rows[3]), "l"(columns),                           \
                       "r"(static_cast<int32_t>(adds)));                                                               \
    }
#define DISTILE_PRODUCT(...)                                                                                           \
    DISTILE_PRODUCT_OF(multiply_add, 1, __VA_ARGS__)                                                                   \
    DISTILE_PRODUCT_OF(multiply_along, 0, __VA_ARGS__)
#define DISTILE_PRODUCTS(...)                                                                                          \
    DISTILE_PRODUCT(__VA_ARGS__, 32, 16, 16, 17, 18, 19, 20, 21)                                                       \
    DISTILE_PRODUCT(__VA_ARGS__, 64, 32, 32, 33, 34, 35, 36, 37)                                                       \
    DISTILE_PRODUCT(__VA_ARGS__, 96, 48, 48, 49, 50, 51, 52, 53)                                                       \
    DISTILE_PRODUCT(__VA_ARGS__, 128, 64, 64, 65, 66, 67, 68, 69)
DISTILE_PRODUCTS(Float16, "k16.f32.f16.f16")
DISTILE_PRODUCTS(Bfloat16, "k16.f32.bf16.bf16")
#undef DISTILE_PRODUCTS
#undef DISTILE_PRODUCT
#undef DISTILE_PRODUCT_OF

template<class Element, class Sum, int Half, class... Operands>
__device__ inline void multiply_add(Element, Sum (&)[Half], const Operands &...) {
    static_assert(Half < 0, "products have 32, 64, 96, 128, 192 or 256 columns, with rows in registers up to 128; "
                            "list others here if block_channels or block_keys have them");
}

}  // namespace distile::tensor_core

#endif
