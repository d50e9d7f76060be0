#include "runtime/base/types.h"
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>

namespace distile {

namespace {

uint32_t bits_of(float value) {
    uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof(bits));
    return bits;
}

float float_of(uint32_t bits) {
    float value = 0;
    std::memcpy(&value, &bits, sizeof(value));
    return value;
}

uint16_t to_half(float value) {
    const uint32_t bits = bits_of(value), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
    constexpr uint32_t infinity = 0x7f800000, least_normal = 0x38800000, overflow = 0x477ff000;
    if (magnitude > infinity) {
        return static_cast<uint16_t>(sign | 0x7e00);
    }
    if (magnitude >= overflow) {
        return static_cast<uint16_t>(sign | 0x7c00);
    }
    if (magnitude < least_normal) {
        // Adding .5 aligns the subnormal's bits and rounds them.
        const float aligned = float_of(magnitude) + 0.5f;
        return static_cast<uint16_t>(sign | (bits_of(aligned) - bits_of(0.5f)));
    }
    const uint32_t odd = magnitude >> 13 & 1;
    return static_cast<uint16_t>(sign | ((magnitude - 0x38000000 + 0xfff + odd) >> 13));
}

float of_half(uint16_t half) {
    const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16, magnitude = half & 0x7fff;
    if (magnitude >= 0x7c00) {
        return float_of(sign | 0x7f800000 | (magnitude & 0x3ff) << 13);
    }
    if (magnitude < 0x400) {
        constexpr float least = 0x1p-24f;
        const float value = static_cast<float>(magnitude) * least;
        return sign != 0 ? -value : value;
    }
    return float_of(sign | ((magnitude << 13) + 0x38000000));
}

uint16_t to_bfloat(float value) {
    const uint32_t bits = bits_of(value);
    if ((bits & 0x7fffffff) > 0x7f800000) {
        return static_cast<uint16_t>(bits >> 16 | 0x40);
    }
    return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

float of_bfloat(uint16_t bfloat) {
    return float_of(static_cast<uint32_t>(bfloat) << 16);
}

template<uint16_t (*convert)(float)> void narrow(const float *from, void *to, size_t count) {
    auto *narrowed = static_cast<uint16_t *>(to);
    for (size_t i = 0; i < count; i++) {
        narrowed[i] = convert(from[i]);
    }
}

template<float (*convert)(uint16_t)> void widen(const void *from, float *to, size_t count) {
    const auto *narrow = static_cast<const uint16_t *>(from);
    for (size_t i = 0; i < count; i++) {
        to[i] = convert(narrow[i]);
    }
}

template<typename Integer> void round_to(const float *from, void *to, size_t count) {
    using Limits = std::numeric_limits<Integer>;
    for (size_t i = 0; i < count; i++) {
        const float value = std::isnan(from[i]) ? 0 : from[i];
        static_cast<Integer *>(to)[i] = static_cast<Integer>(
            round_to_integer(std::clamp(value, static_cast<float>(Limits::min()), static_cast<float>(Limits::max()))));
    }
}

template<typename Integer> void of_integers(const void *from, float *to, size_t count) {
    std::copy_n(static_cast<const Integer *>(from), count, to);
}

const Type types[] = {
    {DISTILE_FLOAT32, "float32", 4,
     [](const float *from, void *to, size_t count) { std::copy_n(from, count, static_cast<float *>(to)); },
     [](const void *from, float *to, size_t count) { std::copy_n(static_cast<const float *>(from), count, to); }},
    {DISTILE_FLOAT16, "float16", 2, narrow<to_half>, widen<of_half>},
    {DISTILE_BFLOAT16, "bfloat16", 2, narrow<to_bfloat>, widen<of_bfloat>},
    {DISTILE_UINT8, "uint8", 1, round_to<uint8_t>, of_integers<uint8_t>},
    {DISTILE_INT8, "int8", 1, round_to<int8_t>, of_integers<int8_t>},
};

}  // namespace

const Type *find_type(int32_t dtype) {
    for (const Type &type : types) {
        if (type.dtype == dtype) {
            return &type;
        }
    }
    return nullptr;
}

const Type *find_float_type(int32_t dtype) {
    return is_quantized(dtype) ? nullptr : find_type(dtype);
}

const char *type_names() {
    return "float32, float16 and bfloat16";
}

TypeText::TypeText(int32_t dtype) {
    const Type *type = find_type(dtype);
    if (type || dtype == DISTILE_INT4) {
        std::snprintf(text, sizeof(text), "%s", type ? type->name : "int4");
    } else {
        std::snprintf(text, sizeof(text), "%d", dtype);
    }
}

}  // namespace distile
