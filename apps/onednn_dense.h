/** \file
 * The demonstration's only link to oneDNN: its dense convolution, to compare with.
 */
#ifndef DISTILE_ONEDNN_DENSE_H
#define DISTILE_ONEDNN_DENSE_H

#include "layer.h"
#include <functional>
#include <string>

namespace distile {

/** A vendor library's dense convolution. */
struct VendorDense {
    std::function<void()> run; /**< Empty if the demonstration was built without oneDNN. */
    std::string name;          /**< Includes its version and the chosen implementation. */
};

/** oneDNN's dense convolution of a layer's input into its own output. The layer must outlive it. Checks its result, so
 * both sides are known to compute the same. Throws std::runtime_error if oneDNN does not work here. */
VendorDense make_onednn_dense(const Layer &layer);

}  // namespace distile

#endif
