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
    distile_embed_kernels(${name} "${source}" ptx "compute_${capability}" "-DCAPABILITY=${capability}" "-DCUDA=${cuda}")
endfunction()

# Writes machine code for a compute capability, as 90a, to NAME_cubin.h in the current build folder: the array
# distile_NAME_cubin. For kernels of one architecture, which the driver would take seconds to compile.
function(distile_embed_cubin name source architecture)
    distile_embed_kernels(${name} "${source}" cubin "sm_${architecture}")
endfunction()

# Compiles a file to NAME.FORM, which embed_FORM.cmake writes to the header NAME_FORM.h with the definitions behind.
function(distile_embed_kernels name source form architecture)
    cmake_path(ABSOLUTE_PATH source)
    set(header "${CMAKE_CURRENT_BINARY_DIR}/${name}_${form}.h")
    set(code "${CMAKE_CURRENT_BINARY_DIR}/${name}_kernels.${form}")
    cmake_path(GET CMAKE_CURRENT_FUNCTION_LIST_DIR PARENT_PATH root)
    add_custom_command(
        OUTPUT "${header}"
        COMMAND "${CUDAToolkit_NVCC_EXECUTABLE}" -${form} -std=c++17 -O3 -arch=${architecture} -I "${root}"
                -I "${root}/runtime/include" -MMD -MF "${header}.d" -MT "${header}" -o "${code}" "${source}"
        COMMAND "${CMAKE_COMMAND}" -D "CODE=${code}" -D "HEADER=${header}" -D NAME=${name} ${ARGN}
                -P "${root}/cmake/embed_${form}.cmake"
        DEPENDS "${source}" "${root}/cmake/embed_${form}.cmake"
        DEPFILE "${header}.d"
        COMMENT "Compiling the kernels of ${name} for ${architecture}" VERBATIM)
endfunction()
