/** \file
 * The types of facts/types.h as operator files and generated C name them.
 */
#ifndef DISTILE_DATA_TYPE_H
#define DISTILE_DATA_TYPE_H

#include "facts/type_functions.h"
#include <distile/distile.h>
#include <string>

namespace distile {

struct DataType {
    const char *name;       /**< In operator files, and as a parameter of Halide's generators. */
    const char *enumerator; /**< In C, a distile_dtype. */
    distile_dtype dtype;
    int bytes;
    double rounding; /**< The largest relative error of a value that is stored; 0 for quantized types. */

    bool is_quantized() const {
        return distile::is_quantized(dtype);
    }
};

/** Null if there is none of this name. */
const DataType *find_type(const std::string &name);
/** Their names, quoted, for messages. */
std::string known_types();

}  // namespace distile

#endif
