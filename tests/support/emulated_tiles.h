/** \file
 * The tiles of AMX in plain C++, by the manual's definition, for tests of the code that uses them.
 */
#ifndef DISTILE_TESTS_EMULATED_TILES_H
#define DISTILE_TESTS_EMULATED_TILES_H

#include <array>
#include <cstdint>
#include <cstring>

namespace distile {

/** Each thread has its own. Use without a configuration, or a configuration that is left behind, counts as a mistake.
 */
struct EmulatedTiles {
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
    template<int C, int A, int B> static void add_product() {
        constexpr int elements = row_bytes / 4;
        for (int row = 0; row < rows; row++) {
            for (int k = 0; k < elements; k++) {
                for (int column = 0; column < elements; column++) {
                    float sum = 0;
                    std::memcpy(&sum, &tile<C>()[row][column * 4], sizeof(sum));
                    for (int i = 0; i < 2; i++) {
                        sum += element(tile<A>()[row], 2 * k + i) * element(tile<B>()[k], 2 * column + i);
                    }
                    std::memcpy(&tile<C>()[row][column * 4], &sum, sizeof(sum));
                }
            }
        }
    }

    /** Of this thread. */
    static int &mistakes() {
        static thread_local int count = 0;
        return count;
    }

private:
    static float element(const std::array<char, row_bytes> &row, int index) {
        uint16_t stored = 0;
        std::memcpy(&stored, &row[index * 2], sizeof(stored));
        const uint32_t bits = static_cast<uint32_t>(stored) << 16;
        float value = 0;
        std::memcpy(&value, &bits, sizeof(value));
        return value;
    }
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

}  // namespace distile

#endif
