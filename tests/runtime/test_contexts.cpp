// Contexts as neighbours: many of them in many threads that share one constant PolyKernel, the caller's thread pool and
// allocator, time tables that are replaced while others run, and processes that fork. These tests also run under the
// thread sanitizer.
#include "kernels/call.h"
#include "tests/support/callers.h"
#include "tests/support/catch.h"
#include "tests/support/descriptors.h"
#include "tests/support/in_child.h"
#include "tests/support/session.h"
#include "tests/support/temporary_folder.h"
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <distile/distile.hpp>
#include <distile/mask_algebra.h>
#include <distile/planner.h>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

using namespace distile;

namespace {

/** Runs body(0), ..., body(count - 1) in a thread each, and checks that each returns "". No assertions may be made in
 * there: Catch2 takes them from one thread only. */
template<typename Body> void in_threads(size_t count, const Body &body) {
    std::vector<std::string> failures(count);
    std::vector<std::thread> threads;
    for (size_t i = 0; i < count; i++) {
        threads.emplace_back([&, i] {
            try {
                failures[i] = body(i);
            } catch (const std::exception &error) {
                failures[i] = error.what();
            }
        });
    }
    for (std::thread &thread : threads) {
        thread.join();
    }
    for (const std::string &failure : failures) {
        CHECK(failure == "");
    }
}

}  // namespace

TEST_CASE("Several threads find the same difference of images as one", "[contexts]") {
    const int32_t height = 200, width = 200, channels = 16;
    std::vector<float> values(size_t{height} * width * channels), changed;
    std::mt19937 random(1);
    std::generate(values.begin(), values.end(), [&] { return static_cast<float>(random() % 256); });
    changed = values;
    for (size_t i = 0; i < changed.size(); i += 1 + random() % 50) {
        changed[i] += 1;
    }
    const distile_tensor a = distile_tensor_make(values.data(), 1, height, width, channels);
    const distile_tensor b = distile_tensor_make(changed.data(), 1, height, width, channels);
    std::vector<uint32_t> due;
    for (const int32_t threads : {1, 3}) {
        std::atomic<int32_t> most_tasks{0};
        distile_context_options options{};
        options.threads = threads;
        const Context pool = make_context(options);
        // The caller's pool counts the tasks; the context's own runs them, too.
        options.parallel_for = [](void *user, distile_task task, void *closure, int32_t count) {
            auto &most = *static_cast<std::atomic<int32_t> *>(user);
            most = std::max(most.load(), count);
            for (int32_t i = 0; i < count; i++) {
                task(closure, i);
            }
        };
        options.parallel_for_user = &most_tasks;
        const Context counting = make_context(options);
        for (const Context *context : {&pool, &counting}) {
            const Mask mask = make_mask(*context);
            for (int32_t i = 0; i < 3; i++) {
                check(*context, distile_mask_set_difference(mask.get(), &a, &b, 0.5f));
            }
            const uint32_t *words = nullptr;
            int32_t words_per_row = 0;
            check(*context, distile_mask_bits(mask.get(), &words, &words_per_row));
            REQUIRE(words_per_row == (width + 63) / 64 * 2);
            const std::vector<uint32_t> found(words, words + size_t{height} * words_per_row);
            due = due.empty() ? found : due;
            CHECK(found == due);
        }
        CHECK(most_tasks == (threads > 1 ? threads : 0));
    }
    for (size_t y = 0; y < height; y++) {
        for (size_t x = 0; x < width; x++) {
            const size_t pixel = (y * width + x) * channels;
            const bool differs =
                !std::equal(values.begin() + pixel, values.begin() + pixel + channels, changed.begin() + pixel);
            REQUIRE((due[y * ((width + 63) / 64 * 2) + x / 32] >> x % 32 & 1) == (differs ? 1 : 0));
        }
    }
}

TEST_CASE("Many contexts run in many threads", "[contexts]") {
    CallersPool pool;
    CallersAllocator allocator;
    in_threads(6, [&](size_t thread) {
        std::string failure;
        for (size_t round = 0; round < 6 && failure.empty(); round++) {
            distile_context_options options{};
            options.threads = 1 + static_cast<int32_t>(round % 3);
            // Threads, scratch memory and code of every kind meet.
            if ((thread + round) % 3 == 0) {
                pool.use_in(options);
            }
            if ((thread + round) % 2 == 0) {
                allocator.use_in(options);
            }
            options.cpu_features = (thread + round) % 4 == 0 ? "" : nullptr;
            Session session(options, static_cast<uint32_t>(10 * thread + round));
            const int32_t variants = distile_kernel_num_variants(session.kernel.get());
            for (int32_t call = 0; call < 5 && failure.empty(); call++) {
                const int32_t variant = (static_cast<int32_t>(thread) + call) % (variants + 1);
                failure = session.run(distile_kernel_variant_name(session.kernel.get(), variant));
            }
        }
        return failure;
    });
    CHECK(pool.loops() > 0);
    CHECK(allocator.calls() > 0);
    CHECK(allocator.mistakes() == 0);
    CHECK(allocator.blocks_in_use() == 0);
}

TEST_CASE("Any number of threads divides the work without loss", "[contexts]") {
    // A pool of one thread, which takes the tasks from the last to the first.
    struct Loop {
        int32_t most = 0;
        static void run(void *user, distile_task task, void *closure, int32_t count) {
            int32_t &most = static_cast<Loop *>(user)->most;
            most = std::max(most, count);
            for (int32_t i = count; i-- > 0;) {
                task(closure, i);
            }
        }
    };
    for (const int32_t threads : {1, 2, 3, 4, 7, 8, 16, 31, 32, 63, 64}) {
        for (const auto &[height, width] : {std::pair(1, 1), {1, 3}, {9, 11}, {17, 24}}) {
            INFO(threads << " threads, " << height << " x " << width);
            Loop loop;
            distile_context_options options{};
            options.threads = threads;
            options.parallel_for = Loop::run;
            options.parallel_for_user = &loop;
            Session session(options, static_cast<uint32_t>(threads), session_kernel, height, width);
            const int32_t variants = distile_kernel_num_variants(session.kernel.get());
            for (int32_t variant = 0; variant < variants; variant++) {
                CHECK(session.run(distile_kernel_variant_name(session.kernel.get(), variant)) == "");
            }
            CHECK(loop.most <= threads);
            // A third of 408 pixels is work for all.
            CHECK((loop.most == threads || height < 17 || threads == 1));
        }
    }
}

TEST_CASE("Weights outlive their context and serve many in many threads", "[contexts]") {
    CallersAllocator allocator;
    {
        distile_context_options options{};
        allocator.use_in(options);
        Session packing(options, 7);
        const Weights weights = std::move(packing.weights);
        const std::vector<float> filter = packing.reference.filter;
        packing.mask.reset();
        packing.kernel.reset();
        packing.context.reset();
        in_threads(4, [&](size_t thread) {
            Session session({}, static_cast<uint32_t>(thread));
            session.reference.filter = filter;
            // Lent for the runs; the session owns its own.
            Weights lent(weights.get());
            lent.swap(session.weights);
            std::string failure;
            for (int round = 0; round < 10 && failure.empty(); round++) {
                failure = session.run();
            }
            static_cast<void>(session.weights.release());
            return failure;
        });
        CHECK(allocator.blocks_in_use() > 0);
    }
    CHECK(allocator.blocks_in_use() == 0);
    CHECK(allocator.mistakes() == 0);
}

TEST_CASE("Time tables are replaced from a file while other contexts run", "[contexts]") {
    const distile_polykernel &portable = *session_kernel.fallback;
    const TemporaryFolder folder;
    const std::string path = folder.path() + "/times.json";
    // Two tables by which different variants are the fastest.
    const auto replace_table = [&](int round) {
        const auto row = [](const char *variant, bool fast) {
            return std::string(R"({"variant": ")") + variant + R"(", "threads": 1, "tiles": 1, "us": )" +
                   (fast ? "0.001}" : "900}");
        };
        const std::string table =
            time_table(portable, row("fine", round % 2 == 0) + ", " + row("dense", round % 2 == 1));
        // As `distile profile` does: whoever reads meanwhile gets the old or the new table whole.
        return std::rename(folder.write("next.json", table).c_str(), path.c_str()) == 0;
    };
    REQUIRE(replace_table(0));
    std::atomic<bool> done{false};
    std::thread writer([&] {
        for (int round = 0; !done; round++) {
            replace_table(round);
        }
    });
    in_threads(4, [&](size_t thread) {
        Session session({}, static_cast<uint32_t>(thread), portable);
        std::string failure;
        for (int round = 0; round < 30 && failure.empty(); round++) {
            distile_choice choice{};
            // One of them keeps its own times.
            if (thread != 0) {
                check(session.context, distile_kernel_load_times(session.kernel.get(), path.c_str()));
            }
            check(session.context, distile_kernel_choose(session.kernel.get(), session.mask.get(), &choice));
            // Either table has one that is fast.
            const bool timed = choice.predicted_us > 0 && choice.predicted_us < 1;
            failure = timed == (thread != 0) ? session.run() : std::string("a wrong time for ") + choice.variant;
        }
        return failure;
    });
    done = true;
    writer.join();
}

namespace {

/** What a stand-in for generated code saw of the memory that it asked for. */
struct Seen {
    CallersAllocator *allocator = nullptr;
    std::atomic<int> blocks{0}, misaligned{0}, foreign{0}, spoiled{0}, outputs{0};
};
Seen *seen = nullptr;

/** Many tasks at once take two blocks each, of many sizes, and use them to their ends. */
int use_scratch(const distile_kernel_call *call) {
    distile_hooks *context = call->hooks;
    context->parallel_for(
        context,
        [](void *closure, int32_t index) {
            auto *hooks = static_cast<distile_hooks *>(closure);
            unsigned char *blocks[2];
            const size_t bytes[2] = {static_cast<size_t>(index) * 37 + 1, static_cast<size_t>(index) * 4096 + 64};
            for (int i = 0; i < 2; i++) {
                blocks[i] = static_cast<unsigned char *>(hooks->allocate(hooks, bytes[i]));
                seen->blocks++;
                seen->misaligned += reinterpret_cast<uintptr_t>(blocks[i]) % 64 != 0;
                // Vectors may read 64 bytes before and behind.
                seen->foreign +=
                    !seen->allocator->owns(blocks[i] - 64) || !seen->allocator->owns(blocks[i] + bytes[i] + 63);
                std::memset(blocks[i], index + i, bytes[i]);
            }
            for (int i = 0; i < 2; i++) {
                seen->spoiled += std::any_of(blocks[i], blocks[i] + bytes[i], [&](unsigned char byte) {
                    return byte != static_cast<unsigned char>(index + i);
                });
                hooks->deallocate(hooks, blocks[i]);
            }
        },
        context, 50);
    return 0;
}

}  // namespace

TEST_CASE("All scratch memory is the caller's allocator's, is aligned, and goes back", "[contexts]") {
    Descriptor descriptor(*session_kernel.fallback);
    descriptor.run_only("uses_scratch", use_scratch);
    const distile_polykernel &polykernel = descriptor.polykernel;
    for (const bool callers_pool : {false, true}) {
        CallersPool pool;
        CallersAllocator allocator;
        Seen what;
        what.allocator = &allocator;
        seen = &what;
        {
            distile_context_options options{};
            options.threads = 3;
            allocator.use_in(options);
            if (callers_pool) {
                pool.use_in(options);
            }
            Session session(options, 1, polykernel);
            for (int round = 0; round < 5; round++) {
                session.run();
            }
            // A dense candidate of the application's writes into scratch memory, too.
            const distile_dense_candidate dense{"brought",
                                                [](void *user, void *, const distile_run_args *args) {
                                                    auto *saw = static_cast<Seen *>(user);
                                                    saw->outputs++;
                                                    saw->foreign += !saw->allocator->owns(args->output->data);
                                                    return 0;
                                                },
                                                &what};
            check(session.context, distile_kernel_add_dense(session.kernel.get(), &dense));
            session.run("brought");
        }
        CHECK(what.blocks == 5 * 50 * 2);
        CHECK(what.misaligned == 0);
        CHECK(what.foreign == 0);
        CHECK(what.spoiled == 0);
        CHECK(what.outputs == 1);
        CHECK(allocator.calls() > 0);
        CHECK(allocator.mistakes() == 0);
        CHECK(allocator.blocks_in_use() == 0);
        CHECK((pool.loops() > 0) == callers_pool);
    }
    seen = nullptr;
}

// The thread sanitizer allows no threads in the child of a process that has some.
#if !defined(__SANITIZE_THREAD__)

TEST_CASE("After a fork parent and child go on with their contexts", "[contexts][fork]") {
    for (const int32_t threads : {1, 4}) {
        CAPTURE(threads);
        distile_context_options options{};
        options.threads = threads;
        auto session = std::make_unique<Session>(options);
        REQUIRE(session->run() == "");
        const auto goes_on = [&] { return session->run().empty() && session->run("dense").empty(); };
        CHECK(in_child(goes_on));
        // With a context of its own beside it, and after a second fork.
        CHECK(
            in_child([&] { return Session(options, 2).run().empty() && goes_on() && in_child(goes_on) && goes_on(); }));
        // The parent's context may also be destroyed there, used or not.
        CHECK(in_child([&] {
            session.reset();
            return true;
        }));
        CHECK(in_child([&] {
            const bool good = goes_on();
            session.reset();
            return good;
        }));
        CHECK(goes_on());
    }
}

TEST_CASE("After a fork parent and child go on with their planners", "[contexts][fork]") {
    // So large that some of the forks find the planner's thread at work.
    constexpr int32_t extent = 512, channels = 16;
    const std::vector<uint8_t> bytes(size_t{extent} * extent, 1);
    for (const distile_clearing clearing : {DISTILE_CLEAR_WRITTEN, DISTILE_CLEAR_BACKGROUND}) {
        CAPTURE(clearing);
        const Context context = make_context();
        const Mask mask = make_mask(context);
        check(context, distile_mask_set_bytes(mask.get(), bytes.data(), 1, extent, extent, extent * extent, extent));
        Planner planner = make_planner(context, planner_options(2, clearing));
        distile_tensor tensor{};
        const auto take = [&] {
            const distile_output_spec spec{1, extent, extent, channels, 0, 0, 0, 0, DISTILE_FLOAT32};
            check(context, distile_planner_next(planner.get(), &spec, mask.get(), DISTILE_STORE_TILES, &tensor));
        };
        const auto use = [&] {
            auto *begin = static_cast<float *>(tensor.data), *end = begin + tensor.stride_n;
            const bool good = std::all_of(begin, end, [](float value) { return value == 0; });
            std::fill(begin, end, 1.0f);
            return good;
        };
        const auto goes_on = [&] {
            take();
            const bool good = use();
            take();
            return use() && good;
        };
        for (int32_t i = 0; i < 12; i++) {
            take();
            std::this_thread::sleep_for(i * std::chrono::microseconds(200));
            CHECK(in_child(goes_on));
            CHECK(use());
        }
        take();
        CHECK(in_child([&] {
            planner.reset();
            return true;
        }));
        CHECK(in_child([&] {
            const bool good = goes_on();
            take();
            const bool again = in_child(goes_on);
            planner.reset();
            return good && again;
        }));
        CHECK(goes_on());
    }
}

#endif
