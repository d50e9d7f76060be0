/** \file
 * How the readers of operator and plan files end.
 */
#ifndef DISTILE_PLANS_REFUSE_H
#define DISTILE_PLANS_REFUSE_H

#include "plans/json_file.h"

namespace distile {

/** Throws what is wrong with a file, and where. */
[[noreturn]] inline void refuse(const std::string &where, const std::string &what) {
    throw FileError(where + ": " + what);
}

}  // namespace distile

#endif
