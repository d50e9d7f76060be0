#include "own_threads.h"

#include <atomic>
#include <initializer_list>
#include <pthread.h>

namespace distile {

namespace {

std::atomic<uint64_t> forks{0};
const int watching_forks = pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1, std::memory_order_relaxed); });

}  // namespace

SignalBlocker::SignalBlocker() {
    sigset_t blocked;
    sigfillset(&blocked);
    for (int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT}) {
        sigdelset(&blocked, fault);
    }
    pthread_sigmask(SIG_SETMASK, &blocked, &former_);
}

SignalBlocker::~SignalBlocker() {
    pthread_sigmask(SIG_SETMASK, &former_, nullptr);
}

uint64_t num_forks() {
    return forks.load(std::memory_order_relaxed);
}

void name_own_thread() {
#if defined(__linux__)
    pthread_setname_np(pthread_self(), "distile");
#endif
}

}  // namespace distile
