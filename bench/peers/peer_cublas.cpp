#include "autoscheduler/measure/gpu.h"
#include "bench/harness/measure.h"
#include "bench/harness/peer_missing.h"
#include "bench/peers/gpu_peer.h"
#include "facts/type_functions.h"
#include <algorithm>
#include <array>
#include <cublasLt.h>
#include <fmt/core.h>
#include <limits>
#include <utility>
#include <vector>

namespace distile::bench {

namespace {

constexpr size_t cublas_workspace_bytes = size_t{64} << 20;
/** Algorithms of the heuristic that are timed. */
constexpr int most_algorithms = 16;

/** A function of cuBLAS. The library is loaded at its first use, so programs start without it. */
template<typename Function> Function find_cublas(const char *name) {
    static void *const library = dlopen("libcublasLt.so.13", RTLD_NOW | RTLD_LOCAL);
    const auto function = library ? reinterpret_cast<Function>(dlsym(library, name)) : nullptr;
    if (!function) {
        throw PeerMissing(library ? std::string("libcublasLt.so.13 has no ") + name
                                  : std::string("cuBLAS cannot be loaded: ") + dlerror());
    }
    return function;
}

#define LT_FUNCTION(name) find_cublas<decltype(&::name)>(#name)

void require(cublasStatus_t status, const char *name) {
    if (status != CUBLAS_STATUS_SUCCESS) {
        throw std::runtime_error(fmt::format("{} returned {}", name, LT_FUNCTION(cublasLtGetStatusName)(status)));
    }
}

/** Calls a function of cuBLAS that returns a status. */
#define LT(name, ...) require(LT_FUNCTION(name)(__VA_ARGS__), #name)

cudaDataType_t type_of(distile_dtype dtype) {
    switch (dtype) {
    case DISTILE_FLOAT32:
        return CUDA_R_32F;
    case DISTILE_FLOAT16:
        return CUDA_R_16F;
    case DISTILE_BFLOAT16:
        return CUDA_R_16BF;
    default:
        throw std::runtime_error(std::string("cuBLAS does not compute here in ") + type_name(dtype));
    }
}

/** An object of cuBLAS, destroyed by its own function. */
template<typename Handle> class Owned {
public:
    Owned(Handle handle, cublasStatus_t (*destroy)(Handle)) : handle_(handle), destroy_(destroy) {
    }
    ~Owned() {
        destroy_(handle_);
    }
    Owned(const Owned &) = delete;
    Owned &operator=(const Owned &) = delete;

    Handle get() const {
        return handle_;
    }

private:
    Handle handle_;
    cublasStatus_t (*destroy_)(Handle);
};

cublasLtHandle_t make_handle() {
    cublasLtHandle_t handle = nullptr;
    if (LT_FUNCTION(cublasLtCreate)(&handle) != CUBLAS_STATUS_SUCCESS) {
        throw PeerMissing("cuBLAS cannot start here: cublasLtCreate failed");
    }
    return handle;
}

cublasLtMatmulDesc_t make_product(distile_math math) {
    cublasLtMatmulDesc_t product = nullptr;
    LT(cublasLtMatmulDescCreate, &product,
       math == DISTILE_MATH_TF32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F);
    return product;
}

/** A matrix whose columns are contiguous. */
cublasLtMatrixLayout_t make_matrix(cudaDataType_t type, int64_t column, int64_t columns) {
    cublasLtMatrixLayout_t matrix = nullptr;
    LT(cublasLtMatrixLayoutCreate, &matrix, type, static_cast<uint64_t>(column), static_cast<uint64_t>(columns),
       column);
    return matrix;
}

cublasLtMatmulPreference_t make_preference() {
    cublasLtMatmulPreference_t preference = nullptr;
    LT(cublasLtMatmulPreferenceCreate, &preference);
    return preference;
}

}  // namespace

struct Cublas::Session {
    explicit Session(const GpuSlice &slice)
        : slice(slice), handle(make_handle(), LT_FUNCTION(cublasLtDestroy)), workspace(cublas_workspace_bytes) {
    }

    const GpuSlice &slice;
    Owned<cublasLtHandle_t> handle;
    DeviceArray<uint8_t> workspace;
};

namespace {

/** The transpose of the output is the filter times the transpose of the input, since cuBLAS has columns contiguous. */
class Linear : public GpuPeer {
public:
    Linear(std::shared_ptr<Cublas::Session> session, std::string description, const LinearShape &shape,
           const void *input, std::vector<const void *> filters, const void *bias, void *output)
        : session_(std::move(session)), description_(std::move(description)),
          product_(make_product(shape.math), LT_FUNCTION(cublasLtMatmulDescDestroy)),
          filter_(make_matrix(type_of(shape.dtype), shape.in_channels, shape.out_channels),
                  LT_FUNCTION(cublasLtMatrixLayoutDestroy)),
          input_(make_matrix(type_of(shape.dtype), shape.in_channels, shape.rows),
                 LT_FUNCTION(cublasLtMatrixLayoutDestroy)),
          output_(make_matrix(type_of(shape.dtype), shape.out_channels, shape.rows),
                  LT_FUNCTION(cublasLtMatrixLayoutDestroy)),
          filters_(std::move(filters)), input_data_(input), output_data_(output) {
        set(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
        set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
        set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
        choose();
    }

    std::string description() const override {
        return description_;
    }
    std::string implementation() const override {
        return fmt::format("algorithm {} of {} by the heuristic", chosen_ + 1, num_algorithms_);
    }
    void run() const override {
        run_into(output_data_);
    }
    void run_into(void *output) const override {
        require(call(algorithm_, output), "cublasLtMatmul");
    }

private:
    template<typename Value> void set(cublasLtMatmulDescAttributes_t name, Value value) {
        LT(cublasLtMatmulDescSetAttribute, product_.get(), name, &value, sizeof(value));
    }
    cublasStatus_t call(const cublasLtMatmulAlgo_t &algorithm, void *output) const {
        const float one = 1, zero = 0;
        const void *const filter = filters_[next_++ % filters_.size()];
        return LT_FUNCTION(cublasLtMatmul)(session_->handle.get(), product_.get(), &one, filter, filter_.get(),
                                           input_data_, input_.get(), &zero, output, output_.get(), output,
                                           output_.get(), &algorithm, session_->workspace.data(),
                                           cublas_workspace_bytes, static_cast<cudaStream_t>(session_->slice.stream()));
    }
    void choose() {
        const Owned<cublasLtMatmulPreference_t> preference(make_preference(),
                                                           LT_FUNCTION(cublasLtMatmulPreferenceDestroy));
        LT(cublasLtMatmulPreferenceSetAttribute, preference.get(), CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
           &cublas_workspace_bytes, sizeof(cublas_workspace_bytes));
        std::array<cublasLtMatmulHeuristicResult_t, most_algorithms> found{};
        LT(cublasLtMatmulAlgoGetHeuristic, session_->handle.get(), product_.get(), filter_.get(), input_.get(),
           output_.get(), output_.get(), preference.get(), most_algorithms, found.data(), &num_algorithms_);
        double least = std::numeric_limits<double>::infinity();
        for (int i = 0; i < num_algorithms_; i++) {
            const double time = time_of(found.at(i).algo);
            if (time < least) {
                least = time;
                chosen_ = i;
                algorithm_ = found.at(i).algo;
            }
        }
        if (least == std::numeric_limits<double>::infinity()) {
            throw std::runtime_error("cuBLAS has no algorithm for this linear layer");
        }
    }
    /** Infinite where it does not run. */
    double time_of(const cublasLtMatmulAlgo_t &algorithm) const {
        constexpr int rounds = 3;
        if (call(algorithm, output_data_) != CUBLAS_STATUS_SUCCESS) {
            return std::numeric_limits<double>::infinity();
        }
        const GpuGraph graph(session_->slice, [&] {
            for (size_t i = 0; i < filters_.size(); i++) {
                require(call(algorithm, output_data_), "cublasLtMatmul");
            }
        });
        std::vector<double> times;
        times.reserve(rounds);
        for (int i = 0; i < rounds; i++) {
            times.push_back(graph.time());
        }
        return spread_of(std::move(times)).median;
    }

    std::shared_ptr<Cublas::Session> session_;
    std::string description_;
    Owned<cublasLtMatmulDesc_t> product_;
    Owned<cublasLtMatrixLayout_t> filter_, input_, output_;
    std::vector<const void *> filters_;
    mutable size_t next_ = 0; /**< Calls so far, by which they take turns. */
    const void *input_data_;
    void *output_data_;
    cublasLtMatmulAlgo_t algorithm_{};
    int chosen_ = 0, num_algorithms_ = 0;
};

}  // namespace

Cublas::Cublas(const GpuSlice &slice) : session_(std::make_shared<Session>(slice)) {
}

Cublas::~Cublas() = default;

std::string Cublas::description() const {
    const size_t version = LT_FUNCTION(cublasLtGetVersion)();
    return fmt::format("cuBLAS {}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

std::unique_ptr<GpuPeer> Cublas::linear(const LinearShape &shape, const void *input, const void *filter,
                                        const void *bias, void *output) const {
    return linear(shape, input, std::vector<const void *>{filter}, bias, output);
}

std::unique_ptr<GpuPeer> Cublas::linear(const LinearShape &shape, const void *input,
                                        const std::vector<const void *> &filters, const void *bias,
                                        void *output) const {
    return std::make_unique<Linear>(session_, description(), shape, input, filters, bias, output);
}

}  // namespace distile::bench
