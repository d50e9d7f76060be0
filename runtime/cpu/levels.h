/** \file
 * Inner loops that are written for several kinds of processor.
 */
#ifndef DISTILE_LEVELS_H
#define DISTILE_LEVELS_H

#include <cstdint>

namespace distile {

/** The levels that this CPU can run: at least one, the fastest last. */
template<typename Level> struct Levels {
    const Level *levels;
    int32_t count;

    const Level *begin() const {
        return levels;
    }
    const Level *end() const {
        return levels + count;
    }
    const Level &best() const {
        return levels[count - 1];
    }
};

}  // namespace distile

#endif
