/** \file
 * Shared by the kinds of operators that read a key or a value.
 */
#ifndef DISTILE_TOKEN_ROWS_H
#define DISTILE_TOKEN_ROWS_H

#include "runtime/kinds/operator_kind.h"
#include <cmath>

namespace distile {

inline std::string why_heads_illegal(int32_t heads, int32_t head_dim) {
    return heads >= 1 && head_dim >= 1
               ? ""
               : "it has " + std::to_string(heads) + " heads of " + std::to_string(head_dim) + " channels";
}

inline float usual_scale(int32_t head_dim) {
    return 1 / std::sqrt(static_cast<float>(head_dim));
}

inline distile_border border_of_tokens(const void *) {
    return {};
}

/** An output token stands at its query's place. Which keys it reads, no window says. */
inline distile_window window_of_tokens(const void *) {
    return {1, 1, 1, 1, 1, 1, 0, 0, DISTILE_WINDOW_CONV};
}

inline PixelRect all_tokens(const void *, const PixelRect &readable) {
    return readable;
}

}  // namespace distile

#endif
