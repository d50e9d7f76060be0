# cmake -DNVCC=<nvcc> -DROOT=<folder> -DARCHITECTURE=<sm_80> "-DSOURCES=<file.cu>;..." -P check_kernels.cmake: kernels keep
# all they compute with in registers.
foreach (source IN LISTS SOURCES)
    execute_process(COMMAND "${NVCC}" -std=c++17 -O3 -arch=${ARCHITECTURE} -cubin -Xptxas -v -o check_kernels.cubin
            -I "${ROOT}" -I "${ROOT}/runtime/include" "${ROOT}/${source}"
        OUTPUT_VARIABLE said ERROR_VARIABLE said RESULT_VARIABLE result)
    if (NOT result EQUAL 0 OR NOT said MATCHES "Used [0-9]+ registers" OR
        said MATCHES "[1-9][0-9]* bytes (stack frame|spill)")
        message(SEND_ERROR "${source}: ${said}")
    endif ()
endforeach ()
