// Output buffers on a GPU: chains of operators against plain loops, and graphs.
#include "gpu_polykernels.h"
#include "runtime/base/types.h"
#include "tests/gpu/device_tensor.h"
#include "tests/gpu/gpu_session.h"
#include "tests/support/catch.h"
#include "tests/support/reference.h"
#include <algorithm>
#include <cmath>
#include <distile/distile.hpp>
#include <distile/mask_algebra.h>
#include <distile/planner.h>
#include <random>

using namespace distile;

namespace {

const distile_clearing clearings[] = {DISTILE_CLEAR_WRITTEN, DISTILE_CLEAR_ALL, DISTILE_CLEAR_BACKGROUND};

}  // namespace

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
        write_device(begin, stored);
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
        const Layer layers[] = {Layer(gpu, GPU_POLYKERNEL(test_conv3_16_48), random),
                                Layer(gpu, GPU_POLYKERNEL(test_conv3_48_16_residual), random),
                                Layer(gpu, GPU_POLYKERNEL(test_conv3_16_48), random)};
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
    const auto number_of = [](int32_t step) { return static_cast<float>(step % 8 + 1); };
    for (const distile_clearing clearing : clearings) {
        for (int32_t buffers : {2, 3, 5}) {
            for (const auto &[dtype, channels] : {std::pair(DISTILE_FLOAT32, 2),
                                                  {DISTILE_FLOAT32, 8},
                                                  {DISTILE_FLOAT32, 132},
                                                  {DISTILE_FLOAT16, 4},
                                                  {DISTILE_FLOAT16, 72},
                                                  {DISTILE_BFLOAT16, 3},
                                                  {DISTILE_BFLOAT16, 264},
                                                  {DISTILE_FLOAT8_E4M3FN, 3},
                                                  {DISTILE_FLOAT8_E5M2, 80}}) {
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
                    // A number of the step, which every type holds, in every pixel that may be written.
                    for (int32_t y = 0; y < spec.height; y++) {
                        for (int32_t x = 0; x < spec.width; x++) {
                            if (whole || bytes[y * spec.width + x] != 0) {
                                const int64_t at = (y + 1) * output.stride_h + (x + 2) * output.stride_w;
                                std::fill_n(download.values.begin() + at, channels, number_of(step));
                            }
                        }
                    }
                    download.upload(dtype);
                    handed.push_back(output);
                    for (int32_t back = 0; back < std::min(buffers - 1, step + 1); back++) {
                        const Download kept(handed[step - back]);
                        CHECK(std::all_of(kept.values.begin(), kept.values.end(),
                                          [&](float value) { return value == 0 || value == number_of(step - back); }));
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
    const Layer layer(gpu, GPU_POLYKERNEL(test_conv3_16_48), random);
    const int32_t batch = 2, height = 7, width = 37;
    const size_t pixels = static_cast<size_t>(batch) * height * width;
    const std::vector<float> input = draw(16 * pixels, random);
    const DeviceArray<float> device_input(input);
    const distile_tensor from = distile_tensor_make(device_input.data(), batch, height, width, 16);
    distile_tensor host_from = from;
    host_from.data = const_cast<float *>(input.data());
    const distile_output_spec spec{batch, height, width, 48, 1, 1, 1, 1, DISTILE_FLOAT32};
    for (const distile_clearing clearing : clearings) {
        // There are three buffers. No call of a shorter graph writes one of them, and two calls of a longer graph write
        // two of them.
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
            gpu.join(planner);
            const Graph graph(stream.get(), [&] {
                for (int32_t call = 0; call < calls; call++) {
                    record(call);
                }
                gpu.join(planner);
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
                    gpu.join(planner);
                }
            }
        }
    }
}
