# Writes the source of kernels into a header as the string distile::opencl_kernels.
file(READ "${SOURCE}" text)
file(WRITE "${HEADER}" "#include <string>\n\nnamespace distile {\n\n"
    "/** The source of our own kernels. */\nconst std::string opencl_kernels = ")
# A string literal has a limit, so each line is one.
string(REPLACE "\\" "\\\\" text "${text}")
string(REPLACE "\"" "\\\"" text "${text}")
string(REPLACE "\n" "\\n\"\n    \"" text "${text}")
file(APPEND "${HEADER}" "\"${text}\";\n\n}  // namespace distile\n")
