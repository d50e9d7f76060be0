/** \file
 * What runs an operator: its PolyKernel, the dense twin that Python defines, or without Python, dense.h.
 */
#ifndef DISTILE_PYTHON_TWINS_H
#define DISTILE_PYTHON_TWINS_H

#include "bindings/registry.h"
#include "python/csrc/tensors.h"

namespace distile::python {

/** Called when Python has defined the twins. */
void define_twins();

/** The PolyKernel of an operator; null if there is none. Without twins, which load what they miss, this looks into the
 * cache folder. */
const distile_polykernel *polykernel_of(const bindings::OperatorKey &key);

/** Whether Python has defined the twins. */
bool has_twins();

/** Computes an operator that has no PolyKernel: by its twin, which loads what it misses, or by `dense`. */
template<typename Dense, typename... Args>
Tensor without_polykernel(const std::string &name, const Dense &dense, const Args &...args) {
    return has_twins() ? call(("distile::_dense_" + name).c_str(), "", args...) : dense();
}

}  // namespace distile::python

#endif
