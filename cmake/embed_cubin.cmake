# Writes machine code for GPUs into a header as the array distile_<NAME>_cubin. The driver reads whole words of it.
file(READ "${CODE}" bytes HEX)
string(REGEX REPLACE "(..)" "0x\\1," bytes "${bytes}")
file(WRITE "${HEADER}" "alignas(16) static const unsigned char distile_${NAME}_cubin[] = {${bytes}};\n")
