/** \file
 * The PolyKernels linked into this library. CMake writes the table.
 */
#ifndef DISTILE_PYTHON_LINKED_POLYKERNELS_H
#define DISTILE_PYTHON_LINKED_POLYKERNELS_H

#include <distile/distile.h>
#include <vector>

namespace distile::python {

extern const std::vector<const distile_polykernel *> linked_polykernels;

}  // namespace distile::python

#endif
