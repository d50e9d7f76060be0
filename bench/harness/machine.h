/** \file
 * What the benchmark reads from the operating system.
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
/** Seconds of CPU time that others took from the usable cores so far: other programs, the kernel and other virtual
 * machines. Its growth during a measurement says how much that was disturbed. 0 if the system does not report it. */
double seconds_of_others();
size_t last_level_cache_bytes();

/** Memory of this process, in bytes. */
struct MemoryUse {
    int64_t resident;      /**< Pages that it has. */
    int64_t peak_resident; /**< The most since the last restart_peak(). */
    int64_t heap;          /**< What the C library's allocator handed out and did not get back. */
};
MemoryUse memory_use();
/** Returns free memory to the system and restarts the peak. Throws std::runtime_error if the system cannot. */
void restart_peak();

void pin_this_thread(int core);

}  // namespace distile::bench

#endif
