# Writes the source of kernels into a header as the string distile::opencl_kernels. What it includes, by paths from
# ROOT, stands in place of the line: a device's compiler has no files.
file(READ "${SOURCE}" text)
string(REGEX MATCHALL "#include \"[^\"]*\"" lines "${text}")
foreach (line IN LISTS lines)
    string(REGEX REPLACE "#include \"(.*)\"" "${ROOT}/\\1" path "${line}")
    file(READ "${path}" included)
    string(REPLACE "${line}" "${included}" text "${text}")
endforeach ()
file(WRITE "${HEADER}" "#include <string>\n\nnamespace distile {\n\n"
    "/** The source of our own kernels. */\nconst std::string opencl_kernels = ")
# A string literal has a limit, so each line is one.
string(REPLACE "\\" "\\\\" text "${text}")
string(REPLACE "\"" "\\\"" text "${text}")
string(REPLACE "\n" "\\n\"\n    \"" text "${text}")
file(APPEND "${HEADER}" "\"${text}\";\n\n}  // namespace distile\n")
