#include "runtime/base/int4.h"

namespace distile {

namespace {

uint8_t byte_of(int32_t low, int32_t high) {
    return static_cast<uint8_t>((low & 15) | (high & 15) << 4);
}

float number_of(int32_t half) {
    return static_cast<float>((half ^ 8) - 8);
}

}  // namespace

void int4_to_float(const void *from, float *to, size_t count) {
    const auto *const bytes = static_cast<const uint8_t *>(from);
    for (size_t i = 0; i < count; i++) {
        to[i] = number_of(i % 2 == 0 ? bytes[i / 2] & 15 : bytes[i / 2] >> 4);
    }
}

void int4_from_bytes(const int8_t *from, void *to, size_t count) {
    auto *const bytes = static_cast<uint8_t *>(to);
    for (size_t i = 0; i < count; i += 2) {
        bytes[i / 2] = byte_of(from[i], i + 1 < count ? from[i + 1] : 0);
    }
}

void int4_blocks_from_float(const float *from, void *to, size_t count) {
    auto *bytes = static_cast<uint8_t *>(to);
    for (size_t block = 0; block < count; block += int4_block) {
        for (size_t i = block; i < block + int4_block / 2; i++) {
            *bytes++ = byte_of(static_cast<int32_t>(from[i]), static_cast<int32_t>(from[i + int4_block / 2]));
        }
    }
}

}  // namespace distile
