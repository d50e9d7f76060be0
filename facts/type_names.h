/** \file
 * The names of types in messages.
 */
#ifndef DISTILE_FACTS_TYPE_NAMES_H
#define DISTILE_FACTS_TYPE_NAMES_H

#include "facts/types.h"
#include <string>

namespace distile {

/** The floating-point types as a list with commas, and this word before the last one. */
inline std::string float_type_names(const char *before_last = "and") {
    constexpr const char *names[] = {
#define DISTILE_ROW(number, name, ...) #name,
        DISTILE_FLOAT_TYPES(DISTILE_ROW)
#undef DISTILE_ROW
    };
    std::string text = names[0];
    for (int i = 1; i < DISTILE_NUM_FLOAT_TYPES; i++) {
        text += i + 1 < DISTILE_NUM_FLOAT_TYPES ? ", " : " " + std::string(before_last) + " ";
        text += names[i];
    }
    return text;
}

}  // namespace distile

#endif
