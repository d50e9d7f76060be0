/** \file
 * The thread pool of a context, for parallel loops as short as a few microseconds. Loops may nest.
 */
#ifndef DISTILE_THREAD_POOL_H
#define DISTILE_THREAD_POOL_H

#include <cstdint>
#include <memory>

namespace distile {

/** After a loop, workers spin for some tens of microseconds, so the next loop finds them awake, and then sleep, so an
 * idle pool costs nothing. A process forked between two loops may go on using the pool, which starts new workers. */
class ThreadPool {
public:
    /** A pool of `threads` threads (at least 1), including the calling one. Workers start with the first loop that can
     * use them. */
    explicit ThreadPool(int32_t threads);
    ~ThreadPool();
    ThreadPool(const ThreadPool &) = delete;
    ThreadPool &operator=(const ThreadPool &) = delete;

    int32_t threads() const;

    /** Runs task(closure, index) for every index in [0, count) and returns when all have finished. The calling thread
     * takes part, so the loop completes even if no worker could start. While it waits for helpers, it helps other loops
     * of the pool. Tasks may call parallel_for but must not throw. Does not allocate after the first call. */
    void parallel_for(void (*task)(void *closure, int32_t index), void *closure, int32_t count);

private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace distile

#endif
