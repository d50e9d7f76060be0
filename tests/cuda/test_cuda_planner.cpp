// Output buffers on a GPU: wrong arguments, memory and captures on a driver of our own; with a GPU, chains of operators
// against plain loops, and graphs.
#include "catch.h"
#include "fake_session.h"
#include "gpu_session.h"
#include "reference.h"
#include "test_cuda_polykernels.h"
#include "types.h"
#include <algorithm>
#include <cmath>
#include <cstring>
#include <distile/distile.hpp>
#include <distile/mask_algebra.h>
#include <distile/planner.h>
#include <random>

using namespace distile;

namespace {

const distile_clearing clearings[] = {DISTILE_CLEAR_WRITTEN, DISTILE_CLEAR_ALL, DISTILE_CLEAR_BACKGROUND};

}  // namespace

// ---- On a driver of our own ------------------------------------------------------------------

namespace {

/** A mask of 1 x 3 x 4 on the fake driver. */
struct FakeGpu {
    FakeGpu() {
        set(mask, 3, 4);
    }
    void set(const Mask &to, int32_t height, int32_t width) const {
        check(context,
              distile_mask_set_bytes(to.get(), bytes.data(), 1, height, width, int64_t{height} * width, width));
    }

    Context context = make_cuda_context();
    Mask mask = make_mask(context);
    DeviceArray<uint8_t> bytes = DeviceArray<uint8_t>(1 << 20);
};

constexpr distile_output_spec good_spec{1, 3, 4, 2, 1, 1, 1, 1, DISTILE_FLOAT32};

}  // namespace

TEST_CASE("A planner on a GPU refuses what makes no sense, and takes no buffer", "[.fake_driver]") {
    const FakeGpu gpu, other;
    distile_planner *made = nullptr;
    CHECK(distile_planner_create(gpu.context.get(), nullptr, nullptr) == DISTILE_ERROR_NULL_POINTER);
    for (int32_t buffers : {-1, 1, 65}) {
        const distile_planner_options options{buffers, DISTILE_CLEAR_WRITTEN, {}};
        CHECK(distile_planner_create(gpu.context.get(), &options, &made) == DISTILE_ERROR_BAD_VALUE);
    }
    distile_planner_options options{};
    const int32_t no_clearing = 3;
    std::memcpy(&options.clearing, &no_clearing, sizeof(no_clearing));
    CHECK(distile_planner_create(gpu.context.get(), &options, &made) == DISTILE_ERROR_BAD_VALUE);
    CHECK(made == nullptr);

    for (distile_clearing clearing : clearings) {
        const Planner planner = make_planner(gpu.context, {3, clearing, {}});
        const Mask unset = make_mask(gpu.context);
        const int64_t launches = count_fake("launches");
        distile_tensor output{};
        const auto refuse = [&](const distile_output_spec *spec, const Mask &mask, distile_tensor *to,
                                distile_status due) {
            CHECK(name_of(distile_planner_next(planner.get(), spec, mask.get(), DISTILE_STORE_EXACT, to)) ==
                  name_of(due));
            CHECK(contains(distile_context_message(gpu.context.get()), "distile_planner_next"));
        };
        refuse(nullptr, gpu.mask, &output, DISTILE_ERROR_NULL_POINTER);
        refuse(&good_spec, Mask(), &output, DISTILE_ERROR_NULL_POINTER);
        refuse(&good_spec, gpu.mask, nullptr, DISTILE_ERROR_NULL_POINTER);
        refuse(&good_spec, unset, &output, DISTILE_ERROR_BAD_MASK);
        refuse(&good_spec, other.mask, &output, DISTILE_ERROR_BAD_MASK);
        distile_output_spec bad = good_spec;
        bad.height = 4;
        refuse(&bad, gpu.mask, &output, DISTILE_ERROR_BAD_MASK);
        for (int32_t distile_output_spec::*member :
             {&distile_output_spec::border_top, &distile_output_spec::border_bottom, &distile_output_spec::border_left,
              &distile_output_spec::border_right}) {
            for (int32_t border : {-1, 65536}) {
                bad = good_spec;
                bad.*member = border;
                refuse(&bad, gpu.mask, &output, DISTILE_ERROR_BAD_VALUE);
            }
        }
        bad = good_spec;
        bad.channels = 0;
        refuse(&bad, gpu.mask, &output, DISTILE_ERROR_BAD_VALUE);
        bad.channels = 1 << 30;
        refuse(&bad, gpu.mask, &output, DISTILE_ERROR_BAD_STRIDE);
        distile_store store{};
        const int32_t no_store = 2;
        std::memcpy(&store, &no_store, sizeof(no_store));
        CHECK(distile_planner_next(planner.get(), &good_spec, gpu.mask.get(), store, &output) ==
              DISTILE_ERROR_BAD_VALUE);
        CHECK(output.data == nullptr);
        CHECK(distile_planner_bytes(planner.get()) == 0);
        CHECK(count_fake("launches") == launches);
    }
}

TEST_CASE("Any function of the driver may fail under a planner, and it goes on", "[.fake_driver]") {
    for (distile_clearing clearing : clearings) {
        for (const char *function : {"cuCtxPushCurrent", "cuMemAlloc", "cuMemsetD8Async", "cuLaunchKernel",
                                     "cuStreamCreate", "cuEventCreate", "cuEventRecord", "cuStreamWaitEvent"}) {
            CAPTURE(clearing, function);
            {
                const FakeGpu gpu;
                const distile_planner_options options{2, clearing, {}};
                fail_fake(function, CUDA_ERROR_NOT_PERMITTED);
                distile_planner *made = nullptr;
                const distile_status status = distile_planner_create(gpu.context.get(), &options, &made);
                CHECK((made == nullptr) == (status != DISTILE_OK));
                distile_planner_destroy(made);
                fail_fake(function, 0);
                const Planner planner = make_planner(gpu.context, options);
                std::vector<const void *> handed;
                for (int32_t step = 0; step < 6; step++) {
                    distile_tensor output{};
                    fail_fake(function, step % 2 == 1 ? CUDA_ERROR_NOT_PERMITTED : 0);
                    const distile_status next =
                        distile_planner_next(planner.get(), &good_spec, gpu.mask.get(), DISTILE_STORE_EXACT, &output);
                    CHECK((next == DISTILE_OK) == (output.data != nullptr));
                    CHECK((step % 2 == 1 || next == DISTILE_OK));
                    if (next == DISTILE_OK) {
                        handed.push_back(output.data);
                    }
                    fail_fake(function, 0);
                }
                // A call that failed took no buffer: the two still take turns.
                for (size_t i = 2; i < handed.size(); i++) {
                    CHECK(handed[i] == handed[i - 2]);
                    CHECK(handed[i] != handed[i - 1]);
                }
            }
            CHECK(count_fake("alive") == 0);
        }
    }
}

TEST_CASE("A planner on a GPU waits for nothing and allocates only for a larger tensor, so that graphs take it",
          "[.fake_driver]") {
    const FakeGpu gpu;
    const auto waits = [] {
        return count_fake("cuStreamSynchronize") + count_fake("cuCtxSynchronize") + count_fake("cuMemcpyDtoHAsync");
    };
    for (distile_clearing clearing : clearings) {
        CAPTURE(clearing);
        const Planner planner = make_planner(gpu.context, {3, clearing, {}});
        const Mask mask = make_mask(gpu.context);
        const auto next = [&](int32_t height, int32_t width, int32_t channels) {
            gpu.set(mask, height, width);
            const distile_output_spec spec{1, height, width, channels, 0, 0, 0, 0, DISTILE_FLOAT32};
            distile_tensor output{};
            return distile_planner_next(planner.get(), &spec, mask.get(), DISTILE_STORE_EXACT, &output);
        };
        CHECK(distile_planner_bytes(planner.get()) == 0);
        for (int32_t i = 0; i < 3; i++) {
            CHECK(next(40, 60, 4) == DISTILE_OK);
        }
        CHECK(distile_planner_bytes(planner.get()) == 3 * 40 * 60 * 4 * 4);
        const int64_t allocations = count_fake("cuMemAlloc"), launches = count_fake("launches"), waited = waits();
        for (int32_t i = 0; i < 20; i++) {
            CHECK(next(1 + i % 10, 30 - i, 4) == DISTILE_OK);
        }
        // A launch for the mask and one for the buffer; the background takes one more.
        CHECK(count_fake("launches") == launches + 20 * (clearing == DISTILE_CLEAR_ALL       ? 1
                                                         : clearing == DISTILE_CLEAR_WRITTEN ? 2
                                                                                             : 3));
        CHECK(distile_cuda_planner_join(planner.get()) == DISTILE_OK);
        {
            const FakeSetting capturing("capturing", 1, 0);
            CHECK(next(40, 60, 4) == DISTILE_OK);
            CHECK(next(30, 20, 7) == DISTILE_OK);
            CHECK(next(40, 60, 5) == DISTILE_ERROR_CAPTURING);
            CHECK(contains(distile_context_message(gpu.context.get()), "during graph capture"));
            CHECK(distile_cuda_planner_join(planner.get()) == DISTILE_OK);
            CHECK(count_fake("forbidden") == 0);
        }
        CHECK(count_fake("cuMemAlloc") == allocations);
        CHECK(waits() == waited);
    }
}

TEST_CASE("What is cleared in the background is joined before a capture", "[.fake_driver]") {
    const FakeGpu gpu;
    const Planner planner = make_planner(gpu.context, {2, DISTILE_CLEAR_BACKGROUND, {}});
    distile_tensor output{};
    const auto next = [&] {
        return distile_planner_next(planner.get(), &good_spec, gpu.mask.get(), DISTILE_STORE_EXACT, &output);
    };
    for (int32_t i = 0; i < 4; i++) {
        CHECK(next() == DISTILE_OK);
    }
    {
        const FakeSetting capturing("capturing", 1, 0);
        CHECK(next() == DISTILE_ERROR_CAPTURING);
        CHECK(contains(distile_context_message(gpu.context.get()), "distile_cuda_planner_join"));
        CHECK(distile_cuda_planner_join(planner.get()) == DISTILE_ERROR_CAPTURING);
    }
    const int64_t waits = count_fake("cuStreamWaitEvent");
    CHECK(distile_cuda_planner_join(planner.get()) == DISTILE_OK);
    CHECK(count_fake("cuStreamWaitEvent") == waits + 1);
    CHECK(distile_cuda_planner_join(planner.get()) == DISTILE_OK);
    CHECK(count_fake("cuStreamWaitEvent") == waits + 1);
    {
        // Without a join at its end, the capture fails, and nothing waits for what was part of it.
        const FakeSetting capturing("capturing", 1, 0);
        CHECK(next() == DISTILE_OK);
    }
    const int64_t before = count_fake("cuStreamWaitEvent");
    CHECK(next() == DISTILE_OK);
    CHECK(count_fake("cuStreamWaitEvent") == before + 1);
}

// ---- With a GPU ------------------------------------------------------------------------------

namespace {

std::vector<float> draw(size_t count, std::mt19937 &random) {
    std::vector<float> values(count);
    for (float &value : values) {
        value = std::uniform_real_distribution<float>(-1, 1)(random);
    }
    return values;
}

std::vector<uint8_t> random_mask(size_t count, double density, std::mt19937 &random) {
    std::vector<uint8_t> bytes(count);
    std::bernoulli_distribution active(density);
    std::generate(bytes.begin(), bytes.end(), [&] { return active(random); });
    return bytes;
}

/** One operator of a chain, with its weights as they were and packed. */
struct Layer {
    Layer(const Gpu &gpu, const distile_polykernel &polykernel, std::mt19937 &random)
        : kernel(gpu.make_kernel(polykernel)), conv(convolution_of(polykernel)) {
        filter =
            draw(static_cast<size_t>(conv.kernel_h) * conv.kernel_w * conv.in_channels * conv.out_channels, random);
        bias = draw(conv.out_channels, random);
        distile_weights_source source{};
        source.filter = filter.data();
        source.order = DISTILE_HWIO;
        source.bias = bias.data();
        weights = pack_weights(gpu.context, kernel, source);
    }

    const char *random_variant(std::mt19937 &random) const {
        const auto count = static_cast<uint32_t>(distile_kernel_num_variants(kernel.get()));
        return distile_kernel_variant_name(kernel.get(), static_cast<int32_t>(random() % count));
    }

    Kernel kernel;
    distile_conv2d conv;
    std::vector<float> filter, bias;
    Weights weights;
};

/** A tensor of a planner's on the device, border included, and the same view of what was copied from it, as float32. */
struct Download {
    explicit Download(const distile_tensor &tensor)
        : view(tensor), before(tensor.border_top * tensor.stride_h + tensor.border_left * tensor.stride_w),
          bytes(distile_dtype_size(tensor.dtype)), begin(static_cast<unsigned char *>(tensor.data) - before * bytes),
          values(static_cast<size_t>(tensor.batch * tensor.stride_n)) {
        const std::vector<unsigned char> read = read_device(begin, values.size() * bytes);
        find_type(tensor.dtype)->to_float(read.data(), values.data(), values.size());
        view.data = values.data() + before;
        view.dtype = DISTILE_FLOAT32;
    }
    /** Brings the values back to the device. */
    void upload(distile_dtype dtype) const {
        std::vector<unsigned char> stored(values.size() * bytes);
        find_type(dtype)->from_float(values.data(), stored.data(), values.size());
        CU(cuMemcpyHtoD, reinterpret_cast<CUdeviceptr>(begin), static_cast<const void *>(stored.data()), stored.size());
    }
    bool is_zero() const {
        return std::all_of(values.begin(), values.end(), [](float value) { return value == 0; });
    }
    /** "" if the computed pixels are what the reference says and everything else is zero. */
    std::string difference(const ReferenceOutput &expected) const {
        std::vector<float> rest = values;
        size_t i = 0;
        for (int32_t n = 0; n < view.batch; n++) {
            for (int32_t y = 0; y < view.height; y++) {
                for (int32_t x = 0; x < view.width; x++, i++) {
                    if (expected.states[i] != PixelState::Computed) {
                        continue;
                    }
                    float *const pixel = const_cast<float *>(static_cast<const float *>(view.data)) +
                                         n * view.stride_n + y * view.stride_h + x * view.stride_w;
                    const int64_t at = pixel - values.data();
                    for (int32_t c = 0; c < view.channels; c++) {
                        const float due = expected.values[i * view.channels + c];
                        if (!(std::abs(pixel[c] - due) <= 2e-5 * expected.largest)) {
                            return "pixel " + std::to_string(i) + " channel " + std::to_string(c) + " is " +
                                   std::to_string(pixel[c]) + ", not " + std::to_string(due);
                        }
                        rest[at + c] = 0;
                    }
                }
            }
        }
        const auto stale = std::find_if(rest.begin(), rest.end(), [](float value) { return value != 0; });
        return stale == rest.end() ? "" : "element " + std::to_string(stale - rest.begin()) + " is stale";
    }

    distile_tensor view;
    int64_t before;
    size_t bytes;
    unsigned char *begin;
    std::vector<float> values;
};

void set_mask(const Gpu &gpu, const Mask &mask, const DeviceArray<uint8_t> &bytes, int32_t batch, int32_t height,
              int32_t width) {
    gpu.check(distile_mask_set_bytes(mask.get(), bytes.data(), batch, height, width, int64_t{height} * width, width));
}

/** What a layer computes from an input of the host's. */
ReferenceOutput expect(const Layer &layer, const distile_tensor &input, const distile_tensor *residual,
                       const std::vector<uint8_t> &bytes, distile_store store, const distile_choice &choice) {
    ReferenceArgs args;
    args.conv = layer.conv;
    args.input = input;
    args.filter = layer.filter;
    args.bias = layer.bias;
    args.residual = residual;
    args.mask = bytes;
    args.inactive = DISTILE_ZERO;
    args.store = store;
    args.tile_h = choice.tile_h;
    args.tile_w = choice.tile_w;
    args.dense = choice.dense != 0;
    return reference_masked_conv2d(args);
}

}  // namespace

TEST_CASE("A chain of operators through a planner on a GPU computes dense-then-mask at every step", "[gpu_planner]") {
    const Gpu gpu;
    if (!gpu) {
        return;
    }
    const StreamInUse stream(gpu);
    constexpr size_t most_pixels = 2 * 9 * 70;
    for (const distile_clearing clearing : clearings) {
        std::mt19937 random(11);
        // 16 -> 48, 48 -> 16 with the chain's input as residual, 16 -> 48.
        const Layer layers[] = {Layer(gpu, test_conv3_16_48_cuda, random),
                                Layer(gpu, test_conv3_48_16_residual_cuda, random),
                                Layer(gpu, test_conv3_16_48_cuda, random)};
        const Planner planner = make_planner(gpu.context, {3, clearing, {}});
        const Mask mask = gpu.make_mask();
        DeviceArray<uint8_t> device_bytes(most_pixels);
        DeviceArray<float> device_input(16 * most_pixels);
        for (int32_t step = 0; step < 200; step++) {
            const auto batch = static_cast<int32_t>(1 + random() % 2);
            const auto height = static_cast<int32_t>(1 + random() % 9);
            const auto width = static_cast<int32_t>(1 + random() % (step % 7 == 0 ? 70 : 11));
            CAPTURE(clearing, step, batch, height, width);
            const size_t pixels = static_cast<size_t>(batch) * height * width;
            std::vector<float> input = draw(16 * pixels, random);
            device_input.set(input);
            const distile_tensor host_input = distile_tensor_make(input.data(), batch, height, width, 16);
            const distile_tensor first = distile_tensor_make(device_input.data(), batch, height, width, 16);
            distile_tensor from = first;
            std::vector<uint8_t> bytes;
            for (const Layer &layer : layers) {
                const double densities[] = {0.0, 0.1, 0.5, 1.0};
                if (random() % 3 == 0 && !bytes.empty()) {
                    // The mask of the layer before, dilated on the device.
                    const Mask dilated = make_mask(gpu.host);
                    gpu.check(distile_mask_dilate(mask.get(), mask.get(), 1, 1));
                    gpu.check_host(distile_mask_set_bytes(dilated.get(), bytes.data(), batch, height, width,
                                                          int64_t{height} * width, width));
                    gpu.check_host(distile_mask_dilate(dilated.get(), dilated.get(), 1, 1));
                    distile_tile_list list{};
                    gpu.check_host(distile_mask_tiles(dilated.get(), 1, 1, &list));
                    std::fill(bytes.begin(), bytes.end(), 0);
                    for (int64_t i = 0; i < list.count; i++) {
                        bytes[(static_cast<size_t>(list.image[i]) * height + (list.xy[i] >> 16)) * width +
                              (list.xy[i] & 0xffff)] = 1;
                    }
                } else {
                    bytes = random_mask(pixels, densities[random() % 4], random);
                    device_bytes.set(bytes);
                    set_mask(gpu, mask, device_bytes, batch, height, width);
                }
                const int32_t border = random() % 2 == 0 ? 1 : 0;
                const distile_store store = random() % 4 == 0 ? DISTILE_STORE_TILES : DISTILE_STORE_EXACT;
                const distile_output_spec spec{batch,  height, width,  layer.conv.out_channels, border,
                                               border, border, border, DISTILE_FLOAT32};
                distile_tensor output{};
                gpu.check(distile_planner_next(planner.get(), &spec, mask.get(), store, &output));
                REQUIRE(Download(output).is_zero());
                distile_run_args args{};
                args.input = &from;
                args.output = &output;
                args.residual = layer.conv.residual != 0 ? &first : nullptr;
                args.weights = layer.weights.get();
                args.mask = mask.get();
                args.store = store;
                args.variant = random() % 2 == 0 ? layer.random_variant(random) : nullptr;
                gpu.check(distile_run(layer.kernel.get(), &args));
                const Download read(from), computed(output);
                const ReferenceOutput expected = expect(
                    layer, read.view, layer.conv.residual != 0 ? &host_input : nullptr, bytes, store, *gpu.traced);
                REQUIRE(computed.difference(expected) == "");
                from = output;
            }
        }
    }
}

TEST_CASE("A tensor on a GPU stays the caller's until the planner's other buffers were handed out", "[gpu_planner]") {
    const Gpu gpu;
    if (!gpu) {
        return;
    }
    const StreamInUse stream(gpu);
    for (const distile_clearing clearing : clearings) {
        for (int32_t buffers : {2, 3, 5}) {
            for (const auto &[dtype, channels] : {std::pair(DISTILE_FLOAT32, 2),
                                                  {DISTILE_FLOAT32, 8},
                                                  {DISTILE_FLOAT32, 132},
                                                  {DISTILE_FLOAT16, 4},
                                                  {DISTILE_FLOAT16, 72},
                                                  {DISTILE_BFLOAT16, 3},
                                                  {DISTILE_BFLOAT16, 264}}) {
                CAPTURE(clearing, buffers, dtype, channels);
                const Planner planner = make_planner(gpu.context, {buffers, clearing, {}});
                const Mask mask = gpu.make_mask();
                std::mt19937 random(12);
                DeviceArray<uint8_t> device_bytes(3 * 70);
                std::vector<distile_tensor> handed;
                for (int32_t step = 0; step < 30; step++) {
                    const distile_output_spec spec{1, 3,    static_cast<int32_t>(60 + random() % 10), channels, 1, 0, 2,
                                                   1, dtype};
                    const bool whole = random() % 5 == 0;
                    const std::vector<uint8_t> bytes =
                        random_mask(static_cast<size_t>(spec.height) * spec.width, 0.4, random);
                    device_bytes.set(bytes);
                    set_mask(gpu, mask, device_bytes, 1, spec.height, spec.width);
                    distile_tensor output{};
                    gpu.check(distile_planner_next(planner.get(), &spec, mask.get(),
                                                   whole ? DISTILE_STORE_TILES : DISTILE_STORE_EXACT, &output));
                    Download download(output);
                    REQUIRE(download.is_zero());
                    // The step's number in every pixel that may be written.
                    for (int32_t y = 0; y < spec.height; y++) {
                        for (int32_t x = 0; x < spec.width; x++) {
                            if (whole || bytes[y * spec.width + x] != 0) {
                                const int64_t at = (y + 1) * output.stride_h + (x + 2) * output.stride_w;
                                std::fill_n(download.values.begin() + at, channels, static_cast<float>(step + 1));
                            }
                        }
                    }
                    download.upload(dtype);
                    handed.push_back(output);
                    for (int32_t back = 0; back < std::min(buffers - 1, step + 1); back++) {
                        const Download kept(handed[step - back]);
                        CHECK(std::all_of(kept.values.begin(), kept.values.end(), [&](float value) {
                            return value == 0 || value == static_cast<float>(step - back + 1);
                        }));
                        CHECK(!kept.is_zero());
                    }
                }
            }
        }
    }
}

TEST_CASE("A planner runs in a graph, however many buffers that takes, and beside calls outside of it",
          "[gpu_planner]") {
    const Gpu gpu;
    if (!gpu) {
        return;
    }
    const StreamInUse stream(gpu);
    std::mt19937 random(13);
    const Layer layer(gpu, test_conv3_16_48_cuda, random);
    const int32_t batch = 2, height = 7, width = 37;
    const size_t pixels = static_cast<size_t>(batch) * height * width;
    const std::vector<float> input = draw(16 * pixels, random);
    const DeviceArray<float> device_input(input);
    const distile_tensor from = distile_tensor_make(device_input.data(), batch, height, width, 16);
    distile_tensor host_from = from;
    host_from.data = const_cast<float *>(input.data());
    const distile_output_spec spec{batch, height, width, 48, 1, 1, 1, 1, DISTILE_FLOAT32};
    for (const distile_clearing clearing : clearings) {
        // Of three buffers, one is written by no call of a shorter graph, or two are by two calls of a longer one.
        for (int32_t calls : {1, 2, 3, 4}) {
            CAPTURE(clearing, calls);
            const Planner planner = make_planner(gpu.context, {3, clearing, {}});
            const Mask mask = gpu.make_mask();
            DeviceArray<uint8_t> device_bytes(pixels * calls);
            std::vector<distile_tensor> outputs(calls);
            distile_choice choice{};
            const auto record = [&](int32_t call) {
                gpu.check(distile_mask_set_bytes(mask.get(), device_bytes.data() + call * pixels, batch, height, width,
                                                 int64_t{height} * width, width));
                gpu.check(distile_planner_next(planner.get(), &spec, mask.get(), DISTILE_STORE_EXACT, &outputs[call]));
                distile_run_args args{};
                args.input = &from;
                args.output = &outputs[call];
                args.weights = layer.weights.get();
                args.mask = mask.get();
                args.variant = "t1x1";
                gpu.check(distile_run(layer.kernel.get(), &args));
                choice = *gpu.traced;
            };
            const auto draw_bytes = [&] {
                const std::vector<uint8_t> bytes = random_mask(pixels * calls, random() % 2 == 0 ? 0.1 : 0.6, random);
                device_bytes.set(bytes);
                return bytes;
            };
            const auto check_outputs = [&](const std::vector<uint8_t> &bytes, int32_t from_call) {
                for (int32_t call = from_call; call < calls; call++) {
                    CAPTURE(call);
                    const std::vector<uint8_t> own(bytes.begin() + static_cast<int64_t>(call * pixels),
                                                   bytes.begin() + static_cast<int64_t>((call + 1) * pixels));
                    CHECK(Download(outputs[call])
                              .difference(expect(layer, host_from, nullptr, own, DISTILE_STORE_EXACT, choice)) == "");
                }
            };
            // Every buffer meets its tensor.
            (void)draw_bytes();
            for (int32_t i = 0; i < 3; i++) {
                record(0);
            }
            gpu.check(distile_cuda_planner_join(planner.get()));
            const Graph graph(stream.get(), [&] {
                for (int32_t call = 0; call < calls; call++) {
                    record(call);
                }
                gpu.check(distile_cuda_planner_join(planner.get()));
            });
            const std::vector<distile_tensor> captured = outputs;
            for (int32_t round = 0; round < 8; round++) {
                CAPTURE(round);
                outputs = captured;
                const std::vector<uint8_t> bytes = draw_bytes();
                graph.launch();
                check_outputs(bytes, std::max(0, calls - 2));
                if (round % 3 == 2) {
                    const std::vector<uint8_t> others = draw_bytes();
                    record(0);
                    CHECK(Download(outputs[0])
                              .difference(expect(layer, host_from, nullptr,
                                                 {others.begin(), others.begin() + static_cast<int64_t>(pixels)},
                                                 DISTILE_STORE_EXACT, choice)) == "");
                    gpu.check(distile_cuda_planner_join(planner.get()));
                }
            }
        }
    }
}
