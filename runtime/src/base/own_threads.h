/** \file
 * What the library's own threads share: they leave signals to the application's threads, and a forked process has none
 * of them.
 */
#ifndef DISTILE_OWN_THREADS_H
#define DISTILE_OWN_THREADS_H

#include <cstdint>
#include <signal.h>

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
void name_own_thread();

}  // namespace distile

#endif
