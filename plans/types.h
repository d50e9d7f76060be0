/** \file
 * The types in which tensors are stored. A further one is one row in types.cpp.
 */
#ifndef DISTILE_PLANS_TYPES_H
#define DISTILE_PLANS_TYPES_H

#include <string>

namespace distile {

struct DataType {
    const char *name;       /**< In operator files, and as a parameter of Halide's generators. */
    const char *enumerator; /**< In C, a distile_dtype. */
    int bytes;
};

/** Null if there is none of this name. */
const DataType *find_type(const std::string &name);
/** The names of all, quoted, for messages. */
std::string known_types();

}  // namespace distile

#endif
