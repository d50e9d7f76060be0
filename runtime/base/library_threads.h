/** \file
 * What the library's own threads share: they leave signals to the application's threads, and a forked process has none
 * of them.
 */
#ifndef DISTILE_LIBRARY_THREADS_H
#define DISTILE_LIBRARY_THREADS_H

#include <cstdint>
#include <signal.h>
#if defined(__linux__)
#include <sched.h>
#endif

namespace distile {

/** Blocks signals in threads started in its scope, so the application's handlers run on the application's threads.
 * Faults stay deliverable: they hit the thread that causes them, and blocking them would kill the process without
 * calling its crash handler. */
class SignalBlocker {
public:
    SignalBlocker();
    ~SignalBlocker();
    SignalBlocker(const SignalBlocker &) = delete;
    SignalBlocker &operator=(const SignalBlocker &) = delete;

private:
    sigset_t former_;
};

/** The number of forks between the process that loaded this library and this one. A child has its parent's memory but
 * not its threads; this number reveals that. */
uint64_t num_forks();

/** Gives the calling thread the library's name, for debuggers and profilers. */
void name_library_thread();

/** The core that runs the calling thread, or -1 where the system does not say. */
int32_t current_core();

/** Keeps the calling thread off a core in its scope, if it may use another. Where somebody else chooses its cores
 * meanwhile, that choice stays. */
class OffCore {
public:
    explicit OffCore(int32_t core);
    ~OffCore();
    OffCore(const OffCore &) = delete;
    OffCore &operator=(const OffCore &) = delete;

#if defined(__linux__)
private:
    cpu_set_t former_, others_;
    bool changed_ = false;
#endif
};

}  // namespace distile

#endif
