#include "runtime/base/scratch.h"
#include "tests/support/catch.h"
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

using namespace distile;

namespace {

/** Memory whose allocator counts. */
struct Counted {
    std::atomic<int64_t> allocations{0}, blocks{0};
    std::atomic<bool> fails{false};
    distile_context_options options{};
    Scratch scratch;

    Counted() : scratch(HostMemory(with_allocator())) {
    }

private:
    const distile_context_options &with_allocator() {
        options.allocator_user = this;
        options.allocate = [](void *user, size_t bytes, size_t alignment) -> void * {
            auto &counted = *static_cast<Counted *>(user);
            if (counted.fails) {
                return nullptr;
            }
            counted.allocations++;
            counted.blocks++;
            return std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
        };
        options.deallocate = [](void *user, void *memory) {
            static_cast<Counted *>(user)->blocks--;
            std::free(memory);
        };
        return options;
    }
};

}  // namespace

TEST_CASE("Scratch memory in use never overlaps", "[scratch]") {
    Counted counted;
    std::atomic<int64_t> wrong{0};
    std::vector<std::thread> threads;
    for (uint32_t thread = 0; thread < 6; thread++) {
        threads.emplace_back([&, thread] {
            std::mt19937 random(thread);
            struct Held {
                uint8_t *memory;
                size_t bytes;
                uint8_t mark;
            };
            std::vector<Held> held;
            for (int round = 0; round < 3000; round++) {
                if (held.size() < 1 + random() % 4) {
                    const size_t bytes = random() % 3000;
                    held.push_back({static_cast<uint8_t *>(counted.scratch.take(bytes)), bytes, uint8_t(random())});
                    wrong += reinterpret_cast<uintptr_t>(held.back().memory) % 64 == 0 ? 0 : 1;
                    std::memset(held.back().memory, held.back().mark, bytes);
                } else {
                    std::swap(held.back(), held[random() % held.size()]);
                    const Held &last = held.back();
                    wrong +=
                        std::count(last.memory, last.memory + last.bytes, last.mark) == int64_t(last.bytes) ? 0 : 1;
                    counted.scratch.give_back(last.memory);
                    held.pop_back();
                }
            }
            for (const Held &one : held) {
                counted.scratch.give_back(one.memory);
            }
        });
    }
    for (std::thread &thread : threads) {
        thread.join();
    }
    CHECK(wrong == 0);
    // As many as were in use at once, and a few that a thread just missed.
    CHECK(counted.allocations < 2000);
}

TEST_CASE("Scratch memory that was enough once is enough again", "[scratch]") {
    // 300 are more than are kept.
    for (const size_t count : {1, 4, 5, 100, 300}) {
        Counted counted;
        const auto use = [&](size_t least, bool backwards) {
            std::vector<void *> held;
            for (size_t i = 0; i < count; i++) {
                // The largest first, as a call takes them.
                held.push_back(counted.scratch.take(least + (count - i) * 64));
                REQUIRE(held.back() != nullptr);
            }
            std::sort(held.begin(), held.end());
            REQUIRE(std::adjacent_find(held.begin(), held.end()) == held.end());
            if (backwards) {
                std::reverse(held.begin(), held.end());
            }
            for (void *memory : held) {
                counted.scratch.give_back(memory);
            }
        };
        CAPTURE(count);
        use(1000, false);
        const int64_t first = counted.allocations;
        CHECK(first == int64_t(count));
        for (int round = 0; round < 5; round++) {
            use(1000, round % 2 == 0);
            use(500, round % 2 != 0);
        }
        if (count <= 100) {
            CHECK(counted.allocations == first);
        }
        // Larger blocks replace those that are too small.
        use(5000, false);
        CHECK(counted.blocks <= int64_t(std::min<size_t>(count, 256)));
    }
}

TEST_CASE("Scratch memory that cannot be allocated can be asked for again", "[scratch]") {
    Counted counted;
    void *const kept = counted.scratch.take(100);
    counted.scratch.give_back(kept);
    counted.fails = true;
    CHECK(counted.scratch.take(1000) == nullptr);
    CHECK(counted.scratch.take(SIZE_MAX) == nullptr);
    counted.fails = false;
    CHECK(counted.blocks == 0);
    void *const large = counted.scratch.take(1000);
    REQUIRE(large != nullptr);
    counted.scratch.give_back(large);
    CHECK(counted.scratch.take(500) == large);
    counted.scratch.give_back(large);
    CHECK(counted.blocks == 1);
}
