# Writes PTX into a header as the string distile_<NAME>_ptx, with the compute capability and CUDA version that it needs.
# Compilers read a string about ten times as fast as an array of its bytes.
file(READ "${CODE}" text)
string(TOUPPER "${NAME}" upper)
file(WRITE "${HEADER}" "#define DISTILE_${upper}_CAPABILITY ${CAPABILITY}\n#define DISTILE_${upper}_CUDA ${CUDA}\n\n"
    "static const char distile_${NAME}_ptx[] = R\"ptx(${text})ptx\";\n")
