#include "plans/architecture.h"
#include <algorithm>

namespace distile {

namespace {

Vectors vectors_of(const std::vector<std::string> &words) {
    const auto has = [&](const char *word) { return std::find(words.begin(), words.end(), word) != words.end(); };
    return {has("avx512") || has("avx512_skylake") ? 16 : has("avx2") || has("avx") ? 8 : 4, has("avx512") ? 32 : 16};
}

}  // namespace

const Architecture &x86_64_architecture() {
    static const Architecture architecture = {
        "x86-64",
        "x86-64 CPU",
        "",
        {
            {"sse41", "sse41"},
            {"avx", "avx"},
            {"avx2", "avx2"},
            {"fma", "fma"},
            {"f16c", "f16c"},
            {"avx512", "avx512f avx512cd"},
            {"avx512_skylake", "avx512f avx512cd avx512bw avx512dq avx512vl"},
            // Features that only our own kernels use: Halide does not know them.
            {"avx512_bf16", "avx512f avx512cd avx512bw avx512dq avx512vl avx512_bf16"},
            {"amx_bf16", "avx512f avx512cd avx512bw avx512dq avx512vl avx512_bf16 amx_bf16"},
            {"amx_fp16", "avx512f avx512cd avx512bw avx512dq avx512vl amx_fp16"},
            {"avx512_vnni", "avx512f avx512cd avx512bw avx512dq avx512vl avx512_vnni"},
            {"amx_int8", "avx512f avx512cd avx512bw avx512dq avx512vl avx512_vnni amx_int8"},
            {"avx_vnni", "avx2 avx_vnni"},
        },
        {
            {"avx512vl", "avx512", "avx-avx2-avx512-avx512_skylake-f16c-fma-sse41", "generic_avx512"},
            {"avx2", "avx2", "avx-avx2-f16c-fma-sse41", "generic_avx2"},
            {"", "", "", "generic_x86_64"},
        },
        vectors_of,
    };
    return architecture;
}

}  // namespace distile
