#include "test_conv3_16_48_avx2.h"
#include "test_conv3_48_16_residual_avx2.h"
#include "test_conv3_s21_17_3_residual_avx2.h"
#include "test_depthwise3_24_avx2.h"
#include "test_transpose34_s23_3_17_avx2.h"
#include "tests/support/callers.h"
#include "tests/support/catch.h"
#include "tests/support/reference.h"
#include "tests/support/session.h"
#include "tests/support/test_tensor.h"
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <distile/distile.hpp>
#include <distile/mask_algebra.h>
#include <distile/planner.h>
#include <limits>
#include <pthread.h>
#include <random>
#include <signal.h>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

using namespace distile;

namespace {

/** One operator of a chain, with its weights as they were and packed. */
struct PlannedLayer {
    PlannedLayer(const Context &context, const distile_polykernel &polykernel, std::mt19937 &random)
        : kernel(make_kernel(context, polykernel)), kind(polykernel.kind), conv(convolution_of(polykernel)) {
        filter = draw(Values::Floats, filter_size(conv), random);
        bias = draw(Values::Floats, conv.out_channels, random);
        distile_weights_source source{};
        source.filter = filter.data();
        source.order = DISTILE_HWIO;
        source.bias = bias.data();
        weights = pack_weights(context, kernel, source);
    }

    Kernel kernel;
    distile_operator_kind kind;
    distile_conv2d conv;
    std::vector<float> filter, bias;
    Weights weights;
};

/** Without a border, and of float32. */
distile_output_spec make_spec(int32_t batch, int32_t height, int32_t width, int32_t channels) {
    distile_output_spec spec{};
    spec.batch = batch;
    spec.height = height;
    spec.width = width;
    spec.channels = channels;
    return spec;
}

/** Every value of a tensor with its border, which may hold nothing else; NaN stands for memory out of reach. */
std::vector<float> values_with_border(const distile_tensor &tensor) {
    std::vector<float> values;
    for (int32_t n = 0; n < tensor.batch; n++) {
        for (int32_t y = -tensor.border_top; y < tensor.height + tensor.border_bottom; y++) {
            for (int32_t x = -tensor.border_left; x < tensor.width + tensor.border_right; x++) {
                const float *pixel = static_cast<const float *>(tensor.data) + n * tensor.stride_n +
                                     y * tensor.stride_h + x * tensor.stride_w;
                values.insert(values.end(), pixel, pixel + tensor.channels);
            }
        }
    }
    return values;
}

bool is_zero(const distile_tensor &tensor) {
    const std::vector<float> values = values_with_border(tensor);
    return std::all_of(values.begin(), values.end(), [](float value) { return value == 0; });
}

/** Fills the pixels of a mask. */
void fill(const distile_tensor &tensor, const std::vector<uint8_t> &mask, float value) {
    for (size_t pixel = 0; pixel < mask.size(); pixel++) {
        if (mask[pixel] != 0) {
            const auto row = static_cast<int64_t>(pixel) / tensor.width;
            std::fill_n(static_cast<float *>(tensor.data) + row / tensor.height * tensor.stride_n +
                            row % tensor.height * tensor.stride_h +
                            static_cast<int64_t>(pixel) % tensor.width * tensor.stride_w,
                        tensor.channels, value);
        }
    }
}

std::vector<uint8_t> random_mask(size_t count, double density, std::mt19937 &random) {
    std::vector<uint8_t> bytes(count);
    std::bernoulli_distribution active(density);
    std::generate(bytes.begin(), bytes.end(), [&] { return active(random); });
    return bytes;
}

/** Runs a layer into the planner's next tensor, with a mask that is drawn, and checks every value of it. `tensor` is
 * the input, and then the output. */
void run_layer(const PlannedLayer &layer, const Context &context, const Planner &planner, const Mask &mask,
               const distile_border &readers, distile_tensor &tensor, std::mt19937 &random) {
    const distile_tensor from = tensor;
    const int32_t height = reference_output_height(layer.conv, from.height, layer.kind);
    const int32_t width = reference_output_width(layer.conv, from.width, layer.kind);
    const double densities[] = {0.0, 0.1, 0.5, 1.0};
    const std::vector<uint8_t> bytes =
        random_mask(static_cast<size_t>(from.batch) * height * width, densities[random() % 4], random);
    check(context,
          distile_mask_set_bytes(mask.get(), bytes.data(), from.batch, height, width, int64_t{height} * width, width));
    distile_output_spec spec = make_spec(from.batch, height, width, layer.conv.out_channels);
    if (random() % 4 != 0) {
        // What the reader needs, or wider on some sides.
        const auto wider = [&](int32_t border) { return border + static_cast<int32_t>(random() % 2); };
        spec.border_top = wider(readers.top);
        spec.border_bottom = wider(readers.bottom);
        spec.border_left = wider(readers.left);
        spec.border_right = wider(readers.right);
    }
    const distile_store store = random() % 4 == 0 ? DISTILE_STORE_TILES : DISTILE_STORE_EXACT;
    CAPTURE(layer.conv.in_channels, layer.conv.out_channels, store);
    REQUIRE(distile_planner_next(planner.get(), &spec, mask.get(), store, &tensor) == DISTILE_OK);
    if (store == DISTILE_STORE_EXACT) {
        fill(tensor, bytes, 0);
    }
    REQUIRE(is_zero(tensor));
    if (store == DISTILE_STORE_EXACT) {
        // The active pixels may hold anything: here, what no result may be made of.
        fill(tensor, bytes, std::numeric_limits<float>::quiet_NaN());
    }

    TestTensor residual(from.batch, height, width, layer.conv.out_channels);
    residual.draw(Values::Floats, random);
    distile_run_args args{};
    args.input = &from;
    args.output = &tensor;
    args.residual = layer.conv.residual != 0 ? &residual.view() : nullptr;
    args.weights = layer.weights.get();
    args.mask = mask.get();
    args.store = store;
    distile_choice choice{};
    REQUIRE(distile_kernel_choose(layer.kernel.get(), mask.get(), &choice) == DISTILE_OK);
    REQUIRE(distile_run(layer.kernel.get(), &args) == DISTILE_OK);

    ReferenceArgs expected_args;
    expected_args.kind = layer.kind;
    expected_args.conv = layer.conv;
    expected_args.input = from;
    expected_args.filter = layer.filter;
    expected_args.bias = layer.bias;
    expected_args.residual = args.residual;
    expected_args.mask = bytes;
    expected_args.inactive = DISTILE_ZERO;
    expected_args.store = store;
    expected_args.tile_h = choice.tile_h;
    expected_args.tile_w = choice.tile_w;
    expected_args.dense = choice.dense != 0;
    const ReferenceOutput expected = reference_masked_conv2d(expected_args);
    distile_tensor inside = tensor;
    inside.border_top = inside.border_bottom = inside.border_left = inside.border_right = 0;
    const std::vector<float> computed = values_with_border(inside);
    REQUIRE(computed.size() == expected.values.size());
    int64_t wrong = 0;
    for (size_t i = 0; i < computed.size(); i++) {
        const bool zero = expected.states[i / layer.conv.out_channels] != PixelState::Computed;
        const double error = std::abs(computed[i] - (zero ? 0 : expected.values[i]));
        const double allowed = zero ? 0 : 1e-5 * expected.largest;
        // A comparison with a NaN is false.
        wrong += error <= allowed ? 0 : 1;
    }
    CHECK(wrong == 0);
}

const distile_clearing clearings[] = {DISTILE_CLEAR_WRITTEN, DISTILE_CLEAR_ALL, DISTILE_CLEAR_BACKGROUND};

}  // namespace

TEST_CASE("A chain of operators through a planner computes dense-then-mask at every step", "[planner]") {
    for (const distile_clearing clearing : clearings) {
        for (int32_t threads : {1, 3}) {
            CAPTURE(clearing, threads);
            std::mt19937 random(11);
            CallersAllocator allocator;
            distile_context_options options{};
            options.threads = threads;
            allocator.use_in(options);
            {
                const Context context = make_context(options);
                // Each reads the first channels of what the one before it made. The fifth halves the rows, and the
                // last makes two rows and three columns of one: buffers meet two resolutions within a step.
                const PlannedLayer layers[] = {PlannedLayer(context, test_conv3_16_48_avx2, random),
                                               PlannedLayer(context, test_conv3_48_16_residual_avx2, random),
                                               PlannedLayer(context, test_conv3_16_48_avx2, random),
                                               PlannedLayer(context, test_depthwise3_24_avx2, random),
                                               PlannedLayer(context, test_conv3_s21_17_3_residual_avx2, random),
                                               PlannedLayer(context, test_transpose34_s23_3_17_avx2, random)};
                distile_planner_options planner_options{};
                planner_options.clearing = clearing;
                planner_options.buffers = threads == 1 ? 3 : 4;
                const Planner planner = make_planner(context, planner_options);
                const Mask mask = make_mask(context);

                int32_t batch = 0, height = 0, width = 0;
                for (int32_t step = 0; step < 150; step++) {
                    // Shapes change, and stay the same for a while: what is cleared depends on both.
                    if (step == 0 || random() % 3 == 0) {
                        batch = static_cast<int32_t>(1 + random() % 2);
                        height = static_cast<int32_t>(1 + random() % 9);
                        width = static_cast<int32_t>(1 + random() % (step % 7 == 0 ? 70 : 11));
                    }
                    CAPTURE(step, batch, height, width);
                    TestTensor input(batch, height, width, 16);
                    input.draw(Values::Floats, random);
                    distile_tensor from = input.view();
                    for (const PlannedLayer &layer : layers) {
                        const distile_kernel *next =
                            &layer == std::end(layers) - 1 ? nullptr : (&layer + 1)->kernel.get();
                        from.channels = layer.conv.in_channels;
                        run_layer(layer, context, planner, mask, distile_kernel_border(next), from, random);
                    }
                }
            }
            CHECK(allocator.blocks_in_use() == 0);
            CHECK(allocator.mistakes() == 0);
        }
    }
}

TEST_CASE("A tensor stays the caller's until the planner's other buffers were handed out", "[planner]") {
    for (const distile_clearing clearing : clearings) {
        for (int32_t buffers : {2, 3, 5}) {
            CAPTURE(clearing, buffers);
            const Context context = make_context();
            const Planner planner = make_planner(context, planner_options(buffers, clearing));
            const Mask mask = make_mask(context);
            std::mt19937 random(12);
            std::vector<distile_tensor> handed;
            for (int32_t step = 0; step < 40; step++) {
                const distile_output_spec spec{
                    1, 3, static_cast<int32_t>(63 + random() % 3), 2, 1, 0, 2, 1, DISTILE_FLOAT32};
                const std::vector<uint8_t> bytes =
                    random_mask(static_cast<size_t>(spec.height) * spec.width, 0.4, random);
                check(context, distile_mask_set_bytes(mask.get(), bytes.data(), 1, spec.height, spec.width,
                                                      int64_t{spec.height} * spec.width, spec.width));
                distile_tensor output{};
                REQUIRE(distile_planner_next(planner.get(), &spec, mask.get(), DISTILE_STORE_EXACT, &output) ==
                        DISTILE_OK);
                fill(output, bytes, 0);
                REQUIRE(is_zero(output));
                fill(output, bytes, static_cast<float>(step + 1));
                handed.push_back(output);
                for (int32_t back = 0; back < std::min(buffers - 1, step + 1); back++) {
                    const std::vector<float> values = values_with_border(handed[step - back]);
                    CHECK(std::all_of(values.begin(), values.end(), [&](float value) {
                        return value == 0 || value == static_cast<float>(step - back + 1);
                    }));
                    CHECK(std::any_of(values.begin(), values.end(), [](float value) { return value != 0; }));
                }
            }
        }
    }
}

TEST_CASE("A planner allocates no more once it met its largest tensor", "[planner]") {
    CallersAllocator allocator;
    distile_context_options options{};
    allocator.use_in(options);
    const Context context = make_context(options);
    const Planner planner = make_planner(context);
    const Mask mask = make_mask(context);
    CHECK(distile_planner_bytes(planner.get()) == 0);
    CHECK(distile_planner_bytes(nullptr) == 0);
    const auto next = [&](int32_t height, int32_t width) {
        const std::vector<uint8_t> bytes(static_cast<size_t>(height) * width, 1);
        check(context,
              distile_mask_set_bytes(mask.get(), bytes.data(), 1, height, width, int64_t{height} * width, width));
        const distile_output_spec spec = make_spec(1, height, width, 4);
        distile_tensor output{};
        REQUIRE(distile_planner_next(planner.get(), &spec, mask.get(), DISTILE_STORE_EXACT, &output) == DISTILE_OK);
        CHECK(reinterpret_cast<uintptr_t>(output.data) % 64 == 0);
    };
    for (int32_t i = 0; i < 3; i++) {
        next(10, 30);
    }
    const int64_t bytes = distile_planner_bytes(planner.get());
    CHECK(bytes == 3 * 10 * 30 * 4 * 4);
    const int64_t calls = allocator.calls();
    CHECK(calls >= 3);
    for (int32_t i = 0; i < 20; i++) {
        next(1 + i % 10, 30 - i);
        CHECK(distile_planner_bytes(planner.get()) == bytes);
    }
    CHECK(allocator.calls() == calls);
}

TEST_CASE("A planner gives its buffers back when they grow and when it is destroyed", "[planner]") {
    CallersAllocator allocator;
    distile_context_options options{};
    allocator.use_in(options);
    Context context = make_context(options);
    Mask mask = make_mask(context);
    // No block is larger among those of the mask and of what the planner keeps of masks.
    constexpr size_t words_of_masks = 64;
    for (const distile_clearing clearing : clearings) {
        CAPTURE(clearing);
        Planner planner = make_planner(context, planner_options(2, clearing));
        for (int32_t step = 0; step < 10; step++) {
            const distile_output_spec spec = make_spec(1, 3, 4 + step, 5);
            const std::vector<uint8_t> bytes(static_cast<size_t>(spec.height) * spec.width, 1);
            check(context, distile_mask_set_bytes(mask.get(), bytes.data(), 1, spec.height, spec.width,
                                                  int64_t{spec.height} * spec.width, spec.width));
            distile_tensor output{};
            REQUIRE(distile_planner_next(planner.get(), &spec, mask.get(), DISTILE_STORE_EXACT, &output) == DISTILE_OK);
            CHECK(allocator.blocks_in_use(words_of_masks) == static_cast<size_t>(std::min(step + 1, 2)));
        }
        planner.reset();
        CHECK(allocator.blocks_in_use(words_of_masks) == 0);
    }
    CHECK(allocator.blocks_in_use() > 0);
    mask.reset();
    context.reset();
    CHECK(allocator.blocks_in_use() == 0);
    CHECK(allocator.mistakes() == 0);
}

namespace {

std::thread::id handler_thread;

}  // namespace

TEST_CASE("A planner's thread leaves signals to the application's threads", "[planner]") {
    const Context context = make_context();
    const Planner planner = make_planner(context, planner_options(2, DISTILE_CLEAR_BACKGROUND));
    const Mask mask = make_mask(context);
    const uint8_t byte = 1;
    check(context, distile_mask_set_bytes(mask.get(), &byte, 1, 1, 1, 1, 1));
    const distile_output_spec spec = make_spec(1, 1, 1, 1);
    distile_tensor output{};
    REQUIRE(distile_planner_next(planner.get(), &spec, mask.get(), DISTILE_STORE_EXACT, &output) == DISTILE_OK);
    // To the process: any thread that does not block it would take it while this one does.
    struct sigaction action {
    }, former{};
    action.sa_handler = [](int) { handler_thread = std::this_thread::get_id(); };
    REQUIRE(sigaction(SIGUSR1, &action, &former) == 0);
    sigset_t usr1, before;
    sigemptyset(&usr1);
    sigaddset(&usr1, SIGUSR1);
    REQUIRE(pthread_sigmask(SIG_BLOCK, &usr1, &before) == 0);
    REQUIRE(kill(getpid(), SIGUSR1) == 0);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    REQUIRE(pthread_sigmask(SIG_SETMASK, &before, nullptr) == 0);
    CHECK(handler_thread == std::this_thread::get_id());
    REQUIRE(sigaction(SIGUSR1, &former, nullptr) == 0);
}

TEST_CASE("A planner refuses what makes no sense, and takes no buffer", "[planner]") {
    const Context context = make_context(), other = make_context();
    distile_planner *made = nullptr;
    CHECK(distile_planner_create(nullptr, nullptr, &made) == DISTILE_ERROR_NULL_POINTER);
    CHECK(distile_planner_create(context.get(), nullptr, nullptr) == DISTILE_ERROR_NULL_POINTER);
    for (int32_t buffers : {-1, 1, 65}) {
        const distile_planner_options options = planner_options(buffers, DISTILE_CLEAR_WRITTEN);
        CHECK(distile_planner_create(context.get(), &options, &made) == DISTILE_ERROR_BAD_VALUE);
    }
    distile_planner_options options{};
    const int32_t no_clearing = 3;
    std::memcpy(&options.clearing, &no_clearing, sizeof(no_clearing));
    CHECK(distile_planner_create(context.get(), &options, &made) == DISTILE_ERROR_BAD_VALUE);
    CHECK(made == nullptr);
    distile_planner_destroy(nullptr);

    const Planner planner = make_planner(context);
    const Mask mask = make_mask(context), foreign = make_mask(other), unset = make_mask(context);
    const std::vector<uint8_t> bytes(12, 1);
    check(context, distile_mask_set_bytes(mask.get(), bytes.data(), 1, 3, 4, 12, 4));
    check(other, distile_mask_set_bytes(foreign.get(), bytes.data(), 1, 3, 4, 12, 4));
    const distile_output_spec good{1, 3, 4, 2, 1, 1, 1, 1, DISTILE_FLOAT32};
    const auto next = [&](const distile_output_spec *spec, distile_mask *given, distile_tensor *output) {
        return distile_planner_next(planner.get(), spec, given, DISTILE_STORE_EXACT, output);
    };
    distile_tensor output{};
    CHECK(distile_planner_next(nullptr, &good, mask.get(), DISTILE_STORE_EXACT, &output) == DISTILE_ERROR_NULL_POINTER);
    CHECK(next(nullptr, mask.get(), &output) == DISTILE_ERROR_NULL_POINTER);
    CHECK(next(&good, nullptr, &output) == DISTILE_ERROR_NULL_POINTER);
    CHECK(next(&good, mask.get(), nullptr) == DISTILE_ERROR_NULL_POINTER);
    CHECK(next(&good, unset.get(), &output) == DISTILE_ERROR_BAD_MASK);
    CHECK(next(&good, foreign.get(), &output) == DISTILE_ERROR_BAD_MASK);
    distile_output_spec bad = good;
    bad.height = 4;
    CHECK(next(&bad, mask.get(), &output) == DISTILE_ERROR_BAD_MASK);
    bad = good;
    bad.border_left = -1;
    CHECK(next(&bad, mask.get(), &output) == DISTILE_ERROR_BAD_VALUE);
    bad = good;
    bad.channels = 0;
    CHECK(next(&bad, mask.get(), &output) == DISTILE_ERROR_BAD_VALUE);
    bad = good;
    bad.channels = 1 << 30;
    CHECK(next(&bad, mask.get(), &output) == DISTILE_ERROR_BAD_STRIDE);
    distile_store store{};
    const int32_t no_store = 2;
    std::memcpy(&store, &no_store, sizeof(no_store));
    CHECK(distile_planner_next(planner.get(), &good, mask.get(), store, &output) == DISTILE_ERROR_BAD_VALUE);
    CHECK(output.data == nullptr);
    CHECK(distile_planner_bytes(planner.get()) == 0);
}

TEST_CASE("A planner that gets no memory says so and goes on when there is some", "[planner]") {
    static bool refuse;
    refuse = false;
    distile_context_options options{};
    options.allocate = [](void *, size_t bytes, size_t alignment) -> void * {
        return refuse ? nullptr : std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
    };
    // NOLINTNEXTLINE(cppcoreguidelines-no-malloc,cppcoreguidelines-owning-memory)
    options.deallocate = [](void *, void *memory) { std::free(memory); };
    const Context context = make_context(options);
    const Planner planner = make_planner(context);
    const Mask mask = make_mask(context);
    const std::vector<uint8_t> bytes(12, 1);
    check(context, distile_mask_set_bytes(mask.get(), bytes.data(), 1, 3, 4, 12, 4));
    const distile_output_spec spec{1, 3, 4, 2, 1, 1, 1, 1, DISTILE_FLOAT32};
    distile_tensor output{};
    refuse = true;
    CHECK(distile_planner_next(planner.get(), &spec, mask.get(), DISTILE_STORE_EXACT, &output) ==
          DISTILE_ERROR_OUT_OF_MEMORY);
    CHECK(output.data == nullptr);
    refuse = false;
    CHECK(distile_planner_next(planner.get(), &spec, mask.get(), DISTILE_STORE_EXACT, &output) == DISTILE_OK);
    CHECK(is_zero(output));
}
