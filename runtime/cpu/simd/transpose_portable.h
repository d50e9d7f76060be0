/** \file
 * Transposition with plain loops, for elements of any size.
 */
#ifndef DISTILE_TRANSPOSE_PORTABLE_H
#define DISTILE_TRANSPOSE_PORTABLE_H

#include <cstdint>

namespace distile {

template<typename Element> void transpose_portable(const Element *from, int64_t from_stride, Element *to,
                                                   int64_t to_stride, int64_t rows, int64_t columns) {
    for (int64_t c = 0; c < columns; c++) {
        for (int64_t r = 0; r < rows; r++) {
            to[c * to_stride + r] = from[r * from_stride + c];
        }
    }
}

}  // namespace distile

#endif
