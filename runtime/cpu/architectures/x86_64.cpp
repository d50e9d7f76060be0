#include "runtime/cpu/architectures/cpu_architecture.h"
#include "runtime/cpu/simd/simd_files.h"
#include <cpuid.h>
#include <iterator>
#include <sys/syscall.h>
#include <unistd.h>

namespace distile {

namespace {

/** Clang's __builtin_cpu_supports does not know "f16c". F16C needs the same operating-system support as AVX. */
bool has_f16c() {
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0 && __builtin_cpu_supports("avx") != 0;
}

/** The features of leaf 7 that compilers' checks do not know by these names. Those of AVX-512 need what it needs. */
struct Leaf7 {
    unsigned edx = 0, eax_1 = 0;

    Leaf7() {
        unsigned eax = 0, ebx = 0, ecx = 0;
        if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0 && eax >= 1) {
            unsigned edx_1 = 0;
            __get_cpuid_count(7, 1, &eax_1, &ebx, &ecx, &edx_1);
        }
    }
};
constexpr unsigned amx_bf16_bit = 1U << 22, avx512_fp16_bit = 1U << 23, amx_tile_bit = 1U << 24,
                   amx_int8_bit = 1U << 25;
constexpr unsigned avx_vnni_bit = 1U << 4, avx512_bf16_bit = 1U << 5, amx_fp16_bit = 1U << 21;  // Bits of subleaf 1.

/** Whether programs may use the CPU's tiles. Linux wants to be asked once a process, because tiles enlarge what it
 * saves of every thread that uses them. */
bool may_use_tiles(const Leaf7 &leaf) {
    constexpr long request_permission = 0x1023, tile_data = 18;
    return (leaf.edx & amx_tile_bit) != 0 && syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
}

}  // namespace

std::vector<CpuFeature> known_cpu_features() {
    const Leaf7 leaf;
    const bool avx512 = __builtin_cpu_supports("avx512f") != 0;
    static const bool tiles = may_use_tiles(leaf);
    // The compiler's check includes whether the operating system saves the wider registers.
    return {
        {"sse41", __builtin_cpu_supports("sse4.1") != 0},
        {"avx", __builtin_cpu_supports("avx") != 0},
        {"avx2", __builtin_cpu_supports("avx2") != 0},
        {"avx_vnni", __builtin_cpu_supports("avx2") != 0 && (leaf.eax_1 & avx_vnni_bit) != 0},
        {"fma", __builtin_cpu_supports("fma") != 0},
        {"f16c", has_f16c()},
        {"avx512f", __builtin_cpu_supports("avx512f") != 0},
        {"avx512cd", __builtin_cpu_supports("avx512cd") != 0},
        {"avx512bw", __builtin_cpu_supports("avx512bw") != 0},
        {"avx512dq", __builtin_cpu_supports("avx512dq") != 0},
        {"avx512vl", __builtin_cpu_supports("avx512vl") != 0},
        {"avx512_vnni", __builtin_cpu_supports("avx512vnni") != 0},
        {"avx512_bf16", avx512 && (leaf.eax_1 & avx512_bf16_bit) != 0},
        {"avx512_fp16", avx512 && (leaf.edx & avx512_fp16_bit) != 0},
        {"amx_bf16", tiles && (leaf.edx & amx_bf16_bit) != 0},
        {"amx_fp16", tiles && (leaf.eax_1 & amx_fp16_bit) != 0},
        {"amx_int8", tiles && (leaf.edx & amx_int8_bit) != 0},
    };
}

SimdLevels known_simd_levels() {
    static const SimdLevel *const levels[] = {&portable_level, &avx2_level, &avx512_level};
    return {levels, static_cast<int32_t>(std::size(levels))};
}

std::vector<const PixelProducts *> known_pixel_products() {
    return {&avx512_products, &avx2_products, &portable_products};
}

std::vector<const QuantizedProducts *> known_quantized_products() {
    static constexpr QuantizedProducts avx512_vnni{"avx512f avx512bw avx512dq avx512vl avx512_vnni",
                                                   distile_call_avx512_vnni, 14, 32},
        avx_vnni{"avx2 avx_vnni", distile_call_avx_vnni, 6, 16}, avx2{"avx2", distile_call_avx2_int8, 4, 16};
    return {&avx512_vnni, &avx_vnni, &avx2, &portable_quantized_products};
}

}  // namespace distile
