# distile_embed_ptx(<name> <file.cu> [CAPABILITY <capability>]): compiles kernels into the header <name>_ptx.h of the
# current binary folder. Without a capability, it is the oldest that this compiler supports: a driver compiles PTX for
# later GPUs, and accepts that of its own CUDA version and of earlier ones.
function(distile_embed_ptx name source)
    cmake_parse_arguments(PARSE_ARGV 2 given "" CAPABILITY "")
    set(capability 75)
    if (given_CAPABILITY)
        set(capability ${given_CAPABILITY})
    elseif (CUDAToolkit_VERSION VERSION_LESS 13)
        set(capability 70)
    endif ()
    math(EXPR cuda "1000 * ${CUDAToolkit_VERSION_MAJOR} + 10 * ${CUDAToolkit_VERSION_MINOR}")
    cmake_path(ABSOLUTE_PATH source)
    set(built "${CMAKE_CURRENT_BINARY_DIR}/${name}")
    cmake_path(GET CMAKE_CURRENT_FUNCTION_LIST_DIR PARENT_PATH root)
    add_custom_command(
        OUTPUT "${built}_ptx.h"
        COMMAND "${CUDAToolkit_NVCC_EXECUTABLE}" -ptx -std=c++17 -O3 -arch=compute_${capability} -I "${root}"
                -I "${root}/runtime/include" -MMD -MF "${built}_ptx.d" -MT "${built}_ptx.h" -o "${built}_kernels.ptx"
                "${source}"
        COMMAND "${CMAKE_COMMAND}" -D "PTX=${built}_kernels.ptx" -D "HEADER=${built}_ptx.h" -D NAME=${name}
                -D CAPABILITY=${capability} -D CUDA=${cuda} -P "${root}/cmake/embed_ptx.cmake"
        DEPENDS "${source}" "${root}/cmake/embed_ptx.cmake"
        DEPFILE "${built}_ptx.d"
        COMMENT "Compiling the kernels of ${name} to PTX" VERBATIM)
endfunction()

# Writes machine code for a compute capability, as 90a, to NAME_cubin.h in the current build folder: the array
# distile_NAME_cubin. For kernels of one architecture, which the driver would take seconds to compile.
function(distile_embed_cubin name source architecture)
    cmake_path(ABSOLUTE_PATH source)
    set(built "${CMAKE_CURRENT_BINARY_DIR}/${name}")
    cmake_path(GET CMAKE_CURRENT_FUNCTION_LIST_DIR PARENT_PATH root)
    add_custom_command(
        OUTPUT "${built}_cubin.h"
        COMMAND "${CUDAToolkit_NVCC_EXECUTABLE}" -cubin -std=c++17 -O3 -arch=sm_${architecture} -I "${root}"
                -I "${root}/runtime/include" -MMD -MF "${built}_cubin.d" -MT "${built}_cubin.h" -o "${built}.cubin"
                "${source}"
        COMMAND "${CMAKE_COMMAND}" -D "CUBIN=${built}.cubin" -D "HEADER=${built}_cubin.h" -D NAME=${name}
                -P "${root}/cmake/embed_cubin.cmake"
        DEPENDS "${source}" "${root}/cmake/embed_cubin.cmake"
        DEPFILE "${built}_cubin.d"
        COMMENT "Compiling the kernels of ${name} for compute capability ${architecture}" VERBATIM)
endfunction()
