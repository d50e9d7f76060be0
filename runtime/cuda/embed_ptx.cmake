# Writes PTX into a header as the array distile_mask_ptx, with the compute capability and the CUDA that it needs.
file(READ "${PTX}" bytes HEX)
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1, " bytes "${bytes}")
string(REGEX REPLACE "((0x.., ){24})" "\\1\n    " bytes "${bytes}")
file(WRITE "${HEADER}" "#define DISTILE_MASK_CAPABILITY ${CAPABILITY}\n#define DISTILE_MASK_CUDA ${CUDA}\n\n"
    "static const unsigned char distile_mask_ptx[] = {\n    ${bytes}0x00};\n")
