/** \file
 * The one place where the demonstration knows of oneDNN: its dense convolution as the side to compare with.
 */
#ifndef DISTILE_ONEDNN_DENSE_H
#define DISTILE_ONEDNN_DENSE_H

#include "layer.h"
#include <functional>
#include <string>

namespace distile {

/** A dense convolution of a vendor's library. */
struct VendorDense {
    std::function<void()> run; /**< Empty if the demonstration was built without oneDNN. */
    std::string name;          /**< With its version and the code that it chose. */
};

/** oneDNN's dense convolution over the input of a layer, which must outlive it, into an output of its own. Checks its
 * result, so that both sides are known to compute the same. Throws std::runtime_error if oneDNN does not work here. */
VendorDense make_onednn_dense(const Layer &layer);

}  // namespace distile

#endif
