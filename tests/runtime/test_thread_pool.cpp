#include "runtime/base/thread_pool.h"
#include "tests/support/catch.h"
#include "tests/support/in_child.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <pthread.h>
#include <signal.h>
#include <stdexcept>
#include <thread>
#include <type_traits>
#include <unistd.h>
#include <vector>
#if defined(__linux__)
#include <sched.h>
#include <sys/syscall.h>
#endif

using distile::ThreadPool, distile::in_child;

namespace {

/** Longer than workers spin: when it is over, they sleep. */
constexpr std::chrono::milliseconds nap(1);

template<typename Body> void parallel_for(ThreadPool &pool, int32_t count, Body &&body, bool may_nest = true) {
    auto task = [](void *closure, int32_t index) { (*static_cast<std::remove_reference_t<Body> *>(closure))(index); };
    pool.parallel_for(task, &body, count, may_nest);
}

/** A caller's pool whose loops must not nest. It takes the indices from the last to the first, in as many threads. */
struct CallersThreads {
    bool one_by_one;
    std::atomic<int32_t> loops{0}, most{0}, nested{0};

    static thread_local bool inside;

    static void run(void *user, distile_task task, void *closure, int32_t count) {
        auto *const self = static_cast<CallersThreads *>(user);
        self->loops++;
        self->most = std::max(self->most.load(), count);
        self->nested += inside ? 1 : 0;
        const auto one = [&](int32_t index) {
            inside = true;
            task(closure, index);
            inside = false;
        };
        std::vector<std::thread> threads;
        for (int32_t i = count; i-- > 0;) {
            if (self->one_by_one || i == 0) {
                one(i);
            } else {
                threads.emplace_back(one, i);
            }
        }
        for (std::thread &thread : threads) {
            thread.join();
        }
    }
};

thread_local bool CallersThreads::inside = false;

/** Returns whether a loop runs every index once. The increments are not atomic, so that a thread sanitizer
 * tells if the caller sees a task's writes, or a task the caller's, without synchronisation. */
bool runs_each_once(ThreadPool &pool, int32_t count) {
    std::vector<int32_t> runs(size_t(count > 0 ? count : 0), 1);
    parallel_for(pool, count, [&](int32_t i) { ++runs[size_t(i)]; });
    for (int32_t n : runs) {
        if (n != 2) {
            return false;
        }
    }
    return true;
}

/** Sums 1 over a tree of loops in which each of `count` tasks runs a loop, `depth` deep. */
int64_t count_leaves(ThreadPool &pool, int32_t count, int32_t depth) {
    if (depth == 0) {
        return 1;
    }
    std::vector<int64_t> leaves(size_t(count), 0);
    parallel_for(pool, count, [&](int32_t i) { leaves[size_t(i)] = count_leaves(pool, count, depth - 1); });
    int64_t sum = 0;
    for (int64_t n : leaves) {
        sum += n;
    }
    return sum;
}

/** Runs body(0), ..., body(count - 1) in a thread each, and waits for them. */
template<typename Body> void in_threads(int32_t count, Body body) {
    std::vector<std::thread> threads;
    threads.reserve(count);
    for (int32_t i = 0; i < count; ++i) {
        threads.emplace_back(body, i);
    }
    for (std::thread &thread : threads) {
        thread.join();
    }
}

/** Where as many tasks as expected meet only if as many threads run them. Nobody waits for the missing ones
 * forever, so that a test fails rather than hangs. */
class Rendezvous {
public:
    explicit Rendezvous(int32_t expected) : missing_(expected) {
    }

    void arrive() {
        missing_.fetch_sub(1);
        while (missing_.load() > 0) {
            if (std::chrono::steady_clock::now() > deadline_) {
                complete_.store(false);
                return;
            }
            std::this_thread::yield();
        }
    }

    bool complete() const {
        return complete_.load();
    }

private:
    std::atomic<int32_t> missing_;
    std::atomic<bool> complete_{true};
    const std::chrono::steady_clock::time_point deadline_ = std::chrono::steady_clock::now() + std::chrono::seconds(20);
};

}  // namespace

TEST_CASE("A pool has at least one thread", "[thread_pool]") {
    CHECK(ThreadPool(-1).threads() == 1);
    CHECK(ThreadPool(0).threads() == 1);
    CHECK(ThreadPool(1).threads() == 1);
    CHECK(ThreadPool(8).threads() == 8);
}

TEST_CASE("A loop runs every index exactly once", "[thread_pool]") {
    int32_t threads = GENERATE(1, 2, 3, 8);
    ThreadPool pool(threads);
    for (int32_t count : {-1, 0, 1, 2, 3, 4, 7, 8, 9, 31, 64, 100, 1000, 10000}) {
        CAPTURE(threads, count);
        CHECK(runs_each_once(pool, count));
    }
}

TEST_CASE("Loops nest", "[thread_pool]") {
    int32_t threads = GENERATE(1, 2, 3, 8);
    ThreadPool pool(threads);
    int32_t wrong = 0;
    for (int32_t repeat = 0; repeat < 50; ++repeat) {
        wrong += count_leaves(pool, 10, 2) != 100;
        wrong += count_leaves(pool, 5, 3) != 125;
    }
    CAPTURE(threads);
    CHECK(wrong == 0);
    // More loops at a time than a pool keeps track of.
    CHECK(count_leaves(pool, 2, 10) == 1024);
    CHECK(count_leaves(pool, 2, 12) == 4096);
}

TEST_CASE("A loop of one index passes its thread on to nested loops", "[thread_pool]") {
    ThreadPool pool(3);
    CHECK(count_leaves(pool, 1, 100) == 1);
    bool each_once = false;
    parallel_for(pool, 1, [&](int32_t) { each_once = runs_each_once(pool, 100); });
    CHECK(each_once);
}

TEST_CASE("Short loops follow each other closely", "[thread_pool]") {
    int32_t threads = GENERATE(2, 3, 8);
    ThreadPool pool(threads);
    std::vector<int64_t> sums(size_t(threads), 0);
    constexpr int32_t loops = 5000;
    for (int32_t loop = 0; loop < loops; ++loop) {
        parallel_for(pool, threads, [&](int32_t i) { sums[size_t(i)] += loop; });
    }
    for (int64_t sum : sums) {
        CHECK(sum == int64_t(loops) * (loops - 1) / 2);
    }
}

TEST_CASE("Loops arrive as workers fall asleep", "[thread_pool]") {
    int32_t threads = GENERATE(2, 3, 8);
    ThreadPool pool(threads);
    int32_t wrong = 0;
    for (int32_t loop = 0; loop < 1000; ++loop) {
        wrong += !runs_each_once(pool, threads);
        // From 0 to 198 us, in a scrambled order: workers spin for some tens.
        auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(loop * 37 % 100 * 2);
        if (loop % 2 == 0) {
            std::this_thread::sleep_until(until);
        }
        while (std::chrono::steady_clock::now() < until) {}
    }
    CHECK(wrong == 0);
}

TEST_CASE("A sleeping pool helps", "[thread_pool]") {
    ThreadPool pool(4);
    for (int32_t repeat = 0; repeat < 20; ++repeat) {
        Rendezvous rendezvous(4);
        parallel_for(pool, 4, [&](int32_t) { rendezvous.arrive(); });
        REQUIRE(rendezvous.complete());
        std::this_thread::sleep_for(nap);
    }
}

TEST_CASE("Idle workers help nested loops", "[thread_pool]") {
    ThreadPool pool(4);
    for (int32_t repeat = 0; repeat < 20; ++repeat) {
        // In turn, both tasks of a loop need help and one does.
        bool both = repeat % 2 == 0;
        Rendezvous rendezvous(4);
        parallel_for(pool, 2, [&](int32_t outer) {
            if (both || outer == 0) {
                parallel_for(pool, both ? 2 : 4, [&](int32_t) { rendezvous.arrive(); });
            }
        });
        REQUIRE(rendezvous.complete());
        std::this_thread::sleep_for(nap);
    }
}

TEST_CASE("Nested loops share the threads of a caller's loop that does not nest", "[thread_pool]") {
    CallersThreads threads{false};
    ThreadPool pool(4, &CallersThreads::run, &threads);
    for (int32_t repeat = 0; repeat < 20; ++repeat) {
        const bool both = repeat % 2 == 0;
        Rendezvous rendezvous(4);
        parallel_for(pool, 2, [&](int32_t outer) {
            if (both || outer == 0) {
                parallel_for(pool, both ? 2 : 4, [&](int32_t) { rendezvous.arrive(); });
            }
        });
        REQUIRE(rendezvous.complete());
    }
    CHECK(threads.loops == 20);
    CHECK(threads.most == 4);
    CHECK(threads.nested == 0);
}

TEST_CASE("Loops in a caller's pool end, in whatever order it runs them", "[thread_pool]") {
    for (const bool one_by_one : {false, true}) {
        CallersThreads threads{one_by_one};
        ThreadPool pool(3, &CallersThreads::run, &threads);
        for (const int32_t count : {0, 1, 2, 3, 100}) {
            CHECK(runs_each_once(pool, count));
        }
        CHECK(count_leaves(pool, 3, 4) == 81);
        CHECK(threads.nested == 0);
        // Loops without others inside take no more threads than indices.
        threads.most = 0;
        parallel_for(
            pool, 2, [](int32_t) {}, false);
        CHECK(threads.most == 2);
    }
}

TEST_CASE("What a caller's pool throws comes out, and the pool goes on", "[thread_pool]") {
    bool throws = true;
    ThreadPool pool(
        2,
        [](void *user, distile_task task, void *closure, int32_t count) {
            if (*static_cast<bool *>(user)) {
                throw std::runtime_error("dry");
            }
            for (int32_t i = 0; i < count; ++i) {
                task(closure, i);
            }
        },
        &throws);
    CHECK_THROWS_AS(runs_each_once(pool, 5), std::runtime_error);
    throws = false;
    CHECK(runs_each_once(pool, 5));
}

TEST_CASE("A caller that waits for a helper helps it", "[thread_pool]") {
    ThreadPool pool(2);
    const std::thread::id caller = std::this_thread::get_id();
    for (int32_t repeat = 0; repeat < 20; ++repeat) {
        Rendezvous outer(2), inner(2);
        parallel_for(pool, 2, [&](int32_t) {
            outer.arrive();
            if (std::this_thread::get_id() != caller) {
                parallel_for(pool, 2, [&](int32_t) { inner.arrive(); });
            }
        });
        REQUIRE(outer.complete());
        REQUIRE(inner.complete());
    }
}

TEST_CASE("Pools do not interfere", "[thread_pool]") {
    std::vector<int32_t> wrong(3, 0);
    in_threads(3, [&](int32_t thread) {
        ThreadPool pool(thread + 2);
        for (int32_t loop = 0; loop < 300; ++loop) {
            wrong[size_t(thread)] += !runs_each_once(pool, loop % 20);
            if (loop % 100 == 0) {
                std::this_thread::sleep_for(nap);
            }
        }
    });
    CHECK(wrong == std::vector<int32_t>(3, 0));
}

TEST_CASE("Several threads share a pool", "[thread_pool]") {
    int32_t threads = GENERATE(1, 2, 3, 8);
    ThreadPool pool(threads);
    std::vector<int32_t> wrong(4, 0);
    in_threads(4, [&](int32_t thread) {
        for (int32_t loop = 0; loop < 300; ++loop) {
            wrong[size_t(thread)] += !runs_each_once(pool, loop % 20);
            wrong[size_t(thread)] += count_leaves(pool, 3, 2) != 9;
            if (loop % 100 == 0) {
                std::this_thread::sleep_for(nap);
            }
        }
    });
    CHECK(wrong == std::vector<int32_t>(4, 0));
}

TEST_CASE("A pool may go at any time between loops", "[thread_pool]") {
    int32_t threads = GENERATE(1, 2, 8);
    int32_t wrong = 0;
    for (int32_t repeat = 0; repeat < 30; ++repeat) {
        ThreadPool unused(threads);
        {
            ThreadPool used(threads);
            wrong += !runs_each_once(used, threads);
        }
        {
            ThreadPool asleep(threads);
            wrong += !runs_each_once(asleep, 2 * threads);
            std::this_thread::sleep_for(nap);
        }
    }
    CHECK(wrong == 0);
}

TEST_CASE("Workers leave signals to the application's threads", "[thread_pool]") {
    auto blocked = [](int signal) {
        sigset_t mask;
        pthread_sigmask(SIG_SETMASK, nullptr, &mask);
        return sigismember(&mask, signal) == 1;
    };
    const bool caller_blocked = blocked(SIGUSR1);
    const std::thread::id caller = std::this_thread::get_id();
    ThreadPool pool(4);
    Rendezvous rendezvous(4);
    std::vector<char> right(4, 0);
    parallel_for(pool, int32_t(right.size()), [&](int32_t i) {
        rendezvous.arrive();
        bool worker = std::this_thread::get_id() != caller;
        right[size_t(i)] = worker ? blocked(SIGUSR1) && !blocked(SIGSEGV) : blocked(SIGUSR1) == caller_blocked;
    });
    REQUIRE(rendezvous.complete());
    CHECK(right == std::vector<char>(right.size(), 1));
}

#if defined(__linux__)

TEST_CASE("Workers sleep off their caller's core and run wherever they may", "[thread_pool]") {
    cpu_set_t all;
    REQUIRE(sched_getaffinity(0, sizeof(all), &all) == 0);
    if (CPU_COUNT(&all) < 2) {
        return;
    }
    const auto same = [](const cpu_set_t &a, const cpu_set_t &b) { return CPU_EQUAL(&a, &b); };
    ThreadPool pool(2);
    const pthread_t caller = pthread_self();
    pid_t worker = 0;
    cpu_set_t of_worker;
    const auto both_run = [&] {
        Rendezvous rendezvous(2);
        parallel_for(pool, 2, [&](int32_t) {
            rendezvous.arrive();
            if (pthread_equal(pthread_self(), caller) == 0) {
                worker = pid_t(syscall(SYS_gettid));
                sched_getaffinity(0, sizeof(of_worker), &of_worker);
            }
        });
        return rendezvous.complete();
    };
    REQUIRE(both_run());
    CHECK(same(of_worker, all));
    // The caller stays on one core until the test ends.
    const int32_t core = sched_getcpu();
    cpu_set_t one, others = all;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    CPU_CLR(core, &others);
    const std::shared_ptr<const cpu_set_t> restored(
        &all, [](const cpu_set_t *set) { sched_setaffinity(0, sizeof(*set), set); });
    REQUIRE(sched_setaffinity(0, sizeof(one), &one) == 0);
    const auto worker_sleeps = [&] {
        cpu_set_t now;
        const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
        while (sched_getaffinity(worker, sizeof(now), &now) == 0 && !same(now, others)) {
            if (std::chrono::steady_clock::now() > deadline) {
                return false;
            }
            std::this_thread::sleep_for(nap);
        }
        return true;
    };
    for (int32_t round = 0; round < 3; ++round) {
        CAPTURE(round);
        REQUIRE(both_run());
        CHECK(same(of_worker, all));
        CHECK(worker_sleeps());
    }
    // Cores that somebody chooses for a sleeping worker are kept, even if the caller's is the only one.
    REQUIRE(sched_setaffinity(worker, sizeof(one), &one) == 0);
    for (int32_t round = 0; round < 2; ++round) {
        REQUIRE(both_run());
        CHECK(same(of_worker, one));
        std::this_thread::sleep_for(nap);
    }
}

#endif

// The thread sanitizer allows no threads in the child of a process that has some.
#if !defined(__SANITIZE_THREAD__)

TEST_CASE("After a fork the child has workers of its own", "[thread_pool][fork]") {
    ThreadPool pool(4);
    const auto four_threads_meet = [&] {
        Rendezvous rendezvous(4);
        parallel_for(pool, 4, [&](int32_t) { rendezvous.arrive(); });
        return rendezvous.complete();
    };
    // With workers that sleep, that spin, and that were never started.
    for (int32_t round = 0; round < 3; ++round) {
        if (round > 0) {
            REQUIRE(four_threads_meet());
        }
        if (round == 1) {
            std::this_thread::sleep_for(nap);
        }
        CAPTURE(round);
        CHECK(in_child([&] { return four_threads_meet() && runs_each_once(pool, 100) && four_threads_meet(); }));
    }
    CHECK(four_threads_meet());
}

#endif
