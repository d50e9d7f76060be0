# Writes what Python knows of the tables: write_python.cmake with -D TABLE=activations.h -D TYPES=types.h
# -D KINDS=kinds.h -D ZEROS=zeros.h -D OUT=_facts.py.
file(READ "${TABLE}" text)
string(REGEX MATCHALL "\n    ROW\\([0-9]" begun "${text}")
set(next " \\\\\n +")
set(row "\n    ROW\\(([0-9]+), ([a-z0-9_]+), [A-Z0-9_]+,${next}([^\n]+),${next}([^\n]+)\\)")
set(rows "")
string(REGEX MATCHALL "${row}" found "${text}")
foreach (match IN LISTS found)
    string(REGEX REPLACE "${row}" "    \"\\2\": (\"\\3\", \"\\4\"),\n" match "${match}")
    string(APPEND rows "${match}")
endforeach ()
list(LENGTH begun expected)
list(LENGTH found count)
if (NOT count EQUAL expected OR count EQUAL 0)
    message(FATAL_ERROR "${TABLE} has ${expected} rows, but ${count} of three lines each, as write_python.cmake reads them")
endif ()
# Python's numbers have no suffix.
string(REGEX REPLACE "([.0-9])f" "\\1" rows "${rows}")
string(REGEX MATCH "#define DISTILE_DEFAULT_SLOPE ([.0-9]+)f" slope "${text}")
if (NOT slope)
    message(FATAL_ERROR "${TABLE} has no DISTILE_DEFAULT_SLOPE")
endif ()
file(WRITE "${OUT}" "\"\"\"What the build wrote of facts/activations.h, facts/types.h, facts/kinds.h and facts/zeros.h.\"\"\"

# The value of x, and the gradient before the activation where g is the one behind it; in the order of their numbers.
ACTIVATIONS = {
${rows}}

DEFAULT_SLOPE = 0${CMAKE_MATCH_1}
")

# A list of types as a dictionary: numbers and ONNX's names, by names.
file(READ "${TYPES}" text)
foreach (list IN ITEMS FLOAT_TYPES QUANTIZED_TYPES)
    string(REGEX REPLACE ".*#define DISTILE_${list}\\(ROW\\)([^#/]*).*" "\\1" rows "${text}")
    set(row "ROW\\(([0-9]+), ([a-z0-9_]+), [A-Z0-9_]+, [0-9]+, ([A-Z0-9]+),")
    string(REGEX MATCHALL "${row}" found "${rows}")
    string(REGEX MATCHALL "ROW\\([0-9]" begun "${rows}")
    list(LENGTH begun expected)
    list(LENGTH found count)
    if (NOT count EQUAL expected OR count EQUAL 0)
        message(FATAL_ERROR "${TYPES} has ${expected} rows in ${list}, but ${count} as write_python.cmake reads them")
    endif ()
    file(APPEND "${OUT}" "\n${list} = {\n")
    foreach (match IN LISTS found)
        string(REGEX REPLACE "${row}" "    \"\\2\": (\\1, \"\\3\"),\n" match "${match}")
        file(APPEND "${OUT}" "${match}")
    endforeach ()
    file(APPEND "${OUT}" "}\n")
endforeach ()

# The numbers of the kinds of operators, by names.
file(READ "${KINDS}" text)
set(row "ROW\\(([0-9]+), [A-Z0-9_]+, ([a-z0-9_]+), [a-z0-9_]+\\)")
string(REGEX MATCHALL "${row}" found "${text}")
string(REGEX MATCHALL "ROW\\([0-9]" begun "${text}")
list(LENGTH begun expected)
list(LENGTH found count)
if (NOT count EQUAL expected OR count EQUAL 0)
    message(FATAL_ERROR "${KINDS} has ${expected} rows, but ${count} as write_python.cmake reads them")
endif ()
file(APPEND "${OUT}" "\nOPERATOR_KINDS = {\n")
foreach (match IN LISTS found)
    string(REGEX REPLACE "${row}" "    \"masked_\\2\": \\1,\n" match "${match}")
    file(APPEND "${OUT}" "${match}")
endforeach ()
file(APPEND "${OUT}" "}\n")

# From which zeros on code skips them.
file(READ "${ZEROS}" text)
string(REGEX MATCHALL "\n#define DISTILE_[A-Z_]+ [.0-9]+" found "${text}")
list(LENGTH found count)
if (NOT count EQUAL 3)
    message(FATAL_ERROR "${ZEROS} has ${count} numbers as write_python.cmake reads them, instead of 3")
endif ()
foreach (match IN LISTS found)
    string(REGEX REPLACE "\n#define DISTILE_([A-Z_]+) ([.0-9]+)" "\n\\1 = \\2" match "${match}")
    string(REPLACE " = ." " = 0." match "${match}")
    file(APPEND "${OUT}" "${match}\n")
endforeach ()
