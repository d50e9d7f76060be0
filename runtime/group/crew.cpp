#include "runtime/group/crew.h"
#include "runtime/base/library_threads.h"
#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

namespace distile {

namespace {

/** Looks for a while whether something has come true. Threads that give work to GPUs come to a layer, and to the end of
 * a short run, within microseconds of each other; waking one takes longer. */
template<typename Condition> bool look_for(const Condition &condition) {
    constexpr std::chrono::microseconds patience(100);
    const auto end = std::chrono::steady_clock::now() + patience;
    while (!condition()) {
        if (std::chrono::steady_clock::now() >= end) {
            return false;
        }
        std::this_thread::yield();
    }
    return true;
}

}  // namespace

/** What the threads use, which they keep alive. */
struct Crew::Shared {
    std::mutex mutex;
    std::condition_variable begin, end;
    Part part;
    std::atomic<int64_t> jobs{0};  ///< The number of the last job.
    std::atomic<int32_t> at_work{0};
    std::vector<bool> busy;  ///< For each member.
    bool leaving = false;
    std::vector<std::thread> threads;
    uint64_t forks = 0;
    std::shared_ptr<Shared> forever;  ///< Itself, so that nobody frees it.

    bool is_idle() const {
        return std::none_of(busy.begin(), busy.end(), [](bool one) { return one; });
    }

    void work(int32_t member) {
        name_library_thread();
        std::unique_lock<std::mutex> lock(mutex);
        for (int64_t done = 0;;) {
            if (done > 0) {
                lock.unlock();
                look_for([&] { return jobs > done; });
                lock.lock();
            }
            begin.wait(lock, [&] { return leaving || jobs > done; });
            if (leaving) {
                return;
            }
            done = jobs;
            // The function may be one of a job that this member ends too late.
            const Part own = part;
            lock.unlock();
            (*own)(member);
            lock.lock();
            busy[static_cast<size_t>(member)] = false;
            at_work--;
            end.notify_all();
        }
    }
};

Crew::Crew(int32_t members) : shared_(std::make_shared<Shared>()) {
    shared_->busy.resize(static_cast<size_t>(members));
}

Crew::~Crew() {
    if (!is_ours()) {
        // The threads stayed with the parent, which may hold the lock.
        shared_->forever = shared_;
        return;
    }
    bool idle = false;
    {
        const std::lock_guard<std::mutex> lock(shared_->mutex);
        shared_->leaving = true;
        idle = shared_->is_idle();
    }
    shared_->begin.notify_all();
    for (std::thread &thread : shared_->threads) {
        if (idle) {
            thread.join();
        } else {
            thread.detach();
        }
    }
}

void Crew::start() {
    Shared &shared = *shared_;
    const std::lock_guard<std::mutex> lock(shared.mutex);
    if (shared.threads.size() < shared.busy.size()) {
        const SignalBlocker blocker;
        shared.forks = num_forks();
        shared.threads.reserve(shared.busy.size());
        for (size_t i = shared.threads.size(); i < shared.busy.size(); i++) {
            shared.threads.emplace_back([kept = shared_, i] { kept->work(static_cast<int32_t>(i)); });
        }
    }
}

std::vector<int32_t> Crew::run(const Part &part, Deadline deadline, const std::function<void()> &stop) {
    start();
    Shared &shared = *shared_;
    const auto allowed = deadline - std::chrono::steady_clock::now();
    std::unique_lock<std::mutex> lock(shared.mutex);
    shared.part = part;
    shared.jobs++;
    shared.busy.assign(shared.busy.size(), true);
    shared.at_work = static_cast<int32_t>(shared.busy.size());
    shared.begin.notify_all();
    lock.unlock();
    look_for([&] { return shared.at_work == 0; });
    lock.lock();
    const auto idle = [&] { return shared.is_idle(); };
    if (!shared.end.wait_until(lock, deadline, idle)) {
        lock.unlock();
        stop();
        lock.lock();
        shared.end.wait_until(lock, deadline + allowed, idle);
    }
    std::vector<int32_t> late;
    for (size_t i = 0; i < shared.busy.size(); i++) {
        if (shared.busy[i]) {
            late.push_back(static_cast<int32_t>(i));
        }
    }
    if (late.empty()) {
        shared.part = nullptr;
    }
    return late;
}

bool Crew::is_idle() const {
    const std::lock_guard<std::mutex> lock(shared_->mutex);
    return shared_->is_idle();
}

bool Crew::is_ours() const {
    return shared_->threads.empty() || shared_->forks == num_forks();
}

struct Progress::State {
    explicit State(size_t parts) : tensors(parts) {
    }

    std::mutex mutex;
    std::condition_variable changed;
    std::vector<std::atomic<int32_t>> tensors;
    std::atomic<bool> stopped{false};
    Deadline deadline;
};

Progress::Progress(size_t parts) : state_(std::make_unique<State>(parts)) {
}

Progress::~Progress() = default;

void Progress::reset(Deadline deadline) {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    for (std::atomic<int32_t> &tensors : state_->tensors) {
        tensors = 0;
    }
    state_->stopped = false;
    state_->deadline = deadline;
}

void Progress::advance(size_t part, int32_t tensors) {
    {
        const std::lock_guard<std::mutex> lock(state_->mutex);
        state_->tensors[part] = tensors;
    }
    state_->changed.notify_all();
}

bool Progress::wait(size_t part, int32_t tensors) {
    const auto ready = [&] { return state_->stopped || state_->tensors[part] >= tensors; };
    if (look_for(ready)) {
        return !state_->stopped;
    }
    std::unique_lock<std::mutex> lock(state_->mutex);
    const bool in_time = state_->changed.wait_until(lock, state_->deadline, ready);
    return in_time && !state_->stopped;
}

void Progress::stop() {
    {
        const std::lock_guard<std::mutex> lock(state_->mutex);
        state_->stopped = true;
    }
    state_->changed.notify_all();
}

bool Progress::is_stopped() const {
    return state_->stopped;
}

}  // namespace distile
