/** \file
 * Counts what the program allocates.
 */
#ifndef DISTILE_TESTS_ALLOCATIONS_H
#define DISTILE_TESTS_ALLOCATIONS_H

#include <cstdint>

namespace distile {

/** Calls of operator new until now. */
int64_t num_allocations();

}  // namespace distile

#endif
