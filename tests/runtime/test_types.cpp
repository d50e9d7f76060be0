// The conversions between float32 and narrower types, against arithmetic in double precision.
#include "facts/type_functions.h"
#include "facts/type_names.h"
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

/** A format, by its definition. */
struct Format {
    distile_dtype dtype;
    int exponent_bits, mantissa_bits;
    bool has_infinity;

    int bias() const {
        return (1 << (exponent_bits - 1)) - 1;
    }
    uint32_t sign() const {
        return 1U << (exponent_bits + mantissa_bits);
    }
    /** The least magnitude that is no number. */
    uint32_t special() const {
        return has_infinity ? sign() - (1U << mantissa_bits) : sign() - 1;
    }
    /** What a number too large becomes: infinity, or the largest number. */
    uint32_t overflow() const {
        return has_infinity ? special() : special() - 1;
    }
    bool is_nan(uint32_t bits) const {
        return (bits & (sign() - 1)) > overflow();
    }
    /** What finite bits stand for. Above the largest number the next one that infinity or NaN took the place of. */
    double value(uint32_t bits) const {
        const auto magnitude = static_cast<int>(bits & (sign() - 1)), exponent = magnitude >> mantissa_bits;
        const int mantissa = magnitude & ((1 << mantissa_bits) - 1);
        const double number = exponent == 0
                                  ? std::ldexp(mantissa, 1 - bias() - mantissa_bits)
                                  : std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias() - mantissa_bits);
        return (bits & sign()) != 0 ? -number : number;
    }
    /** The nearest bits, of two that are as near the even ones, by a search. */
    uint32_t nearest(float given) const {
        const double magnitude = std::abs(double{given});
        // The largest number that is no larger.
        uint32_t low = 0, high = special();
        while (high - low > 1) {
            const uint32_t middle = (low + high) / 2;
            (value(middle) <= magnitude ? low : high) = middle;
        }
        const double below = magnitude - value(low), above = value(low + 1) - magnitude;
        const uint32_t found = below < above || (below == above && low % 2 == 0) ? low : low + 1;
        return std::min(found, overflow()) | (std::signbit(given) ? sign() : 0);
    }
};

constexpr Format formats[] = {{DISTILE_FLOAT16, 5, 10, true},
                              {DISTILE_BFLOAT16, 8, 7, true},
                              {DISTILE_FLOAT8_E4M3FN, 4, 3, false},
                              {DISTILE_FLOAT8_E5M2, 5, 2, true}};

/** The bits of an element in memory. */
uint32_t element_of(const Type &type, const void *stored, size_t number) {
    const auto *const bytes = static_cast<const uint8_t *>(stored) + number * static_cast<size_t>(type.bytes);
    uint16_t two = 0;
    std::memcpy(&two, bytes, sizeof(two) * (type.bytes == 2));
    return type.bytes == 2 ? two : *bytes;
}

/** Every element of a type. */
std::vector<uint8_t> all_elements(const Type &type) {
    std::vector<uint8_t> stored;
    for (uint32_t bits = 0; bits < 1U << 8 * type.bytes; bits++) {
        const auto two = static_cast<uint16_t>(bits);
        const auto one = static_cast<uint8_t>(bits);
        const auto *const from = type.bytes == 2 ? reinterpret_cast<const uint8_t *>(&two) : &one;
        stored.insert(stored.end(), from, from + type.bytes);
    }
    return stored;
}

uint32_t narrow(const Type &type, float value) {
    uint8_t stored[sizeof(float)];
    type.from_float(&value, stored, 1);
    return element_of(type, stored, 0);
}

}  // namespace

TEST_CASE("Types have names and sizes", "[types]") {
    CHECK(distile_dtype_size(DISTILE_FLOAT32) == 4);
    CHECK(distile_dtype_size(DISTILE_FLOAT16) == 2);
    CHECK(distile_dtype_size(DISTILE_BFLOAT16) == 2);
    CHECK(std::string(find_type(DISTILE_BFLOAT16)->name) == "bfloat16");
    CHECK(find_type(0) == nullptr);
    CHECK(find_type(DISTILE_INT4) == nullptr);
    for (const distile_dtype dtype : {DISTILE_FLOAT8_E4M3FN, DISTILE_FLOAT8_E5M2}) {
        CHECK(distile_dtype_size(dtype) == 1);
        CHECK(find_float_type(dtype) == find_type(dtype));
        CHECK_FALSE(is_quantized(dtype));
    }
    CHECK(std::string(find_type(DISTILE_FLOAT8_E4M3FN)->name) == "float8_e4m3fn");
    CHECK(find_type(9) == nullptr);
    CHECK(float_type_names() == "float32, float16, bfloat16, float8_e4m3fn and float8_e5m2");
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

TEST_CASE("Every element is what its format says, and comes back", "[types]") {
    for (const Format &format : formats) {
        const Type &type = *find_type(format.dtype);
        CAPTURE(type.name);
        const std::vector<uint8_t> stored = all_elements(type);
        const size_t count = stored.size() / type.bytes;
        std::vector<uint8_t> back(stored.size());
        std::vector<float> values(count);
        type.to_float(stored.data(), values.data(), count);
        type.from_float(values.data(), back.data(), count);
        int wrong = 0;
        for (uint32_t bits = 0; bits < count; bits++) {
            const bool negative = (bits & format.sign()) != 0;
            const uint32_t returned = element_of(type, back.data(), bits);
            if (format.is_nan(bits)) {
                wrong += std::isnan(values[bits]) && format.is_nan(returned) ? 0 : 1;
            } else {
                const bool infinite = format.has_infinity && (bits & ~format.sign()) == format.special();
                const double due = infinite ? (negative ? -HUGE_VAL : HUGE_VAL) : format.value(bits);
                wrong += values[bits] == due && std::signbit(values[bits]) == negative && returned == bits ? 0 : 1;
            }
        }
        CHECK(wrong == 0);
    }
}

TEST_CASE("Every level converts alike", "[types]") {
    std::mt19937 random(5);
    for (const Format &format : formats) {
        const Type &type = *find_type(format.dtype);
        const std::vector<uint8_t> stored = all_elements(type);
        const size_t all = stored.size() / type.bytes;
        std::vector<float> expected(all), numbers(all);
        type.to_float(stored.data(), expected.data(), all);
        for (size_t i = 0; i < all; i++) {
            // Elements, ties between them, and any bits.
            const auto bits = static_cast<uint32_t>(random());
            numbers[i] = i % 3 == 0 ? expected[i] : i % 3 == 1 ? (expected[i] + expected[i - 1]) / 2 : float_of(bits);
        }
        std::vector<uint8_t> due(stored.size());
        type.from_float(numbers.data(), due.data(), all);
        for (const SimdLevel &level : supported_simd_levels()) {
            const FloatConversion &conversion = level.conversions[float_type_place(format.dtype)];
            // All numbers, and whatever is left behind whole vectors.
            for (const size_t count :
                 {size_t{0}, size_t{1}, size_t{7}, size_t{8}, size_t{15}, size_t{31}, size_t{45}, all - 3, all}) {
                CAPTURE(type.name, level.name, count);
                const size_t first = all - count;
                constexpr float untouched = 12345;
                std::vector<float> values(count + 1, untouched);
                conversion.widen(stored.data() + first * type.bytes, values.data(), static_cast<int64_t>(count));
                int wrong = 0;
                for (size_t i = 0; i < count; i++) {
                    const float value = expected[first + i];
                    wrong += std::isnan(value) ? !std::isnan(values[i]) : bits_of(value) != bits_of(values[i]);
                }
                CHECK(wrong == 0);
                CHECK(values.back() == untouched);
                std::vector<uint8_t> narrowed(count * type.bytes + 1, 0x55);
                conversion.narrow(numbers.data() + first, narrowed.data(), static_cast<int64_t>(count));
                CHECK(std::equal(narrowed.begin(), narrowed.end() - 1, due.begin() + first * type.bytes));
                CHECK(narrowed.back() == 0x55);
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
        // number is where infinity begins, if there is one.
        for (uint32_t number = 0; number < format.overflow(); number++) {
            const double value = format.value(number);
            const double next = format.value(number + 1);
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
        CHECK(narrow(type, std::numeric_limits<float>::infinity()) == format.overflow());
        CHECK(narrow(type, std::numeric_limits<float>::max()) == format.overflow());
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
                const uint32_t bits = narrow(type, float_of(sign | 0x7f800000 | mantissa));
                CAPTURE(mantissa, bits);
                CHECK(format.is_nan(bits));
                CHECK(((bits & format.sign()) != 0) == (sign != 0));
            }
        }
    }
}
