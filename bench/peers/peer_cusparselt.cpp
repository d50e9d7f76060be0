#include "autoscheduler/measure/gpu.h"
#include "bench/harness/peer_missing.h"
#include "bench/peers/gpu_peer.h"
#include "facts/type_functions.h"
#include <cusparseLt.h>
#include <dlfcn.h>
#include <fmt/core.h>
#include <utility>
#include <vector>

namespace distile::bench {

namespace {

/** A function of cuSPARSELt. The library is loaded at its first use, so programs start without it. */
template<typename Function> Function find_cusparselt(const char *name) {
    static void *const library = dlopen("libcusparseLt.so.0", RTLD_NOW | RTLD_LOCAL);
    const auto function = library ? reinterpret_cast<Function>(dlsym(library, name)) : nullptr;
    if (!function) {
        throw PeerMissing(library ? std::string("libcusparseLt.so.0 has no ") + name
                                  : std::string("cuSPARSELt cannot be loaded: ") + dlerror());
    }
    return function;
}

#define SPARSE_LT_FUNCTION(name) find_cusparselt<decltype(&::name)>(#name)

void require_sparse(cusparseStatus_t status, const char *name) {
    if (status != CUSPARSE_STATUS_SUCCESS) {
        throw std::runtime_error(fmt::format("{} returned {}", name, static_cast<int>(status)));
    }
}

/** Calls a function of cuSPARSELt that returns a status. */
#define SPARSE_LT(name, ...) require_sparse(SPARSE_LT_FUNCTION(name)(__VA_ARGS__), #name)

constexpr uint32_t sparse_alignment = 16;

cudaDataType_t sparse_type_of(distile_dtype dtype) {
    if (dtype != DISTILE_FLOAT16 && dtype != DISTILE_BFLOAT16) {
        throw std::runtime_error(std::string("cuSPARSELt does not compute here in ") + type_name(dtype));
    }
    return dtype == DISTILE_FLOAT16 ? CUDA_R_16F : CUDA_R_16BF;
}

}  // namespace

struct CusparseLt::Session {
    explicit Session(const GpuSlice &of) : slice(of) {
        SPARSE_LT(cusparseLtInit, &handle);
    }
    ~Session() {
        SPARSE_LT_FUNCTION(cusparseLtDestroy)(&handle);
    }
    Session(const Session &) = delete;
    Session &operator=(const Session &) = delete;

    cudaStream_t stream() const {
        return static_cast<cudaStream_t>(slice.stream());
    }

    const GpuSlice &slice;
    cusparseLtHandle_t handle{};
};

namespace {

/** The filter is the sparse matrix on the left, the transpose of the input the right one, and the output, whose columns
 * are pixels, is contiguous along them. */
class SparseLinear : public GpuPeer {
public:
    SparseLinear(std::shared_ptr<CusparseLt::Session> session, std::string description, const LinearShape &shape,
                 const void *input, const std::vector<const void *> &filters, const void *bias, void *output)
        : session_(std::move(session)), description_(std::move(description)), input_data_(input), output_data_(output) {
        const cusparseLtHandle_t *const handle = &session_->handle;
        const cudaDataType_t type = sparse_type_of(shape.dtype);
        const int64_t rows = shape.out_channels, depth = shape.in_channels, columns = shape.rows;
        SPARSE_LT(cusparseLtStructuredDescriptorInit, handle, &filter_, rows, depth, depth, sparse_alignment, type,
                  CUSPARSE_ORDER_ROW, CUSPARSELT_SPARSITY_50_PERCENT);
        SPARSE_LT(cusparseLtDenseDescriptorInit, handle, &input_, columns, depth, depth, sparse_alignment, type,
                  CUSPARSE_ORDER_ROW);
        SPARSE_LT(cusparseLtDenseDescriptorInit, handle, &output_, rows, columns, rows, sparse_alignment, type,
                  CUSPARSE_ORDER_COL);
        SPARSE_LT(cusparseLtMatmulDescriptorInit, handle, &product_, CUSPARSE_OPERATION_NON_TRANSPOSE,
                  CUSPARSE_OPERATION_TRANSPOSE, &filter_, &input_, &output_, &output_, CUSPARSE_COMPUTE_32F);
        SPARSE_LT(cusparseLtMatmulDescSetAttribute, handle, &product_, CUSPARSELT_MATMUL_BIAS_POINTER, &bias,
                  sizeof(bias));
        SPARSE_LT(cusparseLtMatmulAlgSelectionInit, handle, &algorithm_, &product_, CUSPARSELT_MATMUL_ALG_DEFAULT);
        SPARSE_LT(cusparseLtMatmulPlanInit, handle, &plan_, &product_, &algorithm_);
        size_t bytes = 0, scratch_bytes = 0;
        SPARSE_LT(cusparseLtSpMMACompressedSize, handle, &plan_, &bytes, &scratch_bytes);
        const DeviceArray<uint8_t> scratch(std::max<size_t>(scratch_bytes, 1));
        for (const void *filter : filters) {
            filters_.push_back(std::make_unique<DeviceArray<uint8_t>>(bytes));
            SPARSE_LT(cusparseLtSpMMACompress, handle, &plan_, filter, filters_.back()->data(), scratch.data(),
                      session_->stream());
            session_->slice.synchronise();
        }
        choose();
    }
    ~SparseLinear() override {
        SPARSE_LT_FUNCTION(cusparseLtMatmulPlanDestroy)(&plan_);
        SPARSE_LT_FUNCTION(cusparseLtMatmulAlgSelectionDestroy)(&algorithm_);
        for (const auto *matrix : {&filter_, &input_, &output_}) {
            SPARSE_LT_FUNCTION(cusparseLtMatDescriptorDestroy)(matrix);
        }
    }
    SparseLinear(const SparseLinear &) = delete;
    SparseLinear &operator=(const SparseLinear &) = delete;

    std::string description() const override {
        return description_;
    }
    std::string implementation() const override {
        return fmt::format("algorithm {} of its search", chosen_);
    }
    void run() const override {
        run_into(output_data_);
    }
    void run_into(void *output) const override {
        const float one = 1, zero = 0;
        cudaStream_t stream = session_->stream();
        SPARSE_LT(cusparseLtMatmul, &session_->handle, &plan_, &one, filters_[next_++ % filters_.size()]->data(),
                  input_data_, &zero, output, output, workspace_ ? workspace_->data() : nullptr, &stream, 1);
    }

private:
    void choose() {
        const float one = 1, zero = 0;
        cudaStream_t stream = session_->stream();
        constexpr size_t search_bytes = size_t{256} << 20;
        workspace_ = std::make_unique<DeviceArray<uint8_t>>(search_bytes);
        SPARSE_LT(cusparseLtMatmulSearch, &session_->handle, &plan_, &one, filters_.front()->data(), input_data_, &zero,
                  output_data_, output_data_, workspace_->data(), &stream, 1);
        SPARSE_LT(cusparseLtMatmulAlgGetAttribute, &session_->handle, &algorithm_, CUSPARSELT_MATMUL_ALG_CONFIG_ID,
                  &chosen_, sizeof(chosen_));
        size_t bytes = 0;
        SPARSE_LT(cusparseLtMatmulGetWorkspace, &session_->handle, &plan_, &bytes);
        if (bytes > search_bytes) {
            throw std::runtime_error("cuSPARSELt wants more memory than the benchmark has");
        }
    }

    std::shared_ptr<CusparseLt::Session> session_;
    std::string description_;
    cusparseLtMatDescriptor_t filter_{}, input_{}, output_{};
    cusparseLtMatmulDescriptor_t product_{};
    cusparseLtMatmulAlgSelection_t algorithm_{};
    cusparseLtMatmulPlan_t plan_{};
    std::vector<std::unique_ptr<DeviceArray<uint8_t>>> filters_;
    std::unique_ptr<DeviceArray<uint8_t>> workspace_;
    mutable size_t next_ = 0; /**< Calls so far, by which they take turns. */
    const void *input_data_;
    void *output_data_;
    int chosen_ = 0;
};

}  // namespace

CusparseLt::CusparseLt(const GpuSlice &slice) : session_(std::make_shared<Session>(slice)) {
}

CusparseLt::~CusparseLt() = default;

std::string CusparseLt::description() const {
    int version = 0;
    SPARSE_LT(cusparseLtGetVersion, &session_->handle, &version);
    return fmt::format("cuSPARSELt {}.{}.{}", version / 1000, version / 100 % 10, version % 100);
}

std::unique_ptr<GpuPeer> CusparseLt::linear(const LinearShape &shape, const void *input,
                                            const std::vector<const void *> &filters, const void *bias,
                                            void *output) const {
    return std::make_unique<SparseLinear>(session_, description(), shape, input, filters, bias, output);
}

}  // namespace distile::bench
