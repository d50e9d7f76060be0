# Fails unless the README shows the first program exactly as it is built and run by the tests.
# Usage: cmake -DREADME=<file> -DPROGRAM=<file> -P check_readme.cmake
file(READ "${README}" readme)
file(READ "${PROGRAM}" program)
string(FIND "${readme}" "```c\n${program}```" position)
if (position EQUAL -1)
    message(FATAL_ERROR "'${README}' does not show '${PROGRAM}' as it is; copy the file into its C block")
endif ()
