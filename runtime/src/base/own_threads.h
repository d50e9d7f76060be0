/** \file
 * What all threads have in common that the library starts: they leave signals to the application's threads, and a
 * process that is forked has none of them.
 */
#ifndef DISTILE_OWN_THREADS_H
#define DISTILE_OWN_THREADS_H

#include <cstdint>
#include <signal.h>

namespace distile {

/** Keeps signals from threads started in its scope, so that the application's handlers run on its own
 * threads. Faults stay deliverable: they strike the thread that causes them, and blocking them would kill
 * the process without a word from its crash handler. */
class SignalBlocker {
public:
    SignalBlocker();
    ~SignalBlocker();
    SignalBlocker(const SignalBlocker &) = delete;
    SignalBlocker &operator=(const SignalBlocker &) = delete;

private:
    sigset_t former_;
};

/** Forks on the way from the process that loaded this library to this one. A child has the memory of its parent's
 * threads but not the threads, and tells by this number. */
uint64_t num_forks();

/** Gives the calling thread the library's name, for debuggers and profilers. */
void name_own_thread();

}  // namespace distile

#endif
