// What runs keep: the tiles of dense variants, the cause of a failure, and all of it in the caller's memory.
#include "kernels/call.h"
#include "test_polykernels.h"
#include "tests/support/callers.h"
#include "tests/support/catch.h"
#include "tests/support/contains.h"
#include "tests/support/descriptors.h"
#include "tests/support/plain_linear.h"
#include "tests/support/session.h"

#include <cstdint>
#include <distile/distile.hpp>
#include <distile/planner.h>
#include <functional>
#include <string>
#include <thread>
#include <vector>

using namespace distile;

namespace {

/** What a stand-in for a dense variant saw of the lists of tiles. */
struct SeenList {
    const uint32_t *xy;
    int32_t tiles;
    uint32_t first;
};
std::vector<SeenList> seen_lists;

constexpr uint32_t marked = 0xffffffff;

/** Marks the list that it gets, which nobody writes again unless it is made again. */
int mark_list(const distile_kernel_call *call) {
    seen_lists.push_back({call->tile_xy, call->num_tiles, call->tile_xy[0]});
    const_cast<uint32_t *>(call->tile_xy)[0] = marked;
    return 0;
}

}  // namespace

TEST_CASE("A dense variant makes the tiles of a shape once, for the last shapes", "[run]") {
    Descriptor descriptor(test_point_17_48_avx2);
    descriptor.polykernel.features = "";
    descriptor.run_only("marks", mark_list);
    descriptor.variants[0].dense = 1;
    CallersAllocator allocator;
    distile_context_options options{};
    allocator.use_in(options);
    const Context context = make_context(options);
    const Kernel kernel = make_kernel(context, descriptor.polykernel);
    const std::vector<float> filter(size_t{17} * 48, 1);
    distile_weights_source source{};
    source.filter = filter.data();
    source.order = DISTILE_OI;
    const Weights weights = pack_weights(context, kernel, source);
    const Mask mask = make_mask(context);
    // Room for the largest shape, so that it is not the mask that allocates.
    set_mask(context, mask, std::vector<uint8_t>(40 * 3, 1), 1, 3, 40);
    const auto run = [&](int32_t width) {
        std::vector<uint8_t> bytes(size_t{3} * width);
        bytes.back() = 1;
        set_mask(context, mask, bytes, 1, 3, width);
        TestTensor input(1, 3, width, 17), output(1, 3, width, 48);
        distile_run_args args{};
        args.input = &input.view();
        args.output = &output.view();
        args.weights = weights.get();
        args.mask = mask.get();
        REQUIRE(distile_run(kernel.get(), &args) == DISTILE_OK);
        CHECK(seen_lists.back().tiles == 3 * width);
        return seen_lists.back();
    };
    seen_lists.clear();
    const SeenList first = run(10), second = run(11);
    CHECK(first.first == 0);
    CHECK(second.first == 0);
    CHECK(first.xy != second.xy);
    const int64_t calls = allocator.calls();
    for (int round = 0; round < 5; round++) {
        for (const SeenList &due : {first, second}) {
            const SeenList again = run(due.tiles / 3);
            CHECK(again.xy == due.xy);
            CHECK(again.first == marked);
        }
    }
    CHECK(allocator.calls() == calls);
    // 16 shapes are kept: with 14 more nothing is made again, and one further takes the place of the oldest.
    for (int32_t width = 12; width < 26; width++) {
        CHECK(run(width).first == 0);
    }
    for (int32_t width = 10; width < 26; width++) {
        CAPTURE(width);
        CHECK(run(width).first == marked);
    }
    CHECK(run(30).first == 0);
    CHECK(run(11).first == marked);
    CHECK(run(10).first == 0);
    CHECK(run(11).first == 0);
}

TEST_CASE("The cause of a context that could not be made is the thread's", "[run]") {
    distile_context *context = nullptr;
    distile_context_options options{};
    options.threads = -7;
    REQUIRE(distile_context_create(&options, &context) == DISTILE_ERROR_BAD_VALUE);
    CHECK(contains(distile_context_message(nullptr), "-7"));
    CHECK(contains(distile_context_message(nullptr), "distile_context_create"));
    std::string elsewhere = "?", own;
    std::thread other([&] {
        elsewhere = distile_context_message(nullptr);
        distile_context_options unknown{};
        unknown.cpu_features = "quantum";
        distile_context *none = nullptr;
        distile_context_create(&unknown, &none);
        own = distile_context_message(nullptr);
    });
    other.join();
    CHECK(elsewhere.empty());
    CHECK(contains(own, "quantum"));
    CHECK(contains(distile_context_message(nullptr), "-7"));
    options = {};
    options.reserved[3] = 1;
    REQUIRE(distile_context_create(&options, &context) == DISTILE_ERROR_BAD_VALUE);
    CHECK(contains(distile_context_message(nullptr), "reserved"));
    REQUIRE(distile_context_create(nullptr, nullptr) == DISTILE_ERROR_NULL_POINTER);
    CHECK(contains(distile_context_message(nullptr), "null"));
    CHECK(context == nullptr);
    // The C++ header shows it.
    options = {};
    options.threads = 5000;
    try {
        make_context(options);
        FAIL("5000 threads were accepted");
    } catch (const Error &error) {
        CHECK(contains(error.what(), "5000"));
    }
}

TEST_CASE("All that grows with the caller's data is the caller's memory", "[run]") {
    CallersAllocator allocator;
    distile_context_options options{};
    options.threads = 1;
    allocator.use_in(options);
    Context context = make_context(options);
    // Each grows by what `make` does and goes back to what it was when `destroy` was called.
    size_t held = allocator.blocks_in_use();
    const auto grows = [&](const char *what, const std::function<void()> &make) {
        INFO(what);
        make();
        CHECK(allocator.blocks_in_use() > held);
        held = allocator.blocks_in_use();
    };
    const auto shrinks = [&](const char *what, size_t to, const std::function<void()> &destroy) {
        INFO(what);
        destroy();
        CHECK(allocator.blocks_in_use() == to);
        held = to;
    };
    const std::vector<uint8_t> bytes(size_t{30} * 40, 1);
    Mask mask = make_mask(context);
    const size_t before_mask = held;
    grows("the bits of a mask", [&] { set_mask(context, mask, bytes, 1, 30, 40); });
    grows("the tiles of a mask", [&] {
        distile_tile_list list{};
        check(context, distile_mask_tiles(mask.get(), 2, 2, &list));
        CHECK(allocator.owns(list.xy));
        CHECK(allocator.owns(list.image + list.count - 1));
        const uint32_t *words = nullptr;
        int32_t words_per_row = 0;
        check(context, distile_mask_bits(mask.get(), &words, &words_per_row));
        CHECK(allocator.owns(words));
    });
    for (int source = 0; source < 2; source++) {
        Mask other = make_mask(context);
        const size_t before = held;
        const std::vector<uint32_t> words(60, ~0u);
        const std::vector<int32_t> indices = {5, 7};
        grows("the bits of another mask", [&] {
            check(context, source == 0 ? distile_mask_set_bits(other.get(), words.data(), 1, 30, 40, 2)
                                       : distile_mask_set_indices(other.get(), indices.data(), nullptr, 1, 30, 40, 2));
        });
        shrinks("another mask", before, [&] { other.reset(); });
    }
    const size_t before_planner = held;
    Planner planner = make_planner(context);
    grows("the buffers of a planner", [&] {
        distile_output_spec spec{};
        spec.batch = 1;
        spec.height = 30;
        spec.width = 40;
        spec.channels = 8;
        distile_tensor tensor{};
        check(context, distile_planner_next(planner.get(), &spec, mask.get(), DISTILE_STORE_EXACT, &tensor));
        CHECK(allocator.owns(tensor.data));
    });
    shrinks("a planner", before_planner, [&] { planner.reset(); });
    shrinks("a mask", before_mask, [&] { mask.reset(); });

    const PlainLinear linear(DISTILE_BFLOAT16, 5, 19);
    Kernel kernel = make_kernel(context, linear.polykernel());
    Weights weights;
    const std::vector<float> filter(size_t{5} * 19, 1);
    const size_t before_weights = held;
    grows("weights", [&] {
        distile_weights_source source{};
        source.filter = filter.data();
        source.order = DISTILE_OI;
        weights = pack_weights(context, kernel, source);
    });
    kernel.reset();
    context.reset();
    // They outlive the context.
    CHECK(allocator.blocks_in_use() > before_weights);
    CHECK(distile_weights_bytes(weights.get()) == 2 * 16 * 5 * 2 + 2 * 16 * 4);
    weights.reset();
    CHECK(allocator.blocks_in_use() == 0);
    CHECK(allocator.mistakes() == 0);
}
