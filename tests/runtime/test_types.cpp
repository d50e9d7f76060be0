// The conversions between float32 and the types of 16 bits, against arithmetic in double precision.
#include "runtime/base/types.h"
#include "runtime/cpu/simd/simd_level.h"
#include "tests/support/catch.h"
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <distile/distile.h>
#include <limits>
#include <random>
#include <string>
#include <vector>

using namespace distile;

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

/** A format of 16 bits, by its definition. */
struct Format {
    distile_dtype dtype;
    int exponent_bits, mantissa_bits;

    int bias() const {
        return (1 << (exponent_bits - 1)) - 1;
    }
    uint16_t infinity() const {
        return static_cast<uint16_t>(((1 << exponent_bits) - 1) << mantissa_bits);
    }
    bool is_nan(uint16_t bits) const {
        return (bits & 0x7fff) > infinity();
    }
    /** What finite bits stand for. Above the largest number the next one that infinity took the place of. */
    double value(uint16_t bits) const {
        const int exponent = (bits & 0x7fff) >> mantissa_bits, mantissa = bits & ((1 << mantissa_bits) - 1);
        const double magnitude = exponent == 0
                                     ? std::ldexp(mantissa, 1 - bias() - mantissa_bits)
                                     : std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias() - mantissa_bits);
        return (bits & 0x8000) != 0 ? -magnitude : magnitude;
    }
    /** The nearest bits, of two that are as near the even ones, by a search. */
    uint16_t nearest(float given) const {
        const double magnitude = std::abs(double{given});
        // The largest number that is no larger.
        int low = 0, high = infinity();
        while (high - low > 1) {
            const int middle = (low + high) / 2;
            (value(static_cast<uint16_t>(middle)) <= magnitude ? low : high) = middle;
        }
        const double below = magnitude - value(static_cast<uint16_t>(low));
        const double above = value(static_cast<uint16_t>(low + 1)) - magnitude;
        const int found = below < above || (below == above && low % 2 == 0) ? low : low + 1;
        return static_cast<uint16_t>(std::min<int>(found, infinity()) | (std::signbit(given) ? 0x8000 : 0));
    }
};

constexpr Format formats[] = {{DISTILE_FLOAT16, 5, 10}, {DISTILE_BFLOAT16, 8, 7}};

uint16_t narrow(const Type &type, float value) {
    uint16_t bits = 0;
    type.from_float(&value, &bits, 1);
    return bits;
}

}  // namespace

TEST_CASE("Types have names and sizes", "[types]") {
    CHECK(distile_dtype_size(DISTILE_FLOAT32) == 4);
    CHECK(distile_dtype_size(DISTILE_FLOAT16) == 2);
    CHECK(distile_dtype_size(DISTILE_BFLOAT16) == 2);
    CHECK(std::string(find_type(DISTILE_BFLOAT16)->name) == "bfloat16");
    CHECK(find_type(0) == nullptr);
    CHECK(find_type(6) == nullptr);
    for (const distile_dtype dtype : {DISTILE_UINT8, DISTILE_INT8}) {
        CHECK(distile_dtype_size(dtype) == 1);
        CHECK(find_float_type(dtype) == nullptr);
        const bool is_signed = dtype == DISTILE_INT8;
        const float numbers[] = {-1000, -128, -1.5f, .5f, 1.5f, 127, 255, 1e30f, NAN};
        const int unsigned_due[] = {0, 0, 0, 0, 2, 127, 255, 255, 0}, due[] = {-128, -128, -2, 0, 2, 127, 127, 127, 0};
        uint8_t stored[9];
        find_type(dtype)->from_float(numbers, stored, 9);
        float read[9];
        find_type(dtype)->to_float(stored, read, 9);
        for (int i = 0; i < 9; i++) {
            CHECK(read[i] == static_cast<float>(is_signed ? due[i] : unsigned_due[i]));
        }
    }
    const std::vector<float> values = {1.5f, -0.0f, std::numeric_limits<float>::quiet_NaN(), 1e-42f};
    std::vector<float> copies(values.size()), back(values.size());
    find_type(DISTILE_FLOAT32)->from_float(values.data(), copies.data(), values.size());
    find_type(DISTILE_FLOAT32)->to_float(copies.data(), back.data(), values.size());
    CHECK(std::memcmp(values.data(), back.data(), values.size() * sizeof(float)) == 0);
}

TEST_CASE("Every number of 16 bits is what its format says, and comes back", "[types]") {
    for (const Format &format : formats) {
        const Type &type = *find_type(format.dtype);
        CAPTURE(type.name);
        std::vector<uint16_t> bits(1 << 16), back(bits.size());
        for (size_t i = 0; i < bits.size(); i++) {
            bits[i] = static_cast<uint16_t>(i);
        }
        std::vector<float> values(bits.size());
        type.to_float(bits.data(), values.data(), bits.size());
        type.from_float(values.data(), back.data(), values.size());
        int wrong = 0;
        for (size_t i = 0; i < bits.size(); i++) {
            const bool negative = (i & 0x8000) != 0;
            if (format.is_nan(bits[i])) {
                wrong += std::isnan(values[i]) && format.is_nan(back[i]) ? 0 : 1;
            } else if ((i & 0x7fff) == format.infinity()) {
                wrong += std::isinf(values[i]) && std::signbit(values[i]) == negative && back[i] == bits[i] ? 0 : 1;
            } else {
                wrong += values[i] == format.value(bits[i]) && std::signbit(values[i]) == negative && back[i] == bits[i]
                             ? 0
                             : 1;
            }
        }
        CHECK(wrong == 0);
    }
}

TEST_CASE("Every level converts to float32 alike", "[types]") {
    std::vector<uint16_t> bits(1 << 16);
    for (size_t i = 0; i < bits.size(); i++) {
        bits[i] = static_cast<uint16_t>(i);
    }
    for (const distile_dtype dtype : {DISTILE_FLOAT16, DISTILE_BFLOAT16}) {
        const Type &type = *find_type(dtype);
        std::vector<float> expected(bits.size());
        type.to_float(bits.data(), expected.data(), bits.size());
        for (const SimdLevel &level : supported_simd_levels()) {
            const auto widen = dtype == DISTILE_FLOAT16 ? level.widen_float16 : level.widen_bfloat16;
            // All numbers, and whatever is left behind whole vectors.
            for (const size_t count : {size_t{0}, size_t{1}, size_t{7}, size_t{8}, size_t{15}, size_t{31}, size_t{45},
                                       bits.size() - 3, bits.size()}) {
                CAPTURE(type.name, level.name, count);
                const size_t first = bits.size() - count;
                constexpr float untouched = 12345;
                std::vector<float> values(count + 1, untouched);
                widen(bits.data() + first, values.data(), static_cast<int64_t>(count));
                int wrong = 0;
                for (size_t i = 0; i < count; i++) {
                    const float value = expected[first + i];
                    wrong += std::isnan(value) ? !std::isnan(values[i]) : bits_of(value) != bits_of(values[i]);
                }
                CHECK(wrong == 0);
                CHECK(values.back() == untouched);
            }
        }
    }
}

TEST_CASE("Numbers are rounded to the nearest, ties to even", "[types]") {
    for (const Format &format : formats) {
        const Type &type = *find_type(format.dtype);
        CAPTURE(type.name);
        int64_t wrong = 0, tried = 0;
        const auto try_bits = [&](uint32_t bits) {
            for (uint32_t sign : {0u, 0x80000000u}) {
                const float value = float_of(bits | sign);
                tried++;
                wrong += narrow(type, value) == format.nearest(value) ? 0 : 1;
            }
        };
        // Every number, every middle between two, and the floats beside each; the first middle beyond the largest
        // number is where infinity begins.
        for (uint32_t number = 0; number < format.infinity(); number++) {
            const double value = format.value(static_cast<uint16_t>(number));
            const double next = format.value(static_cast<uint16_t>(number + 1));
            for (double around : {value, (value + next) / 2, next}) {
                const uint32_t bits = bits_of(static_cast<float>(around));
                for (uint32_t offset : {0u, 1u, 2u}) {
                    if (bits + offset >= 1 && bits + offset - 1 <= 0x7f800000) {
                        try_bits(bits + offset - 1);
                    }
                }
            }
        }
        std::mt19937 random(3);
        for (int i = 0; i < 1000000; i++) {
            try_bits(static_cast<uint32_t>(random()) % 0x7f800001);
        }
        CHECK(tried > 2000000);
        CHECK(wrong == 0);
        CHECK(narrow(type, std::numeric_limits<float>::infinity()) == format.infinity());
        CHECK(narrow(type, std::numeric_limits<float>::max()) == format.infinity());
        // The least number that is above half of the least subnormal one.
        const auto half_of_least = static_cast<float>(format.value(1) / 2);
        CHECK(narrow(type, half_of_least) == 0);
        CHECK(narrow(type, std::nextafter(half_of_least, 1.0f)) == 1);
    }
}

TEST_CASE("What is no number stays none", "[types]") {
    for (const Format &format : formats) {
        const Type &type = *find_type(format.dtype);
        CAPTURE(type.name);
        // Also those whose upper bits alone would be infinity.
        for (uint32_t mantissa : {1u, 2u, 0x1fffu, 0xffffu, 0x10000u, 0x3fffffu, 0x400000u, 0x7fffffu}) {
            for (uint32_t sign : {0u, 0x80000000u}) {
                const uint16_t bits = narrow(type, float_of(sign | 0x7f800000 | mantissa));
                CAPTURE(mantissa, bits);
                CHECK(format.is_nan(bits));
                CHECK((bits & 0x8000) == sign >> 16);
            }
        }
    }
}
