# What the build is for: DISTILE_ARCHITECTURE, that of its CPUs as our files are named, and DISTILE_HALIDE_TARGET, its
# platform as Halide's targets begin, for code that every CPU of the architecture runs; DISTILE_DOT_PRODUCTS, the
# instruction sets of code for dot products; DISTILE_SYSTEM_LIBRARIES, what generated code takes of the system besides
# the libraries of C and threads.
if (CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
    set(DISTILE_ARCHITECTURE x86_64)
elseif (CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$")
    set(DISTILE_ARCHITECTURE arm_64)
else ()
    set(DISTILE_ARCHITECTURE any)
endif ()
set(DISTILE_DOT_PRODUCTS portable_int8 portable_nonzeros portable_int8_nonzeros)
if (DISTILE_ARCHITECTURE STREQUAL "x86_64")
    list(APPEND DISTILE_DOT_PRODUCTS avx512_bf16 amx_bf16 amx_fp16 amx_split_fp16 avx512_vnni amx_int8 avx_vnni avx2_int8
        avx512_nonzeros avx2_nonzeros avx512_vnni_nonzeros avx_vnni_nonzeros avx2_int8_nonzeros)
endif ()
set(_distile_system linux)
set(DISTILE_SYSTEM_LIBRARIES "")
if (CMAKE_SYSTEM_NAME STREQUAL "Android")
    set(_distile_system android)
    set(DISTILE_SYSTEM_LIBRARIES log)
endif ()
string(REPLACE "_" "-" DISTILE_HALIDE_TARGET "${DISTILE_ARCHITECTURE}-${_distile_system}")
