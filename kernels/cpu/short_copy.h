/** \file
 * Copies of up to a step, for which calls of the C library would take longer than the copy itself.
 */
#ifndef DISTILE_DOT_PRODUCT_SHORT_COPY_H
#define DISTILE_DOT_PRODUCT_SHORT_COPY_H

#include <cstdint>
#include <cstring>

namespace distile::dot_product {

/** Copies of bytes that do not overlap, each byte changed by an exclusive or. `Isa` as in Epilogue. */
template<class Isa> class ShortCopy {
public:
    /** Calls use(copy) where copy(from, to) copies `bytes`, up to 64. */
    template<class Use> [[gnu::always_inline]] static void with(int32_t bytes, uint8_t flip, const Use &use) {
        constexpr int32_t most = sizeof(SixtyFour);
        if (bytes == most) {
            use([=](const uint8_t *from, uint8_t *to) { copy_unit<SixtyFour>(from, to, flip); });
        } else if (bytes > 32) {
            use([=](const uint8_t *from, uint8_t *to) { copy_ends<ThirtyTwo>(from, to, bytes, flip); });
        } else if (bytes > 16) {
            use([=](const uint8_t *from, uint8_t *to) { copy_ends<Sixteen>(from, to, bytes, flip); });
        } else if (bytes == 16) {
            use([=](const uint8_t *from, uint8_t *to) { copy_unit<Sixteen>(from, to, flip); });
        } else if (bytes >= 8) {
            use([=](const uint8_t *from, uint8_t *to) { copy_ends<uint64_t>(from, to, bytes, flip); });
        } else if (bytes >= 4) {
            use([=](const uint8_t *from, uint8_t *to) { copy_ends<uint32_t>(from, to, bytes, flip); });
        } else {
            use([=](const uint8_t *from, uint8_t *to) {
                for (int32_t i = 0; i < bytes; i++) {
                    to[i] = from[i] ^ flip;
                }
            });
        }
    }

private:
    using Sixteen = uint8_t __attribute__((vector_size(16)));
    using ThirtyTwo = uint8_t __attribute__((vector_size(32)));
    using SixtyFour = uint8_t __attribute__((vector_size(64)));

    /** One or two units, which may overlap. */
    template<typename Unit>
    [[gnu::always_inline]] static void copy_ends(const uint8_t *from, uint8_t *to, int64_t bytes, uint8_t flip) {
        copy_unit<Unit>(from, to, flip);
        copy_unit<Unit>(from + bytes - sizeof(Unit), to + bytes - sizeof(Unit), flip);
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
