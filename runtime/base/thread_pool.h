/** \file
 * The thread pool of a context, for parallel loops as short as a few microseconds. Loops may nest, also where the
 * threads are those of a caller's pool whose loops may not.
 */
#ifndef DISTILE_THREAD_POOL_H
#define DISTILE_THREAD_POOL_H

#include <cstdint>
#include <distile/distile.h>
#include <memory>

namespace distile {

/** After a loop, workers spin for some tens of microseconds, so the next loop finds them awake, and then sleep, so an
 * idle pool costs nothing. A process forked between two loops may go on using the pool, which starts new workers. */
class ThreadPool {
public:
    /** A pool of `threads` threads (at least 1), including the calling one. Workers start with the first loop that can
     * use them. */
    explicit ThreadPool(int32_t threads);
    /** A pool whose workers are the threads of the caller's pool, for as long as an outermost loop of ours runs there.
     */
    ThreadPool(int32_t threads, distile_parallel_for callers, void *user);
    ~ThreadPool();
    ThreadPool(const ThreadPool &) = delete;
    ThreadPool &operator=(const ThreadPool &) = delete;

    int32_t threads() const;

    /** Runs task(closure, index) for every index in [0, count) and returns when all have finished. The calling thread
     * takes part, so the loop completes even if no worker could start. While it waits for helpers, it helps other loops
     * of the pool. Tasks may call parallel_for but must not throw. Does not allocate after the first call. In a
     * caller's pool, it occupies as many threads as there are indices; all, if tasks may have loops of their own.
     * Throws what the caller's pool throws. */
    void parallel_for(distile_task task, void *closure, int32_t count, bool may_nest = false);

private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace distile

#endif
