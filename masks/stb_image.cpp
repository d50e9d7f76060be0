// The only file that compiles the header library stb_image.
#include <cstring>

namespace {

/** Copies bytes. For an image that starts with an empty chunk, the decoder copies 0 bytes to a null pointer, which
 * std::memcpy forbids. */
void *copy_bytes(void *to, const void *from, size_t count) {
    return count == 0 ? to : std::memcpy(to, from, count);
}

}  // namespace

#define memcpy copy_bytes
#define STB_IMAGE_IMPLEMENTATION
#define STBI_ONLY_PNG
// Reasons for people; others quote bytes of the file.
#define STBI_FAILURE_USERMSG
// No mask is larger. The limit stops small files from requesting huge allocations.
#define STBI_MAX_DIMENSIONS 65535
#include <stb/stb_image.h>
