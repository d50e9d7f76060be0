// The one place that compiles stb_image, which is a header.
#include <cstring>

namespace {

/** Copies bytes. The decoder also copies none to a null pointer, for an image that begins with no data, which
 * std::memcpy forbids. */
void *copy_bytes(void *to, const void *from, size_t count) {
    return count == 0 ? to : std::memcpy(to, from, count);
}

}  // namespace

#define memcpy copy_bytes
#define STB_IMAGE_IMPLEMENTATION
#define STBI_ONLY_PNG
// No mask is larger, so that a small file cannot ask for all memory.
#define STBI_MAX_DIMENSIONS 65535
#include <stb/stb_image.h>
