// What the runtime for GPUs asks of a driver, on a driver of our own.
#include "facts/types.h"
#include "runtime/cuda/kernels/common.h"
#include "tests/cuda/cuda_setup.h"
#include "tests/cuda/tensor_core_operator.h"
#include "tests/support/allocations.h"
#include "tests/support/temporary_folder.h"

#include <chrono>
#include <cstring>
#include <distile/mask_algebra.h>
#include <distile/planner.h>
#include <distile/tokens.h>
#include <functional>

using namespace distile;

namespace {

int32_t variant_index(const std::string &name) {
    int32_t index = 0;
    while (test_odd_cuda.variants[index].name != name) {
        index++;
    }
    return index;
}

}  // namespace

TEST_CASE("Division by a multiplication is exact below 2^31", "[cuda]") {
    for (uint32_t value : {1u, 2u, 3u, 5u, 7u, 10u, 40u, 641u, 1000u, 1024u, 4095u, 65535u, 65536u, 6700417u,
                           (1u << 30) - 1, 1u << 30, (1u << 30) + 1, (1u << 31) - 1}) {
        const Divisor divisor = make_divisor(value);
        const auto divide = [&](uint32_t number) {
            return divisor.value == 1
                       ? number
                       : static_cast<uint32_t>(uint64_t{number} * divisor.multiplier >> 32) >> divisor.shift;
        };
        constexpr uint32_t last = (1u << 31) - 1;
        for (uint32_t multiple : {0u, 1u, 2u, 3u, 1000u, last / value / 2, last / value - 1, last / value}) {
            for (int32_t step = -1; step <= 1; step++) {
                const int64_t number = int64_t{multiple} * value + step;
                if (number >= 0 && number <= last) {
                    CAPTURE(value, number);
                    CHECK(divide(static_cast<uint32_t>(number)) == static_cast<uint32_t>(number) / value);
                }
            }
        }
        CHECK(divide(last) == last / value);
    }
}

TEST_CASE("A mask whose setting failed holds nothing", "[.fake_driver]") {
    Setup setup;
    setup.set_mask();
    setup.run();
    fail_fake("cuLaunchKernelEx", CUDA_ERROR_NOT_PERMITTED);
    CHECK(distile_mask_set_bytes(setup.mask.get(), setup.mask_memory->data(), 2, setup.out_height, setup.out_width,
                                 int64_t{setup.out_height} * setup.out_width, setup.out_width) == DISTILE_ERROR_KERNEL);
    fail_fake("cuLaunchKernelEx", 0);
    setup.refuse_run(DISTILE_ERROR_BAD_MASK, {"never set"});
    setup.set_mask();
    setup.run();
}

TEST_CASE("No tile is no launch of the operator", "[.fake_driver]") {
    const Setup setup;
    setup.set_mask();
    setup.run();
    const int64_t launches = count_fake("launches");
    setup.run();
    CHECK(count_fake("launches") == launches);
}

TEST_CASE("A mask takes one launch from its bytes or bits to its list of pixels", "[.fake_driver]") {
    const Setup setup;
    distile_tile_list list{};
    setup.set_mask();
    check(setup.context, distile_mask_tiles(setup.mask.get(), 1, 1, &list));
    const DeviceArray<uint32_t> words(1000);
    const FakeSetting count("count", 7, 0);
    for (int round = 0; round < 4; round++) {
        const int64_t launches = count_fake("launches"), fills = count_fake("cuMemsetD8Async");
        if (round % 2 == 0) {
            setup.set_mask();
        } else {
            check(setup.context, distile_mask_set_bits(setup.mask.get(), words.data(), setup.output.batch,
                                                       setup.out_height, setup.out_width, 2));
        }
        // In the third round, what was asked in the second: only their number.
        int64_t active = 0;
        if (round > 0) {
            check(setup.context, distile_mask_active_pixels(setup.mask.get(), &active));
            CHECK(active == 7);
        }
        if (round != 1) {
            const int64_t before = count_fake("launches");
            check(setup.context, distile_mask_tiles(setup.mask.get(), 1, 1, &list));
            CHECK(count_fake("launches") == before + (round == 2 ? 1 : 0));
        }
        CHECK(count_fake("launches") == launches + (round == 2 ? 2 : 1));
        CHECK(count_fake("cuMemsetD8Async") == fills);
    }
}

TEST_CASE("The kernels of masks and of pixels start early where their code waits", "[.fake_driver]") {
    // Kernels of pixels: five families for each floating-point type, by vectors and by elements.
    constexpr int64_t of_masks = 8, of_pixels = 5 * DISTILE_NUM_FLOAT_TYPES * 2;
    for (const bool waits : {true, false}) {
        CAPTURE(waits);
        const FakeSetting major("major", waits ? 9 : 8, 9);
        const int64_t before = count_fake("waits"), kernels = count_fake("waiting");
        const Setup setup;
        // Every kernel that waits does so in one place.
        CHECK(count_fake("waits") == before + (waits ? of_masks + of_pixels : 0));
        CHECK(count_fake("waiting") == kernels + (waits ? of_masks + of_pixels : 0));
        const int64_t extended = count_fake("cuLaunchKernelEx");
        const auto check_early = [&](distile_status status, bool due) {
            check(setup.context, status);
            CHECK(count_fake("early") == (due ? 1 : 0));
        };
        distile_mask *const mask = setup.mask.get();
        const DeviceArray<uint32_t> words(1000);
        const DeviceArray<float> numbers(8000);
        distile_tile_list list{};
        for (int round = 0; round < 2; round++) {
            setup.set_mask();
            check_early(distile_mask_tiles(mask, 3, 3, &list), waits);
            check_early(distile_mask_set_bits(mask, words.data(), 2, 20, 25, 1), waits);
            check_early(distile_mask_set_indices(mask, reinterpret_cast<const int32_t *>(words.data()), nullptr, 2, 20,
                                                 25, 500),
                        waits);
            check_early(distile_mask_invert(mask, mask), waits);
            const distile_tensor tensor = distile_tensor_make(numbers.data(), 2, 20, 25, 8);
            // It does not wait.
            check_early(distile_mask_set_difference(mask, &tensor, &tensor, 0), false);
            distile_normalize_args normalization{};
            normalization.input = normalization.output = &tensor;
            normalization.mask = mask;
            check_early(distile_normalize(setup.context.get(), &normalization), waits);
        }
        CHECK((count_fake("cuLaunchKernelEx") > extended) == waits);
    }
}

TEST_CASE("A mask takes two launches from its bytes to its lists", "[.fake_driver]") {
    const Setup setup;
    distile_tile_list list{};
    for (int round = 0; round < 3; round++) {
        const int64_t launches = count_fake("launches");
        setup.set_mask();
        for (int32_t tile : {1, 2, 4, 8}) {
            check(setup.context, distile_mask_tiles(setup.mask.get(), tile, tile, &list));
        }
        // The first time each is made when it is asked for.
        CHECK(count_fake("launches") == launches + (round == 0 ? 5 : 2));
    }
    for (int32_t tile = 9; tile < 70; tile++) {
        check(setup.context, distile_mask_tiles(setup.mask.get(), tile, 1, &list));
    }
    setup.refuse(distile_mask_tiles(setup.mask.get(), 70, 1, &list), DISTILE_ERROR_BAD_VALUE, {"at most 65"});
    setup.set_mask();
    check(setup.context, distile_mask_tiles(setup.mask.get(), 60, 1, &list));
}

TEST_CASE("The path without a wait calls nothing that a capture forbids", "[.fake_driver]") {
    Setup setup;
    setup.args.inactive = DISTILE_ZERO;
    const std::vector<std::string> variants = variants_of(setup);
    for (const std::string &variant : variants) {
        setup.args.variant = variant.c_str();
        setup.set_mask();
        setup.run();
    }
    const FakeSetting capturing("capturing", 1, 0);
    setup.set_mask();
    for (const std::string &variant : variants) {
        setup.args.variant = variant.c_str();
        setup.run();
    }
    CHECK(count_fake("forbidden") == 0);
    distile_choice choice{};
    setup.refuse(distile_kernel_choose(setup.kernel.get(), setup.mask.get(), &choice), DISTILE_ERROR_CAPTURING,
                 {"name a variant"});
    setup.refuse(distile_mask_set_bytes(setup.mask.get(), setup.mask_memory->data(), 1, 1, 1, 1, 1), DISTILE_OK, {});
    // A larger mask needs memory.
    const DeviceArray<uint8_t> *bytes = setup.mask_memory.get();
    setup.refuse(distile_mask_set_bytes(setup.mask.get(), bytes->data(), 1, 6000, 1, 6000, 1), DISTILE_ERROR_CAPTURING,
                 {"during graph capture"});
    distile_weights *weights = nullptr;
    setup.refuse(distile_weights_pack(setup.kernel.get(), &setup.source, &weights), DISTILE_ERROR_CAPTURING,
                 {"during graph capture"});
    CHECK(count_fake("forbidden") == 0);
}

TEST_CASE("What a graph reads of a dense variant stays when its kernel meets other shapes", "[.fake_driver]") {
    Setup setup;
    setup.args.variant = "dense";
    const auto run = [&](int32_t height) {
        setup.input.height = height;
        setup.out_height = reference_output_height(setup.conv, height);
        setup.output.height = setup.residual.height = setup.out_height;
        for (distile_tensor *tensor : {&setup.input, &setup.output, &setup.residual}) {
            tensor->stride_n = tensor->stride_h * tensor->height;
        }
        setup.set_mask();
        setup.run();
    };
    run(11);
    run(7);
    {
        const FakeSetting capturing("capturing", 1, 0);
        run(11);
        run(7);
        CHECK(count_fake("forbidden") == 0);
    }
    // A kernel keeps some of the shapes that are in no graph.
    for (int32_t height = 98; height > 60; height -= 2) {
        run(height);
    }
    const int64_t alive = count_fake("alive");
    for (int32_t height = 60; height > 20; height -= 2) {
        run(height);
    }
    CHECK(count_fake("alive") == alive);
    // A full mask is filled and listed when its shape is new.
    const auto calls_of = [&](int32_t height) {
        const int64_t before = count_fake("cuMemsetD8Async");
        run(height);
        return count_fake("cuMemsetD8Async") - before;
    };
    CHECK(calls_of(11) == 0);
    CHECK(calls_of(7) == 0);
    CHECK(calls_of(22) == 0);
    CHECK(calls_of(98) > 0);
}

TEST_CASE("A list that is made outside of the graph that sets its mask is made every time", "[.fake_driver]") {
    const Setup setup;
    distile_tile_list list{};
    const auto launches_of_list = [&] {
        const int64_t before = count_fake("launches");
        check(setup.context, distile_mask_tiles(setup.mask.get(), 3, 3, &list));
        return count_fake("launches") - before;
    };
    setup.set_mask();
    {
        const FakeSetting capturing("capturing", 1, 0);
        setup.set_mask();
    }
    for (int round = 0; round < 3; round++) {
        CHECK(launches_of_list() == 1);
    }
    {
        const FakeSetting capturing("capturing", 1, 0);
        setup.set_mask();
        CHECK(launches_of_list() == 0);
    }
    // That graph makes it.
    CHECK(launches_of_list() == 0);
    setup.set_mask();
    CHECK(launches_of_list() == 0);
}

TEST_CASE("A small mask is not listed for code that reads its bits", "[.fake_driver]") {
    const TensorCoreOperator op(DISTILE_FLOAT16);
    const auto launches_of = [](Setup &setup, const char *variant) {
        const int64_t before = count_fake("launches");
        setup.args.variant = variant;
        setup.set_mask();
        setup.run();
        return count_fake("launches") - before;
    };
    {
        Setup setup(op.polykernel);
        for (int round = 0; round < 3; round++) {
            CHECK(launches_of(setup, "fine") == 2);
        }
        const FakeSetting capturing("capturing", 1, 0);
        // Nothing of the mask changes, so it need not be set in the graph.
        setup.run();
        CHECK(count_fake("forbidden") == 0);
    }
    {
        // The tiles of other variants are listed.
        Setup setup(op.polykernel);
        CHECK(launches_of(setup, "coarse") == 3);
        CHECK(launches_of(setup, "fine") == 3);
        CHECK(launches_of(setup, "fine") == 2);
        // All tiles of a dense one, which are set and listed once.
        CHECK(launches_of(setup, "dense") == 4);
        CHECK(launches_of(setup, "dense") == 2);
    }
    // 4096 pixels are few, more are not.
    Setup most(op.polykernel, 1, 64, 64), more(op.polykernel, 1, 65, 64);
    CHECK(launches_of(most, "fine") == 2);
    CHECK(launches_of(more, "fine") == 3);
    // From the second time on, setting a mask also lists it.
    CHECK(launches_of(more, "fine") == 2);
}

TEST_CASE("A kernel's times are those of its context's multiprocessors", "[.fake_driver]") {
    // The counts that are read back: 1600 tiles of every granularity.
    const FakeSetting tiles("count", 1600, 0);
    const DeviceArray<uint8_t> bytes(1600);
    for (int green : {16, 132}) {
        const FakeSetting setting("green", green, 132);
        const distile_time_point times[] = {{variant_index("t1x1"), 16, 1600, 1.0},
                                            {variant_index("t2x2"), 16, 1600, 2.0},
                                            {variant_index("t1x1"), 132, 1600, 4.0},
                                            {variant_index("t2x2"), 132, 1600, 3.0}};
        distile_polykernel polykernel = test_odd_cuda;
        polykernel.times = times;
        polykernel.num_times = 4;
        const Setup setup(polykernel);
        CHECK(distile_context_threads(setup.context.get()) == green);
        const Mask mask = make_mask(setup.context);
        check(setup.context, distile_mask_set_bytes(mask.get(), bytes.data(), 1, 40, 40, 1600, 40));
        distile_choice choice{};
        check(setup.context, distile_kernel_choose(setup.kernel.get(), mask.get(), &choice));
        CHECK(choice.variant == std::string(green == 16 ? "t1x1" : "t2x2"));
        // A point that is added is one of this context's.
        check(setup.context, distile_kernel_add_time(setup.kernel.get(), "t3x2s2", 1600, 0.25));
        check(setup.context, distile_kernel_choose(setup.kernel.get(), mask.get(), &choice));
        CHECK(choice.variant == std::string("t3x2s2"));
    }
    // A driver that cannot say has no such contexts.
    fail_fake("cuCtxGetDevResource", CUDA_ERROR_NOT_SUPPORTED);
    const FakeSetting setting("multiprocessors", 99, 132);
    CHECK(distile_context_threads(make_cuda_context().get()) == 99);
    fail_fake("cuCtxGetDevResource", 0);
}

TEST_CASE("Weights are shared by the contexts of a GPU, and outlive them", "[.fake_driver]") {
    {
        Weights weights;
        {
            const Setup packing;
            distile_weights *packed = nullptr;
            check(packing.context, distile_weights_pack(packing.kernel.get(), &packing.source, &packed));
            weights.reset(packed);
            CHECK(distile_weights_bytes(packed) > 0);
        }
        Setup setup;
        setup.set_mask();
        setup.args.weights = weights.get();
        setup.run();
    }
    CHECK(count_fake("alive") == 0);
    // Weights alone keep the GPU's context.
    Weights weights = std::move(Setup().weights);
    CHECK(count_fake("alive") > 0);
    weights.reset();
    CHECK(count_fake("alive") == 0);
}

TEST_CASE("Masks from bits and lists take as many launches as those from bytes", "[.fake_driver]") {
    const Setup setup;
    distile_tile_list list{};
    const DeviceArray<uint32_t> words(1000);
    const auto *numbers = reinterpret_cast<const int32_t *>(words.data());
    for (int round = 0; round < 3; round++) {
        const int64_t launches = count_fake("launches");
        check(setup.context, distile_mask_set_bits(setup.mask.get(), words.data(), 2, 20, 25, 1));
        check(setup.context, distile_mask_tiles(setup.mask.get(), 2, 2, &list));
        check(setup.context, distile_mask_set_indices(setup.mask.get(), numbers, nullptr, 2, 20, 25, 500));
        check(setup.context, distile_mask_tiles(setup.mask.get(), 2, 2, &list));
        CHECK(count_fake("launches") == launches + 4);
        CHECK(list.count == -1);
        CHECK(list.device_count != nullptr);
    }
    // A graph takes them, too.
    const FakeSetting capturing("capturing", 1, 0);
    check(setup.context, distile_mask_set_bits(setup.mask.get(), words.data(), 2, 20, 25, 1));
    check(setup.context, distile_mask_set_indices(setup.mask.get(), numbers, numbers, 2, 20, 25, 500));
    check(setup.context, distile_mask_tiles(setup.mask.get(), 2, 2, &list));
    int64_t count = 0;
    setup.refuse(distile_mask_active_pixels(setup.mask.get(), &count), DISTILE_ERROR_CAPTURING, {"graph"});
    CHECK(count_fake("forbidden") == 0);
}

TEST_CASE("The time in a trace is without the wait for the counts", "[.fake_driver]") {
    const Setup setup;
    setup.set_mask();
    constexpr int64_t wait = 20000;
    const FakeSetting waiting("wait", wait, 0);
    using Clock = std::chrono::steady_clock;
    const Clock::time_point start = Clock::now();
    setup.run();
    const double whole = std::chrono::duration<double, std::micro>(Clock::now() - start).count();
    CHECK(setup.traced.elapsed_us > 0);
    CHECK(setup.traced.elapsed_us <= whole - static_cast<double>(wait));
}

TEST_CASE("Calls of a shape that a GPU met before allocate nothing", "[.fake_driver]") {
    Setup setup;
    const void *written = nullptr;
    const distile_dense_candidate dense{"mine", write_nothing, &written};
    check(setup.context, distile_kernel_add_dense(setup.kernel.get(), &dense));
    std::vector<std::string> names = variants_of(setup);
    const Mask dilated = make_mask(setup.context);
    const Planner planner = make_planner(setup.context, {2, DISTILE_CLEAR_BACKGROUND, {}});
    const distile_output_spec spec{2, setup.out_height, setup.out_width, 8, 1, 1, 1, 1, DISTILE_FLOAT32};
    const auto use = [&] {
        setup.set_mask();
        for (distile_inactive inactive : {DISTILE_KEEP, DISTILE_ZERO}) {
            setup.args.inactive = inactive;
            setup.args.variant = nullptr;
            setup.run();
            for (const std::string &name : names) {
                setup.args.variant = name.c_str();
                setup.run();
            }
        }
        distile_tile_list list{};
        check(setup.context, distile_mask_tiles(setup.mask.get(), 3, 7, &list));
        check(setup.context, distile_mask_dilate(dilated.get(), setup.mask.get(), 1, 1));
        check(setup.context, distile_mask_set_difference(dilated.get(), &setup.output, &setup.residual, 0.5f));
        distile_tensor output{};
        check(setup.context,
              distile_planner_next(planner.get(), &spec, setup.mask.get(), DISTILE_STORE_EXACT, &output));
    };
    const FakeSetting count("count", 7, 0);
    use();
    use();
    allocations.count = 0;
    const Watch watch;
    for (int i = 0; i < 5; i++) {
        use();
    }
    CHECK(allocations.count == 0);
    // The counter counts.
    names.emplace_back(100, 'x');
    CHECK(allocations.count > 0);
}

TEST_CASE("A dense candidate writes into the output only where that is right", "[.fake_driver]") {
    Setup setup;
    const void *written = nullptr;
    const distile_dense_candidate dense{"mine", write_nothing, &written};
    check(setup.context, distile_kernel_add_dense(setup.kernel.get(), &dense));
    CHECK(variants_of(setup).back() == "mine");
    setup.set_mask();
    for (bool named : {true, false}) {
        check(setup.context, distile_kernel_add_time(setup.kernel.get(), "mine", 1, 1e-3));
        setup.args.variant = named ? "mine" : nullptr;
        for (bool aliased : {false, true}) {
            for (distile_inactive inactive : {DISTILE_KEEP, DISTILE_ZERO}) {
                for (distile_store store : {DISTILE_STORE_EXACT, DISTILE_STORE_TILES}) {
                    CAPTURE(named, aliased, inactive, store);
                    setup.args.residual = aliased ? &setup.output : &setup.residual;
                    setup.args.inactive = inactive;
                    setup.args.store = store;
                    written = nullptr;
                    setup.run();
                    REQUIRE(written != nullptr);
                    const bool direct = !aliased && (inactive == DISTILE_ZERO || store == DISTILE_STORE_TILES);
                    CHECK((written == setup.output.data) == direct);
                }
            }
        }
    }
    const distile_dense_candidate failing{"failing", [](void *, void *, const distile_run_args *) { return 5; },
                                          nullptr};
    check(setup.context, distile_kernel_add_dense(setup.kernel.get(), &failing));
    setup.args.variant = "no such variant";
    setup.refuse_run(DISTILE_ERROR_BAD_VALUE, {"no such variant"});
    setup.args.variant = nullptr;
    setup.run();
    // What was wrong can be asked for until something else goes wrong, of which it is then no part.
    CHECK(contains(setup.message(), "no such variant"));
    setup.args.variant = "failing";
    setup.refuse_run(DISTILE_ERROR_KERNEL, {"failing", "code 5"});
    CHECK(!contains(setup.message(), "no such variant"));
}
