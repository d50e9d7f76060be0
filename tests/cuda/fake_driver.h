/** \file
 * What tests ask of the driver in fake_driver.cpp, which takes the place of a GPU's: it runs no kernel, but allocates,
 * copies, counts calls and what is alive, and fails on demand.
 */
#ifndef DISTILE_TESTS_FAKE_DRIVER_H
#define DISTILE_TESTS_FAKE_DRIVER_H

#include <cstdint>

extern "C" {

/** Sets "version", "major", "minor", "devices", "peers" (whether GPUs can use each other's memory), "multiprocessors",
 * "green" (those of the context), "memory" (in bytes), "ordinal" (the GPU that memory belongs to), "capturing", "count"
 * (every number of tiles that is read back) or "wait" (the microseconds that a stream takes to be done). */
void fake_driver_set(const char *what, int64_t value);
/** Lets a function return an error from now on; 0: no more. "*": every function. */
void fake_driver_fail(const char *function, int result);
/** Lets one call alone return an error, whatever the function, after `calls` others; -1: none. */
void fake_driver_fail_once(int64_t calls, int result);
/** Calls of a function; of "*": of all; of "launches": of both that launch kernels; of "failed": that returned an error
 * on demand; of "alive": objects that were not destroyed; of "forbidden": calls that a capture forbids; of "beside":
 * launches on other streams than the default one that may still be running beside what comes next on that one. About
 * the PTX that was loaded: "waits", the places where it waits for earlier kernels; "waiting", the kernels of the
 * modules that have any. About the last launch: "cluster", the blocks of a cluster; "early", 1 if it may start early;
 * "blocks"; "shared", the bytes of dynamic shared memory of a block. */
int64_t fake_driver_count(const char *what);
}

#endif
