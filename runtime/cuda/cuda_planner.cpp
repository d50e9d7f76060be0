#include "runtime/cuda/cuda_planner.h"
#include "runtime/cuda/cuda_mask.h"
#include "runtime/cuda/kernels/pixels.h"
#include "runtime/cuda/pixel_update.h"
#include <algorithm>

namespace distile {

/** A buffer, with a record on the device of what was written since it was all zero. */
class CudaPlanner::Buffer {
public:
    explicit Buffer(CudaDevice &device)
        : device_(device), memory_(device), record_(device), kept_{DeviceMemory(device), DeviceMemory(device)} {
        record_.reserve(sizeof(BufferRecord));
        fill_with_zeros(record_, sizeof(BufferRecord));
    }

    uint64_t bytes() const {
        return memory_.total_bytes();
    }

    /** Makes room for a tensor and for its mask's bits. The buffer is clear before and after. */
    void reserve(uint64_t bytes, const CudaMask &mask) {
        for (DeviceMemory &bits : kept_) {
            bits.reserve(uint64_t{mask.num_words()} * sizeof(uint32_t));
        }
        memory_.reserve(bytes);
        if (memory_.address() != zeroed_) {
            // Only a clear outside a graph counts: nobody knows when a graph runs.
            const bool capturing = device_.is_capturing();
            // Clear the whole memory: later tensors may be larger than this one.
            fill_with_zeros(memory_, memory_.bytes());
            zeroed_ = capturing ? zeroed_ : memory_.address();
        }
    }

    distile_tensor tensor(const distile_output_spec &spec) const {
        return tensor_of(spec, memory_.as<void>());
    }

    /** Clears every byte of a tensor. */
    void clear_all(const distile_output_spec &spec) const {
        fill_with_zeros(memory_, static_cast<size_t>(bytes_of(spec)));
    }

    /** Clears the pixels in the record. */
    void clear(CUstream stream) const {
        HandOut out{};
        out.record = record_.as<BufferRecord>();
        out.clear = 1;
        device_.launch(device_.kernels->hand_out, stream, {most_blocks_}, out);
    }

    /** Records that all pixels of a tensor, or the active ones, will be written; with `clear`, clears first. */
    void record(const distile_tensor &tensor, const CudaMask &mask, bool whole, bool clear) {
        HandOut out{};
        out.record = record_.as<BufferRecord>();
        out.clear = clear ? 1 : 0;
        out.keep = 1;
        out.written.bits = mask.device_bits();
        out.written.update = make_update(tensor, nullptr, {1, 1}, true);
        out.num_words = whole ? 0 : mask.num_words();
        for (size_t i = 0; i < 2; i++) {
            out.kept[i] = kept_[i].as<uint32_t>();
        }
        // Enough blocks for this tensor, and for earlier ones that may need clearing.
        most_blocks_ = std::max(most_blocks_, blocks_for(out.written.update, device_.most_blocks()));
        device_.launch(device_.kernels->hand_out, device_.caller_stream, {most_blocks_}, out);
    }

private:
    void fill_with_zeros(const DeviceMemory &memory, size_t bytes) const {
        device_.check(device_.driver.cuMemsetD8Async(memory.address(), 0, bytes, device_.caller_stream),
                      "cuMemsetD8Async");
    }

    CudaDevice &device_;
    DeviceMemory memory_, record_;
    DeviceMemory kept_[2];
    CUdeviceptr zeroed_ = 0;  ///< The memory that is known to start as zeros.
    uint32_t most_blocks_ = 1;
};

CudaPlanner::CudaPlanner(CudaDevice &device, const PlannerSettings &settings)
    : distile_planner(device.context), device_(device), clearing_(settings.clearing) {
    for (int32_t i = 0; i < settings.buffers; i++) {
        buffers_.push_back(std::make_unique<Buffer>(device));
    }
    if (clearing_ == DISTILE_CLEAR_BACKGROUND) {
        background_ = std::make_unique<SideStream>(device);
    }
}

CudaPlanner::~CudaPlanner() = default;

bool CudaPlanner::join() {
    if (!pending_) {
        return false;
    }
    if (pending_captured_ != device_.is_capturing()) {
        if (pending_captured_) {
            // That capture was abandoned: none of its work will run.
            pending_ = false;
            return false;
        }
        throw Failure{fail(&context, DISTILE_ERROR_CAPTURING,
                           "a buffer is being cleared outside the graph capture; call distile_cuda_planner_join "
                           "before the capture")};
    }
    background_->join();
    pending_ = false;
    return true;
}

distile_tensor CudaPlanner::next(const distile_output_spec &spec, distile_mask &given, bool whole) {
    const auto &mask = static_cast<CudaMask &>(given);
    Buffer &buffer = *buffers_[turn_];
    const size_t next_turn = (turn_ + 1) % buffers_.size();
    buffer.reserve(static_cast<uint64_t>(bytes_of(spec)), mask);
    const distile_tensor tensor = buffer.tensor(spec);
    if (clearing_ == DISTILE_CLEAR_ALL) {
        buffer.clear_all(spec);
    } else {
        // The graph itself did not clear the first buffer, so clear it here.
        const bool cleared = join();
        buffer.record(tensor, mask, whole, !cleared);
        if (background_) {
            pending_captured_ = device_.is_capturing();
            background_->fork();
            background_->begin();
            buffers_[next_turn]->clear(background_->stream());
            pending_ = true;
        }
    }
    turn_ = next_turn;
    return tensor;
}

int64_t CudaPlanner::bytes() const {
    uint64_t bytes = 0;
    for (const auto &buffer : buffers_) {
        bytes += buffer->bytes();
    }
    return static_cast<int64_t>(bytes);
}

}  // namespace distile
