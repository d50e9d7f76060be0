#include "cuda_mask.h"
#include "operators.h"
#include "pixel_update.h"
#include "tensor_buffer.h"
#include "weights.h"
#include <algorithm>
#include <chrono>
#include <cstring>

using namespace distile;

struct distile_cuda_weights {
    explicit distile_cuda_weights(distile_cuda &cuda) : cuda(cuda), filter(cuda), bias(cuda) {
    }

    distile_cuda &cuda;
    distile_conv2d conv{};
    DeviceMemory filter, bias;
};

struct distile_cuda_kernel {
    distile_cuda_kernel(distile_cuda &cuda, const distile_polykernel *polykernel)
        : cuda(cuda), kernel(cuda.host, polykernel, cuda.multiprocessors), code(cuda) {
        for (const Variant &variant : kernel.variants) {
            granularities.push_back({variant.tile_h, variant.tile_w});
        }
        granularities.push_back({1, 1});
        tiles.resize(granularities.size());
    }

    /** The dense candidate of the application's that a variant is; null if it is one of the PolyKernel's. */
    const distile_cuda_dense_candidate *candidate(int32_t variant) const {
        const int32_t own = kernel.polykernel->num_variants;
        return variant < own ? nullptr : &candidates[variant - own];
    }

    /** A mask of a shape with every pixel active: what dense variants list. Throws CudaFailure. */
    distile_cuda_mask &full_mask(const MaskShape &shape);

    distile_cuda &cuda;
    distile_kernel kernel;  ///< The variants and their times.
    LoadedCode code;
    /** Of the PolyKernel's variants, and of single pixels, which are those of the candidates too. */
    std::vector<Granularity> granularities;
    std::vector<int64_t> tiles;  ///< As many, for the choice of a variant.
    std::vector<distile_cuda_dense_candidate> candidates;

private:
    struct FullMask {
        std::unique_ptr<distile_cuda_mask> mask;
        bool captured;  ///< A graph reads its lists, so they must stay as they are.
    };
    std::vector<FullMask> full_masks_;  // The oldest first.
};

namespace {

constexpr const char *run_call = "distile_cuda_run";
/** Shapes for which a kernel keeps a full mask, beside those of graphs. */
constexpr std::ptrdiff_t most_full_masks = 16;
constexpr int64_t most_virtual_pixels = int64_t{1} << 30;

int32_t num_blocks(const distile_conv2d &conv) {
    return (conv.out_channels + DISTILE_CUDA_CHANNEL_BLOCK - 1) / DISTILE_CUDA_CHANNEL_BLOCK;
}

halide_buffer_t device_buffer(const void *address, halide_type_t type, int32_t dimensions, halide_dimension_t *dims) {
    halide_buffer_t buffer = make_buffer(nullptr, type, dimensions, dims);
    buffer.device = reinterpret_cast<uint64_t>(address);
    return buffer;
}

/** A tensor as the kernels see it, on the device. */
struct DeviceTensor : TensorBuffer {
    explicit DeviceTensor(const distile_tensor &tensor) : TensorBuffer(tensor) {
        buffer.device = reinterpret_cast<uint64_t>(buffer.host);
        buffer.host = nullptr;
    }
};

/** Everything that a generated function takes. */
struct Call {
    distile_tensor input, residual, output;
    const float *filter, *bias;
    DeviceBits bits;
    int32_t batch;
    DeviceTiles tiles;
    int32_t num_tiles;
    bool store_tiles;
    bool rehearsal;
};

/** Runs a variant for the API function `name`. */
distile_status run_variant(const char *name, distile_cuda_kernel &cuda_kernel, const Variant &variant,
                           const Call &call) {
    distile_cuda &cuda = cuda_kernel.cuda;
    const distile_conv2d &conv = cuda_kernel.kernel.polykernel->conv2d;
    DeviceTensor input(call.input), output(without_border(call.output)), residual(without_border(call.residual));
    constexpr int32_t block = DISTILE_CUDA_CHANNEL_BLOCK;
    const int32_t filter_channels = conv.in_channels / conv.groups;
    const int32_t column = block * filter_channels, row = column * conv.kernel_w;
    halide_dimension_t weights_dims[] = {{0, block, 1},
                                         {0, filter_channels, block},
                                         {0, conv.kernel_w, column},
                                         {0, conv.kernel_h, row},
                                         {0, num_blocks(conv), row * conv.kernel_h}};
    halide_dimension_t bias_dims[] = {{0, block * num_blocks(conv), 1}};
    halide_dimension_t tiles_dims[] = {{0, static_cast<int32_t>(call.tiles.capacity), 1},
                                       {0, 2, static_cast<int32_t>(call.tiles.capacity)}};
    halide_dimension_t bits_dims[] = {{0, call.bits.words_per_row, 1},
                                      {0, call.bits.height, call.bits.words_per_row},
                                      {0, call.batch, call.bits.words_per_row * call.bits.height}};
    halide_dimension_t count_dims[] = {{0, 1, 1}};
    halide_buffer_t weights = device_buffer(call.filter, halide_type_of<float>(), 5, weights_dims);
    halide_buffer_t bias = device_buffer(call.bias, halide_type_of<float>(), 1, bias_dims);
    halide_buffer_t tiles = device_buffer(call.tiles.xy, halide_type_of<uint32_t>(), 2, tiles_dims);
    halide_buffer_t bits = device_buffer(call.bits.words, halide_type_of<uint32_t>(), 3, bits_dims);
    halide_buffer_t count = device_buffer(call.tiles.count, halide_type_of<uint32_t>(), 1, count_dims);

    void *user_context = static_cast<distile_hooks *>(&cuda);
    int32_t num_interior = 0, num_tiles = call.num_tiles, threads = 1;
    bool store_tiles = call.store_tiles;
    void *arguments[13] = {&user_context, &input.buffer, &tiles,   &bits, &num_interior, &num_tiles,
                           &threads,      &store_tiles,  &weights, &bias, &count};
    int32_t used = 11;
    if (conv.residual != 0) {
        arguments[used++] = &residual.buffer;
    }
    arguments[used] = &output.buffer;
    cuda.begin_generated(cuda_kernel.code, call.rehearsal);
    const int code = variant.run(arguments);
    if (code != 0) {
        const distile_status known = cuda.generated_status != DISTILE_OK       ? cuda.generated_status
                                     : code == halide_error_code_out_of_memory ? DISTILE_ERROR_OUT_OF_MEMORY
                                                                               : DISTILE_ERROR_KERNEL;
        return fail_variant(cuda_kernel.kernel, name, known, variant, code);
    }
    return DISTILE_OK;
}

/** Calls every variant on addresses that nobody reads, so that its code is compiled and loaded. */
distile_status rehearse(const char *name, distile_cuda_kernel &kernel) {
    const distile_conv2d &conv = kernel.kernel.polykernel->conv2d;
    const int32_t height = conv.dilation_h * (conv.kernel_h - 1) + 1;
    const int32_t width = conv.dilation_w * (conv.kernel_w - 1) + 1;
    auto *nowhere = reinterpret_cast<float *>(uintptr_t{256});
    auto *words = reinterpret_cast<uint32_t *>(nowhere);
    Call call{};
    // Whole vectors from pixel to pixel, so that the strides are what the kernels promise.
    call.input = distile_tensor_make(nowhere, 1, height, width, conv.in_channels);
    const OperatorKind &kind = *find_operator_kind(kernel.kernel.polykernel->kind);
    call.output =
        distile_tensor_make(nowhere, 1, static_cast<int32_t>(kind.output_extent(rows_of(conv), height)),
                            static_cast<int32_t>(kind.output_extent(columns_of(conv), width)), conv.out_channels);
    call.residual = call.output;
    call.filter = call.bias = nowhere;
    call.bits = {words, call.output.height, call.output.width, (call.output.width + 31) / 32};
    call.batch = 1;
    call.tiles = {words, words, words, 1};
    call.num_tiles = 1;
    call.rehearsal = true;
    distile_status status = DISTILE_OK;
    for (const Variant &variant : kernel.kernel.variants) {
        if (status == DISTILE_OK) {
            status = run_variant(name, kernel, variant, call);
        }
    }
    return status;
}

/** What only kernels of a GPU ask of a tensor. Throws CudaFailure. */
void check_device_tensor(distile_cuda &cuda, const distile_tensor &tensor, const char *name) {
    cuda.check_pointer(tensor.data, run_call, name);
    if (tensor.channels % vector_lanes != 0) {
        return;
    }
    if (reinterpret_cast<uintptr_t>(tensor.data) % (vector_lanes * sizeof(float)) != 0 ||
        tensor.stride_w % vector_lanes != 0 || tensor.stride_h % vector_lanes != 0 ||
        (tensor.batch > 1 && tensor.stride_n % vector_lanes != 0)) {
        throw CudaFailure{
            fail(cuda.host, DISTILE_ERROR_BAD_STRIDE,
                 "%s: the %s must begin at a multiple of 16 bytes, and its strides n %lld, h %lld, w %lld "
                 "be multiples of 4 elements, because its %d channels are one",
                 run_call, name, static_cast<long long>(tensor.stride_n), static_cast<long long>(tensor.stride_h),
                 static_cast<long long>(tensor.stride_w), tensor.channels)};
    }
}

distile_status check_run(const distile_cuda_kernel &kernel, const distile_cuda_run_args &args) {
    distile_context *host = kernel.cuda.host;
    const distile_status status = check_tensors(
        kernel.kernel, run_call, {args.input, args.residual, args.output, raw(args.inactive), raw(args.store)});
    if (status != DISTILE_OK) {
        return status;
    }
    if (!args.weights) {
        return fail(host, DISTILE_ERROR_NULL_POINTER, "%s: the weights are null", run_call);
    }
    const distile_conv2d &conv = kernel.kernel.polykernel->conv2d, &packed = args.weights->conv;
    if (&args.weights->cuda != &kernel.cuda || packed.in_channels != conv.in_channels ||
        packed.out_channels != conv.out_channels || packed.groups != conv.groups || packed.kernel_h != conv.kernel_h ||
        packed.kernel_w != conv.kernel_w) {
        return fail(
            host, DISTILE_ERROR_BAD_WEIGHTS,
            "%s: the weights are of another GPU, or of an operator with %d -> %d channels in %d groups and a %d x %d "
            "kernel; '%s' has %d -> %d in %d and %d x %d",
            run_call, packed.in_channels, packed.out_channels, packed.groups, packed.kernel_h, packed.kernel_w,
            kernel.kernel.polykernel->name, conv.in_channels, conv.out_channels, conv.groups, conv.kernel_h,
            conv.kernel_w);
    }
    return check_output_mask(host, &kernel.cuda, run_call, args.mask, *args.output);
}

/** The variant that is due, and the tiles to launch it for: as many as there are, or as there can be. */
distile_choice choose(distile_cuda_kernel &kernel, const distile_cuda_run_args &args) {
    distile_cuda &cuda = kernel.cuda;
    distile_cuda_mask &mask = *args.mask;
    if (args.variant) {
        const int32_t index = kernel.kernel.find(args.variant);
        if (index < 0) {
            throw CudaFailure{fail(cuda.host, DISTILE_ERROR_BAD_VALUE, "%s: '%s' has no variant '%s'", run_call,
                                   kernel.kernel.polykernel->name, args.variant)};
        }
        distile_choice choice = kernel.kernel.choice_of(index, -1, -1);
        choice.predicted_us = 0;
        return choice;
    }
    if (mask.captured || (cuda.is_capturing() && !mask.knows(kernel.granularities))) {
        throw CudaFailure{fail(cuda.host, DISTILE_ERROR_BAD_VALUE,
                               "%s: the host cannot know how many tiles a mask has that is set in a graph: name a "
                               "variant, or set the mask again",
                               run_call)};
    }
    mask.count(kernel.granularities, kernel.tiles.data());
    const int64_t active_pixels = kernel.tiles.back();
    for (size_t i = 0; i < kernel.kernel.variants.size(); i++) {
        const Variant &variant = kernel.kernel.variants[i];
        if (variant.dense) {
            kernel.tiles[i] = mask.num_tiles({variant.tile_h, variant.tile_w});
        }
    }
    return kernel.kernel.choose(kernel.tiles, active_pixels);
}

/** Runs a variant of the PolyKernel's. */
distile_status run_own(distile_cuda_kernel &kernel, const distile_cuda_run_args &args, const distile_choice &choice) {
    distile_cuda &cuda = kernel.cuda;
    distile_cuda_mask &mask = *args.mask;
    const Variant &variant = kernel.kernel.variants[choice.variant_index];
    const Granularity granularity = {variant.tile_h, variant.tile_w};
    const int64_t num_tiles = choice.tiles >= 0 ? choice.tiles : mask.num_tiles(granularity);
    if (num_tiles * variant.tile_h * variant.tile_w >= most_virtual_pixels) {
        return fail(cuda.host, DISTILE_ERROR_BAD_SHAPE, "%s: %lld tiles of %d x %d are not fewer than 2^30 pixels",
                    run_call, static_cast<long long>(num_tiles), variant.tile_h, variant.tile_w);
    }
    Call call{};
    if (num_tiles > 0) {
        call.tiles = (variant.dense ? kernel.full_mask(mask.shape()) : mask).list(granularity);
    }
    const bool store_tiles = args.store == DISTILE_STORE_TILES;
    const bool zero = args.inactive == DISTILE_ZERO && choice.active_pixels != mask.num_pixels();
    // Zeros and what the operator stores are different pixels, unless it stores whole tiles, which come last.
    const bool zero_beside = zero && !store_tiles && num_tiles > 0;
    if (zero && !zero_beside) {
        update_pixels(cuda, cuda.stream, mask.bits, *args.output, nullptr, true);
    }
    if (num_tiles == 0) {
        return DISTILE_OK;
    }
    call.input = *args.input;
    call.output = *args.output;
    call.residual = args.residual ? *args.residual : *args.output;
    call.filter = args.weights->filter.as<const float>();
    call.bias = args.weights->bias.as<const float>();
    call.bits = mask.bits;
    call.batch = mask.batch;
    call.num_tiles = static_cast<int32_t>(num_tiles);
    call.store_tiles = store_tiles;
    if (zero_beside) {
        cuda.side->fork();
    }
    const distile_status status = run_variant(run_call, kernel, variant, call);
    if (status != DISTILE_OK || !zero_beside) {
        return status;
    }
    // After the operator, so that its blocks start first and the zeros fill the gaps.
    cuda.side->begin();
    update_pixels(cuda, cuda.side->stream(), mask.bits, *args.output, nullptr, true);
    try {
        cuda.side->join();
    } catch (...) {
        // Nothing that comes next may run beside them.
        cuda.driver.cuStreamSynchronize(cuda.side->stream());
        throw;
    }
    return DISTILE_OK;
}

/** Runs a dense candidate of the application's so that exactly the pixels that are due change. */
distile_status run_candidate(distile_cuda_kernel &kernel, const distile_cuda_run_args &args,
                             const distile_choice &choice, const distile_cuda_dense_candidate &candidate) {
    distile_cuda &cuda = kernel.cuda;
    const distile_tensor &output = *args.output;
    const bool in_place = args.residual && same_view(*args.residual, output);
    const bool every_pixel = choice.active_pixels == args.mask->num_pixels() || args.store == DISTILE_STORE_TILES;
    const bool zero = args.inactive == DISTILE_ZERO && !every_pixel;
    const bool direct = !in_place && (every_pixel || zero);
    distile_tensor result = output;
    if (!direct) {
        result = distile_tensor_make(nullptr, output.batch, output.height, output.width, output.channels);
        cuda.dense_output->reserve(static_cast<uint64_t>(result.batch * result.stride_n) * sizeof(float));
        result.data = cuda.dense_output->as<float>();
    }
    cuda.host->kernel_failed = false;
    const int code = candidate.run(candidate.user, cuda.stream, args.input, args.residual, &result);
    if (code != 0) {
        const Variant &variant = kernel.kernel.variants[choice.variant_index];
        return fail_variant(kernel.kernel, run_call, DISTILE_ERROR_KERNEL, variant, code);
    }
    if (!direct || zero) {
        const DeviceBits bits = every_pixel ? DeviceBits{} : args.mask->bits;
        update_pixels(cuda, cuda.stream, bits, output, direct ? nullptr : result.data, zero);
    }
    return DISTILE_OK;
}

distile_status run(distile_cuda_kernel &kernel, const distile_cuda_run_args &args) {
    distile_cuda &cuda = kernel.cuda;
    check_device_tensor(cuda, *args.input, "input");
    check_device_tensor(cuda, *args.output, "output");
    if (args.residual) {
        check_device_tensor(cuda, *args.residual, "residual");
    }
    distile_choice choice = choose(kernel, args);
    using Clock = std::chrono::steady_clock;
    const Clock::time_point start = Clock::now();
    const distile_cuda_dense_candidate *candidate = kernel.candidate(choice.variant_index);
    const distile_status status =
        candidate ? run_candidate(kernel, args, choice, *candidate) : run_own(kernel, args, choice);
    if (status != DISTILE_OK) {
        return status;
    }
    if (cuda.host->options.trace) {
        choice.elapsed_us = std::chrono::duration<double, std::micro>(Clock::now() - start).count();
        cuda.host->options.trace(cuda.host->options.trace_user, &choice);
    }
    return DISTILE_OK;
}

}  // namespace

distile_cuda_mask &distile_cuda_kernel::full_mask(const MaskShape &shape) {
    const bool capturing = cuda.is_capturing();
    auto found = std::find_if(full_masks_.begin(), full_masks_.end(),
                              [&](const FullMask &full) { return full.mask->shape() == shape; });
    if (found == full_masks_.end()) {
        if (capturing) {
            throw CudaFailure{fail(cuda.host, DISTILE_ERROR_BAD_VALUE,
                                   "%s: a graph is being captured: make the same calls with the same shapes once "
                                   "before the capture",
                                   run_call)};
        }
        const auto is_free = [](const FullMask &full) { return !full.captured; };
        FullMask made{};
        if (std::count_if(full_masks_.begin(), full_masks_.end(), is_free) < most_full_masks) {
            made.mask = std::make_unique<distile_cuda_mask>(cuda);
        } else {
            found = std::find_if(full_masks_.begin(), full_masks_.end(), is_free);
            made = std::move(*found);
            full_masks_.erase(found);
        }
        made.mask->set_all(shape);
        full_masks_.push_back(std::move(made));
        found = full_masks_.end() - 1;
    }
    found->captured = found->captured || capturing;
    return *found->mask;
}

extern "C" {

distile_status distile_cuda_kernel_create(distile_cuda *cuda, const distile_polykernel *polykernel,
                                          distile_cuda_kernel **kernel) {
    if (!cuda) {
        return DISTILE_ERROR_NULL_POINTER;
    }
    constexpr const char *call = "distile_cuda_kernel_create";
    distile_context *host = cuda->host;
    if (!polykernel || !kernel) {
        return fail(host, DISTILE_ERROR_NULL_POINTER, "%s: the PolyKernel or the address for the kernel is null", call);
    }
    const distile_status known = check_polykernel(host, call, *polykernel);
    if (known != DISTILE_OK) {
        return known;
    }
    if (polykernel->compute_capability == 0) {
        return fail(host, DISTILE_ERROR_BAD_VALUE, "%s: '%s' runs on a CPU: create it with distile_kernel_create", call,
                    polykernel->name);
    }
    if (raw(polykernel->kind) != DISTILE_MASKED_CONV2D || polykernel->conv2d.groups != 1) {
        return fail(host, DISTILE_ERROR_BAD_VALUE,
                    "%s: '%s' is not a convolution with one group: no other runs on GPUs", call, polykernel->name);
    }
    if (polykernel->compute_capability > cuda->capability) {
        return fail(host, DISTILE_ERROR_UNSUPPORTED_GPU,
                    "%s: '%s' needs a GPU of compute capability %d.%d, and this one has %d.%d", call, polykernel->name,
                    polykernel->compute_capability / 10, polykernel->compute_capability % 10, cuda->capability / 10,
                    cuda->capability % 10);
    }
    return guarded_cuda(*cuda, [&] {
        auto created = std::make_unique<distile_cuda_kernel>(*cuda, polykernel);
        const distile_status status = rehearse(call, *created);
        if (status == DISTILE_OK) {
            *kernel = created.release();
        }
        return status;
    });
}

void distile_cuda_kernel_destroy(distile_cuda_kernel *kernel) {
    if (kernel) {
        destroy_cuda(kernel->cuda, kernel);
    }
}

distile_kernel *distile_cuda_kernel_variants(distile_cuda_kernel *kernel) {
    return kernel ? &kernel->kernel : nullptr;
}

distile_status distile_cuda_kernel_add_dense(distile_cuda_kernel *kernel,
                                             const distile_cuda_dense_candidate *candidate) {
    if (!kernel) {
        return DISTILE_ERROR_NULL_POINTER;
    }
    constexpr const char *call = "distile_cuda_kernel_add_dense";
    distile_context *host = kernel->cuda.host;
    if (!candidate || !candidate->name || !candidate->run) {
        return fail(host, DISTILE_ERROR_NULL_POINTER, "%s: the candidate, its name or its function is null", call);
    }
    if (kernel->kernel.find(candidate->name) >= 0) {
        return fail(host, DISTILE_ERROR_BAD_VALUE, "%s: '%s' already has a variant '%s'", call,
                    kernel->kernel.polykernel->name, candidate->name);
    }
    return guarded(host, [&] {
        // Room is made first, so that a failure leaves the kernel as it was.
        kernel->candidates.reserve(kernel->candidates.size() + 1);
        kernel->granularities.reserve(kernel->granularities.size() + 1);
        kernel->tiles.reserve(kernel->tiles.size() + 1);
        const Variant &variant = kernel->kernel.add_dense(candidate->name);
        kernel->candidates.push_back(*candidate);
        kernel->candidates.back().name = variant.name;
        kernel->granularities.push_back({1, 1});
        kernel->tiles.push_back(0);
        return DISTILE_OK;
    });
}

distile_status distile_cuda_weights_pack(distile_cuda_kernel *kernel, const distile_weights_source *source,
                                         distile_cuda_weights **weights) {
    if (!kernel) {
        return DISTILE_ERROR_NULL_POINTER;
    }
    constexpr const char *call = "distile_cuda_weights_pack";
    const distile_status checked = check_weights(kernel->kernel, call, source, weights);
    if (checked != DISTILE_OK) {
        return checked;
    }
    distile_cuda &cuda = kernel->cuda;
    return guarded_cuda(cuda, [&] {
        const distile_conv2d &conv = kernel->kernel.polykernel->conv2d;
        const size_t channels = static_cast<size_t>(num_blocks(conv)) * DISTILE_CUDA_CHANNEL_BLOCK;
        std::vector<float> filter(channels * (conv.in_channels / conv.groups) * conv.kernel_h * conv.kernel_w),
            bias(channels);
        const distile_status status =
            pack_weights(kernel->kernel, call, *source, DISTILE_CUDA_CHANNEL_BLOCK, filter.data(), bias.data());
        if (status != DISTILE_OK) {
            return status;
        }
        auto packed = std::make_unique<distile_cuda_weights>(cuda);
        packed->conv = conv;
        for (const auto &[memory, values] : {std::make_pair(&packed->filter, &filter), {&packed->bias, &bias}}) {
            memory->reserve(values->size() * sizeof(float));
            cuda.check(cuda.driver.cuMemcpyHtoD(memory->address(), values->data(), values->size() * sizeof(float)),
                       "cuMemcpyHtoD");
        }
        // A stream of the caller's need not wait for the default stream, on which the copies were.
        cuda.check(cuda.driver.cuCtxSynchronize(), "cuCtxSynchronize");
        *weights = packed.release();
        return DISTILE_OK;
    });
}

void distile_cuda_weights_destroy(distile_cuda_weights *weights) {
    if (weights) {
        destroy_cuda(weights->cuda, weights);
    }
}

distile_status distile_cuda_run(distile_cuda_kernel *kernel, const distile_cuda_run_args *args) {
    if (!kernel) {
        return DISTILE_ERROR_NULL_POINTER;
    }
    if (!args) {
        return fail(kernel->cuda.host, DISTILE_ERROR_NULL_POINTER, "%s: the arguments are null", run_call);
    }
    const distile_status status = check_run(*kernel, *args);
    return status != DISTILE_OK ? status : guarded_cuda(kernel->cuda, [&] { return run(*kernel, *args); });
}

}  // extern "C"
