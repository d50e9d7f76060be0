/** \file
 * The names of the kinds of operators.
 */
#ifndef DISTILE_FACTS_KIND_NAMES_H
#define DISTILE_FACTS_KIND_NAMES_H

#include "facts/kinds.h"
#include <distile/polykernel.h>

namespace distile {

/** In operator files, messages and Python. */
constexpr const char *kind_name(distile_operator_kind kind) {
    switch (kind) {
#define DISTILE_ROW(number, NAME, name, parameters)                                                                    \
    case DISTILE_MASKED_##NAME:                                                                                        \
        return "masked_" #name;
        DISTILE_OPERATOR_KINDS(DISTILE_ROW)
#undef DISTILE_ROW
    }
    return "an unknown kind";
}

/** In C. */
constexpr const char *kind_enumerator(distile_operator_kind kind) {
    switch (kind) {
#define DISTILE_ROW(number, NAME, name, parameters)                                                                    \
    case DISTILE_MASKED_##NAME:                                                                                        \
        return "DISTILE_MASKED_" #NAME;
        DISTILE_OPERATOR_KINDS(DISTILE_ROW)
#undef DISTILE_ROW
    }
    return "an unknown kind";
}

}  // namespace distile

#endif
