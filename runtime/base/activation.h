/** \file
 * An activation with its number, as the runtime passes it to code of every device.
 */
#ifndef DISTILE_BASE_ACTIVATION_H
#define DISTILE_BASE_ACTIVATION_H

#include "facts/activations.h"
#include <distile/distile.h>

namespace distile {

struct Activation {
    distile_activation function;
    float slope;  ///< For functions that have one.
};

/** The slope that a caller gives, or none. */
inline float slope_of(const float *given) {
    return given ? *given : DISTILE_DEFAULT_SLOPE;
}

}  // namespace distile

#endif
