// Normalization, packing and cumulative lengths on a GPU, against plain loops.
#include "reference/plain_tokens.h"
#include "tests/gpu/device_tensor.h"
#include "tests/gpu/gpu_session.h"
#include "tests/support/catch.h"
#include "tests/support/conv2d_cases.h"
#include <algorithm>
#include <cmath>
#include <distile/tokens.h>
#include <random>

using namespace distile;

namespace {

/** Gaps between pixels, rows and images: none, whole vectors, and odd ones. */
constexpr TensorLayout layouts[] = {{}, {8, 16, 24}, {3, 5, 7}};

std::vector<float> draw_around(float mean, float spread, size_t count, std::mt19937 &random) {
    std::normal_distribution<float> normal(mean, spread);
    std::vector<float> values(count);
    std::generate(values.begin(), values.end(), [&] { return normal(random); });
    return values;
}

/** A call on a GPU, its arguments in turns. */
void run_normalization(const Gpu &gpu, const Mask &mask, distile_dtype dtype, const std::vector<int32_t> &shape,
                       int32_t channels, int number, std::mt19937 &random) {
    const int32_t batch = shape[0], height = shape[1], width = shape[2];
    const char *name = mask_names[number % std::size(mask_names)];
    const bool in_place = number % 4 == 0;
    // Vectors of every alignment.
    const size_t gamma_at = number % 5 == 0 ? 1 : 0;
    PlainNorm norm;
    norm.norm = number % 5 < 3 ? DISTILE_LAYER_NORM : DISTILE_RMS_NORM;
    norm.epsilon = number % 2 == 0 ? 1e-5f : 0.25f;
    if (number % 4 != 1) {
        norm.gamma = draw_around(1, 0.5f, channels, random);
    }
    if (number % 4 < 2) {
        norm.beta = draw_around(0, 1, channels, random);
    }
    const distile_inactive inactive = number / 3 % 2 == 0 ? DISTILE_KEEP : DISTILE_ZERO;
    CAPTURE(dtype, batch, height, width, channels, name, in_place, norm.norm, norm.epsilon, inactive, number);
    const std::vector<uint8_t> active = make_mask(name, batch, height, width, random);
    TestTensor input(batch, height, width, channels, layouts[number / 2 % std::size(layouts)], Flush::Back, dtype);
    TestTensor output(batch, height, width, channels, layouts[number / 5 % std::size(layouts)], Flush::Back, dtype);
    // Inactive pixels are what a TestTensor begins with: NaN.
    for_each_pixel(input.view(), [&](size_t pixel, int32_t n, int32_t y, int32_t x) {
        for (int32_t c = 0; c < channels && active[pixel] != 0; c++) {
            input.set(n, y, x, c, draw(Values::Floats, random) + 3);
        }
    });
    const ReferenceOutput expected = plain_normalize(input.view(), active, norm, inactive);
    TestTensor &written = in_place ? input : output;
    const std::vector<uint32_t> before = written.snapshot();
    DeviceTensor device_input(input, number % 3 == 0), device_output(output, number % 3 == 1);
    DeviceTensor &device_written = in_place ? device_input : device_output;
    std::vector<float> gamma(gamma_at);
    gamma.insert(gamma.end(), norm.gamma.begin(), norm.gamma.end());
    const DeviceArray<float> device_gamma(gamma.empty() ? std::vector<float>(1) : gamma);
    const DeviceArray<float> device_beta(norm.beta.empty() ? std::vector<float>(1) : norm.beta);
    const DeviceArray<uint8_t> bytes(active);
    set_mask(gpu, mask, bytes, batch, height, width);
    distile_normalize_args args{};
    args.input = &device_input.view();
    args.output = &device_written.view();
    args.mask = mask.get();
    args.gamma = norm.gamma.empty() ? nullptr : device_gamma.data() + gamma_at;
    args.beta = norm.beta.empty() ? nullptr : device_beta.data();
    args.norm = norm.norm;
    args.epsilon = norm.epsilon;
    args.inactive = inactive;
    gpu.check(distile_normalize(gpu.context.get(), &args));
    REQUIRE(device_written.download());
    REQUIRE(written.difference(before, expected) == "");
}

}  // namespace

TEST_CASE("Normalization on a GPU computes what the plain loops do, and touches nothing else", "[gpu_tokens]") {
    const Gpu gpu;
    if (!gpu) {
        return;
    }
    std::mt19937 random(41);
    const Mask mask = gpu.make_mask();
    const std::vector<int32_t> shapes[] = {{1, 1, 1}, {2, 7, 9}, {3, 1, 33}, {1, 1, 197}};
    int cases = 0;
    for (distile_dtype dtype : float_types) {
        for (int32_t channels : {1, 2, 3, 8, 17, 64, 72, 130, 384, 1000, 1032}) {
            for (const std::vector<int32_t> &shape : shapes) {
                run_normalization(gpu, mask, dtype, shape, channels, cases++, random);
            }
        }
        // Every number of threads for a pixel, and those that do not keep it in registers.
        for (int32_t channels : {2048, 3072, 4096, 4104, 8192, 8200, 65535}) {
            for (int i = 0; i < 3; i++) {
                run_normalization(gpu, mask, dtype, {1, 1, 9}, channels, cases++, random);
            }
        }
        // More tokens than the chip holds at once.
        run_normalization(gpu, mask, dtype, {2, 1, 20000}, 16, 1 + 11 * cases, random);
        run_normalization(gpu, mask, dtype, {2, 1, 20000}, 24, 7 + 11 * cases, random);
    }
}

TEST_CASE("A large mean cancels nothing on a GPU", "[gpu_tokens]") {
    const Gpu gpu;
    if (!gpu) {
        return;
    }
    std::mt19937 random(42);
    constexpr int32_t tokens = 5;
    const Mask mask = gpu.make_mask();
    const std::vector<uint8_t> active(tokens, 1);
    const DeviceArray<uint8_t> bytes(active);
    set_mask(gpu, mask, bytes, 1, 1, tokens);
    for (int32_t channels : {2, 16, 100, 1024, 16384}) {
        for (float mean : {0.0f, 100.0f, -1e4f, 1e6f}) {
            for (float spread : {1e-2f, 1.0f, 1e3f}) {
                CAPTURE(channels, mean, spread);
                std::vector<float> values = draw_around(mean, spread, size_t{tokens} * channels, random);
                const distile_tensor host = distile_tokens_make(values.data(), 1, tokens, channels);
                PlainNorm norm;
                norm.epsilon = 1e-6f;
                const ReferenceOutput expected = plain_normalize(host, active, norm, DISTILE_KEEP);
                const DeviceArray<float> memory(values);
                distile_tensor tensor = host;
                tensor.data = memory.data();
                distile_normalize_args args{};
                args.input = args.output = &tensor;
                args.mask = mask.get();
                args.epsilon = norm.epsilon;
                gpu.check(distile_normalize(gpu.context.get(), &args));
                const std::vector<float> found = memory.get();
                double largest_error = 0;
                for (size_t i = 0; i < found.size(); i++) {
                    const double error = std::abs(found[i] - expected.exact[i]);
                    largest_error = std::max(largest_error, std::isnan(error) ? 1e9 : error);
                }
                REQUIRE(largest_error <= 1e-5 * std::max(1.0, expected.largest));
            }
        }
    }
}

TEST_CASE("Pixels are packed on a GPU in order and come back, as far as there is room", "[gpu_tokens]") {
    const Gpu gpu;
    if (!gpu) {
        return;
    }
    std::mt19937 random(43);
    const Mask mask = gpu.make_mask();
    const int32_t shapes[][3] = {{1, 1, 1}, {2, 7, 9}, {3, 1, 33}, {1, 1, 197}, {2, 3, 130}, {3, 1, 20000}};
    int cases = 0;
    for (distile_dtype dtype : float_types) {
        for (int32_t channels : {1, 3, 8, 17, 96, 264}) {
            for (const auto &[batch, height, width] : shapes) {
                // The large one once for each width of what is moved at once.
                if (int64_t{batch} * width * channels > 1000000 || (width > 1000 && channels == 3)) {
                    continue;
                }
                for (int turn = 0; turn < 3; turn++) {
                    const int number = cases++;
                    const char *name = mask_names[number % std::size(mask_names)];
                    const distile_inactive inactive = number % 2 == 0 ? DISTILE_KEEP : DISTILE_ZERO;
                    CAPTURE(dtype, channels, batch, height, width, name, number);
                    const std::vector<uint8_t> active = make_mask(name, batch, height, width, random);
                    const auto count = static_cast<int32_t>(
                        std::count_if(active.begin(), active.end(), [](uint8_t byte) { return byte != 0; }));
                    const DeviceArray<uint8_t> bytes(active);
                    set_mask(gpu, mask, bytes, batch, height, width);
                    TestTensor tensor(batch, height, width, channels, layouts[number % std::size(layouts)], Flush::Back,
                                      dtype);
                    tensor.draw(Values::Floats, random);
                    // Too little room, just enough, and more; in one row or in several images.
                    const int32_t room = std::max(count + (turn - 1) * 5, 1);
                    const bool one_row = number % 5 != 0;
                    TestTensor packed(one_row ? 1 : 2, one_row ? 1 : 3,
                                      std::min(one_row ? room : (room + 5) / 6, 65535), channels,
                                      layouts[number / 3 % std::size(layouts)], Flush::Back, dtype);
                    const distile_tensor &into = packed.view();
                    const size_t capacity = size_t{1} * into.batch * into.height * into.width;
                    const std::vector<uint32_t> packed_before = packed.snapshot();
                    DeviceTensor device_tensor(tensor, number % 3 == 0), device_packed(packed, number % 3 == 1);
                    gpu.check(
                        distile_pack(gpu.context.get(), &device_tensor.view(), mask.get(), &device_packed.view()));
                    REQUIRE(device_packed.download());
                    REQUIRE(packed.difference(packed_before, plain_pack(tensor.view(), active, capacity), 0) == "");
                    const std::vector<uint32_t> tensor_before = tensor.snapshot();
                    REQUIRE(device_tensor.download());
                    REQUIRE((tensor.snapshot() == tensor_before));

                    packed.draw(Values::Floats, random);
                    device_packed.upload();
                    gpu.check(distile_unpack(gpu.context.get(), &device_packed.view(), mask.get(),
                                             &device_tensor.view(), inactive));
                    REQUIRE(device_tensor.download());
                    REQUIRE(tensor.difference(tensor_before, plain_unpack(packed.view(), active, inactive), 0) == "");
                }
            }
        }
    }
}

TEST_CASE("Cumulative lengths on a GPU count the pixels before every image", "[gpu_tokens]") {
    const Gpu gpu;
    if (!gpu) {
        return;
    }
    std::mt19937 random(44);
    const Mask mask = gpu.make_mask();
    // One mask is a single image with more words than a block counts.
    const int32_t shapes[][3] = {{1, 1, 1},     {2, 7, 9},     {5, 1, 197},     {3, 40, 70},
                                 {3000, 1, 40}, {1, 1, 65535}, {2, 2500, 2000}, {1, 1, 4096}};
    for (const auto &[batch, height, width] : shapes) {
        const int32_t *address = nullptr;
        for (const char *name : {"empty", "full", "corners", "random", "blob", "one image"}) {
            CAPTURE(batch, height, width, name);
            if (height * width > 1000000 && name[0] == 'b') {
                continue;
            }
            const std::vector<uint8_t> active = make_mask(name, batch, height, width, random);
            const DeviceArray<uint8_t> bytes(active);
            set_mask(gpu, mask, bytes, batch, height, width);
            for (int round = 0; round < 2; round++) {
                const int32_t *lengths = nullptr;
                gpu.check(distile_mask_cumulative_lengths(mask.get(), &lengths));
                CHECK((address == nullptr || address == lengths));
                address = lengths;
                REQUIRE((read_device(lengths, batch + 1) == plain_lengths(active, batch)));
            }
        }
    }
}

TEST_CASE("A graph normalizes, packs and counts whatever its mask then is", "[gpu_tokens]") {
    const Gpu gpu;
    if (!gpu) {
        return;
    }
    const StreamInUse stream(gpu);
    std::mt19937 random(45);
    constexpr int32_t batch = 3, tokens = 100, channels = 40, capacity = batch * tokens;
    const Mask mask = gpu.make_mask();
    const std::vector<float> values = draw_around(1, 2, size_t{capacity} * channels, random);
    DeviceArray<float> input_memory(values), normalized_memory(values.size()), packed_memory(values.size()),
        output_memory(values.size());
    DeviceArray<uint8_t> bytes(std::vector<uint8_t>(capacity, 1));
    const distile_tensor input = distile_tokens_make(input_memory.data(), batch, tokens, channels);
    const distile_tensor normalized = distile_tokens_make(normalized_memory.data(), batch, tokens, channels);
    const distile_tensor packed = distile_tokens_make(packed_memory.data(), 1, capacity, channels);
    const distile_tensor output = distile_tokens_make(output_memory.data(), batch, tokens, channels);
    distile_normalize_args args{};
    args.input = &input;
    args.output = &normalized;
    args.mask = mask.get();
    args.inactive = DISTILE_ZERO;
    args.epsilon = 1e-5f;
    const int32_t *lengths = nullptr;
    const auto record = [&] {
        set_mask(gpu, mask, bytes, batch, 1, tokens);
        gpu.check(distile_mask_cumulative_lengths(mask.get(), &lengths));
        gpu.check(distile_normalize(gpu.context.get(), &args));
        gpu.check(distile_pack(gpu.context.get(), &normalized, mask.get(), &packed));
        gpu.check(distile_unpack(gpu.context.get(), &packed, mask.get(), &output, DISTILE_ZERO));
    };
    record();
    const Graph graph(stream.get(), record);
    for (const char *name : {"random", "empty", "blob", "full", "one image"}) {
        CAPTURE(name);
        const std::vector<uint8_t> active = make_mask(name, batch, 1, tokens, random);
        bytes.set(active);
        graph.launch();
        stream.finish();
        CHECK((read_device(lengths, batch + 1) == plain_lengths(active, batch)));
        distile_tensor host = input;
        host.data = const_cast<float *>(values.data());
        PlainNorm norm;
        norm.epsilon = args.epsilon;
        const ReferenceOutput expected = plain_normalize(host, active, norm, DISTILE_ZERO);
        const std::vector<float> found = output_memory.get();
        double largest_error = 0;
        for (size_t i = 0; i < found.size(); i++) {
            largest_error = std::max(largest_error, std::abs(found[i] - expected.exact[i]));
        }
        CHECK(largest_error <= 1e-5 * std::max(1.0, expected.largest));
    }
}
