/** \file
 * Callers post their loops on a board, a single atomic word; workers that find a loop there join it. The word also
 * counts spinning and sleeping workers. So posting a loop and deciding whom to wake is one atomic step, as is finding
 * no loop and going to sleep: no wake-up can be lost.
 */
#include "runtime/base/thread_pool.h"

#include "runtime/base/library_threads.h"
#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <mutex>
#include <pthread.h>
#include <semaphore.h>
#include <thread>
#include <vector>

namespace distile {

namespace {

using Clock = std::chrono::steady_clock;

/** How long a worker spins before it sleeps. */
constexpr Clock::duration spin_time = std::chrono::microseconds(50);
/** Pauses, each some tens of nanoseconds, after which a spinning worker yields its core, which a woken worker often
 * shares with its caller. */
constexpr int32_t pauses_per_yield = 64;
/** Pauses after which a waiting caller assumes that a helper has lost its core. */
constexpr int32_t pauses_before_yield = 500;

constexpr size_t cache_line = 64;

/** The fields of the board: one bit per loop with indices left, the numbers of spinning and of sleeping workers, and a
 * bit that stops them all. */
constexpr int32_t max_loops = 32;
constexpr uint64_t any_loop = 0xffffffff;
constexpr uint64_t spinner = uint64_t(1) << 32;
constexpr uint64_t sleeper = uint64_t(1) << 48;
constexpr uint64_t stop = uint64_t(1) << 63;
constexpr int32_t max_workers = 0x7fff;

uint64_t spinners(uint64_t board) {
    return board / spinner & max_workers;
}

uint64_t sleepers(uint64_t board) {
    return board / sleeper & max_workers;
}

void pause() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("isb");  // Unlike yield, it takes time on every core.
#endif
}

/** A loop that workers may join. It lives in the pool, not on the caller's stack, so a late worker can still see that
 * it is over. */
struct alignas(cache_line) Loop {
    /** The number of helpers while the loop is open; otherwise one of the values below. */
    std::atomic<int32_t> state{vacant};
    static constexpr int32_t vacant = -1, owned = -2;

    std::atomic<uint32_t> next{0};  // Unsigned: each participant may draw once beyond the last index.
    uint32_t last = 0;
    void (*task)(void *closure, int32_t index) = nullptr;
    void *closure = nullptr;

    /** Takes a vacant loop. Acquires the end of its former use before the new owner overwrites the fields. */
    bool claim() {
        int32_t expected = vacant;
        return state.load(std::memory_order_relaxed) == vacant &&
               state.compare_exchange_strong(expected, owned, std::memory_order_acquire, std::memory_order_relaxed);
    }

    /** Releases the fields and all earlier writes of the caller to those who join. */
    void open() {
        state.store(0, std::memory_order_release);
    }

    bool join() {
        int32_t helpers = state.load(std::memory_order_relaxed);
        while (helpers >= 0) {
            if (state.compare_exchange_weak(helpers, helpers + 1, std::memory_order_acquire,
                                            std::memory_order_relaxed)) {
                return true;
            }
        }
        return false;
    }

    /** Releases the writes of the helper's tasks to the caller. */
    void leave() {
        state.fetch_sub(1, std::memory_order_release);
    }

    /** Acquires the writes of all helpers and releases the fields to the next owner. */
    bool close() {
        int32_t expected = 0;
        return state.load(std::memory_order_relaxed) == 0 &&
               state.compare_exchange_weak(expected, vacant, std::memory_order_acq_rel, std::memory_order_relaxed);
    }
};

}  // namespace

struct ThreadPool::Impl {
    /** All accesses are relaxed: the board only says where to look, and a loop's state orders the data. Waking and
     * sleeping rely only on the single modification order of one word. */
    alignas(cache_line) std::atomic<uint64_t> board{0};
    /** Where the latest loop was posted. */
    std::atomic<int32_t> callers_core{-1};
    Loop loops[max_loops];
    sem_t wake_ups;
    std::mutex starting;
    /** num_forks() in the process that started the workers. */
    std::atomic<uint64_t> started_after{not_started};
    static constexpr uint64_t not_started = UINT64_MAX;
    std::vector<pthread_t> workers;
    const int32_t threads;
    const distile_parallel_for callers;
    void *const user;
    /** Outermost loops that run in the caller's pool. */
    std::atomic<int32_t> lent{0};

    Impl(int32_t wanted, distile_parallel_for callers, void *user)
        : threads(std::min(std::max(wanted, 1), max_workers + 1)), callers(callers), user(user) {
        workers.reserve(callers ? 0 : size_t(threads - 1));
        sem_init(&wake_ups, 0, 0);
    }

    ~Impl() {
        if (has_started()) {
            wake(sleepers(board.fetch_or(stop, std::memory_order_relaxed)));
            for (pthread_t worker : workers) {
                pthread_join(worker, nullptr);
            }
        }
        sem_destroy(&wake_ups);
    }

    /** True if this process, not an ancestor, started the workers. */
    bool has_started() const {
        return started_after.load(std::memory_order_acquire) == num_forks();
    }

    /** Starts fewer workers, or none, if the system refuses more. */
    void start() {
        const std::lock_guard<std::mutex> lock(starting);
        if (has_started()) {
            return;
        }
        if (started_after.load(std::memory_order_relaxed) != not_started) {
            forget_workers();
        }
        const SignalBlocker blocker;
        const auto run_worker = [](void *pool) -> void * {
            static_cast<Impl *>(pool)->work();
            return nullptr;
        };
        pthread_t worker{};
        while (workers.size() < size_t(threads - 1) && pthread_create(&worker, nullptr, run_worker, this) == 0) {
            workers.push_back(worker);
        }
        started_after.store(num_forks(), std::memory_order_release);
    }

    /** In a forked child: the workers that the board and the semaphore count live in the parent. No loop is open,
     * because nobody may fork during a call. */
    void forget_workers() {
        workers.clear();
        board.store(0, std::memory_order_relaxed);
        sem_destroy(&wake_ups);
        sem_init(&wake_ups, 0, 0);
    }

    uint64_t bit(const Loop &loop) const {
        return uint64_t(1) << (&loop - loops);
    }

    /** Adds a loop's bit to the board and calls as many sleepers as the loop wants beyond the spinners. Called workers
     * count as spinning at once, so nobody calls them twice. Returns their number, for wake(). */
    uint64_t post(uint64_t bit, uint64_t wanted) {
        uint64_t before = board.load(std::memory_order_relaxed);
        uint64_t called;
        do {
            called = std::min(sleepers(before), wanted - std::min(wanted, spinners(before)));
        } while (!board.compare_exchange_weak(before, (before | bit) + called * spinner - called * sleeper,
                                              std::memory_order_relaxed));
        return called;
    }

    void wake(uint64_t called) {
        while (called-- != 0) {
            sem_post(&wake_ups);
        }
    }

    /** Takes loops or workers off the board. Two loops may have counted on the same spinners, so whoever leaves indices
     * that no spinner looks for calls a sleeper. */
    void retract(uint64_t what) {
        uint64_t after = board.fetch_sub(what, std::memory_order_relaxed) - what;
        if ((after & any_loop) != 0 && spinners(after) == 0 && sleepers(after) != 0) {
            wake(post(0, 1));
        }
    }

    /** Runs indices until none are left, or one. Retracts `leaving` with the first index and the loop with the last.
     * Returns whether it ran any. */
    bool run(Loop &loop, uint64_t leaving, bool one = false) {
        bool any = false;
        uint32_t index;
        // The order of draws does not matter: whoever draws has joined, and the caller waits for it. The first
        // comparison stops workers that rejoin before the loop leaves the board from counting on.
        while (loop.next.load(std::memory_order_relaxed) <= loop.last &&
               (index = loop.next.fetch_add(1, std::memory_order_relaxed)) <= loop.last) {
            uint64_t what = (any ? 0 : leaving) | (index == loop.last ? bit(loop) : 0);
            any = true;
            if (what != 0) {
                retract(what);
            }
            loop.task(loop.closure, int32_t(index));
            if (index == loop.last || one) {
                break;
            }
        }
        return any;
    }

    void work() {
        name_library_thread();
        board.fetch_add(spinner, std::memory_order_relaxed);
        while (Loop *loop = find_loop()) {
            bool was_busy = run(*loop, spinner);
            loop->leave();
            if (was_busy) {
                board.fetch_add(spinner, std::memory_order_relaxed);
            } else {
                // Whoever drew the last index must still take the loop off the board, and may be waiting for this core.
                std::this_thread::yield();
            }
        }
    }

    /** Joins a loop of a board; null if there is none. */
    Loop *join_one_of(uint64_t board_then) {
        for (uint64_t left = board_then & any_loop; left != 0; left &= left - 1) {
            Loop &loop = loops[__builtin_ctzll(left)];
            if (loop.join()) {
                return &loop;
            }
        }
        return nullptr;
    }

    /** Runs an index of another loop: helpers that a caller waits for may themselves wait for theirs. Returns whether
     * there was one. */
    bool help() {
        Loop *const loop = join_one_of(board.load(std::memory_order_relaxed));
        const bool helped = loop && run(*loop, 0, true);
        if (loop) {
            loop->leave();
        }
        return helped;
    }

    /** Waits for a loop and joins it. Returns null when the pool stops. */
    Loop *find_loop() {
        Clock::time_point bedtime = Clock::now() + spin_time;
        for (;;) {
            for (int32_t i = 0; i < pauses_per_yield; ++i) {
                const uint64_t now = board.load(std::memory_order_relaxed);
                if ((now & stop) != 0) {
                    return nullptr;
                }
                if (Loop *const loop = join_one_of(now)) {
                    return loop;
                }
                pause();
            }
            std::this_thread::yield();
            if (Clock::now() >= bedtime) {
                sleep();
                bedtime = Clock::now() + spin_time;
            }
        }
    }

    /** Sleeps until called, unless there is a reason to stay awake. */
    void sleep() {
        {
            // Linux often wakes a thread on its waker's core, in a virtual machine even where others are idle; there it
            // waits until its caller has done the work alone.
            const OffCore away(callers_core.load(std::memory_order_relaxed));
            await_call();
        }
        // The caller may have moved meanwhile.
        const int32_t core = callers_core.load(std::memory_order_relaxed);
        if (core >= 0 && current_core() == core) {
            const OffCore away(core);
        }
    }

    void await_call() {
        uint64_t before = board.load(std::memory_order_relaxed);
        do {
            if ((before & (any_loop | stop)) != 0) {
                return;
            }
        } while (!board.compare_exchange_weak(before, before - spinner + sleeper, std::memory_order_relaxed));
        while (sem_wait(&wake_ups) != 0) {}
    }

    Loop *claim_loop() {
        for (Loop &loop : loops) {
            if (loop.claim()) {
                return &loop;
            }
        }
        return nullptr;
    }

    /** Whether others may join a loop. */
    bool has_helpers() {
        if (callers) {
            return threads > 1;
        }
        if (!has_started()) {
            start();
        }
        return !workers.empty();
    }

    /** A thread of the caller's pool takes part in a loop, and in those within it, until the loop is over. If it comes
     * too late, it has nothing to do. So the loop ends in whatever order the caller's pool runs these. */
    void attend(Loop &loop) {
        if (loop.join()) {
            run(loop, 0);
            loop.leave();
            for (int32_t pauses = 0; loop.state.load(std::memory_order_relaxed) > 0;) {
                wait_a_while(pauses);
            }
        }
    }

    /** Runs an outermost loop in the caller's pool. */
    void lend(Loop &loop, int32_t participants) {
        struct Attendance {
            Impl &pool;
            Loop &loop;
        } attendance = {*this, loop};
        lent.fetch_add(1, std::memory_order_relaxed);
        callers(
            user,
            [](void *closure, int32_t) {
                const auto *all = static_cast<const Attendance *>(closure);
                all->pool.attend(all->loop);
            },
            &attendance, participants);
    }

    /** Helps another loop; if there is none, pauses, and yields in the long run. */
    void wait_a_while(int32_t &pauses) {
        if (help()) {
            pauses = 0;
        } else if (pauses < pauses_before_yield) {
            ++pauses;
            pause();
        } else {
            std::this_thread::yield();
        }
    }
};

ThreadPool::ThreadPool(int32_t threads) : ThreadPool(threads, nullptr, nullptr) {
}

ThreadPool::ThreadPool(int32_t threads, distile_parallel_for callers, void *user)
    : impl_(std::make_unique<Impl>(threads, callers, user)) {
}

ThreadPool::~ThreadPool() = default;

int32_t ThreadPool::threads() const {
    return impl_->threads;
}

void ThreadPool::parallel_for(distile_task task, void *closure, int32_t count, bool may_nest) {
    Loop *loop = nullptr;
    if (count > 1 && impl_->threads > 1) {
        // If no loop is vacant, the workers have enough others to help with.
        loop = impl_->has_helpers() ? impl_->claim_loop() : nullptr;
    }
    if (loop == nullptr) {
        for (int32_t i = 0; i < count; ++i) {
            task(closure, i);
        }
        return;
    }
    loop->next.store(0, std::memory_order_relaxed);
    loop->last = uint32_t(count - 1);
    loop->task = task;
    loop->closure = closure;
    const int32_t core = current_core();
    const bool moved = impl_->callers_core.load(std::memory_order_relaxed) != core;
    impl_->callers_core.store(core, std::memory_order_relaxed);
    // Post before opening: once it is open, a late worker may join it and retract it.
    uint64_t called = impl_->post(impl_->bit(*loop), uint64_t(count - 1));
    loop->open();
    impl_->wake(called);
    if (moved && called != 0) {
        std::this_thread::yield();  // Workers that were told to sleep elsewhere may wake here, and leave.
    }
    std::exception_ptr thrown;
    const bool lends = impl_->callers && impl_->lent.load(std::memory_order_relaxed) == 0;
    if (lends) {
        try {
            impl_->lend(*loop, may_nest ? impl_->threads : std::min(count, impl_->threads));
        } catch (...) {
            thrown = std::current_exception();
        }
        impl_->lent.fetch_sub(1, std::memory_order_relaxed);
    }
    impl_->run(*loop, 0);
    for (int32_t pauses = 0; !loop->close();) {
        impl_->wait_a_while(pauses);
    }
    if (thrown) {
        std::rethrow_exception(thrown);
    }
}

}  // namespace distile
