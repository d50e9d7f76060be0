/** \file
 * The thread pool of a context: parallel loops as short as a few microseconds, which may be nested.
 */
#ifndef DISTILE_THREAD_POOL_H
#define DISTILE_THREAD_POOL_H

#include <cstdint>
#include <memory>

namespace distile {

/** Workers spin for some tens of microseconds after a loop, so that the next one finds them awake,
 * and then sleep until there is work, so that an idle pool burns nothing. A process that was forked between two loops
 * may go on with the pool: it starts workers of its own. */
class ThreadPool {
public:
    /** A pool of `threads` threads in all, the calling one included (at least 1). Workers start with
     * the first loop that can use them. */
    explicit ThreadPool(int32_t threads);
    ~ThreadPool();
    ThreadPool(const ThreadPool &) = delete;
    ThreadPool &operator=(const ThreadPool &) = delete;

    int32_t threads() const;

    /** Runs task(closure, index) for every index in [0, count) and returns when all have finished. The
     * calling thread takes part, so the loop completes even where no worker could be started. Tasks may
     * call parallel_for; tasks must not throw. Does not allocate after the first call. */
    void parallel_for(void (*task)(void *closure, int32_t index), void *closure, int32_t count);

private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace distile

#endif
