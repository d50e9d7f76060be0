/** \file
 * What an application may bring to a context: a thread pool and an allocator, strict ones for the tests.
 */
#ifndef DISTILE_TESTS_CALLERS_H
#define DISTILE_TESTS_CALLERS_H

#include "tests/support/test_tensor.h"
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <distile/distile.h>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace distile {

/** A parallel loop that starts new threads every time, and takes the tasks from the last to the first. */
class CallersPool {
public:
    static constexpr int32_t threads = 3;

    void use_in(distile_context_options &options) {
        options.threads = threads;
        options.parallel_for = &CallersPool::run;
        options.parallel_for_user = this;
    }
    int64_t loops() const {
        return loops_;
    }

private:
    static void run(void *user, distile_task task, void *closure, int32_t count) {
        static_cast<CallersPool *>(user)->loops_++;
        std::atomic<int32_t> left{count};
        const auto work = [&] {
            for (int32_t i = --left; i >= 0; i = --left) {
                task(closure, i);
            }
        };
        std::vector<std::thread> others;
        for (int32_t i = 1; i < std::min(threads, count); i++) {
            others.emplace_back(work);
        }
        work();
        for (std::thread &other : others) {
            other.join();
        }
    }

    std::atomic<int64_t> loops_{0};
};

/** Hands out memory full of NaNs that ends where nobody may write, and counts what is wrong with the calls. */
class CallersAllocator {
public:
    void use_in(distile_context_options &options) {
        options.allocate = &CallersAllocator::allocate;
        options.deallocate = &CallersAllocator::deallocate;
        options.allocator_user = this;
    }
    /** Every later call returns null. */
    void run_out() {
        empty_ = true;
    }
    void refill() {
        empty_ = false;
    }
    int64_t calls() const {
        return calls_;
    }
    int64_t mistakes() const {
        return mistakes_;
    }
    /** True if an address lies in a block that was handed out and not given back. */
    bool owns(const void *address) {
        const std::lock_guard<std::mutex> lock(mutex_);
        const auto after = blocks_.upper_bound(const_cast<void *>(address));
        if (after == blocks_.begin()) {
            return false;
        }
        const auto block = std::prev(after);
        return static_cast<const char *>(address) < static_cast<char *>(block->first) + block->second.bytes;
    }
    /** The number of blocks in use of more than some bytes. */
    size_t blocks_in_use(size_t more_than = 0) {
        const std::lock_guard<std::mutex> lock(mutex_);
        return static_cast<size_t>(std::count_if(blocks_.begin(), blocks_.end(),
                                                 [&](const auto &block) { return block.second.bytes > more_than; }));
    }

private:
    static void *allocate(void *user, size_t bytes, size_t alignment) {
        auto *self = static_cast<CallersAllocator *>(user);
        self->calls_++;
        if (bytes == 0 || alignment == 0 || (alignment & (alignment - 1)) != 0) {
            self->mistakes_++;
            return nullptr;
        }
        if (self->empty_) {
            return nullptr;
        }
        const size_t rounded = (bytes + alignment - 1) / alignment * alignment;
        auto block = std::make_unique<GuardedMemory>(rounded, Flush::Back);
        void *memory = block->data();
        const std::lock_guard<std::mutex> lock(self->mutex_);
        self->blocks_[memory] = {rounded, std::move(block)};
        return memory;
    }
    static void deallocate(void *user, void *memory) {
        auto *self = static_cast<CallersAllocator *>(user);
        const std::lock_guard<std::mutex> lock(self->mutex_);
        self->mistakes_ += self->blocks_.erase(memory) == 1 ? 0 : 1;
    }

    std::atomic<int64_t> calls_{0}, mistakes_{0};
    std::atomic<bool> empty_{false};
    std::mutex mutex_;
    struct Block {
        size_t bytes;
        std::unique_ptr<GuardedMemory> memory;
    };
    std::map<void *, Block> blocks_;
};

}  // namespace distile

#endif
