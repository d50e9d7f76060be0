// The runtime for GPUs: what it says without one, and with one its masks, choices, graphs and errors.
#include "masks/mask_families.h"
#include "runtime/mask/mask.h"
#include "tests/gpu/every_polykernel.h"
#include "tests/support/catch.h"
#include "tests/support/conv2d_cases.h"
#include "tests/support/reference.h"
#include <array>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <random>

using namespace distile;

namespace {

std::vector<uint8_t> make_bytes(const std::string &name, int32_t batch, int32_t height, int32_t width) {
    std::mt19937 random(5);
    return make_mask(name, batch, height, width, random);
}

/** A kernel with its weights and its tensors on the device, and what the plain loop makes of the full mask. */
struct Problem {
    Problem(const Gpu &gpu, const distile_polykernel &polykernel, int32_t batch, int32_t height, int32_t width)
        : conv(convolution_of(polykernel)), math(math_of(polykernel)), kernel(gpu.make_kernel(polykernel)) {
        std::mt19937 random(3);
        const auto draw = [&](size_t count) {
            std::vector<float> values(count);
            for (float &value : values) {
                value = std::uniform_real_distribution<float>(-1, 1)(random);
            }
            return values;
        };
        args.conv = conv;
        args.filter = draw(static_cast<size_t>(conv.kernel_h) * conv.kernel_w * conv.in_channels * conv.out_channels);
        args.bias = draw(conv.out_channels);
        out_height = reference_output_height(conv, height);
        out_width = reference_output_width(conv, width);
        input_values = draw(static_cast<size_t>(batch) * height * width * conv.in_channels);
        before = draw(static_cast<size_t>(batch) * out_height * out_width * conv.out_channels);
        args.input = distile_tensor_make(input_values.data(), batch, height, width, conv.in_channels);
        residual_values = before;
        distile_tensor residual =
            distile_tensor_make(residual_values.data(), batch, out_height, out_width, conv.out_channels);
        args.residual = conv.residual != 0 ? &residual : nullptr;
        args.mask.assign(static_cast<size_t>(batch) * out_height * out_width, 1);
        full = reference_masked_conv2d(args);
        args.residual = nullptr;

        input_memory = std::make_unique<DeviceArray<float>>(input_values);
        output_memory = std::make_unique<DeviceArray<float>>(before);
        input = distile_tensor_make(input_memory->data(), batch, height, width, conv.in_channels);
        output = distile_tensor_make(output_memory->data(), batch, out_height, out_width, conv.out_channels);
        distile_weights_source source{};
        source.filter = args.filter.data();
        source.order = DISTILE_HWIO;
        source.bias = args.bias.data();
        weights = pack_weights(gpu.context, kernel, source);
    }

    distile_run_args run_args(distile_mask *mask) const {
        distile_run_args run{};
        run.input = &input;
        run.output = &output;
        // In place, so that the output before is the residual.
        run.residual = conv.residual != 0 ? &output : nullptr;
        run.weights = weights.get();
        run.mask = mask;
        return run;
    }

    /** "" if the output on the device is what must have become of `before`. */
    std::string difference(const std::vector<uint8_t> &bytes, distile_inactive inactive) const {
        return difference(output_memory->get(), bytes, inactive);
    }
    /** The difference of an output with these values. */
    std::string difference(const std::vector<float> &values, const std::vector<uint8_t> &bytes,
                           distile_inactive inactive) const {
        for (size_t pixel = 0; pixel < bytes.size(); pixel++) {
            for (int32_t c = 0; c < conv.out_channels; c++) {
                const size_t i = pixel * conv.out_channels + c;
                const bool active = bytes[pixel] != 0;
                const double expected = active ? full.exact[i] : inactive == DISTILE_ZERO ? 0 : before[i];
                const double tolerance = active ? error_bound(DISTILE_FLOAT32, expected, full.largest, math) : 0;
                if (!(std::abs(values[i] - expected) <= tolerance)) {
                    return "pixel " + std::to_string(pixel) + (active ? " (active)" : " (inactive)") + " channel " +
                           std::to_string(c) + ": " + std::to_string(values[i]) + ", not " + std::to_string(expected);
                }
            }
        }
        return "";
    }

    distile_conv2d conv;
    distile_math math;
    Kernel kernel;
    Weights weights;
    ReferenceArgs args;
    ReferenceOutput full;
    int32_t out_height = 0, out_width = 0;
    std::vector<float> input_values, residual_values, before;
    std::unique_ptr<DeviceArray<float>> input_memory, output_memory;
    distile_tensor input{}, output{};
};

void set_mask(const Gpu &gpu, distile_mask *mask, const DeviceArray<uint8_t> &bytes, const distile_tensor &output) {
    gpu.check(distile_mask_set_bytes(mask, bytes.data(), output.batch, output.height, output.width,
                                     int64_t{output.height} * output.width, output.width));
}

}  // namespace

TEST_CASE("Without a GPU or with the wrong arguments, a status and a sentence", "[cuda]") {
    distile_context *context = nullptr;
    CHECK(distile_cuda_context_create(nullptr, nullptr, nullptr) == DISTILE_ERROR_NULL_POINTER);
    distile_cuda_options options{};
    options.device = 1000;
    const distile_status status = distile_cuda_context_create(nullptr, &options, &context);
    CHECK((status == DISTILE_ERROR_NO_DRIVER || status == DISTILE_ERROR_NO_GPU));
    CHECK(std::strlen(distile_context_message(nullptr)) > 10);
    CHECK(context == nullptr);
    CHECK(distile_cuda_set_stream(nullptr, nullptr) == DISTILE_ERROR_NULL_POINTER);
    CHECK(distile_cuda_planner_join(nullptr) == DISTILE_ERROR_NULL_POINTER);
    CHECK(distile_cuda_last_choice(nullptr, nullptr) == DISTILE_ERROR_NULL_POINTER);
}

TEST_CASE("What only a GPU has, a context of a CPU refuses", "[cuda]") {
    const Context context = make_context();
    CHECK(distile_context_device(context.get()) == DISTILE_CPU);
    CHECK(distile_cuda_set_stream(context.get(), nullptr) == DISTILE_ERROR_OTHER_DEVICE);
    CHECK(std::string(distile_context_message(context.get())).find("distile_cuda_set_stream") != std::string::npos);
    const Planner planner = make_planner(context);
    CHECK(distile_cuda_planner_join(planner.get()) == DISTILE_ERROR_OTHER_DEVICE);
}

TEST_CASE("A PolyKernel for a GPU describes itself, and a CPU refuses it", "[cuda]") {
    for (const TestedPolykernel &tested : every_polykernel()) {
        const distile_polykernel *const polykernel = tested.polykernel;
        CAPTURE(polykernel->name);
        CHECK(polykernel->device == DISTILE_CUDA);
        CHECK(polykernel->num_variants > 1);
        const bool by_halide = polykernel->features == std::string("sm_70");
        if (!by_halide) {
            const std::string features = polykernel->features;
            CHECK((features == "sm_90a" || features == "sm_80"));
        }
        const bool is_float32 = type_of(*polykernel) == DISTILE_FLOAT32;
        const auto has_layout = [&](int32_t variant, const char *layout) {
            return polykernel->variants[variant].layout == std::string(layout);
        };
        // Code that skips zeros has Halide's beside it, for all weights.
        const bool skips_zeros = has_layout(0, "cuda-nonzeros");
        CHECK((polykernel->math == DISTILE_MATH_TF32) == (!by_halide && is_float32 && !skips_zeros));
        for (int32_t i = 0; i < polykernel->num_variants; i++) {
            CAPTURE(i);
            CHECK((has_layout(i, by_halide     ? "cuda-o32"
                                 : skips_zeros ? "cuda-nonzeros"
                                 : is_float32  ? "cuda-k32"
                                               : "cuda-k16") ||
                   (skips_zeros && has_layout(i, "cuda-o32"))));
        }
        const Context context = make_context();
        distile_kernel *kernel = nullptr;
        CHECK(distile_kernel_create(context.get(), polykernel, &kernel) == DISTILE_ERROR_OTHER_DEVICE);
        CHECK(std::string(distile_context_message(context.get())).find(polykernel->name) != std::string::npos);
    }
}

namespace {

/** "" if a mask on the GPU and one on the CPU have the same bits and the same tiles. */
std::string difference(const Gpu &gpu, const Mask &device, const Mask &host, int32_t rows, int32_t width) {
    const uint32_t *bits = nullptr, *host_bits = nullptr;
    int32_t words_per_row = 0, host_words_per_row = 0;
    gpu.check(distile_mask_bits(device.get(), &bits, &words_per_row));
    gpu.check_host(distile_mask_bits(host.get(), &host_bits, &host_words_per_row));
    REQUIRE(words_per_row == (width + 31) / 32);
    const std::vector<uint32_t> words = read_device(bits, static_cast<size_t>(rows) * words_per_row);
    for (int32_t row = 0; row < rows; row++) {
        for (int32_t i = 0; i < words_per_row; i++) {
            if (words[row * words_per_row + i] != host_bits[row * host_words_per_row + i]) {
                return "row " + std::to_string(row) + " has other bits in word " + std::to_string(i);
            }
        }
    }
    const Granularity granularities[] = {{1, 1}, {1, 4}, {2, 2}, {8, 8}, {3, 5}, {7, 33}, {40, 70}, {65535, 65535}};
    for (const Granularity &granularity : granularities) {
        distile_tile_list list{}, host_list{};
        gpu.check(distile_mask_tiles(device.get(), granularity.h, granularity.w, &list));
        gpu.check_host(distile_mask_tiles(host.get(), granularity.h, granularity.w, &host_list));
        if (!(tiles_of(list) == tiles_of(host_list))) {
            return "other tiles of " + std::to_string(granularity.h) + " x " + std::to_string(granularity.w);
        }
        int64_t count = -1;
        gpu.check(distile_mask_count_tiles(device.get(), granularity.h, granularity.w, &count));
        if (count != host_list.count) {
            return std::to_string(count) + " tiles, not " + std::to_string(host_list.count);
        }
    }
    int64_t active = -1, host_active = -2;
    gpu.check(distile_mask_active_pixels(device.get(), &active));
    gpu.check_host(distile_mask_active_pixels(host.get(), &host_active));
    return active == host_active ? "" : "another number of active pixels";
}

/** Masks of every family and many shapes. */
std::vector<std::pair<std::string, ByteMask>> many_masks() {
    const int32_t shapes[][3] = {{1, 1, 1}, {2, 17, 13}, {1, 64, 129}, {3, 40, 40}, {1, 256, 256}, {2, 300, 777}};
    std::vector<std::pair<std::string, ByteMask>> masks;
    std::mt19937 random(1);
    for (const auto &[batch, height, width] : shapes) {
        for (const char *name : mask_names) {
            masks.push_back({name, {batch, height, width, distile::make_mask(name, batch, height, width, random)}});
        }
    }
    for (const std::string &name : real_masks()) {
        masks.emplace_back(name, read_real_mask(name));
    }
    return masks;
}

}  // namespace

TEST_CASE("Masks on the GPU are those of the CPU", "[gpu]") {
    const Gpu gpu;
    if (!gpu) {
        return;
    }
    const Mask mask = gpu.make_mask(), expected = distile::make_mask(gpu.host);
    for (const auto &[name, byte_mask] : many_masks()) {
        const auto &[batch, height, width, bytes] = byte_mask;
        gpu.check_host(
            distile_mask_set_bytes(expected.get(), bytes.data(), batch, height, width, int64_t{height} * width, width));
        // Packed, and with bytes between the rows and the images, which would show as active pixels.
        for (const int32_t gap : {0, 5}) {
            CAPTURE(name, batch, height, width, gap);
            const int64_t stride_h = width + gap, stride_n = height * stride_h + gap;
            std::vector<uint8_t> spread(static_cast<size_t>(batch * stride_n - 2 * gap), 1);
            for (int64_t y = 0; y < int64_t{batch} * height; y++) {
                std::copy_n(&bytes[y * width], width, &spread[y / height * stride_n + y % height * stride_h]);
            }
            const DeviceArray<uint8_t> device_bytes(spread);
            gpu.check(
                distile_mask_set_bytes(mask.get(), device_bytes.data(), batch, height, width, stride_n, stride_h));
            CHECK(difference(gpu, mask, expected, batch * height, width) == "");
        }
    }
}

TEST_CASE("Masks from bits and from lists of pixels are those from bytes", "[gpu]") {
    const Gpu gpu;
    if (!gpu) {
        return;
    }
    std::mt19937 random(2);
    const Mask mask = gpu.make_mask(), expected = distile::make_mask(gpu.host);
    for (const auto &[name, byte_mask] : many_masks()) {
        const auto &[batch, height, width, bytes] = byte_mask;
        CAPTURE(name, batch, height, width);
        const int32_t rows = batch * height;
        gpu.check_host(
            distile_mask_set_bytes(expected.get(), bytes.data(), batch, height, width, int64_t{height} * width, width));
        // Bits beyond the width, and words beyond the row, hold anything.
        for (const int32_t gap : {0, 3}) {
            CAPTURE(gap);
            const int64_t words_per_row = (width + 31) / 32 + gap;
            std::vector<uint32_t> words(static_cast<size_t>(rows * words_per_row));
            for (uint32_t &word : words) {
                word = random();
            }
            for (int64_t row = 0; row < rows; row++) {
                for (int64_t x = 0; x < width; x++) {
                    const uint32_t bit = 1u << (x % 32);
                    uint32_t &word = words[row * words_per_row + x / 32];
                    word = bytes[row * width + x] != 0 ? word | bit : word & ~bit;
                }
            }
            const DeviceArray<uint32_t> device_words(words);
            gpu.check(distile_mask_set_bits(mask.get(), device_words.data(), batch, height, width, words_per_row));
            CHECK(difference(gpu, mask, expected, rows, width) == "");
        }
        // In any order, some twice, between indices outside of the image; and what is beyond the counts.
        const auto pixels = static_cast<int64_t>(height) * width;
        const int64_t stride = pixels + pixels / 2 + 9;
        std::vector<int32_t> lists, counts, padded;
        for (int32_t n = 0; n < batch; n++) {
            std::vector<int32_t> list;
            for (int64_t i = 0; i < pixels; i++) {
                for (int repeat = 0; bytes[n * pixels + i] != 0 && repeat < (i % 2 == 0 ? 2 : 1); repeat++) {
                    list.push_back(static_cast<int32_t>(i));
                }
            }
            for (int32_t outside : {-1, INT32_MIN, INT32_MAX, static_cast<int32_t>(pixels)}) {
                list.push_back(outside);
            }
            std::shuffle(list.begin(), list.end(), random);
            counts.push_back(static_cast<int32_t>(list.size()));
            list.resize(static_cast<size_t>(stride), 0);
            lists.insert(lists.end(), list.begin(), list.end());
            std::fill(list.begin() + counts.back(), list.end(), -1);
            padded.insert(padded.end(), list.begin(), list.end());
        }
        const DeviceArray<int32_t> device_lists(lists), device_counts(counts), device_padded(padded);
        gpu.check(distile_mask_set_indices(mask.get(), device_lists.data(), device_counts.data(), batch, height, width,
                                           stride));
        CHECK(difference(gpu, mask, expected, rows, width) == "");
        gpu.check(distile_mask_set_indices(mask.get(), device_padded.data(), nullptr, batch, height, width, stride));
        CHECK(difference(gpu, mask, expected, rows, width) == "");
        // Counts are clamped to the lists' length.
        const DeviceArray<int32_t> wild(std::vector<int32_t>(batch, INT32_MAX)),
            negative(std::vector<int32_t>(batch, INT32_MIN));
        gpu.check(
            distile_mask_set_indices(mask.get(), device_padded.data(), wild.data(), batch, height, width, stride));
        CHECK(difference(gpu, mask, expected, rows, width) == "");
        const std::vector<uint8_t> none(bytes.size(), 0);
        gpu.check_host(distile_mask_set_bytes(expected.get(), none.data(), batch, height, width, pixels, width));
        gpu.check(
            distile_mask_set_indices(mask.get(), device_padded.data(), negative.data(), batch, height, width, stride));
        CHECK(difference(gpu, mask, expected, rows, width) == "");
        gpu.check(distile_mask_set_indices(mask.get(), device_padded.data(), nullptr, batch, height, width, 0));
        CHECK(difference(gpu, mask, expected, rows, width) == "");
    }
}

TEST_CASE("The host's path takes the variant that the time table says is fastest", "[gpu]") {
    const Gpu gpu;
    if (!gpu) {
        return;
    }
    Problem problem(gpu, test_odd_cuda, 1, 40, 40);
    const std::vector<uint8_t> bytes = make_bytes("blob", 1, problem.out_height, problem.out_width);
    const DeviceArray<uint8_t> device_bytes(bytes);
    const Mask mask = gpu.make_mask();
    distile_kernel *variants = problem.kernel.get();
    double time = 100;
    for (int32_t i = distile_kernel_num_variants(variants) - 1; i >= 0; i--) {
        const char *name = distile_kernel_variant_name(variants, i);
        CAPTURE(name);
        time /= 2;
        gpu.check(distile_kernel_add_time(variants, name, 1000000, time));
        set_mask(gpu, mask.get(), device_bytes, problem.output);
        problem.output_memory->set(problem.before);
        const distile_run_args args = problem.run_args(mask.get());
        gpu.check(distile_run(problem.kernel.get(), &args));
        CHECK(problem.difference(bytes, DISTILE_KEEP) == "");
    }
}

TEST_CASE("The path without a wait runs in a graph, with other masks at every launch", "[gpu]") {
    const Gpu gpu;
    if (!gpu) {
        return;
    }
    const StreamInUse stream(gpu);
    for (const distile_polykernel *polykernel : {&test_odd_cuda, gpu_polykernels[0]}) {
        Problem problem(gpu, *polykernel, 2, 20, 24);
        distile_kernel *variants = problem.kernel.get();
        const DeviceArray<uint8_t> bytes(make_bytes("full", 2, problem.out_height, problem.out_width));
        for (int32_t i = 0; i < polykernel->num_variants; i++) {
            const Mask mask = gpu.make_mask();
            distile_run_args args = problem.run_args(mask.get());
            args.inactive = DISTILE_ZERO;
            args.variant = distile_kernel_variant_name(variants, i);
            CAPTURE(polykernel->name, args.variant);
            set_mask(gpu, mask.get(), bytes, problem.output);
            gpu.check(distile_run(problem.kernel.get(), &args));
            const Graph graph(stream.get(), [&] {
                set_mask(gpu, mask.get(), bytes, problem.output);
                gpu.check(distile_run(problem.kernel.get(), &args));
                // What only the host can decide, it must refuse, and the capture goes on.
                distile_choice choice{};
                CHECK(distile_kernel_choose(problem.kernel.get(), mask.get(), &choice) == DISTILE_ERROR_CAPTURING);
            });
            for (const char *family : mask_names) {
                CAPTURE(family);
                const std::vector<uint8_t> now = make_bytes(family, 2, problem.out_height, problem.out_width);
                DeviceArray<uint8_t> source(now);
                CU(cuMemcpyDtoD, reinterpret_cast<CUdeviceptr>(bytes.data()),
                   reinterpret_cast<CUdeviceptr>(source.data()), now.size());
                problem.output_memory->set(problem.before);
                graph.launch();
                CHECK(problem.difference(now, DISTILE_ZERO) == "");
            }
        }
    }
}

TEST_CASE("A mask may be set while the operator that uses it still runs", "[gpu]") {
    const Gpu gpu;
    if (!gpu) {
        return;
    }
    const StreamInUse stream(gpu);
    for (const distile_polykernel *polykernel : {&test_odd_cuda, gpu_polykernels[0]}) {
        const Problem problem(gpu, *polykernel, 2, 20, 24);
        std::vector<std::vector<uint8_t>> masks;
        std::vector<std::unique_ptr<DeviceArray<uint8_t>>> sources;
        std::vector<std::unique_ptr<DeviceArray<float>>> outputs;
        for (const char *family : mask_names) {
            masks.push_back(make_bytes(family, 2, problem.out_height, problem.out_width));
            sources.push_back(std::make_unique<DeviceArray<uint8_t>>(masks.back()));
            outputs.push_back(std::make_unique<DeviceArray<float>>(problem.before));
        }
        for (int32_t variant = 0; variant < polykernel->num_variants; variant++) {
            const Mask mask = gpu.make_mask();
            const auto run_all = [&] {
                for (size_t i = 0; i < masks.size(); i++) {
                    // No operator uses the first.
                    set_mask(gpu, mask.get(), *sources[(i + 1) % masks.size()], problem.output);
                    set_mask(gpu, mask.get(), *sources[i], problem.output);
                    distile_tensor output = problem.output;
                    output.data = outputs[i]->data();
                    distile_run_args args = problem.run_args(mask.get());
                    args.output = &output;
                    args.residual = args.residual ? &output : nullptr;
                    args.variant = distile_kernel_variant_name(problem.kernel.get(), variant);
                    gpu.check(distile_run(problem.kernel.get(), &args));
                }
            };
            const auto check_all = [&] {
                for (size_t i = 0; i < masks.size(); i++) {
                    CAPTURE(polykernel->name, variant, mask_names[i]);
                    CHECK(problem.difference(outputs[i]->get(), masks[i], DISTILE_KEEP) == "");
                    outputs[i]->set(problem.before);
                }
            };
            run_all();
            check_all();
            const Graph graph(stream.get(), run_all);
            for (int round = 0; round < 2; round++) {
                graph.launch();
                check_all();
            }
        }
    }
}

TEST_CASE("Graphs that set one mask to other shapes list what it is at each launch", "[gpu]") {
    const Gpu gpu;
    if (!gpu) {
        return;
    }
    struct Recorded {
        std::unique_ptr<DeviceArray<uint8_t>> bytes;
        std::vector<distile_tile_list> lists;
        std::unique_ptr<Graph> graph;
    };
    const StreamInUse stream(gpu);
    const Mask mask = gpu.make_mask(), expected = distile::make_mask(gpu.host);
    const Granularity granularities[] = {{1, 1}, {2, 3}, {8, 8}};
    // A single pixel, rows that end within a word, and up to more blocks than one look takes in.
    const int32_t shapes[][3] = {{1, 1, 1}, {1, 40, 40}, {32, 40, 33}, {4, 128, 128}, {1, 256, 256}, {33, 256, 250}};
    std::vector<Recorded> recorded;
    for (const auto &[batch, height, width] : shapes) {
        const distile_tensor shape = distile_tensor_make(nullptr, batch, height, width, 1);
        Recorded one;
        one.bytes = std::make_unique<DeviceArray<uint8_t>>(make_bytes("full", batch, height, width));
        const auto record = [&] {
            set_mask(gpu, mask.get(), *one.bytes, shape);
            one.lists.clear();
            for (const Granularity &granularity : granularities) {
                one.lists.emplace_back();
                gpu.check(distile_mask_tiles(mask.get(), granularity.h, granularity.w, &one.lists.back()));
            }
        };
        // From the second time on, the lists are made with the mask.
        record();
        record();
        one.graph = std::make_unique<Graph>(stream.get(), record);
        recorded.push_back(std::move(one));
    }
    for (const char *family : mask_names) {
        for (size_t i = 0; i < recorded.size(); i++) {
            const auto &[batch, height, width] = shapes[i];
            CAPTURE(family, batch, height, width);
            const std::vector<uint8_t> bytes = make_bytes(family, batch, height, width);
            recorded[i].bytes->set(bytes);
            gpu.check_host(distile_mask_set_bytes(expected.get(), bytes.data(), batch, height, width,
                                                  int64_t{height} * width, width));
            // The second must not take what the first has left for its own.
            recorded[i].graph->launch();
            recorded[i].graph->launch();
            for (size_t j = 0; j < recorded[i].lists.size(); j++) {
                distile_tile_list list{};
                gpu.check_host(distile_mask_tiles(expected.get(), granularities[j].h, granularities[j].w, &list));
                CHECK((tiles_of(recorded[i].lists[j]) == tiles_of(list)));
            }
        }
    }
}

TEST_CASE("A graph of a dense variant computes the same after its kernel met another shape", "[gpu]") {
    const Gpu gpu;
    if (!gpu) {
        return;
    }
    const StreamInUse stream(gpu);
    // The second fits the memory of the first.
    const Problem first(gpu, test_odd_cuda, 2, 20, 24), second(gpu, test_odd_cuda, 1, 13, 21);
    const std::vector<uint8_t> bytes = make_bytes("blob", 2, first.out_height, first.out_width);
    const std::vector<uint8_t> others = make_bytes("blob", 1, second.out_height, second.out_width);
    const DeviceArray<uint8_t> device_bytes(bytes), other_bytes(others);
    const Mask mask = gpu.make_mask();
    const auto run = [&](const Problem &problem, const DeviceArray<uint8_t> &source) {
        distile_run_args args = problem.run_args(mask.get());
        args.variant = "dense";
        set_mask(gpu, mask.get(), source, problem.output);
        gpu.check(distile_run(first.kernel.get(), &args));
    };
    run(first, device_bytes);
    const Graph graph(stream.get(), [&] { run(first, device_bytes); });
    for (int round = 0; round < 2; round++) {
        second.output_memory->set(second.before);
        run(second, other_bytes);
        CHECK(second.difference(others, DISTILE_KEEP) == "");
        first.output_memory->set(first.before);
        graph.launch();
        CHECK(first.difference(bytes, DISTILE_KEEP) == "");
    }
}

TEST_CASE("Lists that are made outside of the graph that sets their mask are those of its last launch", "[gpu]") {
    const Gpu gpu;
    if (!gpu) {
        return;
    }
    const StreamInUse stream(gpu);
    constexpr int32_t height = 37, width = 41;
    const distile_tensor shape = distile_tensor_make(nullptr, 1, height, width, 1);
    DeviceArray<uint8_t> device_bytes(make_bytes("full", 1, height, width));
    const Mask mask = gpu.make_mask();
    set_mask(gpu, mask.get(), device_bytes, shape);
    const Graph graph(stream.get(), [&] { set_mask(gpu, mask.get(), device_bytes, shape); });
    for (const char *family : mask_names) {
        CAPTURE(family);
        const std::vector<uint8_t> bytes = make_bytes(family, 1, height, width);
        device_bytes.set(bytes);
        graph.launch();
        distile_tile_list list{};
        gpu.check(distile_mask_tiles(mask.get(), 3, 5, &list));
        CHECK(tiles_of(list).xy.size() == static_cast<size_t>(reference_active_tiles(bytes, 1, height, width, 3, 5)));
    }
}

TEST_CASE("Bad arguments and faults give a status, and nothing is written", "[gpu]") {
    const Gpu gpu;
    if (!gpu) {
        return;
    }
    Problem problem(gpu, *gpu_polykernels[0], 1, 12, 12);
    const std::vector<uint8_t> bytes = make_bytes("full", 1, problem.out_height, problem.out_width);
    const DeviceArray<uint8_t> device_bytes(bytes);
    const Mask mask = gpu.make_mask();
    const auto run = [&](const distile_run_args &args) {
        const distile_status status = distile_run(problem.kernel.get(), &args);
        CHECK(std::strlen(distile_context_message(gpu.context.get())) > 10);
        return status;
    };
    const distile_run_args good = problem.run_args(mask.get());
    CHECK(run(good) == DISTILE_ERROR_BAD_MASK);
    CHECK(distile_mask_set_bytes(mask.get(), bytes.data(), 1, 12, 12, 144, 12) == DISTILE_ERROR_NOT_DEVICE_MEMORY);
    CHECK(distile_mask_set_bytes(mask.get(), device_bytes.data(), 1, 12, 12, 144, 11) == DISTILE_ERROR_BAD_STRIDE);
    CHECK(distile_mask_set_bytes(mask.get(), device_bytes.data(), 0, 12, 12, 144, 12) == DISTILE_ERROR_BAD_SHAPE);
    set_mask(gpu, mask.get(), device_bytes, problem.output);
    distile_run_args bad = good;
    bad.variant = "none";
    CHECK(run(bad) == DISTILE_ERROR_BAD_VALUE);
    distile_tensor tensor = problem.input;
    bad = good;
    bad.input = &tensor;
    tensor.data = problem.input_values.data();
    CHECK(run(bad) == DISTILE_ERROR_NOT_DEVICE_MEMORY);
    tensor = problem.output;
    bad = good;
    bad.output = &tensor;
    tensor.data = static_cast<float *>(tensor.data) + 1;
    CHECK(run(bad) == DISTILE_ERROR_BAD_ALIGNMENT);
    tensor = problem.output;
    tensor.channels = 3;
    CHECK(run(bad) == DISTILE_ERROR_BAD_CHANNELS);
    CHECK(problem.output_memory->get() == problem.before);
    const distile_status status = distile_run(problem.kernel.get(), &good);
    gpu.check(status);
    CHECK(problem.difference(bytes, DISTILE_KEEP) == "");

    // A PolyKernel that only a later GPU runs.
    distile_polykernel later = *gpu_polykernels[0];
    later.features = "sm_990";
    later.fallback = nullptr;
    distile_kernel *kernel = nullptr;
    CHECK(distile_kernel_create(gpu.context.get(), &later, &kernel) == DISTILE_ERROR_UNSUPPORTED_DEVICE);
}

TEST_CASE("Memory that runs out gives a status", "[gpu_faults]") {
    const Gpu gpu;
    if (!gpu) {
        return;
    }
    const Mask mask = gpu.make_mask();
    size_t free = 0, total = 0;
    CU(cuMemGetInfo, &free, &total);
    std::vector<CUdeviceptr> taken;
    // All but a little, in ever smaller pieces.
    for (size_t piece = free; piece >= (size_t{1} << 20); piece /= 2) {
        CUdeviceptr block = 0;
        try {
            CU(cuMemAlloc, &block, piece);
            taken.push_back(block);
        } catch (const std::exception &) {}
    }
    const uint8_t *bytes = reinterpret_cast<const uint8_t *>(taken.at(0));
    CHECK(distile_mask_set_bytes(mask.get(), bytes, 64, 4096, 4096, 4096 * 4096, 4096) ==
          DISTILE_ERROR_OUT_OF_DEVICE_MEMORY);
    for (CUdeviceptr block : taken) {
        CU(cuMemFree, block);
    }
    const DeviceArray<uint8_t> small(std::vector<uint8_t>(64, 1));
    gpu.check(distile_mask_set_bytes(mask.get(), small.data(), 1, 8, 8, 64, 8));
}

// Runs in its own process, because nothing in a process has a GPU after it.
TEST_CASE("A context that was lost says so", "[.lost_context]") {
    const Gpu gpu;
    REQUIRE(gpu);
    const Mask mask = gpu.make_mask();
    // The bytes are the device's, but far fewer than the strides say.
    const DeviceArray<uint8_t> few(std::vector<uint8_t>(64, 1));
    (void)distile_mask_set_bytes(mask.get(), few.data(), 2, 8, 8, int64_t{1} << 46, 8);
    distile_tile_list list{};
    try {
        CU(cuCtxSynchronize);
        FAIL("nothing went wrong");
    } catch (const std::runtime_error &) {}
    CHECK(distile_mask_tiles(mask.get(), 1, 1, &list) == DISTILE_ERROR_DEVICE_LOST);
    INFO(distile_context_message(gpu.context.get()));
    CHECK(distile_mask_set_bytes(mask.get(), few.data(), 1, 8, 8, 64, 8) == DISTILE_ERROR_DEVICE_LOST);
}

TEST_CASE("A context that was lost gives a status", "[gpu_faults]") {
    if (!Gpu()) {
        return;
    }
    const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe");
    const std::string command = "'" + self.string() + "' '[.lost_context]' 2>&1";
    std::string said;
    FILE *pipe = popen(command.c_str(), "r");
    REQUIRE(pipe != nullptr);
    std::array<char, 512> buffer{};
    while (fgets(buffer.data(), static_cast<int>(buffer.size()), pipe)) {
        said += buffer.data();
    }
    const int status = pclose(pipe);
    INFO(said);
    CHECK(status == 0);
    CHECK(said.find("All tests passed") != std::string::npos);
}
