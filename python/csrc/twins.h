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

/** When code for any shape (distile/general.h) computes an operator that has no PolyKernel of its own. */
enum class General : int64_t {
    kept = 0,     /**< If a call before has kept it: else the twin decides. */
    once = 1,     /**< In this call. */
    always = 2,   /**< From this call on, as long as the operator has no PolyKernel. */
    forgotten = 3 /**< As kept, and none is kept from calls before. */
};
/** Says so for calls of this thread; what is forgotten is so in all. */
void allow_general(General when);

/** The PolyKernel of an operator for a call, as find_polykernel() finds it; null if there is none. Without twins, which
 * load what they miss, this looks into the cache folder, and takes general code else. */
const distile_polykernel *polykernel_of(const bindings::OperatorKey &key, std::optional<int64_t> tokens = {},
                                        const bindings::KeepsTwoOfFour &keeps_two_of_four = nullptr);

/** Whether Python has defined the twins. */
bool has_twins();

/** Computes an operator that has no PolyKernel: by its twin, which loads what it misses, or by `dense`. */
template<typename Dense, typename... Args>
Tensor without_polykernel(const std::string &name, const Dense &dense, const Args &...args) {
    return has_twins() ? call(("distile::_dense_" + name).c_str(), "", args...) : dense();
}

}  // namespace distile::python

#endif
