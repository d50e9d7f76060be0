/** \file
 * What the benchmark asks of the operating system.
 */
#ifndef DISTILE_BENCH_MACHINE_H
#define DISTILE_BENCH_MACHINE_H

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace distile::bench {

/** The kernel's name and release. */
std::string system_name();
/** The time in UTC, for instance "2026-01-31T12:00:00Z". */
std::string utc_now();
/** Seconds of CPU time that the usable cores gave to others so far: to other programs, to the kernel and to other
 * virtual machines. How much it grows tells how much a measurement was disturbed. 0 where the system does not say. */
double seconds_of_others();
size_t last_level_cache_bytes();

/** Memory of this process, in bytes. */
struct MemoryUse {
    int64_t resident;      /**< Pages that it has. */
    int64_t peak_resident; /**< The most since the last restart_peak(). */
    int64_t heap;          /**< What the C library's allocator handed out and did not get back. */
};
MemoryUse memory_use();
/** Gives what is free back to the system and restarts the peak. Throws std::runtime_error where the system has none. */
void restart_peak();

void pin_this_thread(int core);

}  // namespace distile::bench

#endif
