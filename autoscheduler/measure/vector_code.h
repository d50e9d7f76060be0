/** \file
 * Code that calibration times on one core, for each vector width of an architecture. A file for each architecture
 * defines it: calibrate_ARCHITECTURE.cpp.
 */
#ifndef DISTILE_VECTOR_CODE_H
#define DISTILE_VECTOR_CODE_H

#include <cstdint>
#include <vector>

namespace distile {

// Chains of dependent multiply-adds, and reads of a buffer, for each vector width. The compiler can fold neither: the
// chains are floating point, and memory counts as changed before every pass over the buffer. As many chains as fill the
// pipelines give the throughput, and one gives the latency.
inline constexpr int chains = 12;

struct VectorCode {
    const char *feature;
    int lanes, registers;
    float (*many_chains)(int64_t steps);
    float (*one_chain)(int64_t steps);
    int (*read)(const void *buffer, int64_t bytes, int64_t passes);
};

/** The code for this architecture's vectors, the widest first. */
const std::vector<VectorCode> &vector_codes();

/** Eight operations a step, of which each takes a cycle and needs the result of the one before. Not additions of a
 * constant: recent CPUs fold chains of them. */
void run_cycles(int64_t steps);

}  // namespace distile

// `features` is an attribute; empty: what every CPU of the architecture has.
// NOLINTBEGIN(bugprone-macro-parentheses)
#define DISTILE_VECTOR_CODE(suffix, features, Float, Int, width, set, add_multiply, store, load, exclusive_or)         \
    template<int count> __attribute__((features, noinline)) float chains_##suffix(int64_t steps) {                     \
        const Float factor = set(0.5f), addend = set(1.0f);                                                            \
        Float sums[count];                                                                                             \
        for (int i = 0; i < count; i++) {                                                                              \
            sums[i] = set(static_cast<float>(i));                                                                      \
        }                                                                                                              \
        for (int64_t step = 0; step < steps; step++) {                                                                 \
            _Pragma("GCC unroll 12") for (int i = 0; i < count; i++) {                                                 \
                sums[i] = add_multiply(sums[i], factor, addend);                                                       \
            }                                                                                                          \
        }                                                                                                              \
        float result = 0, values[width / 4];                                                                           \
        for (const Float &sum : sums) {                                                                                \
            store(values, sum);                                                                                        \
            result += values[0];                                                                                       \
        }                                                                                                              \
        return result;                                                                                                 \
    }                                                                                                                  \
    __attribute__((features, noinline)) int read_##suffix(const void *buffer, int64_t bytes, int64_t passes) {         \
        constexpr int count = 8;                                                                                       \
        Int sums[count] = {};                                                                                          \
        for (int64_t pass = 0; pass < passes; pass++) {                                                                \
            const auto *vectors = static_cast<const Int *>(buffer);                                                    \
            __asm__ volatile("" : "+r"(vectors) : : "memory");                                                         \
            for (const Int *end = vectors + bytes / width / count * count; vectors < end; vectors += count) {          \
                _Pragma("GCC unroll 8") for (int i = 0; i < count; i++) {                                              \
                    sums[i] = exclusive_or(sums[i], load(vectors + i));                                                \
                }                                                                                                      \
            }                                                                                                          \
        }                                                                                                              \
        Int result = sums[0];                                                                                          \
        for (int i = 1; i < count; i++) {                                                                              \
            result = exclusive_or(result, sums[i]);                                                                    \
        }                                                                                                              \
        alignas(64) int values[width / 4];                                                                             \
        __builtin_memcpy(values, &result, width);                                                                      \
        return values[0];                                                                                              \
    }
// NOLINTEND(bugprone-macro-parentheses)

#endif
