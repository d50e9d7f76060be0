// Groups of GPUs: chains of layers on several contexts have the bits of one, whether they share a GPU or each has its
// own.
#include "gpu_polykernels.h"
#include "masks/mask_families.h"
#include "tests/cuda/fake_session.h"
#include "tests/gpu/device_tensor.h"
#include "tests/support/rank_transport.h"
#include "tests/support/reference.h"
#include <array>
#include <cstring>
#include <deque>
#include <distile/group.h>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

using namespace distile;

namespace {

constexpr int most_gpus = 8;

/** Contexts on all GPUs in turn, each with a stream of its own, and their group. */
struct GpuGroup {
    GpuGroup(size_t devices, distile_overlap overlap) {
        int gpus = 0;
        CU(cuDeviceGetCount, &gpus);
        gpus = std::min(gpus, most_gpus);
        std::vector<distile_context *> pointers;
        for (size_t i = 0; i < devices; i++) {
            distile_cuda_options cuda{};
            cuda.device = static_cast<int32_t>(i) % gpus;
            streams.emplace_back(cuda.device);
            cuda.stream = streams.back().get();
            distile_context_options options{};
            options.math = DISTILE_MATH_TF32;
            distile_context *made = nullptr;
            const distile_status status = distile_cuda_context_create(&options, &cuda, &made);
            INFO(distile_context_message(nullptr));
            REQUIRE(name_of(status) == "DISTILE_OK");
            contexts.emplace_back(made);
            pointers.push_back(made);
        }
        distile_group_options options{};
        options.overlap = overlap;
        distile_group *made = nullptr;
        const distile_status status =
            distile_group_create(pointers.data(), static_cast<int32_t>(devices), &options, &made);
        group.reset(made);
        check(status);
    }
    void check(distile_status status) const {
        INFO(distile_group_message(group.get()));
        REQUIRE(name_of(status) == "DISTILE_OK");
    }

    std::deque<GpuStream> streams;
    std::vector<Context> contexts;
    Group group;
};

/** A tensor on the host and on the first GPU. */
struct TwoTensors {
    TwoTensors(int32_t batch, int32_t height, int32_t width, int32_t channels, distile_dtype dtype,
               std::mt19937 &random)
        : host(batch, height, width, channels, {}, Flush::Back, dtype) {
        host.draw(Values::Floats, random);
        device = std::make_unique<DeviceTensor>(host, false);
    }
    std::vector<uint32_t> bits() const {
        REQUIRE(device->download());
        return host.snapshot();
    }

    TestTensor host;
    std::unique_ptr<DeviceTensor> device;
};

/** Layers with weights, of which a residual adds the chain's input. */
struct GpuLayers {
    explicit GpuLayers(const std::vector<const distile_polykernel *> &given) : polykernels(given) {
        for (const distile_polykernel *polykernel : polykernels) {
            convs.push_back(convolution_of(*polykernel));
            filters.push_back(draw(Values::Floats, filter_size(convs.back()), random));
            for (float &value : filters.back()) {
                value /= 16;
            }
            distile_weights_source source{};
            source.filter = filters.back().data();
            source.order = DISTILE_HWIO;
            sources.push_back(source);
        }
    }

    std::mt19937 random{7};
    std::vector<const distile_polykernel *> polykernels;
    std::vector<distile_conv2d> convs;
    std::vector<std::vector<float>> filters;
    std::vector<distile_weights_source> sources;
};

/** A chain on several contexts and on the first of them, with the same input and masks. */
class TestedChain {
public:
    TestedChain(GpuLayers &layers, const GpuGroup &several, int32_t batch, int32_t height, int32_t width)
        : layers_(layers), several_(several), first_(several.contexts[0]) {
        const size_t devices = several.contexts.size();
        std::vector<std::vector<const distile_polykernel *>> copies;
        std::vector<distile_chain_layer> described(layers.convs.size());
        for (size_t i = 0; i < described.size(); i++) {
            copies.emplace_back(devices, layers.polykernels[i]);
        }
        for (size_t i = 0; i < described.size(); i++) {
            described[i].polykernels = copies[i].data();
            described[i].weights = &layers.sources[i];
        }
        distile_chain *made = nullptr;
        several.check(
            distile_chain_create(several.group.get(), described.data(), static_cast<int32_t>(described.size()), &made));
        chain_.reset(made);
        const auto dtype_of = [&](size_t i) { return type_of(*layers.polykernels[i]); };
        tensors_.push_back(std::make_unique<TwoTensors>(batch, height, width, layers.convs[0].in_channels, dtype_of(0),
                                                        layers.random));
        int32_t rows = height, columns = width;
        for (size_t i = 0; i < described.size(); i++) {
            kernels_.push_back(make_kernel(first_, *layers.polykernels[i]));
            weights_.push_back(pack_weights(first_, kernels_[i], layers.sources[i]));
            check(first_, distile_kernel_output_shape(kernels_[i].get(), rows, columns, &rows, &columns));
            masks_.push_back(make_mask(first_));
            sizes_.push_back({batch, rows, columns});
            tensors_.push_back(std::make_unique<TwoTensors>(batch, rows, columns, layers.convs[i].out_channels,
                                                            dtype_of(i), layers.random));
        }
    }

    void draw_masks(double density) {
        for (size_t i = 0; i < masks_.size(); i++) {
            const auto &[batch, rows, columns] = sizes_[i];
            std::vector<uint8_t> bytes(static_cast<size_t>(batch) * rows * columns);
            size_t at = 0;
            for (int32_t n = 0; n < batch; n++) {
                const double part = density >= 1 ? 1 : density / (n + 1);
                for (int32_t pixel = 0; pixel < rows * columns; pixel++) {
                    bytes[at++] = std::uniform_real_distribution<double>(0, 1)(layers_.random) < part ? 1 : 0;
                }
            }
            const DeviceArray<uint8_t> on_device(bytes);
            check(first_, distile_mask_set_bytes(masks_[i].get(), on_device.data(), batch, rows, columns,
                                                 int64_t{rows} * columns, columns));
            CU(cuCtxSynchronize);
        }
    }

    /** Runs the chain on all contexts and on one, and compares the bits. */
    void compare(distile_inactive inactive) {
        TwoTensors &last = *tensors_.back();
        const auto begin = [&] {
            std::mt19937 random(3);
            last.host.draw(Values::Floats, random);
            last.device->upload();
        };
        begin();
        std::vector<distile_mask *> pointers;
        for (const Mask &mask : masks_) {
            pointers.push_back(mask.get());
        }
        distile_chain_args args{};
        args.input = &tensors_[0]->device->view();
        args.output = &last.device->view();
        args.masks = pointers.data();
        args.inactive = inactive;
        several_.check(distile_chain_run(chain_.get(), &args));
        const std::vector<uint32_t> of_several = last.bits();
        begin();
        for (size_t i = 0; i < kernels_.size(); i++) {
            distile_run_args run{};
            run.input = &tensors_[i]->device->view();
            run.output = &tensors_[i + 1]->device->view();
            run.residual = layers_.convs[i].residual != 0 ? &tensors_[0]->device->view() : nullptr;
            run.weights = weights_[i].get();
            run.mask = masks_[i].get();
            run.fixed_order = 1;
            run.variant = distile_chain_variant(chain_.get(), static_cast<int32_t>(i));
            run.inactive = i + 1 == kernels_.size() ? inactive : DISTILE_ZERO;
            check(first_, distile_run(kernels_[i].get(), &run));
        }
        CU(cuCtxSynchronize);
        CHECK(of_several == last.bits());
    }

private:
    GpuLayers &layers_;
    const GpuGroup &several_;
    const Context &first_;
    Chain chain_;
    std::vector<Kernel> kernels_;
    std::vector<Weights> weights_;
    std::vector<Mask> masks_;
    std::vector<std::array<int32_t, 3>> sizes_;
    std::vector<std::unique_ptr<TwoTensors>> tensors_;
};

/** Takes the messages of GPUs through the host's memory. */
class GpuTransport {
public:
    GpuTransport(RankHub &hub, int32_t rank, CUcontext context, bool asynchronous)
        : inner_(hub.transport(rank)), context_(context), asynchronous_(asynchronous) {
    }

    distile_transport transport() {
        distile_transport made = inner_;
        made.user = this;
        made.asynchronous = asynchronous_ ? 1 : 0;
        made.exchange = [](void *user, const distile_messages *messages) {
            return static_cast<GpuTransport *>(user)->exchange(*messages);
        };
        return made;
    }

private:
    using Bytes = std::vector<std::vector<char>>;

    distile_status exchange(const distile_messages &messages) const {
        if (messages.on_device == 0) {
            return inner_.exchange(inner_.user, &messages);
        }
        try {
            CUcontext popped = nullptr;
            CU(cuCtxPushCurrent, context_);
            CU(cuStreamSynchronize, static_cast<CUstream>(messages.stream));
            Bytes sent, received;
            const std::vector<distile_message> sends = on_host(messages.sends, messages.num_sends, sent, true),
                                               receives =
                                                   on_host(messages.receives, messages.num_receives, received, false);
            distile_messages staged = messages;
            staged.on_device = 0;
            staged.stream = nullptr;
            staged.sends = sends.data();
            staged.receives = receives.data();
            const distile_status status = inner_.exchange(inner_.user, &staged);
            for (size_t i = 0; i < received.size(); i++) {
                CU(cuMemcpyHtoD, reinterpret_cast<CUdeviceptr>(messages.receives[i].data),
                   static_cast<const void *>(received[i].data()), received[i].size());
            }
            CU(cuCtxSynchronize);
            CU(cuCtxPopCurrent, &popped);
            return status;
        } catch (const std::exception &) {
            return DISTILE_ERROR_INTERNAL;
        }
    }

    static std::vector<distile_message> on_host(const distile_message *messages, int32_t count, Bytes &bytes,
                                                bool copies) {
        std::vector<distile_message> staged;
        bytes.reserve(static_cast<size_t>(count));
        for (int32_t i = 0; i < count; i++) {
            bytes.emplace_back(static_cast<size_t>(messages[i].bytes));
            staged.push_back(messages[i]);
            staged.back().data = bytes.back().data();
            if (copies) {
                CU(cuMemcpyDtoH, staged.back().data, reinterpret_cast<CUdeviceptr>(messages[i].data),
                   bytes.back().size());
            }
        }
        return staged;
    }

    distile_transport inner_;
    CUcontext context_;
    bool asynchronous_;
};

/** A rank on some GPUs, which may be the same one: its tensors and masks, which are equal on all ranks. */
class GpuRank {
public:
    GpuRank(const GpuLayers &layers, const std::vector<int> &gpus, const std::array<int32_t, 3> &size, double density)
        : layers_(layers), random_(5) {
        for (const int gpu : gpus) {
            streams_.emplace_back(gpu);
            CU(cuCtxSetCurrent, streams_.back().context());
            distile_cuda_options cuda{};
            cuda.device = gpu;
            cuda.stream = streams_.back().get();
            distile_context_options options{};
            options.math = DISTILE_MATH_TF32;
            distile_context *made = nullptr;
            if (distile_cuda_context_create(&options, &cuda, &made) != DISTILE_OK) {
                throw std::runtime_error(distile_context_message(nullptr));
            }
            contexts_.emplace_back(made);
        }
        CU(cuCtxSetCurrent, current());
        const Context &first = contexts_[0];
        auto [batch, rows, columns] = size;
        input_ = std::make_unique<TwoTensors>(batch, rows, columns, layers.convs[0].in_channels, dtype_of(0), random_);
        for (size_t i = 0; i < layers.convs.size(); i++) {
            const Kernel kernel = make_kernel(first, *layers.polykernels[i]);
            check(first, distile_kernel_output_shape(kernel.get(), rows, columns, &rows, &columns));
            std::vector<uint8_t> bytes(static_cast<size_t>(batch) * rows * columns);
            for (uint8_t &byte : bytes) {
                byte = std::uniform_real_distribution<double>(0, 1)(random_) < density ? 1 : 0;
            }
            const DeviceArray<uint8_t> on_device(bytes);
            masks_.push_back(make_mask(first));
            check(first, distile_mask_set_bytes(masks_.back().get(), on_device.data(), batch, rows, columns,
                                                int64_t{rows} * columns, columns));
            CU(cuCtxSynchronize);
        }
        const size_t last = layers.convs.size() - 1;
        output_ = std::make_unique<TwoTensors>(batch, rows, columns, layers.convs[last].out_channels, dtype_of(last),
                                               random_);
    }

    CUcontext current() const {
        return streams_[0].context();
    }
    /** Everything that ranks do together, and the bits of the output. */
    std::vector<uint32_t> compute(const distile_transport *transport, distile_overlap overlap) {
        CU(cuCtxSetCurrent, current());
        std::vector<distile_context *> contexts;
        for (const Context &context : contexts_) {
            contexts.push_back(context.get());
        }
        distile_group_options options{};
        options.transport = transport;
        options.overlap = overlap;
        distile_group *made = nullptr;
        require_group(nullptr,
                      distile_group_create(contexts.data(), static_cast<int32_t>(contexts.size()), &options, &made));
        const Group group(made);
        std::vector<distile_chain_layer> described(layers_.convs.size());
        std::vector<std::vector<const distile_polykernel *>> codes;
        for (const distile_polykernel *polykernel : layers_.polykernels) {
            codes.emplace_back(contexts.size(), polykernel);
        }
        for (size_t i = 0; i < described.size(); i++) {
            described[i].polykernels = codes[i].data();
            described[i].weights = &layers_.sources[i];
        }
        distile_chain *made_chain = nullptr;
        require_group(
            made, distile_chain_create(made, described.data(), static_cast<int32_t>(described.size()), &made_chain));
        const Chain chain(made_chain);
        std::vector<distile_mask *> pointers;
        for (const Mask &mask : masks_) {
            pointers.push_back(mask.get());
        }
        distile_chain_args args{};
        args.input = &input_->device->view();
        args.output = &output_->device->view();
        args.masks = pointers.data();
        distile_tensor elsewhere = input_->device->view();
        elsewhere.data = nullptr;
        for (int32_t run = 0; run < 3; run++) {
            // Then with an input and masks on the first rank alone.
            const bool lacks = run == 2 && transport && transport->rank > 0;
            args.input = lacks ? &elsewhere : args.input;
            args.masks = lacks ? nullptr : args.masks;
            require_group(made, distile_chain_run(made_chain, &args));
        }
        if (input_->host.view().channels == output_->host.view().channels &&
            input_->host.view().height == output_->host.view().height) {
            args.output = nullptr;
            require_group(made, distile_chain_run(made_chain, &args));
            args.input = nullptr;
            require_group(made, distile_chain_run(made_chain, &args));
            require_group(made, distile_chain_collect(made_chain, &output_->device->view()));
        }
        CU(cuCtxSynchronize);
        return output_->bits();
    }

private:
    static void require_group(const distile_group *group, distile_status status) {
        if (status != DISTILE_OK) {
            throw std::runtime_error(distile_group_message(group));
        }
    }
    distile_dtype dtype_of(size_t i) const {
        return type_of(*layers_.polykernels[i]);
    }

    const GpuLayers &layers_;
    std::deque<GpuStream> streams_;
    std::mt19937 random_;
    std::vector<Context> contexts_;
    std::unique_ptr<TwoTensors> input_, output_;
    std::vector<Mask> masks_;
};

/** The PolyKernels of each layer, with residuals, strides, and 16 bits. */
std::vector<std::vector<const distile_polykernel *>> gpu_chains() {
    return {
        {&test_conv3_16_48_cuda, &test_conv3_48_16_residual_cuda, &test_conv3_16_48_cuda,
         &test_conv3_48_16_residual_cuda},
        {&test_conv5x2_3_17_cuda},
        {&distile_conv3x3_256_cuda, &distile_conv3x3s2_256_cuda, &distile_conv3x3_256_cuda},
        {&distile_conv3x3_256_float16_cuda, &distile_conv3x3_256_float16_cuda, &distile_conv3x3_256_float16_cuda},
    };
}

}  // namespace

TEST_CASE("Chains on ranks with a GPU or several have the bits of one", "[gpu_group]") {
    const Gpu gpu;
    if (!gpu) {
        return;
    }
    int gpus = 0;
    CU(cuDeviceGetCount, &gpus);
    const std::vector<std::vector<const distile_polykernel *>> chains = gpu_chains();
    for (size_t c = 0; c < chains.size(); c++) {
        const GpuLayers layers(chains[c]);
        for (const double density : {0.0, .3, 1.0}) {
            for (const std::array<int32_t, 3> &size : {std::array{1, 45, 67}, std::array{3, 24, 18}}) {
                const std::vector<uint32_t> expected =
                    GpuRank(layers, {0}, size, density).compute(nullptr, DISTILE_OVERLAP_NEVER);
                for (const std::vector<int32_t> &devices :
                     std::vector<std::vector<int32_t>>{{1, 1}, {1, 1, 1}, {2, 2}, {1, 3}}) {
                    const auto count = static_cast<int32_t>(devices.size());
                    for (const bool asynchronous : {false, true}) {
                        CAPTURE(c, density, size[0], devices, asynchronous);
                        RankHub hub(count);
                        int32_t next = 0;
                        std::deque<GpuRank> ranks;
                        std::deque<GpuTransport> transports;
                        for (int32_t rank = 0; rank < count; rank++) {
                            std::vector<int> own;
                            while (own.size() < static_cast<size_t>(devices[static_cast<size_t>(rank)])) {
                                own.push_back(next++ % gpus);
                            }
                            ranks.emplace_back(layers, own, size, density);
                            transports.emplace_back(hub, rank, ranks.back().current(), asynchronous);
                        }
                        std::vector<std::vector<uint32_t>> bits(static_cast<size_t>(count));
                        on_ranks(count, [&](int32_t rank) {
                            const auto place = static_cast<size_t>(rank);
                            const distile_transport transport = transports[place].transport();
                            bits[place] = ranks[place].compute(&transport, DISTILE_OVERLAP_WHERE_ASYNCHRONOUS);
                        });
                        CU(cuCtxSetCurrent, gpu.current);
                        for (const std::vector<uint32_t> &of_rank : bits) {
                            CHECK(of_rank == expected);
                        }
                        CHECK(hub.num_left() == 0);
                    }
                }
            }
        }
    }
}

TEST_CASE("Chains on several GPUs have the bits of one", "[gpu_group]") {
    const Gpu gpu;
    if (!gpu) {
        return;
    }
    const std::vector<std::vector<const distile_polykernel *>> chains = gpu_chains();
    for (size_t c = 0; c < chains.size(); c++) {
        GpuLayers layers(chains[c]);
        for (const size_t devices : {1, 2, 3, 4, 7}) {
            for (const distile_overlap overlap : {DISTILE_OVERLAP_NEVER, DISTILE_OVERLAP_ALWAYS}) {
                const GpuGroup several(devices, overlap);
                for (const auto &[batch, height, width] : {std::array{1, 45, 67}, std::array{3, 24, 18}}) {
                    TestedChain chain(layers, several, batch, height, width);
                    for (const double density : {0.0, .1, .6, 1.0}) {
                        INFO("chain " << c << ", " << devices << " contexts, overlap " << overlap << ", " << batch
                                      << " x " << height << " x " << width << ", density " << density);
                        chain.draw_masks(density);
                        chain.compare(DISTILE_KEEP);
                        chain.compare(DISTILE_ZERO);
                    }
                }
            }
        }
    }
}

TEST_CASE("GPUs that cannot read each other's memory form no group, and errors of peers arrive", "[fake_driver]") {
    const FakeSetting two("devices", 2, 1);
    std::vector<Context> contexts;
    std::vector<distile_context *> pointers;
    for (int32_t i = 0; i < 2; i++) {
        distile_cuda_options options{};
        options.device = i;
        contexts.push_back(make_cuda_context(options));
        pointers.push_back(contexts.back().get());
    }
    distile_group *made = nullptr;
    {
        const FakeSetting alone("peers", 0, 1);
        CHECK(name_of(distile_group_create(pointers.data(), 2, nullptr, &made)) == "DISTILE_ERROR_UNSUPPORTED_DEVICE");
        CHECK(contains(distile_group_message(nullptr), "nothing copies between"));
    }
    fail_fake("cuCtxEnablePeerAccess", CUDA_ERROR_TOO_MANY_PEERS);
    CHECK(name_of(distile_group_create(pointers.data(), 2, nullptr, &made)) == "DISTILE_ERROR_KERNEL");
    CHECK(contains(distile_group_message(nullptr), "cuCtxEnablePeerAccess failed"));
    // Another group, or the application, may have done it before.
    fail_fake("cuCtxEnablePeerAccess", CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
    CHECK(name_of(distile_group_create(pointers.data(), 2, nullptr, &made)) == "DISTILE_OK");
    fail_fake("cuCtxEnablePeerAccess", 0);
    const Group group(made);
    CHECK(count_fake("cuCtxEnablePeerAccess") > 0);
}

namespace {

/** Any one call of the driver fails in a run of a group of one device or two with these options. */
void fail_any_call(const distile_group_options &options, int32_t devices) {
    const FakeSetting counted("count", 3, 0);
    const Context context = make_cuda_context(), other = make_cuda_context();
    distile_context *const pointers[] = {context.get(), other.get()};
    distile_group *made_group = nullptr;
    REQUIRE(name_of(distile_group_create(pointers, devices, &options, &made_group)) == "DISTILE_OK");
    const Group group(made_group);
    const GpuLayers layers({&test_conv3_16_48_cuda, &test_conv3_48_16_residual_cuda});
    const distile_polykernel *const codes[][2] = {{layers.polykernels[0], layers.polykernels[0]},
                                                  {layers.polykernels[1], layers.polykernels[1]}};
    distile_chain_layer described[2]{};
    for (size_t i = 0; i < 2; i++) {
        described[i].polykernels = codes[i];
        described[i].weights = &layers.sources[i];
    }
    distile_chain *made = nullptr;
    REQUIRE(name_of(distile_chain_create(group.get(), described, 2, &made)) == "DISTILE_OK");
    const Chain chain(made);

    constexpr int32_t size = 9, channels = 16;
    const DeviceArray<float> from(size_t{size} * size * channels), to(size_t{size} * size * channels);
    const DeviceArray<uint8_t> bytes(std::vector<uint8_t>(size_t{size} * size, 1));
    const Mask mask = make_mask(context);
    check(context, distile_mask_set_bytes(mask.get(), bytes.data(), 1, size, size, int64_t{size} * size, size));
    const distile_tensor input = distile_tensor_make(from.data(), 1, size, size, channels),
                         output = distile_tensor_make(to.data(), 1, size, size, channels);
    distile_mask *const masks[] = {mask.get(), mask.get()};
    distile_chain_args args{};
    args.masks = masks;
    // With the images that devices keep, and without.
    const auto run = [&](bool keeps) {
        args.input = &input;
        args.output = keeps ? nullptr : &output;
        distile_status status = distile_chain_run(chain.get(), &args);
        if (status == DISTILE_OK && keeps) {
            args.input = nullptr;
            status = distile_chain_run(chain.get(), &args);
        }
        return keeps && status == DISTILE_OK ? distile_chain_collect(chain.get(), &output) : status;
    };
    for (const bool keeps : {false, true}) {
        REQUIRE(name_of(run(keeps)) == "DISTILE_OK");
        REQUIRE(name_of(run(keeps)) == "DISTILE_OK");
        int64_t refused = 0, calls = 0;
        for (int64_t call = 0;; call++) {
            CAPTURE(keeps, call);
            const int64_t failed = count_fake("failed");
            fail_fake_once(call, CUDA_ERROR_NOT_PERMITTED);
            const distile_status status = run(keeps);
            fail_fake_once(-1, CUDA_SUCCESS);
            if (count_fake("failed") == failed) {
                calls = call;
                break;
            }
            // A pop that fails is no fault of the run.
            refused += status != DISTILE_OK ? 1 : 0;
            REQUIRE(name_of(run(keeps)) == "DISTILE_OK");
        }
        CHECK(refused > calls / 2);
    }
}

}  // namespace

TEST_CASE("Any one call of the driver may fail in a group's run, and the next run succeeds", "[fake_driver]") {
    fail_any_call({}, 1);
    fail_any_call({}, 2);
}

TEST_CASE("Any one call of the driver may fail in a rank's run, and the next run succeeds", "[fake_driver]") {
    // The other rank tells what this one does, and its pixels do not matter.
    distile_transport transport{};
    transport.ranks = 2;
    transport.asynchronous = 1;
    int32_t on_device = 0;
    transport.user = &on_device;
    transport.exchange = [](void *user, const distile_messages *messages) {
        *static_cast<int32_t *>(user) += messages->on_device;
        const bool record = messages->on_device == 0 && messages->num_receives == 1;
        if (record) {
            std::memcpy(messages->receives[0].data, messages->sends[0].data,
                        static_cast<size_t>(messages->sends[0].bytes));
        }
        return DISTILE_OK;
    };
    distile_group_options options{};
    options.transport = &transport;
    fail_any_call(options, 1);
    const int32_t messages = on_device;
    CHECK(messages > 0);
    fail_any_call(options, 2);
    CHECK(on_device > messages);
}
