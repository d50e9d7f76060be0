#include "runtime/base/types.h"
#include "runtime/base/stored_float.h"
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>

namespace distile {

namespace {

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

template<int32_t number> void narrow(const float *from, void *to, size_t count) {
    narrow_all<number>(from, to, static_cast<int64_t>(count));
}

template<int32_t number> void widen(const void *from, float *to, size_t count) {
    widen_all<number>(from, to, static_cast<int64_t>(count));
}

/** First the floating-point ones. Filters may also have types without a row: their elements fill no byte. */
constexpr Type types[] = {
#define DISTILE_ROW(number, name, NAME, bits, ONNX, digits, widened, narrowed)                                         \
    {DISTILE_##NAME, #name, (bits) / 8, narrow<number>, widen<number>},
    DISTILE_FLOAT_TYPES(DISTILE_ROW)
#undef DISTILE_ROW
#define DISTILE_ROW(number, name, NAME, bits, ONNX, least, most)                                                       \
    {DISTILE_##NAME, #name, (bits) / 8, round_to<name##_t>, of_integers<name##_t>},
        DISTILE_QUANTIZED_TYPES(DISTILE_ROW)
#undef DISTILE_ROW
};

#define DISTILE_ROW(number, name, NAME, bits, ONNX, ...)                                                               \
    static_assert(DISTILE_##NAME == (number), "the table has another number than distile.h");
DISTILE_TYPES(DISTILE_ROW)
#undef DISTILE_ROW

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
    const int32_t place = float_type_place(dtype);
    return place < 0 ? nullptr : &types[place];
}

TypeText::TypeText(int32_t dtype) {
    const TypeFacts facts = facts_of_type(dtype);
    if (facts.bits > 0) {
        std::snprintf(text, sizeof(text), "%s", facts.name);
    } else {
        std::snprintf(text, sizeof(text), "%d", dtype);
    }
}

}  // namespace distile
