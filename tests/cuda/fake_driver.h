/** \file
 * What tests ask of the driver in fake_driver.cpp, which takes the place of a GPU's: it runs no kernel, but allocates,
 * counts calls and what is alive, and fails on demand.
 */
#ifndef DISTILE_TESTS_FAKE_DRIVER_H
#define DISTILE_TESTS_FAKE_DRIVER_H

#include <cstdint>

extern "C" {

/** Sets "version", "major", "minor", "devices", "multiprocessors", "green" (those of the context), "memory" (in bytes),
 * "ordinal" (the GPU that memory belongs to), "capturing", "count" (every number of tiles that is read back) or "wait"
 * (the microseconds that a stream takes to be done). */
void fake_driver_set(const char *what, int64_t value);
/** Lets a function return an error from now on; 0: no more. "*": every function. */
void fake_driver_fail(const char *function, int result);
/** Calls of a function; of "alive": objects that were not destroyed; of "forbidden": calls that a capture forbids. */
int64_t fake_driver_count(const char *what);
}

#endif
