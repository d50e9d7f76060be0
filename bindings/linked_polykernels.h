/** \file
 * The PolyKernels linked into this library. CMake writes the table.
 */
#ifndef DISTILE_BINDINGS_LINKED_POLYKERNELS_H
#define DISTILE_BINDINGS_LINKED_POLYKERNELS_H

#include <distile/distile.h>
#include <vector>

namespace distile::bindings {

extern const std::vector<const distile_polykernel *> linked_polykernels;

}  // namespace distile::bindings

#endif
