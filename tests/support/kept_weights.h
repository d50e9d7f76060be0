/** \file
 * Pruned weights for tests whose nonzeros do not lie anywhere.
 */
#ifndef DISTILE_TESTS_KEPT_WEIGHTS_H
#define DISTILE_TESTS_KEPT_WEIGHTS_H

#include <cstddef>
#include <vector>

namespace distile {

enum class Kept {
    Anything,
    Rows,  /**< All weights of two of three output channels, and none of the third. */
    Column /**< One input channel at one kernel position. */
};

/** Sets all other weights of a filter in the order DISTILE_HWIO to 0. */
inline void keep(std::vector<float> &filter, size_t outputs, Kept kept) {
    const size_t columns = filter.size() / outputs, column = columns / 2;
    for (size_t i = 0; i < filter.size(); i++) {
        const bool is_kept =
            kept == Kept::Anything || (kept == Kept::Rows ? i % outputs % 3 != 1 : i / outputs == column);
        filter[i] = is_kept ? filter[i] : 0;
    }
}

}  // namespace distile

#endif
