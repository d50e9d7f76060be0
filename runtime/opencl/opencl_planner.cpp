#include "runtime/opencl/opencl_planner.h"
#include "runtime/opencl/opencl_mask.h"

namespace distile {

/** A buffer, with a record of what was written since it was all zero. */
class OpenClPlanner::Buffer {
public:
    explicit Buffer(const OpenClDevice &device) : device_(device), memory_(device), kept_(device) {
    }

    uint64_t bytes() const {
        return memory_.bytes();
    }

    distile_tensor next(const distile_output_spec &spec, OpenClMask &mask, bool whole, bool clear_all) {
        const auto bytes = static_cast<uint64_t>(bytes_of(spec));
        if (bytes > memory_.bytes()) {
            dirty_ = true;
        }
        memory_.reserve(bytes);
        if (dirty_) {
            // Clear the whole memory: later tensors may be larger than this one.
            device_.fill(memory_.as<void>(), 0, memory_.bytes());
            dirty_ = false;
        } else {
            clear(clear_all);
        }
        written_ = Written::Nothing;
        kept_.reserve(mask.bytes_of_words());
        last_ = tensor_of(spec, memory_.as<void>());
        written_ = Written::All;
        if (!whole) {
            words_per_row_ = mask.bits().words_per_row;
            device_.copy(mask.bits().words, kept_.as<void>(), mask.bytes_of_words());
            written_ = Written::Active;
        }
        return last_;
    }

private:
    enum class Written { Nothing, Active, All };

    void clear(bool all) {
        if (written_ != Written::Nothing) {
            const bool active = written_ == Written::Active && !all;
            device_.update_pixels(last_, nullptr,
                                  {active ? kept_.as<const uint32_t>() : nullptr, words_per_row_, true, true});
        }
    }

    const OpenClDevice &device_;
    GrowingBuffer memory_, kept_;
    bool dirty_ = true;  ///< Not known to be zero where nothing was written.
    Written written_ = Written::Nothing;
    distile_tensor last_{};
    int32_t words_per_row_ = 0;
};

OpenClPlanner::OpenClPlanner(OpenClDevice &device, const PlannerSettings &settings)
    : distile_planner(device.context), clear_all_(settings.clearing == DISTILE_CLEAR_ALL) {
    for (int32_t i = 0; i < settings.buffers; i++) {
        buffers_.push_back(std::make_unique<Buffer>(device));
    }
}

OpenClPlanner::~OpenClPlanner() = default;

distile_tensor OpenClPlanner::next(const distile_output_spec &spec, distile_mask &mask, bool whole) {
    const distile_tensor tensor = buffers_[turn_]->next(spec, static_cast<OpenClMask &>(mask), whole, clear_all_);
    turn_ = (turn_ + 1) % buffers_.size();
    return tensor;
}

int64_t OpenClPlanner::bytes() const {
    uint64_t bytes = 0;
    for (const auto &buffer : buffers_) {
        bytes += buffer->bytes();
    }
    return static_cast<int64_t>(bytes);
}

}  // namespace distile
