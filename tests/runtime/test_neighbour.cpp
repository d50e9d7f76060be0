// A PolyKernel beside a Halide pipeline of somebody else's in one program. That one has a Halide runtime with its own
// hooks, which are global to it; ours is hidden, and neither meets the other.
#include "HalideBuffer.h"
#include "HalideRuntime.h"
#include "test_foreign.h"
#include "tests/support/callers.h"
#include "tests/support/catch.h"
#include "tests/support/session.h"
#include <atomic>
#include <cstdlib>
#include <string>
#include <thread>

using namespace distile;

namespace {

/** What the hooks of the foreign runtime were called for. */
struct Counts {
    std::atomic<int> errors{0}, loops{0}, allocations{0}, deallocations{0};

    bool operator==(const Counts &other) const {
        return errors == other.errors && loops == other.loops && allocations == other.allocations &&
               deallocations == other.deallocations;
    }
    Counts() = default;
    Counts(const Counts &other)
        : errors(other.errors.load()), loops(other.loops.load()), allocations(other.allocations.load()),
          deallocations(other.deallocations.load()) {
    }
};
Counts counts;

/** Sets the hooks of the foreign runtime, and afterwards its own again. */
class ForeignHooks {
public:
    ForeignHooks() {
        error_ = halide_set_error_handler([](void *, const char *) { counts.errors++; });
        do_par_for_ = halide_set_custom_do_par_for(
            [](void *user_context, halide_task_t task, int min, int size, uint8_t *closure) {
                counts.loops++;
                int status = 0;
                for (int i = min; i < min + size && status == 0; i++) {
                    status = halide_do_task(user_context, task, i, closure);
                }
                return status;
            });
        // NOLINTBEGIN(cppcoreguidelines-owning-memory,cppcoreguidelines-no-malloc)
        // The end of what is allocated may be read beyond, which aligned_alloc does not know.
        malloc_ = halide_set_custom_malloc([](void *, size_t bytes) {
            counts.allocations++;
            return std::aligned_alloc(128, (bytes + 255) / 128 * 128);
        });
        free_ = halide_set_custom_free([](void *, void *memory) {
            counts.deallocations++;
            std::free(memory);
        });
        // NOLINTEND(cppcoreguidelines-owning-memory,cppcoreguidelines-no-malloc)
    }
    ~ForeignHooks() {
        halide_set_error_handler(error_);
        halide_set_custom_do_par_for(do_par_for_);
        halide_set_custom_malloc(malloc_);
        halide_set_custom_free(free_);
    }
    ForeignHooks(const ForeignHooks &) = delete;
    ForeignHooks &operator=(const ForeignHooks &) = delete;

private:
    halide_error_handler_t error_;
    halide_do_par_for_t do_par_for_;
    halide_malloc_t malloc_;
    halide_free_t free_;
};

/** Runs the foreign pipeline. The code that it returned, or 1000 if its result is wrong. */
int run_foreign(int input_height = 33) {
    constexpr int width = 50, height = 32;
    Halide::Runtime::Buffer<float> input(width, input_height), output(width, height);
    for (int y = 0; y < input_height; y++) {
        for (int x = 0; x < width; x++) {
            input(x, y) = static_cast<float>(x + 100 * y);
        }
    }
    const int code = test_foreign(input, output);
    for (int y = 0; y < height && code == 0; y++) {
        for (int x = 0; x < width; x++) {
            if (output(x, y) != static_cast<float>(4 * x + 400 * y + 200)) {
                return 1000;
            }
        }
    }
    return code;
}

}  // namespace

TEST_CASE("The hooks of a foreign Halide runtime are not ours", "[neighbour]") {
    const ForeignHooks hooks;
    CallersPool pool;
    CallersAllocator allocator;
    distile_context_options options{};
    pool.use_in(options);
    allocator.use_in(options);
    Session session(options);
    for (int round = 0; round < 3; round++) {
        const Counts before = counts;
        const int64_t loops = pool.loops();
        for (int32_t i = 0; i < distile_kernel_num_variants(session.kernel.get()); i++) {
            CHECK(session.run(distile_kernel_variant_name(session.kernel.get(), i)) == "");
        }
        CHECK(counts == before);
        CHECK(pool.loops() > loops);
        CHECK(allocator.calls() > 0);

        const int64_t our_loops = pool.loops(), our_calls = allocator.calls();
        CHECK(run_foreign() == 0);
        CHECK(counts.loops > before.loops);
        CHECK(counts.allocations > before.allocations);
        CHECK(counts.deallocations == counts.allocations);
        CHECK(counts.errors == before.errors);
        CHECK(pool.loops() == our_loops);
        CHECK(allocator.calls() == our_calls);
    }
    CHECK(allocator.mistakes() == 0);
}

TEST_CASE("Errors reach whom they are about", "[neighbour]") {
    const ForeignHooks hooks;
    CallersAllocator allocator;
    distile_context_options options{};
    allocator.use_in(options);
    Session session(options, 1, session_kernel, Session::large_height, Session::large_width);
    const int before = counts.errors;
    // The foreign pipeline reads beyond an input of too few rows.
    CHECK(run_foreign(20) == halide_error_code_access_out_of_bounds);
    CHECK(counts.errors == before + 1);
    CHECK(session.message().empty());
    // Ours lacks scratch memory; there is some for its lists.
    for (const distile_polykernel *one = &session_kernel; one; one = one->fallback) {
        for (int32_t i = 0; i < one->num_variants; i++) {
            distile_tile_list list{};
            check(session.context,
                  distile_mask_tiles(session.mask.get(), one->variants[i].tile_h, one->variants[i].tile_w, &list));
        }
    }
    allocator.run_out();
    CHECK(session.run().find("failed with code") != std::string::npos);
    CHECK(counts.errors == before + 1);
    allocator.refill();
    CHECK(session.run() == "");
    CHECK(run_foreign() == 0);
}

TEST_CASE("The threads of a foreign Halide runtime are not ours", "[neighbour]") {
    halide_set_num_threads(3);
    distile_context_options options{};
    options.threads = 2;
    Session session(options);
    CHECK(run_foreign() == 0);
    CHECK(session.run() == "");
    // It returns what was set before.
    CHECK(halide_set_num_threads(2) == 3);
    CHECK(distile_context_threads(session.context.get()) == 2);
    halide_shutdown_thread_pool();
    CHECK(session.run() == "");
    CHECK(run_foreign() == 0);
    CHECK(session.run() == "");

    std::atomic<int> wrong{0};
    std::thread other([&] {
        for (int round = 0; round < 50; round++) {
            wrong += run_foreign() != 0;
        }
    });
    for (int round = 0; round < 50; round++) {
        wrong += !session.run().empty();
    }
    other.join();
    CHECK(wrong == 0);
    halide_shutdown_thread_pool();
}
