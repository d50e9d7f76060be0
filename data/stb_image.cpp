// The one place that compiles stb_image, which is a header.
#define STB_IMAGE_IMPLEMENTATION
#define STBI_ONLY_PNG
// No mask is larger, so that a small file cannot ask for all memory.
#define STBI_MAX_DIMENSIONS 65535
#include <stb/stb_image.h>
