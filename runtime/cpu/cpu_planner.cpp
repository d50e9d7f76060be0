#include "runtime/cpu/cpu_planner.h"
#include "runtime/base/library_threads.h"
#include "runtime/base/types.h"
#include "runtime/cpu/cpu_mask.h"
#include "runtime/cpu/pixel_runs.h"
#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <thread>

namespace distile {

/** A buffer and the pixels that may be nonzero. */
class CpuPlanner::Buffer {
public:
    explicit Buffer(distile_context &context) : context_(context), words_(context.memory), next_words_(context.memory) {
    }
    ~Buffer() {
        release();
    }
    Buffer(const Buffer &) = delete;
    Buffer &operator=(const Buffer &) = delete;

    size_t bytes() const {
        return bytes_;
    }

    /** The spec's tensor, at the start of the buffer, zero outside the mask's pixels. The caller will write these
     * pixels, or all of them with `whole`. If it throws std::bad_alloc, tensors handed out earlier are unchanged. */
    distile_tensor hand_out(const distile_output_spec &spec, const distile_mask &mask, bool whole, bool clear_all) {
        reserve(static_cast<size_t>(bytes_of(spec)));
        const distile_tensor tensor = tensor_of(spec, memory_);
        const int64_t rows = int64_t{spec.batch} * spec.height;
        const Bitmask &bits = cpu_mask(mask).bitmask();
        const int32_t words_per_row = bits.words_per_row();
        if (whole) {
            next_words_.assign(rows * words_per_row, ~uint64_t{0});
            for (int64_t row = 1; spec.width % 64 != 0 && row <= rows; row++) {
                next_words_[row * words_per_row - 1] = (uint64_t{1} << (spec.width % 64)) - 1;
            }
        } else {
            next_words_.assign(bits.words, bits.words + rows * words_per_row);
        }
        // The two swap, so both need room.
        words_.reserve(next_words_.size());
        // Pixels that will surely be overwritten in the same place need no clearing.
        clear(clear_all, !whole && is_same(tensor) ? next_words_.data() : nullptr, true);
        words_.swap(next_words_);
        tensor_ = tensor;
        written_ = true;
        return tensor;
    }

    /** Zeros the written pixels, or everything. Pixels in `kept`, a mask of the same shape, may stay. */
    void clear(bool everything, const uint64_t *kept, bool in_parallel) {
        if (!written_) {
            return;
        }
        const int64_t rows = int64_t{tensor_.batch} * tensor_.height, words_per_row = (tensor_.width + 63) / 64;
        int64_t pixels = rows * tensor_.width;
        if (!everything) {
            pixels = 0;
            for (size_t i = 0; i < words_.size(); i++) {
                words_[i] &= kept ? ~kept[i] : ~uint64_t{0};
                pixels += __builtin_popcountll(words_[i]);
            }
        }
        if (pixels > 0) {
            // 0 bytes make the calling thread clear all rows: the planner's thread must not use the context's pool.
            const int64_t bytes = in_parallel ? pixels * pixel_bytes() : 0;
            for_each_row(context_, tensor_, bytes, [&](int64_t row) {
                clear_row(row_of(tensor_, row), words_.data() + row * words_per_row, everything);
            });
        }
        // Last, because a process forked meanwhile gets a half-cleared buffer.
        written_.store(false, std::memory_order_release);
    }

private:
    /** Ensures capacity. A buffer that grows is all zero. Throws std::bad_alloc. */
    void reserve(size_t bytes) {
        if (bytes <= bytes_) {
            return;
        }
        void *grown = context_.scratch.make(bytes);
        if (!grown) {
            throw std::bad_alloc();
        }
        std::memset(grown, 0, bytes);
        release();
        memory_ = grown;
        bytes_ = bytes;
        written_ = false;
    }

    /** Whether a tensor has the layout of the last one. */
    bool is_same(const distile_tensor &tensor) const {
        return tensor.data == tensor_.data && tensor.batch == tensor_.batch && tensor.height == tensor_.height &&
               tensor.width == tensor_.width && tensor.channels == tensor_.channels && tensor.dtype == tensor_.dtype &&
               tensor.stride_h == tensor_.stride_h && tensor.stride_n == tensor_.stride_n;
    }

    int64_t pixel_bytes() const {
        return tensor_.stride_w * element_bytes(tensor_.dtype);
    }

    void clear_row(char *pixels, const uint64_t *words, bool whole) const {
        // The overhead of a clearing call, as the bytes that it could clear in that time.
        constexpr int64_t bytes_per_call = 256;
        if (!whole) {
            int64_t cleared = 0, runs = 0;
            for (int32_t i = 0; i < (tensor_.width + 63) / 64; i++) {
                cleared += __builtin_popcountll(words[i]);
                runs += __builtin_popcountll(words[i] & ~(words[i] << 1));
            }
            whole = cleared * pixel_bytes() + runs * bytes_per_call > tensor_.width * pixel_bytes();
        }
        if (whole) {
            std::memset(pixels, 0, tensor_.width * pixel_bytes());
        } else {
            for_each_run(words, tensor_.width, true, [&](int32_t begin, int32_t end) {
                std::memset(pixels + begin * pixel_bytes(), 0, (end - begin) * pixel_bytes());
            });
        }
    }

    void release() {
        if (memory_) {
            context_.scratch.free(memory_);
        }
        memory_ = nullptr;
        bytes_ = 0;
    }

    distile_context &context_;
    void *memory_ = nullptr;
    size_t bytes_ = 0;
    std::atomic<bool> written_{false};
    distile_tensor tensor_{};
    /** The pixels written last, and those written next. The second is kept for its memory. */
    HostVector<uint64_t> words_, next_words_;
};

/** A thread that clears one buffer at a time. It starts with the first buffer, and again in a forked process. */
class CpuPlanner::Cleaner {
public:
    ~Cleaner() {
        forget_parents_thread();
        if (state_) {
            {
                const std::lock_guard<std::mutex> lock(state_->mutex);
                state_->ending = true;
            }
            state_->changed.notify_all();
            state_->thread.join();
        }
    }

    /** Starts clearing a buffer once the previous one is done. Clears at once if no thread can start. */
    void start(Buffer &buffer) {
        wait();
        if (!state_ && !start_thread()) {
            buffer.clear(false, nullptr, true);
            return;
        }
        {
            const std::lock_guard<std::mutex> lock(state_->mutex);
            state_->buffer = &buffer;
        }
        state_->changed.notify_all();
    }

    void wait() {
        forget_parents_thread();
        if (state_) {
            std::unique_lock<std::mutex> lock(state_->mutex);
            state_->changed.wait(lock, [this] { return !state_->buffer; });
        }
    }

private:
    /** State shared by the thread and its callers. */
    struct State {
        void run() {
            name_library_thread();
            std::unique_lock<std::mutex> lock(mutex);
            while (true) {
                changed.wait(lock, [this] { return buffer || ending; });
                if (!buffer) {
                    return;
                }
                lock.unlock();
                buffer->clear(false, nullptr, false);
                lock.lock();
                buffer = nullptr;
                changed.notify_all();
            }
        }

        std::mutex mutex;
        std::condition_variable changed;
        Buffer *buffer = nullptr;
        bool ending = false;
        std::thread thread;
    };

    bool start_thread() {
        try {
            auto state = std::make_unique<State>();
            const SignalBlocker blocker;
            state->thread = std::thread([shared = state.get()] { shared->run(); });
            state_ = std::move(state);
            return true;
        } catch (...) {
            return false;
        }
    }

    /** In a forked child the thread is missing and the mutex may be locked forever. Neither can be used or destroyed,
     * so both leak: a few hundred bytes per fork. */
    void forget_parents_thread() {
        if (forks_ != num_forks()) {
            static_cast<void>(state_.release());
            forks_ = num_forks();
        }
    }

    std::unique_ptr<State> state_;
    uint64_t forks_ = num_forks();  ///< num_forks() when the thread started.
};

CpuPlanner::CpuPlanner(distile_context &given, const PlannerSettings &settings)
    : distile_planner(given), clearing_(settings.clearing), cleaner_(std::make_unique<Cleaner>()) {
    for (int32_t i = 0; i < settings.buffers; i++) {
        buffers_.push_back(std::make_unique<Buffer>(given));
    }
}

CpuPlanner::~CpuPlanner() = default;

distile_tensor CpuPlanner::next(const distile_output_spec &spec, distile_mask &mask, bool whole) {
    const bool background = clearing_ == DISTILE_CLEAR_BACKGROUND;
    if (background) {
        cleaner_->wait();
    }
    const distile_tensor tensor = buffers_[next_]->hand_out(spec, mask, whole, clearing_ == DISTILE_CLEAR_ALL);
    next_ = (next_ + 1) % buffers_.size();
    if (background) {
        cleaner_->start(*buffers_[next_]);
    }
    return tensor;
}

int64_t CpuPlanner::bytes() const {
    int64_t bytes = 0;
    for (const auto &buffer : buffers_) {
        bytes += static_cast<int64_t>(buffer->bytes());
    }
    return bytes;
}

}  // namespace distile
