# distile_find_tensor_cores([<Python environment>...])
#
# Finds what compiles kernels for tensor cores: nvcc, and the headers of CUTLASS (pip install --no-deps nvidia-cutlass)
# where the option or the environment variable DISTILE_CUTLASS says, in the environments, and in the environments and
# prefixes of CMAKE_PREFIX_PATH. Sets in the cache:
#
#   DISTILE_NVCC          nvcc; empty if there is none
#   DISTILE_CUTLASS       the folder that holds cute/tensor.hpp
#   DISTILE_TENSOR_CORES  whether both are there
function(distile_find_tensor_cores)
    find_package(CUDAToolkit QUIET)
    set(DISTILE_NVCC "${CUDAToolkit_NVCC_EXECUTABLE}"
        CACHE INTERNAL "The CUDA compiler")
    string(REPLACE ":" ";" prefixes "$ENV{CMAKE_PREFIX_PATH}")
    set(hints "$ENV{DISTILE_CUTLASS}")
    foreach (prefix IN LISTS ARGN CMAKE_PREFIX_PATH prefixes)
        file(GLOB found "${prefix}/lib*/python*/site-packages/cutlass_library/source/include")
        list(APPEND hints ${found})
    endforeach ()
    find_path(DISTILE_CUTLASS cute/tensor.hpp HINTS ${hints} DOC "Folder of CUTLASS headers, with cute/tensor.hpp")
    mark_as_advanced(DISTILE_CUTLASS)
    set(found OFF)
    if (DISTILE_NVCC AND DISTILE_CUTLASS)
        set(found ON)
    endif ()
    set(DISTILE_TENSOR_CORES ${found}
        CACHE INTERNAL "Whether kernels for tensor cores can be compiled")
endfunction()
