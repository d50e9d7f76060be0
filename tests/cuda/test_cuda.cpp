// The runtime for GPUs: what it says without one, and with one its masks, choices, graphs and errors.
#include "bitmask.h"
#include "catch.h"
#include "conv2d_cases.h"
#include "gpu_session.h"
#include "mask_families.h"
#include "reference.h"
#include "test_cuda_polykernels.h"
#include <cmath>
#include <cstring>
#include <distile/cuda.h>
#include <distile/distile.hpp>
#include <distile/polykernel.h>
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
        : conv(polykernel.conv2d), kernel(gpu.make_kernel(&polykernel)) {
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
        distile_cuda_weights *packed = nullptr;
        gpu.check(distile_cuda_weights_pack(kernel.get(), &source, &packed));
        weights.reset(packed);
    }

    distile_cuda_run_args run_args(distile_cuda_mask *mask) const {
        distile_cuda_run_args run{};
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
        const std::vector<float> values = output_memory->get();
        const double tolerance = 2e-5 * full.largest;
        for (size_t pixel = 0; pixel < bytes.size(); pixel++) {
            for (int32_t c = 0; c < conv.out_channels; c++) {
                const size_t i = pixel * conv.out_channels + c;
                const bool active = bytes[pixel] != 0;
                const float expected = active ? full.values[i] : inactive == DISTILE_ZERO ? 0 : before[i];
                if (!(std::abs(values[i] - expected) <= (active ? tolerance : 0))) {
                    return "pixel " + std::to_string(pixel) + (active ? " (active)" : " (inactive)") + " channel " +
                           std::to_string(c) + ": " + std::to_string(values[i]) + ", not " + std::to_string(expected);
                }
            }
        }
        return "";
    }

    distile_conv2d conv;
    Owned<distile_cuda_kernel> kernel;
    Owned<distile_cuda_weights> weights;
    ReferenceArgs args;
    ReferenceOutput full;
    int32_t out_height = 0, out_width = 0;
    std::vector<float> input_values, residual_values, before;
    std::unique_ptr<DeviceArray<float>> input_memory, output_memory;
    distile_tensor input{}, output{};
};

void set_mask(const Gpu &gpu, distile_cuda_mask *mask, const DeviceArray<uint8_t> &bytes,
              const distile_tensor &output) {
    gpu.check(distile_cuda_mask_set_bytes(mask, bytes.data(), output.batch, output.height, output.width,
                                          int64_t{output.height} * output.width, output.width));
}

}  // namespace

TEST_CASE("Without a GPU or with the wrong arguments, a status and a sentence", "[cuda]") {
    const Context context = make_context();
    distile_cuda *cuda = nullptr;
    CHECK(distile_cuda_create(nullptr, nullptr, &cuda) == DISTILE_ERROR_NULL_POINTER);
    CHECK(distile_cuda_create(context.get(), nullptr, nullptr) == DISTILE_ERROR_NULL_POINTER);
    distile_cuda_options options{};
    options.device = 1000;
    const distile_status status = distile_cuda_create(context.get(), &options, &cuda);
    CHECK((status == DISTILE_ERROR_NO_DRIVER || status == DISTILE_ERROR_NO_GPU));
    CHECK(std::strlen(distile_context_message(context.get())) > 10);
    CHECK(cuda == nullptr);
    distile_cuda_destroy(nullptr);
    distile_cuda_mask_destroy(nullptr);
    distile_cuda_kernel_destroy(nullptr);
    distile_cuda_weights_destroy(nullptr);
    CHECK(distile_cuda_kernel_variants(nullptr) == nullptr);
    CHECK(distile_cuda_run(nullptr, nullptr) == DISTILE_ERROR_NULL_POINTER);
    CHECK(distile_cuda_set_stream(nullptr, nullptr) == DISTILE_ERROR_NULL_POINTER);
}

TEST_CASE("A PolyKernel for a GPU describes itself, and a CPU refuses it", "[cuda]") {
    for (const distile_polykernel *polykernel : test_cuda_polykernels) {
        CAPTURE(polykernel->name);
        CHECK(polykernel->compute_capability == 70);
        CHECK(polykernel->layout == std::string("cuda-o32"));
        CHECK(polykernel->num_variants > 1);
        const Context context = make_context();
        distile_kernel *kernel = nullptr;
        CHECK(distile_kernel_create(context.get(), polykernel, &kernel) == DISTILE_ERROR_BAD_VALUE);
        CHECK(std::string(distile_context_message(context.get())).find("distile_cuda_kernel_create") !=
              std::string::npos);
    }
}

TEST_CASE("Masks on the GPU are those of the CPU", "[gpu]") {
    const Gpu gpu;
    if (!gpu.cuda) {
        return;
    }
    const Owned<distile_cuda_mask> mask = gpu.make_mask();
    const Context host = make_context();
    const Mask expected = distile::make_mask(host);
    const int32_t shapes[][3] = {{1, 1, 1}, {2, 17, 13}, {1, 64, 129}, {3, 40, 40}, {1, 256, 256}, {2, 300, 777}};
    const Granularity granularities[] = {{1, 1}, {1, 4}, {2, 2}, {8, 8}, {3, 5}, {7, 33}, {40, 70}, {65535, 65535}};
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
    for (const auto &[name, byte_mask] : masks) {
        const auto &[batch, height, width, bytes] = byte_mask;
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
                distile_cuda_mask_set_bytes(mask.get(), device_bytes.data(), batch, height, width, stride_n, stride_h));
            check(host, distile_mask_set_bytes(expected.get(), bytes.data(), batch, height, width,
                                               int64_t{height} * width, width));
            const uint32_t *bits = nullptr;
            const uint64_t *host_bits = nullptr;
            int32_t words_per_row = 0, host_words_per_row = 0;
            gpu.check(distile_cuda_mask_bits(mask.get(), &bits, &words_per_row));
            check(host, distile_mask_bits(expected.get(), &host_bits, &host_words_per_row));
            const std::vector<uint32_t> words = read_device(bits, static_cast<size_t>(batch) * height * words_per_row);
            bool same = true;
            for (int32_t row = 0; row < batch * height; row++) {
                for (int32_t i = 0; i < words_per_row; i++) {
                    const uint64_t two = host_bits[row * host_words_per_row + i / 2];
                    same = same && words[row * words_per_row + i] == static_cast<uint32_t>(two >> (i % 2 * 32));
                }
            }
            CHECK(same);
            for (const Granularity &granularity : granularities) {
                CAPTURE(granularity.h, granularity.w);
                const uint32_t *xy = nullptr, *images = nullptr, *count = nullptr;
                gpu.check(distile_cuda_mask_tiles(mask.get(), granularity.h, granularity.w, &xy, &images, &count));
                distile_tile_list list{};
                check(host, distile_mask_tiles(expected.get(), granularity.h, granularity.w, &list));
                const uint32_t found = read_device(count, 1)[0];
                REQUIRE(found == list.count);
                CHECK(read_device(xy, found) == std::vector<uint32_t>(list.xy, list.xy + list.count));
                CHECK(read_device(images, found) == std::vector<uint32_t>(list.image, list.image + list.count));
            }
        }
    }
}

TEST_CASE("The host's path takes the variant that the time table says is fastest", "[gpu]") {
    const Gpu gpu;
    if (!gpu.cuda) {
        return;
    }
    Problem problem(gpu, test_odd_cuda, 1, 40, 40);
    const std::vector<uint8_t> bytes = make_bytes("blob", 1, problem.out_height, problem.out_width);
    const DeviceArray<uint8_t> device_bytes(bytes);
    const Owned<distile_cuda_mask> mask = gpu.make_mask();
    distile_kernel *variants = distile_cuda_kernel_variants(problem.kernel.get());
    double time = 100;
    for (int32_t i = distile_kernel_num_variants(variants) - 1; i >= 0; i--) {
        const char *name = distile_kernel_variant_name(variants, i);
        CAPTURE(name);
        time /= 2;
        gpu.check(distile_kernel_add_time(variants, name, 1000000, time));
        set_mask(gpu, mask.get(), device_bytes, problem.output);
        problem.output_memory->set(problem.before);
        const distile_cuda_run_args args = problem.run_args(mask.get());
        gpu.check(distile_cuda_run(problem.kernel.get(), &args));
        CHECK(problem.difference(bytes, DISTILE_KEEP) == "");
    }
}

TEST_CASE("The path without a wait runs in a graph, with other masks at every launch", "[gpu]") {
    const Gpu gpu;
    if (!gpu.cuda) {
        return;
    }
    const StreamInUse stream(gpu);
    for (const distile_polykernel *polykernel : {&test_odd_cuda, test_cuda_polykernels[0]}) {
        Problem problem(gpu, *polykernel, 2, 20, 24);
        distile_kernel *variants = distile_cuda_kernel_variants(problem.kernel.get());
        const DeviceArray<uint8_t> bytes(make_bytes("full", 2, problem.out_height, problem.out_width));
        for (int32_t i = 0; i < polykernel->num_variants; i++) {
            const Owned<distile_cuda_mask> mask = gpu.make_mask();
            distile_cuda_run_args args = problem.run_args(mask.get());
            args.inactive = DISTILE_ZERO;
            args.variant = distile_kernel_variant_name(variants, i);
            CAPTURE(polykernel->name, args.variant);
            set_mask(gpu, mask.get(), bytes, problem.output);
            gpu.check(distile_cuda_run(problem.kernel.get(), &args));
            const Graph graph(stream.get(), [&] {
                set_mask(gpu, mask.get(), bytes, problem.output);
                gpu.check(distile_cuda_run(problem.kernel.get(), &args));
                // What only the host can decide, it must refuse, and the capture goes on.
                args.variant = nullptr;
                CHECK(distile_cuda_run(problem.kernel.get(), &args) == DISTILE_ERROR_BAD_VALUE);
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

TEST_CASE("A graph of a dense variant computes the same after its kernel met another shape", "[gpu]") {
    const Gpu gpu;
    if (!gpu.cuda) {
        return;
    }
    const StreamInUse stream(gpu);
    // The second fits the memory of the first.
    const Problem first(gpu, test_odd_cuda, 2, 20, 24), second(gpu, test_odd_cuda, 1, 13, 21);
    const std::vector<uint8_t> bytes = make_bytes("blob", 2, first.out_height, first.out_width);
    const std::vector<uint8_t> others = make_bytes("blob", 1, second.out_height, second.out_width);
    const DeviceArray<uint8_t> device_bytes(bytes), other_bytes(others);
    const Owned<distile_cuda_mask> mask = gpu.make_mask();
    const auto run = [&](const Problem &problem, const DeviceArray<uint8_t> &source) {
        distile_cuda_run_args args = problem.run_args(mask.get());
        args.variant = "dense";
        set_mask(gpu, mask.get(), source, problem.output);
        gpu.check(distile_cuda_run(first.kernel.get(), &args));
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
    if (!gpu.cuda) {
        return;
    }
    const StreamInUse stream(gpu);
    constexpr int32_t height = 37, width = 41;
    const distile_tensor shape = distile_tensor_make(nullptr, 1, height, width, 1);
    DeviceArray<uint8_t> device_bytes(make_bytes("full", 1, height, width));
    const Owned<distile_cuda_mask> mask = gpu.make_mask();
    set_mask(gpu, mask.get(), device_bytes, shape);
    const Graph graph(stream.get(), [&] { set_mask(gpu, mask.get(), device_bytes, shape); });
    for (const char *family : mask_names) {
        CAPTURE(family);
        const std::vector<uint8_t> bytes = make_bytes(family, 1, height, width);
        device_bytes.set(bytes);
        graph.launch();
        const uint32_t *xy = nullptr, *images = nullptr, *count = nullptr;
        gpu.check(distile_cuda_mask_tiles(mask.get(), 3, 5, &xy, &images, &count));
        CHECK(read_device(count, 1)[0] == reference_active_tiles(bytes, 1, height, width, 3, 5));
    }
}

TEST_CASE("Bad arguments and faults give a status, and nothing is written", "[gpu]") {
    const Gpu gpu;
    if (!gpu.cuda) {
        return;
    }
    Problem problem(gpu, *test_cuda_polykernels[0], 1, 12, 12);
    const std::vector<uint8_t> bytes = make_bytes("full", 1, problem.out_height, problem.out_width);
    const DeviceArray<uint8_t> device_bytes(bytes);
    const Owned<distile_cuda_mask> mask = gpu.make_mask();
    const auto run = [&](const distile_cuda_run_args &args) {
        const distile_status status = distile_cuda_run(problem.kernel.get(), &args);
        CHECK(std::strlen(distile_context_message(gpu.context.get())) > 10);
        return status;
    };
    const distile_cuda_run_args good = problem.run_args(mask.get());
    CHECK(run(good) == DISTILE_ERROR_BAD_MASK);
    CHECK(distile_cuda_mask_set_bytes(mask.get(), bytes.data(), 1, 12, 12, 144, 12) == DISTILE_ERROR_NOT_DEVICE_MEMORY);
    CHECK(distile_cuda_mask_set_bytes(mask.get(), device_bytes.data(), 1, 12, 12, 144, 11) == DISTILE_ERROR_BAD_STRIDE);
    CHECK(distile_cuda_mask_set_bytes(mask.get(), device_bytes.data(), 0, 12, 12, 144, 12) == DISTILE_ERROR_BAD_SHAPE);
    set_mask(gpu, mask.get(), device_bytes, problem.output);
    distile_cuda_run_args bad = good;
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
    CHECK(run(bad) == DISTILE_ERROR_BAD_STRIDE);
    tensor = problem.output;
    tensor.channels = 3;
    CHECK(run(bad) == DISTILE_ERROR_BAD_CHANNELS);
    CHECK(problem.output_memory->get() == problem.before);
    const distile_status status = distile_cuda_run(problem.kernel.get(), &good);
    gpu.check(status);
    CHECK(problem.difference(bytes, DISTILE_KEEP) == "");

    // A PolyKernel that only a later GPU runs.
    distile_polykernel later = *test_cuda_polykernels[0];
    later.compute_capability = 990;
    distile_cuda_kernel *kernel = nullptr;
    CHECK(distile_cuda_kernel_create(gpu.cuda.get(), &later, &kernel) == DISTILE_ERROR_UNSUPPORTED_GPU);
}

TEST_CASE("Memory that runs out and a context that was lost give a status", "[gpu_faults]") {
    const Gpu gpu;
    if (!gpu.cuda) {
        return;
    }
    const Owned<distile_cuda_mask> mask = gpu.make_mask();
    {
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
        CHECK(distile_cuda_mask_set_bytes(mask.get(), bytes, 64, 4096, 4096, 4096 * 4096, 4096) ==
              DISTILE_ERROR_OUT_OF_DEVICE_MEMORY);
        for (CUdeviceptr block : taken) {
            CU(cuMemFree, block);
        }
        const DeviceArray<uint8_t> small(std::vector<uint8_t>(64, 1));
        gpu.check(distile_cuda_mask_set_bytes(mask.get(), small.data(), 1, 8, 8, 64, 8));
    }
    // The bytes are the device's, but far fewer than the strides say.
    const DeviceArray<uint8_t> few(std::vector<uint8_t>(64, 1));
    (void)distile_cuda_mask_set_bytes(mask.get(), few.data(), 2, 8, 8, int64_t{1} << 46, 8);
    const uint32_t *xy = nullptr, *images = nullptr, *count = nullptr;
    try {
        CU(cuCtxSynchronize);
        FAIL("nothing went wrong");
    } catch (const std::runtime_error &) {}
    CHECK(distile_cuda_mask_tiles(mask.get(), 1, 1, &xy, &images, &count) == DISTILE_ERROR_DEVICE_LOST);
    INFO(distile_context_message(gpu.context.get()));
    CHECK(distile_cuda_mask_set_bytes(mask.get(), few.data(), 1, 8, 8, 64, 8) == DISTILE_ERROR_DEVICE_LOST);
}
