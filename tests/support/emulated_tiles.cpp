#include "tests/support/emulated_tiles.h"

namespace distile {

void add_products_of_pairs(const float *a, const float *b, float *sums) {
    constexpr int rows = EmulatedTiles::rows, columns = EmulatedTiles::row_bytes / 4, row = 2 * columns;
    for (int y = 0; y < rows; y++) {
        for (int pair = 0; pair < columns; pair++) {
            const float *const factors = a + y * row + 2 * pair, *const others = b + pair * row;
            for (int x = 0; x < columns; x++) {
                sums[y * columns + x] += factors[0] * others[2 * x];
                sums[y * columns + x] += factors[1] * others[2 * x + 1];
            }
        }
    }
}

}  // namespace distile
