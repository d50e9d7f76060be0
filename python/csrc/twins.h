/** \file
 * What runs an operator: its PolyKernel, or the dense twin that Python defines.
 */
#ifndef DISTILE_PYTHON_TWINS_H
#define DISTILE_PYTHON_TWINS_H

#include "bindings/registry.h"
#include "tensors.h"

namespace distile::python {

/** Called when Python has defined the twins. */
void define_twins();

/** The PolyKernel of an operator; null if there is none. Without twins, which load what they miss, this looks into the
 * cache folder. */
const distile_polykernel *polykernel_of(const bindings::OperatorKey &key);

/** Fails if there are no twins, as in a program without Python. */
void check_twins();

/** Calls the twin of an operator. */
template<typename... Args> Tensor call_twin(const std::string &name, const Args &...args) {
    check_twins();
    return call(("distile::_dense_" + name).c_str(), "", args...);
}

}  // namespace distile::python

#endif
