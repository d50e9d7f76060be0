#include "bench/gpu/gathered_peer.h"
#include "autoscheduler/measure/gpu.h"
#include "bench/harness/peer_missing.h"
#include "facts/type_functions.h"
#include "move_rows_ptx.h"
#include <array>

namespace distile::bench {

namespace {

constexpr uint32_t piece_bytes = 16;

std::vector<uint32_t> active_tokens(const ByteMask &mask) {
    std::vector<uint32_t> list;
    for (size_t i = 0; i < mask.bytes.size(); i++) {
        if (mask.bytes[i] != 0) {
            list.push_back(static_cast<uint32_t>(i));
        }
    }
    if (list.empty()) {
        throw PeerMissing("no token is active");
    }
    return list;
}

LinearShape of_rows(LinearShape shape, size_t rows) {
    shape.rows = static_cast<int64_t>(rows);
    return shape;
}

class GatheredPeer : public GpuPeer {
public:
    GatheredPeer(const GpuSlice &slice, const Cublas &cublas, const LinearShape &shape, const LinearArrays &arrays,
                 const std::vector<uint32_t> &list)
        : slice_(slice), arrays_(arrays), count_(static_cast<uint32_t>(list.size())), list_(list),
          input_bytes_(row_bytes(shape, shape.in_channels)), output_bytes_(row_bytes(shape, shape.out_channels)),
          input_(list.size() * input_bytes_), output_(list.size() * output_bytes_),
          gather_(module_.find("gather_rows")), scatter_(module_.find("scatter_rows")),
          linear_(
              cublas.linear(of_rows(shape, list.size()), input_.data(), arrays.filter, arrays.bias, output_.data())) {
    }

    std::string description() const override {
        return linear_->description();
    }
    std::string implementation() const override {
        return "gather, " + linear_->implementation() + ", scatter";
    }
    void run() const override {
        run_into(arrays_.output);
    }
    void run_into(void *output) const override {
        move(gather_, arrays_.input, input_.data(), input_bytes_);
        linear_->run();
        move(scatter_, output_.data(), output, output_bytes_);
    }

private:
    static uint32_t row_bytes(const LinearShape &shape, int32_t channels) {
        return static_cast<uint32_t>(channels) * static_cast<uint32_t>(element_bytes(shape.dtype));
    }
    void move(CUfunction kernel, const void *from, void *to, uint32_t bytes) const {
        // Few pieces a thread, all in flight at once.
        uint32_t pieces = bytes / piece_bytes;
        const uint32_t threads = pieces <= 512 ? 128 : 256;
        const void *list = list_.data();
        std::array<void *, 4> arguments = {&from, &to, &list, &pieces};
        CU(cuLaunchKernel, kernel, count_, 1U, 1U, threads, 1U, 1U, 0U, static_cast<CUstream>(slice_.stream()),
           arguments.data(), static_cast<void **>(nullptr));
    }

    const GpuSlice &slice_;
    LinearArrays arrays_;
    uint32_t count_;
    DeviceArray<uint32_t> list_;
    uint32_t input_bytes_, output_bytes_;
    DeviceArray<uint8_t> input_, output_;
    Module module_{distile_move_rows_ptx};
    CUfunction gather_, scatter_;
    std::unique_ptr<GpuPeer> linear_;
};

}  // namespace

std::unique_ptr<GpuPeer> make_gathered_peer(const GpuSlice &slice, const Cublas &cublas, const LinearShape &shape,
                                            const LinearArrays &arrays, const ByteMask &mask) {
    return std::make_unique<GatheredPeer>(slice, cublas, shape, arrays, active_tokens(mask));
}

}  // namespace distile::bench
