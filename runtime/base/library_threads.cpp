#include "runtime/base/library_threads.h"

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

void name_library_thread() {
#if defined(__linux__)
    pthread_setname_np(pthread_self(), "distile");
#endif
}

#if defined(__linux__)

int32_t current_core() {
    return sched_getcpu();
}

OffCore::OffCore(int32_t core) {
    if (core < 0 || core >= CPU_SETSIZE || sched_getaffinity(0, sizeof(former_), &former_) != 0 ||
        !CPU_ISSET(core, &former_)) {
        return;
    }
    others_ = former_;
    CPU_CLR(core, &others_);
    changed_ = sched_setaffinity(0, sizeof(others_), &others_) == 0;  // Refuses an empty set.
}

OffCore::~OffCore() {
    cpu_set_t now;
    if (changed_ && sched_getaffinity(0, sizeof(now), &now) == 0 && CPU_EQUAL(&now, &others_)) {
        sched_setaffinity(0, sizeof(former_), &former_);
    }
}

#else

int32_t current_core() {
    return -1;
}

OffCore::OffCore(int32_t) {
}

OffCore::~OffCore() = default;

#endif

}  // namespace distile
