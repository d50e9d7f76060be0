# distile_embed_ptx(<name> <file.cu> [CAPABILITY <capability>] [DEFINITIONS <macro>...]): compiles kernels into the header
# <name>_ptx.h of the current binary folder. Without a capability, it is the oldest that this compiler supports: a driver
# compiles PTX for later GPUs, and accepts that of its own CUDA version and of earlier ones.
function(distile_embed_ptx name source)
    cmake_parse_arguments(PARSE_ARGV 2 given "" CAPABILITY DEFINITIONS)
    set(capability 75)
    if (given_CAPABILITY)
        set(capability ${given_CAPABILITY})
    elseif (CUDAToolkit_VERSION VERSION_LESS 13)
        set(capability 70)
    endif ()
    math(EXPR cuda "1000 * ${CUDAToolkit_VERSION_MAJOR} + 10 * ${CUDAToolkit_VERSION_MINOR}")
    distile_embed_kernels(${name} "${source}" ptx "compute_${capability}" "-DCAPABILITY=${capability}" "-DCUDA=${cuda}")
endfunction()

# distile_embed_cubin(<name> <file.cu> <architecture> [DEFINITIONS <macro>...]): writes machine code for a compute
# capability, as 90a, to <name>_cubin.h in the current build folder: the array distile_<name>_cubin. For kernels of one
# architecture, which the driver would take seconds to compile.
function(distile_embed_cubin name source architecture)
    cmake_parse_arguments(PARSE_ARGV 3 given "" "" DEFINITIONS)
    distile_embed_kernels(${name} "${source}" cubin "sm_${architecture}")
endfunction()

# Compiles a file to NAME.FORM, which embed_FORM.cmake writes to the header NAME_FORM.h with the definitions behind. The
# caller's given_DEFINITIONS are macros of the file.
function(distile_embed_kernels name source form architecture)
    cmake_path(ABSOLUTE_PATH source)
    set(header "${CMAKE_CURRENT_BINARY_DIR}/${name}_${form}.h")
    set(code "${CMAKE_CURRENT_BINARY_DIR}/${name}_kernels.${form}")
    cmake_path(GET CMAKE_CURRENT_FUNCTION_LIST_DIR PARENT_PATH root)
    list(TRANSFORM given_DEFINITIONS PREPEND -D OUTPUT_VARIABLE macros)
    add_custom_command(
        OUTPUT "${header}"
        COMMAND "${CUDAToolkit_NVCC_EXECUTABLE}" -${form} -std=c++17 -O3 -arch=${architecture} ${macros} -I "${root}"
                -I "${root}/runtime/include" -MMD -MF "${header}.d" -MT "${header}" -o "${code}" "${source}"
        COMMAND "${CMAKE_COMMAND}" -D "CODE=${code}" -D "HEADER=${header}" -D NAME=${name} ${ARGN}
                -P "${root}/cmake/embed_${form}.cmake"
        DEPENDS "${source}" "${root}/cmake/embed_${form}.cmake"
        DEPFILE "${header}.d"
        COMMENT "Compiling the kernels of ${name} for ${architecture}" VERBATIM)
endfunction()
