/** \file
 * What tests ask of the loader in fake_opencl.cpp, which takes the place of OpenCL's: it runs no kernel, but counts
 * calls and what is alive, and fails on demand.
 */
#ifndef DISTILE_TESTS_FAKE_OPENCL_H
#define DISTILE_TESTS_FAKE_OPENCL_H

#include <cstdint>

extern "C" {

/** Sets "platforms", "devices", "gpu" (which of them is one, from 1), "minor" (of version 1.x), "items" (of a
 * work-group), "kernel_items" (the same for a kernel), "local" (bytes of local memory) or "largest" (bytes of a
 * buffer). */
void fake_opencl_set(const char *what, int64_t value);
/** Lets a function return an error from now on; 0: no more. "*": every function. */
void fake_opencl_fail(const char *function, int result);
/** Calls of a function; of "alive": references to objects; of "opened": the device of the last cl_context, from 1. */
int64_t fake_opencl_count(const char *what);
}

#endif
