# What the tests of every kind of GPU share.

# The tests, as sources of a program for a kind of GPU, which tests/gpu/gpu_session.h knows.
set(DISTILE_GPU_TESTS
    test_gpu_attention.cpp test_gpu_layers.cpp test_gpu_mask_algebra.cpp test_gpu_operators.cpp test_gpu_planner.cpp
    test_gpu_special_values.cpp test_gpu_tensors.cpp test_gpu_tokens.cpp)
list(TRANSFORM DISTILE_GPU_TESTS PREPEND "${CMAKE_CURRENT_LIST_DIR}/")

# The operators that read a key or a value, of which the tests have plans for code from Halide.
set(DISTILE_GPU_TOKEN_OPERATORS
    test_attention_3_32 test_attention_3_40_causal test_attention_2_96_f16 test_attention_3_32_e4m3 test_scores_2_64
    test_scores_3_40_softmax test_scores_3_40_softmax_packed test_values_3_40_bf16 test_values_3_40_packed_bf16)
include("${PROJECT_SOURCE_DIR}/cmake/LinkedPolykernels.cmake")

# distile_list_polykernels("<polykernel>;..." "<polykernel of a CPU>;..."): writes the header gpu_polykernels.h, which
# lists PolyKernels, and beside each the one for a CPU with which the tests compare it; "": none.
function(distile_list_polykernels polykernels cpu_polykernels)
    set(includes "")
    set(addresses "")
    set(cpu_addresses "")
    foreach (polykernel cpu_polykernel IN ZIP_LISTS polykernels cpu_polykernels)
        string(APPEND includes "#include \"${polykernel}.h\"\n")
        string(APPEND addresses "    &${polykernel},\n")
        if (cpu_polykernel)
            string(APPEND includes "#include \"${cpu_polykernel}.h\"\n")
            string(APPEND cpu_addresses "    &${cpu_polykernel},\n")
        else ()
            string(APPEND cpu_addresses "    0,\n")
        endif ()
    endforeach ()
    file(CONFIGURE OUTPUT gpu_polykernels.h CONTENT [=[
/* Every PolyKernel for this kind of GPU. */
#ifndef DISTILE_TEST_GPU_POLYKERNELS_H
#define DISTILE_TEST_GPU_POLYKERNELS_H

@includes@
static const distile_polykernel *const gpu_polykernels[] = {
@addresses@};
/* The CPU's for the same operators, or null. */
static const distile_polykernel *const gpu_cpu_polykernels[] = {
@cpu_addresses@};

#endif
]=] @ONLY)
endfunction()
