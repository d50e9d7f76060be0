#include "autoscheduler/measure/gpu.h"
#include "bench/harness/measure.h"
#include "bench/harness/peer_missing.h"
#include "bench/peers/gpu_peer.h"
#include "facts/type_functions.h"
#include <algorithm>
#include <array>
#include <chrono>
#include <cudnn.h>
#include <fmt/core.h>
#include <functional>
#include <optional>
#include <utility>

namespace distile::bench {

namespace {

constexpr size_t workspace_bytes = size_t{4} << 30;

/** A function of cuDNN. The library is loaded at its first use, so programs start without it. */
template<typename Function> Function find(const char *name) {
    static void *const library = dlopen("libcudnn.so.9", RTLD_NOW | RTLD_LOCAL);
    const auto function = library ? reinterpret_cast<Function>(dlsym(library, name)) : nullptr;
    if (!function) {
        throw PeerMissing(library ? std::string("libcudnn.so.9 has no ") + name
                                  : std::string("cuDNN cannot be loaded: ") + dlerror());
    }
    return function;
}

#define DNN_FUNCTION(name) find<decltype(&::name)>(#name)

void require(cudnnStatus_t status, const char *name) {
    if (status != CUDNN_STATUS_SUCCESS) {
        throw std::runtime_error(fmt::format("{} returned {}", name, DNN_FUNCTION(cudnnGetErrorString)(status)));
    }
}

/** Calls a function of cuDNN that returns a status. */
#define DNN(name, ...) require(DNN_FUNCTION(name)(__VA_ARGS__), #name)

/** cuDNN's name for the type of an attribute. An address is taken for that of a descriptor. */
template<typename T> struct TypeOf;
template<> struct TypeOf<int64_t> { static constexpr cudnnBackendAttributeType_t value = CUDNN_TYPE_INT64; };
template<> struct TypeOf<int32_t> { static constexpr cudnnBackendAttributeType_t value = CUDNN_TYPE_INT32; };
template<> struct TypeOf<float> { static constexpr cudnnBackendAttributeType_t value = CUDNN_TYPE_FLOAT; };
template<> struct TypeOf<void *> {
    static constexpr cudnnBackendAttributeType_t value = CUDNN_TYPE_BACKEND_DESCRIPTOR;
};
template<> struct TypeOf<cudnnHandle_t> { static constexpr cudnnBackendAttributeType_t value = CUDNN_TYPE_HANDLE; };
template<> struct TypeOf<cudnnDataType_t> {
    static constexpr cudnnBackendAttributeType_t value = CUDNN_TYPE_DATA_TYPE;
};
template<> struct TypeOf<cudnnConvolutionMode_t> {
    static constexpr cudnnBackendAttributeType_t value = CUDNN_TYPE_CONVOLUTION_MODE;
};
template<> struct TypeOf<cudnnBackendHeurMode_t> {
    static constexpr cudnnBackendAttributeType_t value = CUDNN_TYPE_HEUR_MODE;
};
template<> struct TypeOf<cudnnBackendNumericalNote_t> {
    static constexpr cudnnBackendAttributeType_t value = CUDNN_TYPE_NUMERICAL_NOTE;
};

/** A descriptor of the graph interface. */
class Descriptor {
public:
    explicit Descriptor(cudnnBackendDescriptorType_t type) {
        DNN(cudnnBackendCreateDescriptor, type, &descriptor_);
    }
    ~Descriptor() {
        if (descriptor_) {
            DNN_FUNCTION(cudnnBackendDestroyDescriptor)(descriptor_);
        }
    }
    Descriptor(Descriptor &&other) noexcept : descriptor_(std::exchange(other.descriptor_, nullptr)) {
    }
    Descriptor(const Descriptor &) = delete;
    Descriptor &operator=(const Descriptor &) = delete;

    cudnnBackendDescriptor_t get() const {
        return descriptor_;
    }
    template<typename T> void set(cudnnBackendAttributeName_t name, const std::vector<T> &values) {
        DNN(cudnnBackendSetAttribute, descriptor_, name, TypeOf<T>::value, static_cast<int64_t>(values.size()),
            values.data());
    }
    void set_addresses(cudnnBackendAttributeName_t name, const std::vector<void *> &values) {
        DNN(cudnnBackendSetAttribute, descriptor_, name, CUDNN_TYPE_VOID_PTR, static_cast<int64_t>(values.size()),
            values.data());
    }
    template<typename T> void set(cudnnBackendAttributeName_t name, T value) {
        set(name, std::vector<T>{value});
    }
    void finalize() {
        DNN(cudnnBackendFinalize, descriptor_);
    }
    /** Reads the values, up to the size of `values`, and returns their number. */
    template<typename T> int64_t values(cudnnBackendAttributeName_t name, T *values, int64_t room) const {
        int64_t count = 0;
        DNN(cudnnBackendGetAttribute, descriptor_, name, TypeOf<T>::value, room, &count, values);
        return count;
    }

private:
    cudnnBackendDescriptor_t descriptor_ = nullptr;
};

/** One way of computing the convolution. */
struct Candidate {
    std::string name;
    std::function<void(void *output)> run_into;
    std::function<void()> run; /**< Into the output of the job. */

    Candidate(std::string name, std::function<void(void *)> into, void *output)
        : name(std::move(name)), run_into(std::move(into)), run([call = run_into, output] { call(output); }) {
    }
};

/** A tensor with channels last in memory. cuDNN orders dimensions as N, C, H, W, whatever the memory layout. */
Descriptor make_tensor(int64_t id, cudnnDataType_t type, int64_t n, int64_t c, int64_t h, int64_t w) {
    Descriptor tensor(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    tensor.set(CUDNN_ATTR_TENSOR_DATA_TYPE, type);
    tensor.set(CUDNN_ATTR_TENSOR_DIMENSIONS, std::vector<int64_t>{n, c, h, w});
    tensor.set(CUDNN_ATTR_TENSOR_STRIDES, std::vector<int64_t>{h * w * c, 1, w * c, c});
    tensor.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, id);
    tensor.set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, int64_t{16});
    tensor.finalize();
    return tensor;
}

}  // namespace

struct Cudnn::Session {
    Session(const GpuSlice &slice, double seconds) : slice(slice), seconds(seconds), workspace(workspace_bytes) {
        const cudnnStatus_t status = DNN_FUNCTION(cudnnCreate)(&handle);
        if (status != CUDNN_STATUS_SUCCESS) {
            throw PeerMissing(fmt::format("cuDNN cannot start here: cudnnCreate returned {}",
                                          DNN_FUNCTION(cudnnGetErrorString)(status)));
        }
        DNN(cudnnSetStream, handle, static_cast<cudaStream_t>(slice.stream()));
    }
    ~Session() {
        if (handle) {
            DNN_FUNCTION(cudnnDestroy)(handle);
        }
    }
    Session(const Session &) = delete;
    Session &operator=(const Session &) = delete;

    const GpuSlice &slice;
    double seconds; /**< No more plans are tried for one convolution after this: those that cuDNN thinks best come
                       first. */
    DeviceArray<uint8_t> workspace;
    cudnnHandle_t handle = nullptr;
};

namespace {

/** cuDNN's name for the type of tensors. */
cudnnDataType_t type_of(const distile_tensor &tensor) {
    switch (tensor.dtype) {
    case DISTILE_FLOAT32:
        return CUDNN_DATA_FLOAT;
    case DISTILE_FLOAT16:
        return CUDNN_DATA_HALF;
    case DISTILE_BFLOAT16:
        return CUDNN_DATA_BFLOAT16;
    default:
        throw std::runtime_error(std::string("cuDNN does not compute here in ") + type_name(tensor.dtype));
    }
}

/** What tensor cores may compute: all of narrower types, and float32 only in TF32. */
cudnnMathType_t math_of(cudnnDataType_t type, distile_math math) {
    return type != CUDNN_DATA_FLOAT       ? CUDNN_TENSOR_OP_MATH
           : math == DISTILE_MATH_FLOAT32 ? CUDNN_FMA_MATH
                                          : CUDNN_DEFAULT_MATH;
}

/** A convolution and its three arrays: y from the image x. A transposed convolution is its data gradient, x from y. */
struct Convolution {
    distile_conv2d conv;
    bool transposed;
    distile_tensor x, y;
    const void *filter;
    cudnnDataType_t type;
    cudnnMathType_t math;

    /** The channels of x that a channel of y reads. */
    int32_t filter_channels() const {
        return x.channels / conv.groups;
    }
    void *output() const {
        return transposed ? x.data : y.data;
    }
    /** This convolution into another output. */
    Convolution into(void *output) const {
        Convolution other = *this;
        (transposed ? other.x : other.y).data = output;
        return other;
    }
};

/** The names of an operation and its parts in the graph interface. */
struct OperationNames {
    cudnnBackendDescriptorType_t type;
    cudnnBackendAttributeName_t convolution, x, filter, y, alpha, beta;
};
constexpr OperationNames forward = {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
                                    CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
                                    CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
                                    CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
                                    CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
                                    CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
                                    CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA};
constexpr OperationNames backward_data = {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
                                          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
                                          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
                                          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
                                          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
                                          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
                                          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA};

/** The graph interface: every engine configuration that cuDNN's heuristics name. */
class GraphPlans {
public:
    GraphPlans(cudnnHandle_t handle, void *workspace, const Convolution &job, int32_t multiprocessors)
        : handle_(handle), workspace_(workspace), job_(job), names_(job.transposed ? backward_data : forward),
          x_(make_tensor('x', job.type, job.x.batch, job.x.channels, job.x.height, job.x.width)),
          // Groups follow from the numbers of channels.
          filter_(
              make_tensor('w', job.type, job.y.channels, job.filter_channels(), job.conv.kernel_h, job.conv.kernel_w)),
          y_(make_tensor('y', job.type, job.y.batch, job.y.channels, job.y.height, job.y.width)) {
        const distile_conv2d &conv = job.conv;
        convolution_.set(CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_DATA_FLOAT);
        convolution_.set(CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_CROSS_CORRELATION);
        convolution_.set(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, int64_t{2});
        convolution_.set(CUDNN_ATTR_CONVOLUTION_DILATIONS, std::vector<int64_t>{conv.dilation_h, conv.dilation_w});
        convolution_.set(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, std::vector<int64_t>{conv.stride_h, conv.stride_w});
        convolution_.set(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, std::vector<int64_t>{conv.pad_top, conv.pad_left});
        convolution_.set(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, std::vector<int64_t>{conv.pad_bottom, conv.pad_right});
        convolution_.finalize();
        operation_.set(names_.convolution, convolution_.get());
        operation_.set(names_.x, x_.get());
        operation_.set(names_.filter, filter_.get());
        operation_.set(names_.y, y_.get());
        operation_.set(names_.alpha, 1.0f);
        operation_.set(names_.beta, 0.0f);
        operation_.finalize();
        graph_.set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, handle_);
        graph_.set(CUDNN_ATTR_OPERATIONGRAPH_OPS, operation_.get());
        graph_.finalize();
        for (const cudnnBackendHeurMode_t mode : {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_B, CUDNN_HEUR_MODE_FALLBACK}) {
            add_configurations(mode, 0);
        }
        // For a part of the GPU, the heuristics may name no plan for float32, but some for TF32.
        add_configurations(CUDNN_HEUR_MODE_A, multiprocessors);
    }

    size_t size() const {
        return configurations_.size();
    }

    /** The plan of a configuration. Throws std::runtime_error if cuDNN cannot make it. */
    Candidate make(size_t index) const {
        auto plan = std::make_shared<Descriptor>(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
        plan->set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, handle_);
        plan->set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, configurations_[index].get());
        plan->finalize();
        int64_t bytes = 0;
        plan->values(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, &bytes, 1);
        if (bytes > static_cast<int64_t>(workspace_bytes)) {
            throw std::runtime_error("the plan needs too large a workspace");
        }
        const auto run = [handle = handle_, plan, job = job_, workspace = workspace_](void *output) {
            const Convolution into = job.into(output);
            Descriptor pack(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
            pack.set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, std::vector<int64_t>{'x', 'w', 'y'});
            pack.set_addresses(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS,
                               {into.x.data, const_cast<void *>(into.filter), into.y.data});
            pack.set_addresses(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, {workspace});
            pack.finalize();
            DNN(cudnnBackendExecute, handle, plan->get(), pack.get());
        };
        return {"engine " + std::to_string(engine_of(configurations_[index])), run, job_.output()};
    }

private:
    static int64_t engine_of(const Descriptor &configuration) {
        const Descriptor engine(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
        cudnnBackendDescriptor_t raw = engine.get();
        configuration.values(CUDNN_ATTR_ENGINECFG_ENGINE, &raw, 1);
        int64_t index = -1;
        engine.values(CUDNN_ATTR_ENGINE_GLOBAL_INDEX, &index, 1);
        return index;
    }

    /** True if the factors of all products are float32 numbers that were not rounded before. */
    static bool is_float32(const Descriptor &configuration) {
        const Descriptor engine(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
        cudnnBackendDescriptor_t raw = engine.get();
        configuration.values(CUDNN_ATTR_ENGINECFG_ENGINE, &raw, 1);
        std::array<cudnnBackendNumericalNote_t, CUDNN_NUMERICAL_NOTE_TYPE_COUNT> notes{};
        const int64_t count =
            engine.values(CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, notes.data(), static_cast<int64_t>(notes.size()));
        return std::none_of(notes.begin(), notes.begin() + count, [](cudnnBackendNumericalNote_t note) {
            return note == CUDNN_NUMERICAL_NOTE_TENSOR_CORE || note == CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS ||
                   note == CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION;
        });
    }

    /** For a number of multiprocessors; 0: for the whole GPU. */
    void add_configurations(cudnnBackendHeurMode_t mode, int32_t multiprocessors) {
        Descriptor heuristics(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
        try {
            heuristics.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph_.get());
            heuristics.set(CUDNN_ATTR_ENGINEHEUR_MODE, mode);
            if (multiprocessors > 0) {
                heuristics.set(CUDNN_ATTR_ENGINEHEUR_SM_COUNT_TARGET, multiprocessors);
            }
            heuristics.finalize();
        } catch (const std::runtime_error &) {
            return;  // A version that does not know this mode.
        }
        const int64_t room = heuristics.values<cudnnBackendDescriptor_t>(CUDNN_ATTR_ENGINEHEUR_RESULTS, nullptr, 0);
        std::vector<Descriptor> found;
        std::vector<cudnnBackendDescriptor_t> raw;
        for (int64_t i = 0; i < room; i++) {
            raw.push_back(found.emplace_back(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR).get());
        }
        const int64_t count = heuristics.values(CUDNN_ATTR_ENGINEHEUR_RESULTS, raw.data(), room);
        for (int64_t i = 0; i < count; i++) {
            if (job_.math != CUDNN_FMA_MATH || is_float32(found[i])) {
                configurations_.push_back(std::move(found[i]));
            }
        }
    }

    cudnnHandle_t handle_;
    void *workspace_;
    Convolution job_;
    OperationNames names_;
    Descriptor x_, filter_, y_;
    Descriptor convolution_{CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR};
    Descriptor operation_{names_.type};
    Descriptor graph_{CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR};
    std::vector<Descriptor> configurations_;
};

/** The legacy interface: its algorithms, by its own descriptors. */
class LegacyAlgorithms {
public:
    LegacyAlgorithms(cudnnHandle_t handle, void *workspace, const Convolution &job)
        : handle_(handle), workspace_(workspace), job_(job) {
        const distile_conv2d &conv = job.conv;
        DNN(cudnnCreateTensorDescriptor, &x_);
        DNN(cudnnCreateTensorDescriptor, &y_);
        DNN(cudnnCreateFilterDescriptor, &filter_);
        DNN(cudnnCreateConvolutionDescriptor, &convolution_);
        DNN(cudnnSetTensor4dDescriptor, x_, CUDNN_TENSOR_NHWC, job.type, job.x.batch, job.x.channels, job.x.height,
            job.x.width);
        DNN(cudnnSetTensor4dDescriptor, y_, CUDNN_TENSOR_NHWC, job.type, job.y.batch, job.y.channels, job.y.height,
            job.y.width);
        DNN(cudnnSetFilter4dDescriptor, filter_, job.type, CUDNN_TENSOR_NHWC, job.y.channels, job.filter_channels(),
            conv.kernel_h, conv.kernel_w);
        DNN(cudnnSetConvolution2dDescriptor, convolution_, conv.pad_top, conv.pad_left, conv.stride_h, conv.stride_w,
            conv.dilation_h, conv.dilation_w, CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT);
        DNN(cudnnSetConvolutionGroupCount, convolution_, conv.groups);
        DNN(cudnnSetConvolutionMathType, convolution_, job.math);
    }
    ~LegacyAlgorithms() {
        DNN_FUNCTION(cudnnDestroyConvolutionDescriptor)(convolution_);
        DNN_FUNCTION(cudnnDestroyFilterDescriptor)(filter_);
        DNN_FUNCTION(cudnnDestroyTensorDescriptor)(y_);
        DNN_FUNCTION(cudnnDestroyTensorDescriptor)(x_);
    }
    LegacyAlgorithms(const LegacyAlgorithms &) = delete;
    LegacyAlgorithms &operator=(const LegacyAlgorithms &) = delete;

    int count() const {
        return job_.transposed ? int{CUDNN_CONVOLUTION_BWD_DATA_ALGO_COUNT} : int{CUDNN_CONVOLUTION_FWD_ALGO_COUNT};
    }

    void run(int algorithm, void *output) const {
        const float one = 1, zero = 0;
        if (job_.transposed) {
            DNN(cudnnConvolutionBackwardData, handle_, &one, filter_, job_.filter, y_, job_.y.data, convolution_,
                static_cast<cudnnConvolutionBwdDataAlgo_t>(algorithm), workspace_, workspace_bytes, &zero, x_, output);
            return;
        }
        DNN(cudnnConvolutionForward, handle_, &one, x_, job_.x.data, filter_, job_.filter, convolution_,
            static_cast<cudnnConvolutionFwdAlgo_t>(algorithm), workspace_, workspace_bytes, &zero, y_, output);
    }

private:
    cudnnHandle_t handle_;
    void *workspace_;
    Convolution job_;
    cudnnTensorDescriptor_t x_ = nullptr, y_ = nullptr;
    cudnnFilterDescriptor_t filter_ = nullptr;
    cudnnConvolutionDescriptor_t convolution_ = nullptr;
};

/** The fastest of some candidates. It skips those that cannot run. */
class Tuner {
public:
    Tuner(const GpuSlice &slice, double seconds) : slice_(slice), seconds_(seconds) {
    }

    bool has_time() const {
        return std::chrono::duration<double>(Clock::now() - start_).count() < seconds_;
    }

    void offer(const std::function<Candidate()> &make) {
        try {
            Candidate candidate = make();
            candidate.run();
            slice_.synchronise();
            const Clock::time_point before = Clock::now();
            candidate.run();
            slice_.synchronise();
            const double rough = std::chrono::duration<double, std::micro>(Clock::now() - before).count();
            // The host's part of a call takes some tens of microseconds at most.
            if (!entries_.empty() && rough > 2 * best_ + 100) {
                return;
            }
            Entry entry{std::move(candidate), nullptr, 0};
            entry.graph = std::make_unique<GpuGraph>(slice_, entry.candidate.run);
            entry.time = median_of(*entry.graph, 3);
            best_ = entries_.empty() ? entry.time : std::min(best_, entry.time);
            entries_.push_back(std::move(entry));
        } catch (const PeerMissing &) {
            throw;
        } catch (const std::runtime_error &) {
            // It cannot run here, or cannot be captured.
        }
    }

    /** The fastest right one of those that came close to the fastest, timed again in turns. */
    Candidate best(const Cudnn::Check &is_right) {
        if (entries_.empty()) {
            throw PeerMissing("cuDNN offers nothing that runs");
        }
        std::sort(entries_.begin(), entries_.end(), is_faster);
        constexpr size_t finalists = 5, rounds = 9;
        entries_.erase(entries_.begin() + static_cast<std::ptrdiff_t>(std::min(entries_.size(), finalists)),
                       entries_.end());
        std::vector<std::vector<double>> times(entries_.size());
        for (size_t round = 0; round < rounds; round++) {
            for (size_t i = 0; i < entries_.size(); i++) {
                times[i].push_back(entries_[i].graph->time());
            }
        }
        for (size_t i = 0; i < entries_.size(); i++) {
            entries_[i].time = spread_of(times[i]).median;
        }
        std::sort(entries_.begin(), entries_.end(), is_faster);
        for (const Entry &entry : entries_) {
            if (is_right(entry.candidate.run)) {
                return entry.candidate;
            }
            imprecise_++;
        }
        throw std::runtime_error(fmt::format("none of cuDNN's {} fastest plans is precise enough", entries_.size()));
    }

    /** How many faster ones were not precise enough. */
    int imprecise() const {
        return imprecise_;
    }

private:
    using Clock = std::chrono::steady_clock;
    struct Entry {
        Candidate candidate;
        std::unique_ptr<GpuGraph> graph;
        double time;
    };

    static bool is_faster(const Entry &a, const Entry &b) {
        return a.time < b.time;
    }

    static double median_of(const GpuGraph &graph, int rounds) {
        std::vector<double> times;
        times.reserve(rounds);
        for (int i = 0; i < rounds; i++) {
            times.push_back(graph.time());
        }
        return spread_of(times).median;
    }

    const GpuSlice &slice_;
    double seconds_;
    const Clock::time_point start_ = Clock::now();
    std::vector<Entry> entries_;
    double best_ = 0;
    int imprecise_ = 0;
};

class ChosenConvolution : public GpuPeer {
public:
    ChosenConvolution(std::shared_ptr<void> session, Candidate chosen, std::string description,
                      std::string implementation)
        : session_(std::move(session)), chosen_(std::move(chosen)), description_(std::move(description)),
          implementation_(std::move(implementation)) {
    }
    std::string description() const override {
        return description_;
    }
    void run() const override {
        chosen_.run();
    }
    void run_into(void *output) const override {
        chosen_.run_into(output);
    }
    std::string implementation() const override {
        return implementation_;
    }

private:
    std::shared_ptr<void> session_;
    Candidate chosen_;
    std::string description_, implementation_;
};

}  // namespace

Cudnn::Cudnn(const GpuSlice &slice, double seconds) : session_(std::make_shared<Session>(slice, seconds)) {
}

Cudnn::~Cudnn() = default;

std::string Cudnn::description() const {
    const size_t version = DNN_FUNCTION(cudnnGetVersion)();
    return fmt::format("cuDNN {}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

std::unique_ptr<GpuPeer> Cudnn::convolution(distile_operator_kind kind, const distile_conv2d &conv,
                                            const distile_tensor &input, const void *filter,
                                            const distile_tensor &output, distile_math math,
                                            const Check &is_right) const {
    const bool transposed = kind == DISTILE_MASKED_CONV_TRANSPOSE2D;
    if (!transposed && kind != DISTILE_MASKED_CONV2D) {
        throw PeerMissing("cuDNN has no such operator; take the peer 'dense'");
    }
    const cudnnDataType_t type = type_of(input);
    const Convolution job{conv,   transposed, transposed ? output : input, transposed ? input : output,
                          filter, type,       math_of(type, math)};
    void *const workspace = session_->workspace.data();
    const auto legacy = std::make_shared<LegacyAlgorithms>(session_->handle, workspace, job);
    Tuner tuner(session_->slice, session_->seconds);
    for (int i = 0; i < legacy->count(); i++) {
        tuner.offer([&] {
            return Candidate(
                "legacy algorithm " + std::to_string(i), [legacy, i](void *into) { legacy->run(i, into); },
                output.data);
        });
    }
    std::optional<GraphPlans> plans;
    try {
        plans.emplace(session_->handle, workspace, job, session_->slice.multiprocessors());
    } catch (const PeerMissing &) {
        throw;
    } catch (const std::runtime_error &) {
        // The graph interface refuses the operation: the legacy algorithms remain.
    }
    const size_t offered = plans ? plans->size() : 0;
    size_t tried = 0;
    while (tried < offered && tuner.has_time()) {
        tuner.offer([&] { return plans->make(tried); });
        tried++;
    }
    Candidate chosen = tuner.best(is_right);
    const std::string implementation =
        fmt::format("{}, the fastest of {} plans{} and the legacy algorithms{}", chosen.name, tried,
                    tried < offered ? fmt::format(" (of {})", offered) : "",
                    tuner.imprecise() > 0 ? fmt::format(" except {} that are less precise", tuner.imprecise()) : "");
    return std::make_unique<ChosenConvolution>(session_, std::move(chosen), description(), implementation);
}

}  // namespace distile::bench
