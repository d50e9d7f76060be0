# cmake -DPTXAS=<ptxas> "-DCODE=<PTX>;..." -P check_code.cmake: code for tensor cores keeps all it computes with in
# registers.
foreach (code IN LISTS CODE)
    execute_process(COMMAND "${PTXAS}" -arch=sm_80 -v "${code}" -o /dev/null
        OUTPUT_VARIABLE said ERROR_VARIABLE said RESULT_VARIABLE result)
    if (NOT result EQUAL 0 OR NOT said MATCHES "Used [0-9]+ registers" OR
        said MATCHES "[1-9][0-9]* bytes (stack frame|spill)")
        message(SEND_ERROR "${code}: ${said}")
    endif ()
endforeach ()
