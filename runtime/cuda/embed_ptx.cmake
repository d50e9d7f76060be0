# Writes PTX into a header as the array distile_<NAME>_ptx, with the compute capability and CUDA version that it needs.
file(READ "${PTX}" bytes HEX)
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1, " bytes "${bytes}")
string(REGEX REPLACE "((0x.., ){24})" "\\1\n    " bytes "${bytes}")
string(TOUPPER "${NAME}" upper)
file(WRITE "${HEADER}" "#define DISTILE_${upper}_CAPABILITY ${CAPABILITY}\n#define DISTILE_${upper}_CUDA ${CUDA}\n\n"
    "static const unsigned char distile_${NAME}_ptx[] = {\n    ${bytes}0x00};\n")
