// Masked convolutions on an NVIDIA GPU against cuDNN's dense ones: the operator's kernels alone, and from the byte mask
// on the device. One executable without libraries of its own, so that it can be carried to a machine with a GPU.
#include "gpu.h"
#include "mask_families.h"
#include "results.h"
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <distile/cuda.h>
#include <distile/distile.hpp>
#include <distile/polykernel.h>
#include <fmt/core.h>
#include <functional>
#include <random>

#if __has_include(<cudnn.h>)
#include <cudnn.h>
#define DISTILE_BENCH_CUDNN
#endif

#include "distile_conv1x1_256_1024_cuda.h"
#include "distile_conv3x3_128_cuda.h"
#include "distile_conv3x3_256_cuda.h"
#include "distile_conv3x3s2_256_cuda.h"

using namespace distile;
using distile::bench::Json;

namespace {

/** The operators of data/operators.csv that have a plan for GPUs. */
struct Operator {
    const char *name, *shape;
    const distile_polykernel *polykernel;
    int32_t height, width;
};

const Operator operators[] = {
    {"op3", "40 x 40, 256 -> 256, 3x3", &distile_conv3x3_256_cuda, 40, 40},
    {"op7", "128 x 128, 128 -> 128, 3x3", &distile_conv3x3_128_cuda, 128, 128},
    {"op12", "80 x 80, 256 -> 256, 3x3, stride 2", &distile_conv3x3s2_256_cuda, 80, 80},
    {"op21", "40 x 40, 256 -> 1024, 1x1", &distile_conv1x1_256_1024_cuda, 40, 40},
};

constexpr int32_t batches[] = {1, 4, 32};
constexpr double densities[] = {0.1, 0.3, 0.5};

double rounded(double value) {
    return std::round(value * 1000) / 1000;
}

/** The whole GPU, or a green context with some of its multiprocessors; with a stream of its own. */
class Slice {
public:
    explicit Slice(unsigned int multiprocessors) {
        CU(cuInit, 0u);
        CU(cuDeviceGet, &device_, 0);
        CU(cuDevicePrimaryCtxRetain, &context_, device_);
        if (multiprocessors > 0) {
            CUdevResource all{}, part{}, rest{};
            unsigned int groups = 1;
            CU(cuDeviceGetDevResource, device_, &all, CU_DEV_RESOURCE_TYPE_SM);
            CU(cuDevSmResourceSplitByCount, &part, &groups, static_cast<const CUdevResource *>(&all), &rest, 0u,
               multiprocessors);
            CUdevResourceDesc description = nullptr;
            CU(cuDevResourceGenerateDesc, &description, &part, 1u);
            CUgreenCtx green = nullptr;
            CU(cuGreenCtxCreate, &green, description, device_, static_cast<unsigned int>(CU_GREEN_CTX_DEFAULT_STREAM));
            CU(cuCtxFromGreenCtx, &context_, green);
            CU(cuCtxSetCurrent, context_);
            CU(cuGreenCtxStreamCreate, &stream_, green, static_cast<unsigned int>(CU_STREAM_NON_BLOCKING), 0);
            multiprocessors_ = part.sm.smCount;
        } else {
            CU(cuCtxSetCurrent, context_);
            CU(cuStreamCreate, &stream_, static_cast<unsigned int>(CU_STREAM_NON_BLOCKING));
            int count = 0;
            CU(cuDeviceGetAttribute, &count, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device_);
            multiprocessors_ = static_cast<unsigned int>(count);
        }
    }
    CUcontext context() const {
        return context_;
    }
    CUstream stream() const {
        return stream_;
    }
    unsigned int multiprocessors() const {
        return multiprocessors_;
    }
    std::string name() const {
        char text[128] = "";
        CU(cuDeviceGetName, text, static_cast<int>(sizeof(text)), device_);
        return text;
    }

private:
    CUdevice device_ = 0;
    CUcontext context_ = nullptr;
    CUstream stream_ = nullptr;
    unsigned int multiprocessors_ = 0;
};

/** Some calls of what is measured, as one graph. */
class Graph {
public:
    Graph(CUstream stream, int calls, const std::function<void()> &call) : stream_(stream), calls_(calls) {
        call();
        CU(cuStreamSynchronize, stream);
        CUgraph graph = nullptr;
        CU(cuStreamBeginCapture, stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
        for (int i = 0; i < calls; i++) {
            call();
        }
        CU(cuStreamEndCapture, stream, &graph);
        CU(cuGraphInstantiate, &executable_, graph, 0ULL);
        CU(cuGraphDestroy, graph);
        CU(cuEventCreate, &begin_, 0u);
        CU(cuEventCreate, &end_, 0u);
    }
    // What the driver refuses here it refused before: ending the program is right.
    // NOLINTNEXTLINE(bugprone-exception-escape)
    ~Graph() {
        CU(cuEventDestroy, begin_);
        CU(cuEventDestroy, end_);
        CU(cuGraphExecDestroy, executable_);
    }
    Graph(const Graph &) = delete;
    Graph &operator=(const Graph &) = delete;

    /** Microseconds of one call, from one launch of the graph. */
    double time() const {
        float milliseconds = 0;
        CU(cuEventRecord, begin_, stream_);
        CU(cuGraphLaunch, executable_, stream_);
        CU(cuEventRecord, end_, stream_);
        CU(cuEventSynchronize, end_);
        CU(cuEventElapsedTime, &milliseconds, begin_, end_);
        return 1000.0 * milliseconds / calls_;
    }

private:
    CUstream stream_;
    int calls_;
    CUgraphExec executable_ = nullptr;
    CUevent begin_ = nullptr, end_ = nullptr;
};

/** The medians of several graphs' times, measured in turns. */
std::vector<double> measure(const std::vector<const Graph *> &graphs) {
    constexpr int rounds = 11;
    std::vector<std::vector<double>> times(graphs.size());
    for (int round = -2; round < rounds; round++) {
        for (size_t i = 0; i < graphs.size(); i++) {
            const double time = graphs[i]->time();
            if (round >= 0) {
                times[i].push_back(time);
            }
        }
    }
    std::vector<double> medians;
    for (std::vector<double> &series : times) {
        std::nth_element(series.begin(), series.begin() + rounds / 2, series.end());
        medians.push_back(series[rounds / 2]);
    }
    return medians;
}

#ifdef DISTILE_BENCH_CUDNN

/** Calls a function of cuDNN by its name. */
#define DNN(name, ...) call_cudnn<decltype(&::name)>(#name, __VA_ARGS__)

template<typename Function, typename... Args> void call_cudnn(const char *name, Args... args) {
    static void *const library = dlopen("libcudnn.so.9", RTLD_NOW | RTLD_LOCAL);
    const auto function = library ? reinterpret_cast<Function>(dlsym(library, name)) : nullptr;
    if (!function) {
        throw std::runtime_error(std::string("libcudnn.so.9 is not there, or lacks ") + name);
    }
    if (function(args...) != CUDNN_STATUS_SUCCESS) {
        throw std::runtime_error(std::string(name) + " failed");
    }
}

/** The same convolution without its bias and epilogue, channels last, by the fastest algorithm of cuDNN's legacy
 * interface. Its newer interface has faster ones for small batches: ratios to this peer flatter us, and rows call it
 * "cudnn-legacy". */
class Cudnn {
public:
    Cudnn(CUstream stream, const distile_conv2d &conv, const distile_tensor &input, const distile_tensor &output,
          bool tf32)
        : input_(input), output_(output) {
        DNN(cudnnCreate, &handle_);
        DNN(cudnnSetStream, handle_, reinterpret_cast<cudaStream_t>(stream));
        DNN(cudnnCreateTensorDescriptor, &input_shape_);
        DNN(cudnnCreateTensorDescriptor, &output_shape_);
        DNN(cudnnCreateFilterDescriptor, &filter_shape_);
        DNN(cudnnCreateConvolutionDescriptor, &convolution_);
        DNN(cudnnSetTensor4dDescriptor, input_shape_, CUDNN_TENSOR_NHWC, CUDNN_DATA_FLOAT, input.batch, input.channels,
            input.height, input.width);
        DNN(cudnnSetTensor4dDescriptor, output_shape_, CUDNN_TENSOR_NHWC, CUDNN_DATA_FLOAT, output.batch,
            output.channels, output.height, output.width);
        DNN(cudnnSetFilter4dDescriptor, filter_shape_, CUDNN_DATA_FLOAT, CUDNN_TENSOR_NHWC, conv.out_channels,
            conv.in_channels, conv.kernel_h, conv.kernel_w);
        DNN(cudnnSetConvolution2dDescriptor, convolution_, conv.pad_top, conv.pad_left, conv.stride_h, conv.stride_w,
            conv.dilation_h, conv.dilation_w, CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT);
        DNN(cudnnSetConvolutionMathType, convolution_, tf32 ? CUDNN_DEFAULT_MATH : CUDNN_FMA_MATH);
        filter_ = std::make_unique<DeviceArray<float>>(std::vector<float>(
            static_cast<size_t>(conv.out_channels) * conv.in_channels * conv.kernel_h * conv.kernel_w, 0.01f));
        workspace_ = std::make_unique<DeviceArray<uint8_t>>(workspace_bytes);
        cudnnConvolutionFwdAlgoPerf_t found[8];
        int count = 0;
        DNN(cudnnFindConvolutionForwardAlgorithmEx, handle_, input_shape_, static_cast<const void *>(input_.data),
            filter_shape_, static_cast<const void *>(filter_->data()), convolution_, output_shape_, output_.data, 8,
            &count, &found[0], static_cast<void *>(workspace_->data()), workspace_bytes);
        for (int i = count - 1; i >= 0; i--) {
            if (found[i].status == CUDNN_STATUS_SUCCESS && (tf32 || found[i].mathType == CUDNN_FMA_MATH)) {
                algorithm_ = found[i];
            }
        }
        DNN(cudnnSetConvolutionMathType, convolution_, algorithm_.mathType);
    }
    // NOLINTNEXTLINE(bugprone-exception-escape)
    ~Cudnn() {
        DNN(cudnnDestroyConvolutionDescriptor, convolution_);
        DNN(cudnnDestroyFilterDescriptor, filter_shape_);
        DNN(cudnnDestroyTensorDescriptor, output_shape_);
        DNN(cudnnDestroyTensorDescriptor, input_shape_);
        DNN(cudnnDestroy, handle_);
    }
    Cudnn(const Cudnn &) = delete;
    Cudnn &operator=(const Cudnn &) = delete;

    void run() const {
        const float one = 1, zero = 0;
        DNN(cudnnConvolutionForward, handle_, static_cast<const void *>(&one), input_shape_,
            static_cast<const void *>(input_.data), filter_shape_, static_cast<const void *>(filter_->data()),
            convolution_, algorithm_.algo, static_cast<void *>(workspace_->data()), workspace_bytes,
            static_cast<const void *>(&zero), output_shape_, output_.data);
    }

private:
    static constexpr size_t workspace_bytes = size_t{1} << 30;
    distile_tensor input_, output_;
    cudnnHandle_t handle_ = nullptr;
    cudnnTensorDescriptor_t input_shape_ = nullptr, output_shape_ = nullptr;
    cudnnFilterDescriptor_t filter_shape_ = nullptr;
    cudnnConvolutionDescriptor_t convolution_ = nullptr;
    cudnnConvolutionFwdAlgoPerf_t algorithm_{};
    std::unique_ptr<DeviceArray<float>> filter_;
    std::unique_ptr<DeviceArray<uint8_t>> workspace_;
};

#endif

/** Any numbers that are neither all zero nor denormal. */
std::vector<float> numbers(size_t count) {
    std::vector<float> values(count);
    std::mt19937 random(1);
    for (float &value : values) {
        value = static_cast<float>(random() % 2001) * 0.001f - 1;
    }
    return values;
}

class Bench {
public:
    Bench(const Slice &slice, const std::string &tag) : slice_(slice), tag_(tag) {
        distile_cuda_options options{};
        options.context = slice.context();
        options.stream = slice.stream();
        check(context_, distile_cuda_create(context_.get(), &options, &cuda_));
    }
    ~Bench() {
        distile_cuda_destroy(cuda_);
    }
    Bench(const Bench &) = delete;
    Bench &operator=(const Bench &) = delete;

    /** The mask's own kernels: bits, counts and the list of single pixels. */
    void mask_row(bench::Results &results, int32_t size) {
        distile_cuda_mask *mask = nullptr;
        check(context_, distile_cuda_mask_create(cuda_, &mask));
        {
            const DeviceArray<uint8_t> bytes(blob_mask(1, size, size, 0.3, 1).bytes);
            const Graph graph(slice_.stream(), 20, [&] {
                const uint32_t *xy = nullptr, *images = nullptr, *count = nullptr;
                set_mask(mask, bytes, 1, size, size);
                check(context_, distile_cuda_mask_tiles(mask, 1, 1, &xy, &images, &count));
            });
            const double time = measure({&graph})[0];
            std::printf("%s mask %d x %d: %.2f us\n", tag_.c_str(), size, size, time);
            results.add({{"row", fmt::format("mask/blob/0.3/{0}x{0}", size)},
                         {"status", "measured"},
                         {"backend", "cuda"},
                         {"device", slice_.name()},
                         {"kind", "mask"},
                         {"height", size},
                         {"width", size},
                         {"t_mask_us", rounded(time)}});
        }
        distile_cuda_mask_destroy(mask);
    }

    void convolution_rows(bench::Results &results, const Operator &op, int32_t batch) {
        const distile_conv2d &conv = op.polykernel->conv2d;
        distile_cuda_kernel *kernel = nullptr;
        distile_cuda_weights *weights = nullptr;
        distile_cuda_mask *mask = nullptr;
        check(context_, distile_cuda_kernel_create(cuda_, op.polykernel, &kernel));
        const std::vector<float> filter(
            static_cast<size_t>(conv.kernel_h) * conv.kernel_w * conv.in_channels * conv.out_channels, 0.01f);
        distile_weights_source source{};
        source.filter = filter.data();
        source.order = DISTILE_OHWI;
        check(context_, distile_cuda_weights_pack(kernel, &source, &weights));
        check(context_, distile_cuda_mask_create(cuda_, &mask));
        {
            const int32_t height = (op.height + conv.pad_top + conv.pad_bottom - conv.kernel_h) / conv.stride_h + 1;
            const int32_t width = (op.width + conv.pad_left + conv.pad_right - conv.kernel_w) / conv.stride_w + 1;
            const DeviceArray<float> input(
                numbers(static_cast<size_t>(batch) * op.height * op.width * conv.in_channels));
            const DeviceArray<float> output(static_cast<size_t>(batch) * height * width * conv.out_channels);
            const distile_tensor in = distile_tensor_make(input.data(), batch, op.height, op.width, conv.in_channels);
            const distile_tensor out = distile_tensor_make(output.data(), batch, height, width, conv.out_channels);
            const int calls = batch >= 32 ? 5 : 20;
            std::unique_ptr<Graph> peer, peer_tf32;
#ifdef DISTILE_BENCH_CUDNN
            std::unique_ptr<Cudnn> cudnn, cudnn_tf32;
            try {
                cudnn = std::make_unique<Cudnn>(slice_.stream(), conv, in, out, false);
                cudnn_tf32 = std::make_unique<Cudnn>(slice_.stream(), conv, in, out, true);
                peer = std::make_unique<Graph>(slice_.stream(), calls, [&] { cudnn->run(); });
                peer_tf32 = std::make_unique<Graph>(slice_.stream(), calls, [&] { cudnn_tf32->run(); });
            } catch (const std::exception &error) {
                std::printf("%s: no peer: %s\n", op.name, error.what());
            }
#endif
            fill_time_table(kernel, weights, mask, in, out, calls);
            for (double density : densities) {
                for (distile_inactive inactive : {DISTILE_KEEP, DISTILE_ZERO}) {
                    if (inactive == DISTILE_ZERO && density != 0.3) {
                        continue;
                    }
                    const ByteMask bytes = blob_mask(batch, height, width, density, 9001);
                    const DeviceArray<uint8_t> device_bytes(bytes.bytes);
                    distile_cuda_run_args args{};
                    args.input = &in;
                    args.output = &out;
                    args.weights = weights;
                    args.mask = mask;
                    args.inactive = inactive;
                    results.add(row(op, kernel, args, bytes, device_bytes, peer.get(), peer_tf32.get(), calls));
                }
            }
        }
        distile_cuda_mask_destroy(mask);
        distile_cuda_weights_destroy(weights);
        distile_cuda_kernel_destroy(kernel);
    }

private:
    void set_mask(distile_cuda_mask *mask, const DeviceArray<uint8_t> &bytes, int32_t batch, int32_t height,
                  int32_t width) {
        check(context_,
              distile_cuda_mask_set_bytes(mask, bytes.data(), batch, height, width, int64_t{height} * width, width));
    }

    void run(distile_cuda_kernel *kernel, const distile_cuda_run_args &args) {
        check(context_, distile_cuda_run(kernel, &args));
    }

    /** Measures every variant at some numbers of tiles, as `distile profile` does on a CPU. */
    void fill_time_table(distile_cuda_kernel *kernel, const distile_cuda_weights *weights, distile_cuda_mask *mask,
                         const distile_tensor &in, const distile_tensor &out, int calls) {
        distile_kernel *variants = distile_cuda_kernel_variants(kernel);
        for (double density : {0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0}) {
            const ByteMask bytes = blob_mask(out.batch, out.height, out.width, density, 17);
            const DeviceArray<uint8_t> device_bytes(bytes.bytes);
            set_mask(mask, device_bytes, out.batch, out.height, out.width);
            for (int32_t i = 0; i < distile_kernel_num_variants(variants); i++) {
                const char *name = distile_kernel_variant_name(variants, i);
                const bool dense = std::strcmp(name, "dense") == 0;
                if (dense && density < 1) {
                    continue;
                }
                distile_cuda_run_args args{&in, nullptr, &out, weights, mask, DISTILE_KEEP, DISTILE_STORE_EXACT, name};
                const Graph graph(slice_.stream(), calls, [&] { run(kernel, args); });
                // The plans that are measured have tiles of one pixel.
                check(context_, distile_kernel_add_time(variants, name, bytes.active_pixels(), measure({&graph})[0]));
            }
        }
    }

    Json row(const Operator &op, distile_cuda_kernel *kernel, distile_cuda_run_args args, const ByteMask &bytes,
             const DeviceArray<uint8_t> &device_bytes, const Graph *peer, const Graph *peer_tf32, int calls) {
        const auto set = [&] { set_mask(args.mask, device_bytes, bytes.batch, bytes.height, bytes.width); };
        set();
        run(kernel, args);
        CU(cuStreamSynchronize, slice_.stream());
        const std::string variant = traced_.variant;
        // The kernels for a mask that the host knows, and all of the work for one that it does not.
        const Graph kernels(slice_.stream(), calls, [&] { run(kernel, args); });
        args.variant = variant.c_str();
        const Graph all(slice_.stream(), calls, [&] {
            set();
            run(kernel, args);
        });
        std::vector<const Graph *> graphs = {&kernels, &all};
        if (peer) {
            graphs.insert(graphs.end(), {peer, peer_tf32});
        }
        const std::vector<double> times = measure(graphs);
        // The whole call when the host waits for the counts, and its stream before and after it is idle.
        args.variant = nullptr;
        std::vector<double> waits;
        for (int i = 0; i < 21; i++) {
            using Clock = std::chrono::steady_clock;
            CU(cuStreamSynchronize, slice_.stream());
            const Clock::time_point start = Clock::now();
            set();
            run(kernel, args);
            waits.push_back(std::chrono::duration<double, std::micro>(Clock::now() - start).count());
        }
        std::nth_element(waits.begin(), waits.begin() + 10, waits.end());

        const bool zero = args.inactive == DISTILE_ZERO;
        const double density = bytes.density(), t_peer = peer ? times[2] : 0;
        Json result = {{"row", fmt::format("{}/blob/{:.1f}/n{}/{}/plain/cudnn", op.name, density, bytes.batch,
                                           zero ? "zero" : "keep")},
                       {"status", "measured"},
                       {"backend", "cuda"},
                       {"device", slice_.name()},
                       {"multiprocessors", slice_.multiprocessors()},
                       {"kind", "convolution"},
                       {"op", op.name},
                       {"shape", op.shape},
                       {"batch", bytes.batch},
                       {"mask", "blob"},
                       {"density", rounded(density)},
                       {"mode", zero ? "zero" : "keep"},
                       {"layout", "plain"},
                       {"state", "hot"},
                       {"peer_name", peer ? "cudnn-legacy" : "none"},
                       {"t_masked_us", rounded(times[1])},
                       {"t_kernels_us", rounded(times[0])},
                       {"t_host_until_launched_us", rounded(waits[10])},
                       {"kernel", op.polykernel->name},
                       {"variant", variant}};
        if (peer) {
            result["t_peer_us"] = rounded(t_peer);
            result["t_peer_tf32_us"] = rounded(times[3]);
            result["eta"] = rounded(t_peer * density / times[1]);
            result["eta_kernel"] = rounded(t_peer * density / times[0]);
            result["eta_tf32"] = rounded(times[3] * density / times[1]);
            result["speedup"] = rounded(t_peer / times[1]);
        }
        std::printf("%s %s %-10s kernels %.1f all %.1f us, host %.1f us, cudnn %.1f (tf32 %.1f): eta_kernel %.2f "
                    "eta %.2f\n",
                    tag_.c_str(), result["row"].get<std::string>().c_str(), variant.c_str(), times[0], times[1],
                    waits[10], t_peer, peer ? times[3] : 0, t_peer * density / times[0], t_peer * density / times[1]);
        std::fflush(stdout);
        return result;
    }

    static void keep_trace(void *user, const distile_choice *choice) {
        static_cast<Bench *>(user)->traced_ = *choice;
    }

    Context make_traced_context() {
        distile_context_options options{};
        options.trace = &Bench::keep_trace;
        options.trace_user = this;
        return make_context(options);
    }

    const Slice &slice_;
    std::string tag_;
    distile_choice traced_{};
    Context context_ = make_traced_context();
    distile_cuda *cuda_ = nullptr;
};

}  // namespace

int main(int argc, char **argv) {
    if (argc < 2 || argc > 3) {
        std::fprintf(stderr, "usage: distile_cuda_bench RESULTS.json [MULTIPROCESSORS]\n");
        return 2;
    }
    try {
        const Slice slice(argc == 3 ? static_cast<unsigned int>(std::stoi(argv[2])) : 0);
        const std::string tag = argc == 3 ? fmt::format("{}sm", slice.multiprocessors()) : "full";
        int driver = 0;
        CU(cuDriverGetVersion, &driver);
        char date[32] = "";
        const std::time_t now = std::time(nullptr);
        std::tm utc{};
        std::strftime(date, sizeof(date), "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
        bench::Results results(argv[1], false,
                               {{"date", date},
                                {"device", slice.name()},
                                {"threads", 1},
                                {"multiprocessors", slice.multiprocessors()},
                                {"compiler", DISTILE_BENCH_COMPILER},
                                {"versions", {{"Halide", DISTILE_BENCH_HALIDE}, {"CUDA driver API", driver}}},
                                {"about", "Medians of graphs, all sides in turns, one after the other in one run. "
                                          "t_kernels_us: the operator's kernels; t_masked_us: from the byte mask on "
                                          "the device. The peer, without bias and epilogue, is the fastest of "
                                          "cuDNN's legacy interface; its newer one knows faster kernels."}});
        Bench bench(slice, tag);
        for (int32_t size : {40, 128, 256, 1024}) {
            bench.mask_row(results, size);
        }
        for (int32_t batch : batches) {
            for (const Operator &op : operators) {
                bench.convolution_rows(results, op, batch);
            }
        }
    } catch (const std::exception &error) {
        std::fprintf(stderr, "distile_cuda_bench: error: %s.\n", error.what());
        return 1;
    }
    return 0;
}
