/** \file
 * The tiles of AMX in plain C++, by the manual's definition, for tests of the code that uses them.
 */
#ifndef DISTILE_TESTS_EMULATED_TILES_H
#define DISTILE_TESTS_EMULATED_TILES_H

#include "kernels/cpu/bfloat16.h"
#include "kernels/cpu/float16.h"
#include "kernels/cpu/int8.h"
#include "kernels/cpu/split_float16.h"
#include "runtime/base/types.h"
#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>

namespace distile {

/** Adds to sums[16][16] the products a[16][16][2] * b[16][16][2] of an AMX instruction, one pair after the other. */
void add_products_of_pairs(const float *a, const float *b, float *sums);

/** Each thread has its own. Use without a configuration, or a configuration that is left behind, counts as a mistake.
 */
class EmulatedTiles {
public:
    static constexpr int num_tiles = 8, rows = 16, row_bytes = 64;
    using Tile = std::array<std::array<char, row_bytes>, rows>;

    static void configure() {
        mistakes() += is_configured() ? 1 : 0;
        is_configured() = true;
        for (Tile &tile : tiles()) {
            tile = {};
        }
    }
    static void release() {
        mistakes() += is_configured() ? 0 : 1;
        is_configured() = false;
    }
    template<int T> static void zero() {
        tile<T>() = {};
    }
    template<int T> static void load(const void *from, int32_t stride) {
        spread_loads() += stride == row_bytes ? 0 : 1;
        for (int row = 0; row < rows; row++) {
            std::memcpy(tile<T>()[row].data(), static_cast<const char *>(from) + std::ptrdiff_t{row} * stride,
                        row_bytes);
        }
    }
    template<int T> static void store(void *to, int32_t stride) {
        for (int row = 0; row < rows; row++) {
            std::memcpy(static_cast<char *>(to) + std::ptrdiff_t{row} * stride, tile<T>()[row].data(), row_bytes);
        }
    }

    /** The number of loads of rows that do not follow each other, so were not staged, in all threads. */
    static std::atomic<int> &spread_loads() {
        static std::atomic<int> count{0};
        return count;
    }
    /** The number of mistakes in this thread. */
    static int &mistakes() {
        static thread_local int count = 0;
        return count;
    }

protected:
    template<typename T> static T read(const char *from) {
        T value{};
        std::memcpy(&value, from, sizeof(value));
        return value;
    }
    /** Adds the products of all groups of 4 bytes: add(sum, group of a row, group of a column). */
    template<int C, int A, int B, typename Sum, typename Add> static void add_groups(const Add &add) {
        constexpr int elements = row_bytes / 4;
        for (int row = 0; row < rows; row++) {
            for (int k = 0; k < elements; k++) {
                for (int column = 0; column < elements; column++) {
                    auto sum = read<Sum>(&tile<C>()[row][column * 4]);
                    add(sum, &tile<A>()[row][k * 4], &tile<B>()[k][column * 4]);
                    std::memcpy(&tile<C>()[row][column * 4], &sum, sizeof(sum));
                }
            }
        }
    }

    /** Adds the products of pairs of floating-point numbers, each of which is converted once: element(from). */
    template<int C, int A, int B, typename Element> static void add_pairs(const Element &element) {
        constexpr int pairs = row_bytes / 4;
        using Floats = std::array<std::array<float, 2 * pairs>, rows>;
        Floats a{}, b{};
        for (int row = 0; row < rows; row++) {
            for (int i = 0; i < 2 * pairs; i++) {
                a[row][i] = element(&tile<A>()[row][i * 2]);
                b[row][i] = element(&tile<B>()[row][i * 2]);
            }
        }
        std::array<std::array<float, pairs>, rows> sums;
        static_assert(sizeof(sums) == sizeof(Tile));
        std::memcpy(&sums, &tile<C>(), sizeof(sums));
        add_products_of_pairs(&a[0][0], &b[0][0], &sums[0][0]);
        std::memcpy(&tile<C>(), &sums, sizeof(sums));
    }

private:
    static bool &is_configured() {
        static thread_local bool configured = false;
        return configured;
    }
    static std::array<Tile, num_tiles> &tiles() {
        static thread_local std::array<Tile, num_tiles> all{};
        return all;
    }
    template<int T> static Tile &tile() {
        static_assert(T < num_tiles);
        mistakes() += is_configured() ? 0 : 1;
        return tiles()[T];
    }
};

class EmulatedProductsOfBfloat16 : public EmulatedTiles {
public:
    template<int C, int A, int B> static void add_product() {
        add_pairs<C, A, B>(element);
    }

private:
    /** Subnormal numbers count as 0. */
    static float element(const char *from) {
        constexpr uint32_t exponent = 0x7f800000, sign = 0x80000000;
        uint32_t bits = static_cast<uint32_t>(read<uint16_t>(from)) << 16;
        bits &= (bits & exponent) == 0 ? sign : ~0U;
        float value = 0;
        std::memcpy(&value, &bits, sizeof(value));
        return value;
    }
};

struct EmulatedBfloat16Tiles : EmulatedProductsOfBfloat16 {
    using Types = dot_product::Bfloat16<EmulatedBfloat16Tiles>;
};

struct EmulatedSplitFloat16Tiles : EmulatedProductsOfBfloat16 {
    using Types = dot_product::SplitFloat16<EmulatedSplitFloat16Tiles>;

    /** Converts as the instruction does, which makes every NaN quiet. */
    static void widen(const dot_product::Stored16 &stored,
                      dot_product::Epilogue<EmulatedSplitFloat16Tiles>::Floats &values) {
        using Format = dot_product::Float16Format<EmulatedSplitFloat16Tiles>;
        Format::widen(stored, values);
        constexpr uint32_t infinity = 0x7f800000, quiet = 0x00400000;
        Format::Words bits;
        std::memcpy(&bits, &values, sizeof(bits));
        bits |= (bits & 0x7fffffff) > infinity ? quiet : 0;
        std::memcpy(&values, &bits, sizeof(values));
    }
};

struct EmulatedFloat16Tiles : EmulatedTiles {
    using Types = dot_product::Float16<EmulatedFloat16Tiles>;

    template<int C, int A, int B> static void add_product() {
        add_pairs<C, A, B>(element);
    }

private:
    static float element(const char *from) {
        float value = 0;
        find_type(DISTILE_FLOAT16)->to_float(from, &value, 1);
        return value;
    }
};

struct EmulatedInt8Tiles : EmulatedTiles {
    using Types = dot_product::Int8<EmulatedInt8Tiles>;

    template<int C, int A, int B> static void add_product() {
        add_groups<C, A, B, uint32_t>([](uint32_t &sum, const char *a, const char *b) {
            for (int i = 0; i < 4; i++) {
                sum += static_cast<uint32_t>(read<uint8_t>(a + i) * read<int8_t>(b + i));
            }
        });
    }
};

}  // namespace distile

#endif
