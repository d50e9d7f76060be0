// Groups of contexts: chains of layers on several devices have the bits of one device, whatever the masks and sizes;
// devices that fail, hang, are slow or have nothing to do; and every wrong argument.
#include "test_conv3_16_48_avx2.h"
#include "test_conv3_48_16_residual_avx2.h"
#include "tests/support/catch.h"
#include "tests/support/chain_tests.h"
#include "tests/support/in_child.h"
#include "tests/support/wrong_arguments.h"
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <distile/distile.hpp>
#include <distile/general.h>
#include <distile/group.h>
#include <distile/polykernel.h>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <sys/mman.h>
#include <thread>
#include <vector>

using namespace distile;

namespace {

/** Contexts and their group. */
struct TestGroup {
    explicit TestGroup(size_t devices, distile_group_options options = {}) {
        for (size_t i = 0; i < devices; i++) {
            contexts.push_back(one_thread());
        }
        make(options);
    }
    explicit TestGroup(std::vector<Context> given, distile_group_options options = {}) : contexts(std::move(given)) {
        make(options);
    }

    void make(const distile_group_options &options) {
        std::vector<distile_context *> pointers;
        for (const Context &context : contexts) {
            pointers.push_back(context.get());
        }
        distile_group *made = nullptr;
        check_group(nullptr,
                    distile_group_create(pointers.data(), static_cast<int32_t>(pointers.size()), &options, &made));
        group.reset(made);
    }

    std::vector<Context> contexts;
    Group group;
};

/** Runs a chain on masks of all kinds, and compares its bits with those of one device. */
void compare_with_one_device(TestLayers &layers, size_t devices, distile_overlap overlap, int32_t batch, int32_t height,
                             int32_t width) {
    distile_group_options options{};
    options.overlap = overlap;
    // On a CPU, all variants add in the same order.
    options.any_order = devices % 2 == 0 ? 1 : 0;
    const TestGroup several(devices, options);
    const Chain chain = layers.chain(several.group, devices);
    TestImages images(layers, several.contexts[0], batch, height, width);
    for (const double density : {0.0, .07, .5, 1.0}) {
        for (const bool rectangle : {false, true}) {
            images.draw_masks(density, rectangle);
            for (const distile_inactive inactive : {DISTILE_KEEP, DISTILE_ZERO}) {
                INFO(devices << " devices, overlap " << overlap << ", " << batch << " x " << height << " x " << width
                             << ", density " << density << (rectangle ? ", rectangle" : "") << ", inactive "
                             << inactive);
                std::vector<float> result;
                check_group(several.group.get(), images.run(chain, inactive, result));
                CHECK(same_floats(result, images.expected(inactive)));
            }
        }
    }
}

}  // namespace

TEST_CASE("Chains on several devices have the bits of one", "[group]") {
    const std::vector<std::vector<LayerShape>> chains = chains_of_all_shapes();
    for (size_t c = 0; c < chains.size(); c++) {
        INFO("chain " << c);
        TestLayers layers(3, chains[c], static_cast<uint32_t>(c));
        for (const size_t devices : {1, 2, 3, 7}) {
            const distile_overlap overlap = devices % 2 == 0 ? DISTILE_OVERLAP_NEVER : DISTILE_OVERLAP_ALWAYS;
            compare_with_one_device(layers, devices, overlap, 1, 29, 67);
            compare_with_one_device(layers, devices, overlap, 3, 13, 18);
        }
        compare_with_one_device(layers, 4, DISTILE_OVERLAP_WHERE_ASYNCHRONOUS, 1, 90, 71);
        compare_with_one_device(layers, 6, DISTILE_OVERLAP_ALWAYS, 2, 3, 4);
    }
}

TEST_CASE("Compiled PolyKernels on several devices have the bits of one", "[group]") {
    TestLayers layers({&test_conv3_16_48_avx2, &test_conv3_48_16_residual_avx2, &test_conv3_16_48_avx2,
                       &test_conv3_48_16_residual_avx2});
    for (const size_t devices : {2, 5}) {
        compare_with_one_device(layers, devices, DISTILE_OVERLAP_ALWAYS, 1, 57, 70);
        compare_with_one_device(layers, devices, DISTILE_OVERLAP_NEVER, 2, 33, 20);
    }
}

TEST_CASE("Groups share work by the speed of their devices, and say what it costs", "[group]") {
    TestLayers layers(4, std::vector<LayerShape>(3, {4, 3, 1, 1, 1, false}), 5);
    const distile_group_speed speeds[] = {{1, 1000}, {0, 3000}, {1e9, 1000}};
    distile_group_options options{};
    options.speeds = speeds;
    const TestGroup several(3, options);
    const Chain chain = layers.chain(several.group, 3);
    CHECK(info_of(chain).devices == 0);
    TestImages images(layers, several.contexts[0], 1, 96, 96);
    images.draw_masks(1, false);
    std::vector<float> result;
    check_group(several.group.get(), images.run(chain, DISTILE_KEEP, result));
    CHECK(same_floats(result, images.expected(DISTILE_KEEP)));
    distile_chain_info info = info_of(chain);
    CHECK(info.devices == 3);
    CHECK(info.busy_devices == 2);
    CHECK(info.pixels == 3 * 96 * 96);
    CHECK(info.imbalance < .03);
    // Both sides of one cut, for two tensors of 4 channels.
    CHECK(info.halo_bytes >= 2 * 2 * 96 * 16);
    CHECK(info.halo_bytes <= info.row_bytes);
    CHECK(info.input_bytes >= 96 * 96 * 16);
    CHECK((info.plans == 1 && info.partitions == 1 && info.moved_pixels == 0));
    // Masks that stay need no plan, and others that differ little no partition.
    check_group(several.group.get(), images.run(chain, DISTILE_KEEP, result));
    CHECK(info_of(chain).plans == 1);
    images.draw_masks(.97, false);
    check_group(several.group.get(), images.run(chain, DISTILE_KEEP, result));
    CHECK(same_floats(result, images.expected(DISTILE_KEEP)));
    info = info_of(chain);
    CHECK((info.plans == 2 && info.partitions == 1));
    images.draw_masks(0, true);
    check_group(several.group.get(), images.run(chain, DISTILE_KEEP, result));
    CHECK(same_floats(result, images.expected(DISTILE_KEEP)));
    info = info_of(chain);
    CHECK((info.plans == 3 && info.partitions == 2 && info.moved_pixels > 0));
}

TEST_CASE("Images that devices keep are those of one device, run after run", "[group]") {
    TestLayers layers(4, {{6, 3, 1, 1, 1, false}, {6, 5, 1, 1, 2, false}, {4, 3, 1, 1, 1, true}}, 10);
    for (const size_t devices : {1, 2, 3, 7}) {
        for (const distile_overlap overlap : {DISTILE_OVERLAP_NEVER, DISTILE_OVERLAP_ALWAYS}) {
            distile_group_options options{};
            options.overlap = overlap;
            const TestGroup several(devices, options);
            const Chain chain = layers.chain(several.group, devices);
            TestImages images(layers, several.contexts[0], 2, 40, 33);
            // What one device has after each run, and what the devices keep.
            std::vector<float> state = images.input, collected(state.size());
            const distile_tensor view = images.view(collected, images.shape, 4);
            for (int32_t step = 0; step < 12; step++) {
                INFO(devices << " devices, overlap " << overlap << ", step " << step);
                // Pixels all over the images, or in a part of them, so that they are cut anew; or none.
                images.draw_masks(step == 7 ? 0 : .6, step % 3 == 2);
                images.input = state;
                images.before = state;
                std::vector<float> result;
                if (step % 5 == 4) {
                    // A run that gives its result leaves the images as they are.
                    check_group(several.group.get(), images.run(chain, DISTILE_ZERO, result, true));
                    CHECK(same_floats(result, images.expected(DISTILE_ZERO)));
                } else {
                    state = images.expected(DISTILE_KEEP);
                    check_group(several.group.get(), images.run(chain, DISTILE_KEEP, result, step != 0, true));
                }
                check_group(several.group.get(), distile_chain_collect(chain.get(), &view));
                REQUIRE(same_floats(collected, state));
            }
            CHECK((devices <= 2 || info_of(chain).partitions > 1));
        }
    }
}

TEST_CASE("A chain tells the variants of its last run", "[group]") {
    TestLayers layers({&test_conv3_16_48_avx2, &test_conv3_48_16_residual_avx2});
    const TestGroup several(3);
    const Chain chain = layers.chain(several.group, 3);
    CHECK(distile_chain_variant(chain.get(), 0) == nullptr);
    TestImages images(layers, several.contexts[0], 1, 57, 70);
    for (const double density : {.02, 1.0, 0.0}) {
        images.draw_masks(density, false);
        std::vector<float> result;
        check_group(several.group.get(), images.run(chain, DISTILE_KEEP, result));
        for (int32_t i = 0; i < 2; i++) {
            const char *const name = distile_chain_variant(chain.get(), i);
            // Nothing computes a layer without pixels.
            REQUIRE((name != nullptr) == (density > 0));
            const distile_polykernel &polykernel = *layers.polykernels[static_cast<size_t>(i)];
            CHECK((!name || std::any_of(polykernel.variants, polykernel.variants + polykernel.num_variants,
                                        [&](const distile_variant &one) { return std::string(one.name) == name; })));
        }
        for (const int32_t none : {-1, 2}) {
            CHECK(distile_chain_variant(chain.get(), none) == nullptr);
        }
    }
}

TEST_CASE("Images may span more elements than a tensor of a device", "[group]") {
    TestLayers layers(3, {{5, 3, 1, 1, 1, false}, {3, 3, 1, 1, 1, false}}, 12);
    const TestGroup several(3);
    const Chain chain = layers.chain(several.group, 3);
    TestImages images(layers, several.contexts[0], 1, 40, 33);
    images.draw_masks(.6, false);
    std::vector<float> result;
    check_group(several.group.get(), images.run(chain, DISTILE_KEEP, result));
    // These images again, with rows that lie so far apart that few of their pages exist.
    constexpr int64_t row = int64_t{1} << 26, width = 33 * 3;
    const size_t bytes = size_t{40} * row * sizeof(float);
    void *const memory =
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    REQUIRE(memory != MAP_FAILED);
    auto *const first = static_cast<float *>(memory);
    distile_tensor wide = images.view(images.input, images.shape, 3), output = images.view(result, images.shape, 3);
    for (int64_t y = 0; y < 40; y++) {
        std::copy_n(&images.input[static_cast<size_t>(y * width)], width, first + y * row);
    }
    wide.data = first;
    wide.stride_h = row;
    wide.stride_n = 40 * row;
    std::vector<distile_mask *> masks;
    for (const Mask &mask : images.masks) {
        masks.push_back(mask.get());
    }
    std::vector<float> again = images.before;
    output.data = again.data();
    distile_chain_args args{};
    args.input = &wide;
    args.output = &output;
    args.masks = masks.data();
    check_group(several.group.get(), distile_chain_run(chain.get(), &args));
    CHECK(same_floats(again, result));
    // One device would have to zero such an output.
    args.input = nullptr;
    args.output = &wide;
    args.inactive = DISTILE_ZERO;
    CHECK(distile_chain_run(chain.get(), &args) == DISTILE_ERROR_BAD_VALUE);
    const distile_tensor input = images.view(images.input, images.shape, 3);
    args.input = &input;
    CHECK(distile_chain_run(chain.get(), &args) == DISTILE_ERROR_BAD_STRIDE);
    munmap(memory, bytes);
}

TEST_CASE("A device that fails ends the run of all, and the group goes on", "[group]") {
    /** Memory that runs out while somebody wants it to. */
    struct Failing {
        static void *allocate(void *user, size_t bytes, size_t alignment) {
            return static_cast<Failing *>(user)->fails ? nullptr : aligned_alloc(alignment, (bytes + 63) / 64 * 64);
        }
        static void deallocate(void *, void *memory) {
            std::free(memory);
        }
        std::atomic<bool> fails{false};
    };
    TestLayers layers(4, std::vector<LayerShape>(3, {4, 3, 1, 1, 1, false}), 6);
    for (size_t which = 0; which < 3; which++) {
        Failing failing;
        distile_context_options options{};
        options.allocate = Failing::allocate;
        options.deallocate = Failing::deallocate;
        options.allocator_user = &failing;
        std::vector<Context> contexts;
        for (size_t i = 0; i < 3; i++) {
            contexts.push_back(one_thread(i == which ? options : distile_context_options{}));
        }
        const TestGroup several(std::move(contexts));
        const Chain chain = layers.chain(several.group, 3);
        TestImages images(layers, several.contexts[0], 1, 70, 50);
        images.draw_masks(.8, false);
        std::vector<float> result;
        failing.fails = true;
        CHECK(images.run(chain, DISTILE_KEEP, result) == DISTILE_ERROR_OUT_OF_MEMORY);
        const std::string message = distile_group_message(several.group.get());
        INFO(message);
        CHECK(message.find("distile_chain_run: device " + std::to_string(which)) == 0);
        failing.fails = false;
        check_group(several.group.get(), images.run(chain, DISTILE_KEEP, result));
        CHECK(same_floats(result, images.expected(DISTILE_KEEP)));
    }
}

TEST_CASE("A device that hangs or is slow makes a run end in time", "[group]") {
    /** Loops that wait until somebody lets them go on. */
    struct Hanging {
        static void loop(void *user, distile_task task, void *closure, int32_t count) {
            auto &self = *static_cast<Hanging *>(user);
            {
                std::unique_lock<std::mutex> lock(self.mutex);
                self.changed.wait_for(lock, self.longest, [&] { return self.goes_on; });
            }
            for (int32_t i = 0; i < count; i++) {
                task(closure, i);
            }
        }
        void go_on(bool now) {
            {
                const std::lock_guard<std::mutex> lock(mutex);
                goes_on = now;
            }
            changed.notify_all();
        }
        std::mutex mutex;
        std::condition_variable changed;
        bool goes_on = true;
        std::chrono::milliseconds longest{60000};
    };
    for (const bool slow : {false, true}) {
        Hanging hanging;
        TestLayers layers(4, std::vector<LayerShape>(3, {16, 3, 1, 1, 1, false}), 7);
        distile_context_options options{};
        options.threads = 2;
        options.parallel_for = Hanging::loop;
        options.parallel_for_user = &hanging;
        const auto make_contexts = [&] {
            std::vector<Context> contexts;
            contexts.push_back(one_thread());
            contexts.push_back(one_thread(options));
            contexts.push_back(one_thread());
            return contexts;
        };
        std::vector<float> result;
        const auto run = [&](const TestGroup &several) {
            TestImages images(layers, several.contexts[0], 1, 60, 60);
            images.draw_masks(1, false);
            const Chain chain = layers.chain(several.group, 3);
            check_group(several.group.get(), images.run(chain, DISTILE_KEEP, result));
        };
        // Much more than a run takes here, which may be an emulator.
        const auto begin = std::chrono::steady_clock::now();
        run(TestGroup(make_contexts()));
        const auto took =
            std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - begin);
        distile_group_options limits{};
        limits.timeout_ms = 1500 + 10 * static_cast<int32_t>(took.count());
        TestGroup several(make_contexts(), limits);
        Chain chain = layers.chain(several.group, 3);
        TestImages images(layers, several.contexts[0], 1, 60, 60);
        images.draw_masks(1, false);
        check_group(several.group.get(), images.run(chain, DISTILE_KEEP, result));
        hanging.longest = std::chrono::milliseconds(slow ? limits.timeout_ms + 200 : 60000 + limits.timeout_ms);
        hanging.go_on(false);
        CHECK(images.run(chain, DISTILE_KEEP, result) == DISTILE_ERROR_DEVICE_LOST);
        INFO(distile_group_message(several.group.get()));
        if (slow) {
            hanging.go_on(true);
            check_group(several.group.get(), images.run(chain, DISTILE_KEEP, result));
            CHECK(same_floats(result, images.expected(DISTILE_KEEP)));
        } else {
            CHECK(std::string(distile_group_message(several.group.get())).find("device 1") != std::string::npos);
            CHECK(images.run(chain, DISTILE_KEEP, result) == DISTILE_ERROR_DEVICE_LOST);
            distile_chain *made = nullptr;
            distile_chain_layer none{};
            CHECK(distile_chain_create(several.group.get(), &none, 1, &made) == DISTILE_ERROR_DEVICE_LOST);
            hanging.go_on(true);
            // Let the device end, so that nothing leaks.
            std::this_thread::sleep_for(std::chrono::milliseconds(500));
        }
    }
}

TEST_CASE("A child of fork() uses no group of its parent", "[group][fork]") {
    TestLayers layers(4, std::vector<LayerShape>(2, {4, 3, 1, 1, 1, false}), 8);
    TestGroup several(2);
    Chain chain = layers.chain(several.group, 2);
    TestImages images(layers, several.contexts[0], 1, 20, 20);
    images.draw_masks(.5, false);
    std::vector<float> result;
    check_group(several.group.get(), images.run(chain, DISTILE_KEEP, result));
    CHECK(in_child([&] {
        const bool refused = images.run(chain, DISTILE_KEEP, result) == DISTILE_ERROR_INTERNAL;
        chain.reset();
        several.group.reset();
        return refused;
    }));
    check_group(several.group.get(), images.run(chain, DISTILE_KEEP, result));
    CHECK(same_floats(result, images.expected(DISTILE_KEEP)));
}

TEST_CASE("Groups refuse every argument that is wrong", "[group]") {
    TestGroup several(2);
    TestLayers layers(4, {{4, 3, 1, 1, 1, false}, {4, 3, 1, 1, 1, true}}, 9);
    TestLayers other(4, {{4, 3, 1, 1, 1, false}, {5, 3, 1, 1, 1, false}, {4, 3, 1, 1, 0, true}, {4, 3, 9, 1, 1, false}},
                     9);
    distile_context *pointers[] = {several.contexts[0].get(), several.contexts[1].get()};
    distile_context *with_null[] = {pointers[0], nullptr};
    distile_context *twice[] = {pointers[0], pointers[0]};
    distile_group *made = nullptr;
    const distile_group_options options{};
    const distile_group_speed no_rate[] = {{0, 1}, {0, 0}}, before_time[] = {{-1, 1}, {0, 1}};
    WrongArguments creating([] { return std::string(distile_context_message(nullptr)); }, [] {});
    creating.of("distile_group_create", distile_group_create, pointers, 2, &options, &made)
        .without_message()
        .then([&] {
            distile_group_destroy(made);
            made = nullptr;
        })
        .wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr, with_null})
        .wrong<0>(DISTILE_ERROR_BAD_VALUE, {twice})
        .wrong<1>(DISTILE_ERROR_BAD_VALUE, {0, -1, 1025})
        .wrong<2>(DISTILE_ERROR_BAD_VALUE, &distile_group_options::speeds, {no_rate, before_time})
        .wrong<2>(DISTILE_ERROR_BAD_VALUE, &distile_group_options::imbalance, {-.1, std::nan("")})
        .wrong<2>(DISTILE_ERROR_BAD_VALUE, &distile_group_options::timeout_ms, {-1})
        .wrong_number<2>(DISTILE_ERROR_BAD_VALUE, &distile_group_options::overlap, {-1, 3})
        .wrong<2>(DISTILE_ERROR_BAD_VALUE, &distile_group_options::any_order, {-1, 2})
        .wrong<2>(DISTILE_ERROR_BAD_VALUE, &distile_group_options::reserved32, {1})
        .reserved<2>(&distile_group_options::reserved)
        .any<2>({nullptr})
        .wrong<3>(DISTILE_ERROR_NULL_POINTER, {nullptr});

    distile_group *const group = several.group.get();
    const distile_chain_layer nothing{};
    distile_chain *unmade = nullptr;
    WrongArguments all([&] { return std::string(distile_group_message(group)); },
                       [&] { distile_chain_create(group, &nothing, -77, &unmade); });
    const distile_polykernel *const first[] = {layers.polykernels[0], layers.polykernels[0]};
    const distile_polykernel *const second[] = {layers.polykernels[1], layers.polykernels[1]};
    const distile_polykernel *const unequal[] = {layers.polykernels[0], other.polykernels[1]};
    const distile_polykernel *const narrow[] = {other.polykernels[2], other.polykernels[2]};
    const distile_polykernel *const missing[] = {layers.polykernels[0], nullptr};
    distile_chain_layer right[2] = {};
    right[0].polykernels = first;
    right[1].polykernels = second;
    right[0].weights = right[1].weights = &layers.sources[0];
    distile_chain *chain = nullptr;
    {
        auto create = all.of("distile_chain_create", distile_chain_create, group,
                             static_cast<const distile_chain_layer *>(right), 2, &chain);
        create
            .then([&] {
                distile_chain_destroy(chain);
                chain = nullptr;
            })
            .wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
            .wrong<1>(DISTILE_ERROR_NULL_POINTER, {nullptr})
            .wrong<2>(DISTILE_ERROR_BAD_VALUE, {0, -1, 1025})
            .wrong<3>(DISTILE_ERROR_NULL_POINTER, {nullptr});
        const auto refuse = [&](distile_status status, size_t layer, const auto &change) {
            distile_chain_layer spoilt[2] = {right[0], right[1]};
            change(spoilt[layer]);
            CHECK(std::string(distile_status_name(distile_chain_create(group, spoilt, 2, &chain))) ==
                  distile_status_name(status));
            CHECK(chain == nullptr);
        };
        refuse(DISTILE_ERROR_NULL_POINTER, 1, [](distile_chain_layer &layer) { layer.polykernels = nullptr; });
        refuse(DISTILE_ERROR_NULL_POINTER, 0, [&](distile_chain_layer &layer) { layer.polykernels = missing; });
        refuse(DISTILE_ERROR_NULL_POINTER, 0, [](distile_chain_layer &layer) { layer.weights = nullptr; });
        refuse(DISTILE_ERROR_BAD_VALUE, 0, [&](distile_chain_layer &layer) { layer.polykernels = unequal; });
        refuse(DISTILE_ERROR_BAD_CHANNELS, 1, [&](distile_chain_layer &layer) {
            layer.polykernels = narrow;
            layer.weights = &other.sources[2];
        });
        refuse(DISTILE_ERROR_BAD_VALUE, 0, [](distile_chain_layer &layer) { layer.residual = 1; });
        refuse(DISTILE_ERROR_BAD_VALUE, 1, [](distile_chain_layer &layer) { layer.residual = 2; });
        refuse(DISTILE_ERROR_BAD_VALUE, 1, [](distile_chain_layer &layer) { layer.residual = -1; });
        refuse(DISTILE_ERROR_BAD_VALUE, 1, [](distile_chain_layer &layer) { layer.variant = "none_such"; });
        refuse(DISTILE_ERROR_BAD_VALUE, 1, [](distile_chain_layer &layer) { layer.reserved[2] = 1; });
        refuse(DISTILE_ERROR_BAD_VALUE, 1, [](distile_chain_layer &layer) { layer.reserved32 = 1; });
        // A residual of another size, and strides that multiply to too much.
        const TestLayers smaller(4, {{4, 3, 1, 1, 0, true}}, 1), strided(4, {{4, 1, 300, 1, 0, false}}, 1);
        const distile_polykernel *const valid[] = {smaller.polykernels[0], smaller.polykernels[0]};
        const distile_polykernel *const long_steps[] = {strided.polykernels[0], strided.polykernels[0]};
        refuse(DISTILE_ERROR_BAD_SHAPE, 1, [&](distile_chain_layer &layer) { layer.polykernels = valid; });
        refuse(DISTILE_ERROR_BAD_VALUE, 0, [&](distile_chain_layer &layer) {
            layer.polykernels = long_steps;
            layer.weights = &strided.sources[0];
        });
    }
    REQUIRE(distile_chain_create(group, right, 2, &chain) == DISTILE_OK);
    const Chain owned(chain);

    constexpr int32_t rows = 9, columns = 10;
    std::vector<float> from(size_t{rows} * columns * 4), to(from.size());
    const distile_tensor input = distile_tensor_make(from.data(), 1, rows, columns, 4),
                         output = distile_tensor_make(to.data(), 1, rows, columns, 4);
    const Mask mask = make_mask(several.contexts[0]), foreign = make_mask(several.contexts[1]),
               small = make_mask(several.contexts[0]), unset = make_mask(several.contexts[0]);
    const std::vector<uint8_t> bytes(size_t{rows} * columns, 1);
    check(several.contexts[0], distile_mask_set_bytes(mask.get(), bytes.data(), 1, rows, columns, 90, columns));
    check(several.contexts[1], distile_mask_set_bytes(foreign.get(), bytes.data(), 1, rows, columns, 90, columns));
    check(several.contexts[0], distile_mask_set_bytes(small.get(), bytes.data(), 1, 3, columns, 90, columns));
    distile_mask *const masks[] = {mask.get(), mask.get()}, *const no_mask[] = {mask.get(), nullptr},
                        *const foreign_mask[] = {mask.get(), foreign.get()},
                        *const small_mask[] = {small.get(), mask.get()},
                        *const unset_mask[] = {mask.get(), unset.get()};
    distile_chain_args args{};
    args.input = &input;
    args.output = &output;
    args.masks = masks;
    {
        auto run =
            all.of("distile_chain_run", distile_chain_run, chain, static_cast<const distile_chain_args *>(&args));
        run.wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
            .wrong<1>(DISTILE_ERROR_NULL_POINTER, {nullptr})
            .wrong<1>(DISTILE_ERROR_BAD_VALUE, &distile_chain_args::input, {nullptr})
            .wrong<1>(DISTILE_ERROR_NULL_POINTER, &distile_chain_args::masks, {nullptr, no_mask})
            .wrong<1>(DISTILE_ERROR_BAD_MASK, &distile_chain_args::masks, {foreign_mask, small_mask, unset_mask})
            .wrong<1>(DISTILE_ERROR_ALIASING, &distile_chain_args::output, {&input})
            .wrong_number<1>(DISTILE_ERROR_BAD_VALUE, &distile_chain_args::inactive, {-1, 2})
            .wrong<1>(DISTILE_ERROR_BAD_VALUE, &distile_chain_args::reserved32, {1})
            .reserved<1>(&distile_chain_args::reserved);
        const auto refuse = [&](distile_status status, const auto &change) {
            for (const bool of_input : {false, true}) {
                distile_tensor spoilt = of_input ? input : output;
                change(spoilt);
                run.wrong<1>(status, of_input ? &distile_chain_args::input : &distile_chain_args::output, {&spoilt});
            }
        };
        refuse(DISTILE_ERROR_NULL_POINTER, [](distile_tensor &tensor) { tensor.data = nullptr; });
        refuse(DISTILE_ERROR_BAD_ALIGNMENT,
               [](distile_tensor &tensor) { tensor.data = static_cast<char *>(tensor.data) + 1; });
        refuse(DISTILE_ERROR_BAD_CHANNELS, [](distile_tensor &tensor) { tensor.channels = 3; });
        refuse(DISTILE_ERROR_BAD_TYPE, [](distile_tensor &tensor) { tensor.dtype = DISTILE_FLOAT16; });
        refuse(DISTILE_ERROR_BAD_SHAPE, [](distile_tensor &tensor) { tensor.height = 0; });
        refuse(DISTILE_ERROR_BAD_SHAPE, [](distile_tensor &tensor) { tensor.height = 8; });
        refuse(DISTILE_ERROR_BAD_STRIDE, [](distile_tensor &tensor) { tensor.stride_h = 1; });
    }
    {
        distile_chain_info info{};
        all.of("distile_chain_get_info", distile_chain_get_info, static_cast<const distile_chain *>(chain), &info)
            .wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
            .wrong<1>(DISTILE_ERROR_NULL_POINTER, {nullptr});
    }
    {
        // What devices keep has the input's size and channels, and keeps its inactive pixels.
        CHECK(distile_chain_collect(chain, &output) == DISTILE_ERROR_BAD_VALUE);
        distile_chain_args keeping = args;
        keeping.output = nullptr;
        keeping.inactive = DISTILE_ZERO;
        CHECK(distile_chain_run(chain, &keeping) == DISTILE_ERROR_BAD_VALUE);
        keeping.inactive = DISTILE_KEEP;
        REQUIRE(distile_chain_run(chain, &keeping) == DISTILE_OK);
        auto collect = all.of("distile_chain_collect", distile_chain_collect, chain, &output);
        collect.wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr}).wrong<1>(DISTILE_ERROR_NULL_POINTER, {nullptr});
        distile_tensor spoilt = output;
        spoilt.height = 8;
        collect.wrong<1>(DISTILE_ERROR_BAD_SHAPE, {&spoilt});
        spoilt = output;
        spoilt.channels = 3;
        collect.wrong<1>(DISTILE_ERROR_BAD_CHANNELS, {&spoilt});
        spoilt = output;
        spoilt.dtype = DISTILE_BFLOAT16;
        collect.wrong<1>(DISTILE_ERROR_BAD_TYPE, {&spoilt});
    }
    distile_group_destroy(nullptr);
    distile_chain_destroy(nullptr);
    CHECK(distile_chain_variant(nullptr, 0) == nullptr);
    for (const char *name :
         {"distile_group_destroy", "distile_chain_destroy", "distile_chain_variant", "distile_group_message"}) {
        all.note(name);
    }
    CHECK(distile_group_message(nullptr) != nullptr);
    std::set<std::string> tested = all.tested();
    tested.insert("distile_group_create");
    CHECK(tested == declared_functions(DISTILE_INCLUDE_FOLDER, {"group.h"}));
    CHECK(all.undocumented(DISTILE_INCLUDE_FOLDER, {"group.h"}) == "");
    CHECK(creating.undocumented(DISTILE_INCLUDE_FOLDER, {"group.h"}) == "");
}
