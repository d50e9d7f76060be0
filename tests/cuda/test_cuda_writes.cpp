// What the runtime writes on a GPU: masks of every kind, zeros, and dense candidates.
#include "masks/mask_families.h"
#include "runtime/cuda/cuda_device.h"
#include "runtime/mask/mask.h"
#include "tests/cuda/cuda_setup.h"
#include "tests/gpu/every_polykernel.h"
#include "tests/support/temporary_folder.h"
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>

using namespace distile;

namespace {

namespace fs = std::filesystem;

/** Makes a GPU's context current in this thread; false, and says so, where there is none. */
bool has_gpu() {
    return static_cast<bool>(Gpu());
}

/** A setup on a GPU with values in its memory, and a view of the output with room around every row and image. */
struct GpuSetup : Setup {
    GpuSetup(const distile_polykernel &polykernel, int32_t batch, int32_t height, int32_t width,
             const distile_cuda_options &options = {})
        : Setup(polykernel, batch, height, width, options), padding(4),
          spans(static_cast<size_t>(batch) * (out_height + 1)),
          row(static_cast<size_t>(out_width + 1) * (conv.out_channels + padding)) {
        input_memory->set(input_values);
        residual_memory->set(residual_values);
        room = std::make_unique<DeviceArray<float>>(spans * row);
        before.resize(spans * row);
        for (size_t i = 0; i < before.size(); i++) {
            before[i] = static_cast<float>(i % 977) * 0.25f + 1;
        }
        output.data = room->data();
        output.stride_w = conv.out_channels + padding;
        output.stride_h = static_cast<int64_t>(row);
        output.stride_n = output.stride_h * (out_height + 1);
        reference.input = distile_tensor_make(input_values.data(), batch, height, width, conv.in_channels);
        host_residual = distile_tensor_make(residual_values.data(), batch, out_height, out_width, conv.out_channels);
    }

    void set_bytes(const ByteMask &bytes) {
        reference.mask = bytes.bytes;
        mask_memory->set(bytes.bytes);
        set_mask();
    }
    /** Puts values into the output; those of the residual where it is the output. */
    void reset_output(bool aliased) {
        if (aliased) {
            for (size_t pixel = 0; pixel < num_pixels; pixel++) {
                std::copy_n(&residual_values[pixel * conv.out_channels], conv.out_channels,
                            before.begin() + static_cast<int64_t>(offset(pixel)));
            }
        }
        room->set(before);
    }
    size_t offset(size_t pixel) const {
        const size_t x = pixel % out_width, span = pixel / out_width, image = span / out_height;
        return (span + image) * row + x * (conv.out_channels + padding);
    }
    /** The PolyKernel's variant of a name, or any. */
    const distile_variant &variant_of(const std::string &name) const {
        for (int32_t i = 0; i < polykernel->num_variants; i++) {
            if (polykernel->variants[i].name == name) {
                return polykernel->variants[i];
            }
        }
        return polykernel->variants[0];
    }
    /** "" if the output is what the plain loop says, and all around it is as before. Inactive pixels that do not matter
     * may hold anything. */
    std::string difference(distile_inactive inactive, bool inactive_matters = true) {
        reference.inactive = inactive;
        reference.residual = conv.residual != 0 ? &host_residual : nullptr;
        const ReferenceOutput expected = reference_masked_conv2d(reference);
        std::vector<float> due = before;
        std::vector<double> tolerance(due.size(), 0);
        for (size_t pixel = 0; pixel < num_pixels; pixel++) {
            for (int32_t c = 0; c < conv.out_channels; c++) {
                const size_t at = offset(pixel) + c;
                const PixelState state = expected.states[pixel];
                if (state == PixelState::Computed) {
                    due[at] = expected.values[pixel * conv.out_channels + c];
                    tolerance[at] = error_bound(DISTILE_FLOAT32, due[at], expected.largest, math_of(*polykernel));
                } else if (state == PixelState::Zeroed) {
                    due[at] = 0;
                }
                if (reference.mask[pixel] == 0 && !inactive_matters) {
                    tolerance[at] = std::numeric_limits<double>::infinity();
                }
            }
        }
        const std::vector<float> values = room->get();
        for (size_t i = 0; i < due.size(); i++) {
            if (!(std::abs(values[i] - due[i]) <= tolerance[i])) {
                return "element " + std::to_string(i) + " is " + std::to_string(values[i]) + ", not " +
                       std::to_string(due[i]) + ", and was " + std::to_string(before[i]);
            }
        }
        return "";
    }

    int32_t padding;
    size_t spans, row;
    std::unique_ptr<DeviceArray<float>> room;
    std::vector<float> before;
    distile_tensor host_residual{};
};

/** A dense implementation: the PolyKernel's own, over a mask of ones. */
struct LinkedDense {
    explicit LinkedDense(GpuSetup &setup)
        : kernel(make_kernel(setup.context, *setup.polykernel)), mask(make_mask(setup.context)),
          bytes(std::vector<uint8_t>(setup.num_pixels, 1)), weights(setup.weights.get()),
          variant(variant_of(*setup.polykernel)) {
        check(setup.context,
              distile_mask_set_bytes(mask.get(), bytes.data(), setup.output.batch, setup.out_height, setup.out_width,
                                     int64_t{setup.out_height} * setup.out_width, setup.out_width));
        candidate = {"mine", run, this};
        check(setup.context, distile_kernel_add_dense(setup.kernel.get(), &candidate));
    }
    static int run(void *user, void *, const distile_run_args *given) {
        const auto &self = *static_cast<const LinkedDense *>(user);
        distile_run_args args = *given;
        args.weights = self.weights;
        args.mask = self.mask.get();
        args.variant = self.variant;
        return static_cast<int>(distile_run(self.kernel.get(), &args));
    }
    static const char *variant_of(const distile_polykernel &polykernel) {
        const distile_variant *const variants = polykernel.variants, *const end = variants + polykernel.num_variants;
        const auto *const dense =
            std::find_if(variants, end, [](const distile_variant &one) { return one.dense != 0; });
        return (dense == end ? variants : dense)->name;
    }

    Kernel kernel;
    Mask mask;
    DeviceArray<uint8_t> bytes;
    const distile_weights *weights;
    const char *variant;
    distile_dense_candidate candidate{};
};

const char *const mask_kinds[] = {"empty", "full", "random", "blob"};

ByteMask mask_of(const std::string &kind, int32_t batch, int32_t height, int32_t width) {
    if (kind == "empty" || kind == "full") {
        return random_mask(batch, height, width, kind == "full" ? 1.0 : 0.0, 1);
    }
    return draw_mask(kind, batch, height, width, 0.4, 3);
}

}  // namespace

TEST_CASE("Masks are made again and again at sixty-four granularities, from bytes with any strides", "[gpu][masks]") {
    const Gpu gpu;
    if (!gpu) {
        return;
    }
    const Mask mask = gpu.make_mask(), expected = make_mask(gpu.host);
    std::vector<Granularity> granularities;
    for (int32_t h = 1; h <= 8; h++) {
        for (int32_t w = 1; w <= 8; w++) {
            granularities.push_back({h == 8 ? 100 : h, 5 * w - 4});
        }
    }
    // The last one has more than 2^20 tiles, so that a block is one of many.
    const int32_t shapes[][3] = {{1, 1, 1}, {3, 19, 37}, {2, 200, 131}, {5, 700, 640}};
    for (const auto &[batch, height, width] : shapes) {
        const int64_t stride_h = width + 3, stride_n = stride_h * height + 11;
        DeviceArray<uint8_t> device_bytes(static_cast<size_t>(stride_n * batch));
        // The first time each is made on demand, then all at once; the last time some are not asked for.
        for (int round = 0; round < 4; round++) {
            std::vector<uint8_t> bytes(static_cast<size_t>(stride_n * batch), 9);
            std::mt19937 random(round);
            const unsigned int odds = round == 1 ? 1 : round == 2 ? 500 : 3;
            for (int32_t n = 0; n < batch; n++) {
                for (int32_t y = 0; y < height; y++) {
                    for (int32_t x = 0; x < width; x++) {
                        bytes[n * stride_n + y * stride_h + x] = random() % odds == 0 ? random() % 255 + 1 : 0;
                    }
                }
            }
            device_bytes.set(bytes);
            gpu.check(
                distile_mask_set_bytes(mask.get(), device_bytes.data(), batch, height, width, stride_n, stride_h));
            gpu.check_host(
                distile_mask_set_bytes(expected.get(), bytes.data(), batch, height, width, stride_n, stride_h));
            for (size_t i = 0; i < granularities.size(); i += round == 3 ? 5 : 1) {
                const Granularity granularity = granularities[i];
                CAPTURE(batch, height, width, round, granularity.h, granularity.w);
                distile_tile_list list{}, host_list{};
                gpu.check(distile_mask_tiles(mask.get(), granularity.h, granularity.w, &list));
                gpu.check_host(distile_mask_tiles(expected.get(), granularity.h, granularity.w, &host_list));
                CHECK((tiles_of(list) == tiles_of(host_list)));
            }
        }
    }
}

TEST_CASE("A list of tiles is right in whatever order its blocks start", "[gpu][masks]") {
    const Gpu gpu;
    if (!gpu) {
        return;
    }
    const Mask mask = gpu.make_mask(), expected = make_mask(gpu.host);
    const ByteMask bytes = random_mask(3, 500, 611, 0.2, 4);
    const DeviceArray<uint8_t> device_bytes(bytes.bytes);
    gpu.check_host(distile_mask_set_bytes(expected.get(), bytes.bytes.data(), 3, 500, 611, 500 * 611, 611));
    // Without patience, a block counts the tiles of every block before it that did not yet say how many it has: as if
    // that one had not started.
    for (uint32_t patience : {0u, 2u, 5u}) {
        static_cast<CudaDevice &>(*gpu.context->device).patience = patience;
        for (int round = 0; round < 20; round++) {
            gpu.check(distile_mask_set_bytes(mask.get(), device_bytes.data(), 3, 500, 611, 500 * 611, 611));
            for (const Granularity granularity : {Granularity{1, 1}, {2, 2}, {1, 7}, {5, 3}}) {
                CAPTURE(patience, round, granularity.h, granularity.w);
                distile_tile_list list{}, host_list{};
                gpu.check(distile_mask_tiles(mask.get(), granularity.h, granularity.w, &list));
                gpu.check_host(distile_mask_tiles(expected.get(), granularity.h, granularity.w, &host_list));
                REQUIRE((tiles_of(list) == tiles_of(host_list)));
            }
        }
    }
}

TEST_CASE("Zeros and dense candidates write what is due, and nothing around it", "[gpu][zeros]") {
    if (!has_gpu()) {
        return;
    }
    CUstream stream = nullptr;
    CU(cuStreamCreate, &stream, static_cast<unsigned int>(CU_STREAM_NON_BLOCKING));
    for (const distile_polykernel *polykernel :
         {static_cast<const distile_polykernel *>(&test_odd_cuda), gpu_polykernels[1]}) {
        GpuSetup setup(*polykernel, 2, 11, 9);
        const LinkedDense dense(setup);
        const bool has_residual = setup.conv.residual != 0;
        for (bool on_stream : {false, true}) {
            check(setup.context, distile_cuda_set_stream(setup.context.get(), on_stream ? stream : nullptr));
            for (const char *kind : mask_kinds) {
                setup.set_bytes(mask_of(kind, 2, setup.out_height, setup.out_width));
                for (int way = 0; way < 8; way++) {
                    const bool aliased = has_residual && way % 2 == 1;
                    setup.args.inactive = way / 2 % 2 == 1 ? DISTILE_ZERO : DISTILE_KEEP;
                    setup.args.store = way / 4 == 1 ? DISTILE_STORE_TILES : DISTILE_STORE_EXACT;
                    setup.args.residual = !has_residual ? nullptr : aliased ? &setup.output : &setup.residual;
                    std::vector<std::string> names = variants_of(setup);
                    names.emplace_back("");
                    for (const std::string &name : names) {
                        setup.args.variant = name.empty() ? nullptr : name.c_str();
                        CAPTURE(polykernel->name, on_stream, kind, aliased, setup.args.inactive, setup.args.store,
                                name);
                        setup.reset_output(aliased);
                        setup.run();
                        setup.reference.store = setup.args.store;
                        const distile_variant &variant = setup.variant_of(name);
                        setup.reference.dense = name == "mine" || variant.dense != 0;
                        setup.reference.tile_h = variant.tile_h;
                        setup.reference.tile_w = variant.tile_w;
                        // In place, a residual that was zeroed first gives another value in the tiles' other pixels.
                        const bool specified = !name.empty() && !(aliased && setup.args.inactive == DISTILE_ZERO &&
                                                                  setup.args.store == DISTILE_STORE_TILES);
                        CHECK(setup.difference(setup.args.inactive,
                                               specified || setup.args.store == DISTILE_STORE_EXACT) == "");
                    }
                }
            }
        }
        check(setup.context, distile_cuda_set_stream(setup.context.get(), nullptr));
    }
    CU(cuStreamDestroy, stream);
}

TEST_CASE("Zeros and dense candidates run in a graph", "[gpu][zeros]") {
    if (!has_gpu()) {
        return;
    }
    CUstream stream = nullptr;
    CU(cuStreamCreate, &stream, static_cast<unsigned int>(CU_STREAM_NON_BLOCKING));
    GpuSetup setup(test_odd_cuda, 2, 30, 33);
    const LinkedDense dense(setup);
    check(setup.context, distile_cuda_set_stream(setup.context.get(), stream));
    setup.args.inactive = DISTILE_ZERO;
    for (const char *variant : {"t1x1s2", "t3x2s2", "mine"}) {
        setup.args.variant = variant;
        setup.set_bytes(mask_of("full", 2, setup.out_height, setup.out_width));
        setup.run();
        CUgraph graph = nullptr;
        CUgraphExec executable = nullptr;
        CU(cuStreamSynchronize, stream);
        CU(cuStreamBeginCapture, stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
        setup.set_mask();
        setup.run();
        CU(cuStreamEndCapture, stream, &graph);
        CU(cuGraphInstantiate, &executable, graph, 0ULL);
        for (const char *kind : mask_kinds) {
            CAPTURE(variant, kind);
            const ByteMask bytes = mask_of(kind, 2, setup.out_height, setup.out_width);
            setup.reference.mask = bytes.bytes;
            setup.mask_memory->set(bytes.bytes);
            setup.reset_output(false);
            CU(cuGraphLaunch, executable, stream);
            CHECK(setup.difference(DISTILE_ZERO) == "");
        }
        CU(cuGraphExecDestroy, executable);
        CU(cuGraphDestroy, graph);
    }
    check(setup.context, distile_cuda_set_stream(setup.context.get(), nullptr));
    CU(cuStreamDestroy, stream);
}

TEST_CASE("Code from a cache computes the same", "[gpu]") {
    if (!has_gpu()) {
        return;
    }
    const TemporaryFolder folder;
    const std::string path = folder.path() + "/cache";
    distile_cuda_options options{};
    options.cache_folder = path.c_str();
    // Cold, warm, and with a file that was cut.
    for (int round = 0; round < 3; round++) {
        GpuSetup setup(test_odd_cuda, 1, 12, 12, options);
        const auto files = std::distance(fs::directory_iterator(path), fs::directory_iterator());
        CHECK(files > test_odd_cuda.num_variants);
        setup.set_bytes(mask_of("random", 1, setup.out_height, setup.out_width));
        for (const std::string &variant : variants_of(setup)) {
            CAPTURE(round, variant);
            setup.args.variant = variant.c_str();
            setup.reset_output(false);
            setup.run();
            CHECK(setup.difference(DISTILE_KEEP) == "");
        }
        for (const auto &entry : fs::directory_iterator(path)) {
            if (round == 1) {
                fs::resize_file(entry.path(), fs::file_size(entry.path()) / 2);
            }
        }
    }
}

#if CUDA_VERSION >= 12040
TEST_CASE("A green context has its own number of multiprocessors", "[gpu]") {
    if (!has_gpu()) {
        return;
    }
    CUdevice device = 0;
    CUdevResource all{}, part{}, rest{};
    CUdevResourceDesc description = nullptr;
    CUgreenCtx green = nullptr;
    CUcontext current = nullptr;
    CUstream stream = nullptr;
    unsigned int groups = 1;
    CU(cuDeviceGet, &device, 0);
    CU(cuDeviceGetDevResource, device, &all, CU_DEV_RESOURCE_TYPE_SM);
    CHECK(distile_context_threads(make_cuda_context().get()) == static_cast<int32_t>(all.sm.smCount));
    CU(cuDevSmResourceSplitByCount, &part, &groups, static_cast<const CUdevResource *>(&all), &rest, 0u, 16u);
    CU(cuDevResourceGenerateDesc, &description, &part, 1u);
    CU(cuGreenCtxCreate, &green, description, device, static_cast<unsigned int>(CU_GREEN_CTX_DEFAULT_STREAM));
    CU(cuCtxFromGreenCtx, &current, green);
    CU(cuGreenCtxStreamCreate, &stream, green, static_cast<unsigned int>(CU_STREAM_NON_BLOCKING), 0);
    distile_cuda_options options{};
    options.context = current;
    options.stream = stream;
    CHECK(distile_context_threads(make_cuda_context(options).get()) == static_cast<int32_t>(part.sm.smCount));
    CU(cuStreamDestroy, stream);
    CU(cuGreenCtxDestroy, green);
}
#endif
