/** \file
 * Copies of up to a step, which calls of the C library would take longer for than for the copy itself.
 */
#ifndef DISTILE_DOT_PRODUCT_SHORT_COPY_H
#define DISTILE_DOT_PRODUCT_SHORT_COPY_H

#include <cstdint>
#include <cstring>

namespace distile::dot_product {

/** `Set` as in Epilogue. */
template<class Set> class ShortCopy {
public:
    /** Copies bytes, each changed by an exclusive or. They do not overlap, but may be copied in place if they are a
     * multiple of 16. */
    [[gnu::always_inline]] static void copy(const uint8_t *from, uint8_t *to, int32_t bytes, uint8_t flip) {
        if (bytes >= 16) {
            copy_units<Sixteen>(from, to, bytes, flip);
        } else if (bytes >= 8) {
            copy_units<uint64_t>(from, to, bytes, flip);
        } else if (bytes >= 4) {
            copy_units<uint32_t>(from, to, bytes, flip);
        } else {
            for (int32_t i = 0; i < bytes; i++) {
                to[i] = from[i] ^ flip;
            }
        }
    }

private:
    using Sixteen = uint8_t __attribute__((vector_size(16)));

    /** The last unit may overlap the one before. */
    template<typename Unit>
    [[gnu::always_inline]] static void copy_units(const uint8_t *from, uint8_t *to, int32_t bytes, uint8_t flip) {
        constexpr int32_t size = sizeof(Unit);
        int32_t i = 0;
        for (; i + size <= bytes; i += size) {
            copy_unit<Unit>(from + i, to + i, flip);
        }
        if (i < bytes) {
            copy_unit<Unit>(from + bytes - size, to + bytes - size, flip);
        }
    }
    template<typename Unit>
    [[gnu::always_inline]] static void copy_unit(const uint8_t *from, uint8_t *to, uint8_t flip) {
        Unit unit, flips;
        std::memset(&flips, flip, sizeof(flips));
        std::memcpy(&unit, from, sizeof(unit));
        unit ^= flips;
        std::memcpy(to, &unit, sizeof(unit));
    }
};

}  // namespace distile::dot_product

#endif
