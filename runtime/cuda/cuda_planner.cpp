#include "cuda_mask.h"
#include "output_spec.h"
#include "pixel_update.h"
#include <algorithm>
#include <distile/cuda_planner.h>

using namespace distile;

namespace {

/** A buffer, and on the device the record of what was written to it since it was all zero. */
class Buffer {
public:
    explicit Buffer(distile_cuda &cuda)
        : cuda_(cuda), memory_(cuda), record_(cuda), kept_{DeviceMemory(cuda), DeviceMemory(cuda)} {
        record_.reserve(sizeof(BufferRecord));
        cuda.check(cuda.driver.cuMemsetD8Async(record_.address(), 0, sizeof(BufferRecord), cuda.stream),
                   "cuMemsetD8Async");
    }

    uint64_t bytes() const {
        return memory_.total_bytes();
    }

    /** Makes room for a tensor, and for the bits of its mask. The buffer is clear before and after. */
    void reserve(uint64_t bytes, const distile_cuda_mask &mask) {
        for (DeviceMemory &bits : kept_) {
            bits.reserve(uint64_t{mask.num_words()} * sizeof(uint32_t));
        }
        memory_.reserve(bytes);
        if (memory_.address() != zeroed_) {
            // Done once it is done outside of a graph, of which nobody knows when it runs.
            const bool capturing = cuda_.is_capturing();
            // All that there is room for: later tensors may be larger than this one.
            cuda_.check(cuda_.driver.cuMemsetD8Async(memory_.address(), 0, memory_.bytes(), cuda_.stream),
                        "cuMemsetD8Async");
            zeroed_ = capturing ? zeroed_ : memory_.address();
        }
    }

    distile_tensor tensor(const distile_output_spec &spec) const {
        return tensor_of(spec, memory_.as<float>());
    }

    /** Clears every byte of a tensor. */
    void clear_all(const distile_output_spec &spec) const {
        cuda_.check(
            cuda_.driver.cuMemsetD8Async(memory_.address(), 0, static_cast<size_t>(bytes_of(spec)), cuda_.stream),
            "cuMemsetD8Async");
    }

    /** Clears what the record says. */
    void clear(CUstream stream) const {
        HandOut out{};
        out.record = record_.as<BufferRecord>();
        out.clear = 1;
        cuda_.launch(cuda_.hand_out, stream, {most_blocks_}, out);
    }

    /** Records that the pixels of a tensor will be written, all or the active ones; on request clears before that. */
    void record(const distile_tensor &tensor, const distile_cuda_mask &mask, bool whole, bool clear) {
        HandOut out{};
        out.record = record_.as<BufferRecord>();
        out.clear = clear ? 1 : 0;
        out.keep = 1;
        out.written.bits = mask.bits;
        out.written.update = make_update(tensor, nullptr, true);
        out.written.lanes = lanes_of(tensor);
        out.num_words = whole ? 0 : mask.num_words();
        for (size_t i = 0; i < 2; i++) {
            out.kept[i] = kept_[i].as<uint32_t>();
        }
        // As many as this tensor asks for, or an earlier one that may have to be cleared.
        most_blocks_ = std::max(most_blocks_, blocks_for(cuda_, out.written.update));
        cuda_.launch(cuda_.hand_out, cuda_.stream, {most_blocks_}, out);
    }

private:
    distile_cuda &cuda_;
    DeviceMemory memory_, record_;
    DeviceMemory kept_[2];
    CUdeviceptr zeroed_ = 0;  ///< The memory that was all zero at first.
    uint32_t most_blocks_ = 1;
};

}  // namespace

struct distile_cuda_planner {
    distile_cuda_planner(distile_cuda &given, const PlannerSettings &settings)
        : cuda(given), clearing(settings.clearing) {
        for (int32_t i = 0; i < settings.buffers; i++) {
            buffers.push_back(std::make_unique<Buffer>(given));
        }
        if (clearing == DISTILE_CLEAR_BACKGROUND) {
            background = std::make_unique<SideStream>(given);
        }
    }

    /** Whether the next buffer is cleared in the background; the stream then waits for that. */
    bool join() {
        if (!pending) {
            return false;
        }
        if (pending_captured != cuda.is_capturing()) {
            if (pending_captured) {
                // That capture was given up: nothing of it will run.
                pending = false;
                return false;
            }
            throw CudaFailure{fail(cuda.host, DISTILE_ERROR_BAD_VALUE,
                                   "a graph is being captured, and a buffer is being cleared outside of it: call "
                                   "distile_cuda_planner_join before the capture")};
        }
        background->join();
        pending = false;
        return true;
    }

    distile_tensor next(const distile_output_spec &spec, const distile_cuda_mask &mask, bool whole) {
        Buffer &buffer = *buffers[turn];
        const size_t next_turn = (turn + 1) % buffers.size();
        buffer.reserve(static_cast<uint64_t>(bytes_of(spec)), mask);
        const distile_tensor tensor = buffer.tensor(spec);
        if (clearing == DISTILE_CLEAR_ALL) {
            buffer.clear_all(spec);
        } else {
            // In a graph the first buffer was not cleared by the graph itself, so it is cleared here.
            const bool cleared = join();
            buffer.record(tensor, mask, whole, !cleared);
            if (background) {
                pending_captured = cuda.is_capturing();
                background->fork();
                background->begin();
                buffers[next_turn]->clear(background->stream());
                pending = true;
            }
        }
        turn = next_turn;
        return tensor;
    }

    distile_cuda &cuda;
    int32_t clearing;
    std::vector<std::unique_ptr<Buffer>> buffers;
    size_t turn = 0;
    std::unique_ptr<SideStream> background;
    bool pending = false;           ///< Work in the background that no stream was told to wait for.
    bool pending_captured = false;  ///< It is part of a graph.
};

extern "C" {

distile_status distile_cuda_planner_create(distile_cuda *cuda, const distile_planner_options *options,
                                           distile_cuda_planner **planner) {
    constexpr const char *call = "distile_cuda_planner_create";
    if (!cuda) {
        return DISTILE_ERROR_NULL_POINTER;
    }
    if (!planner) {
        return fail(cuda->host, DISTILE_ERROR_NULL_POINTER, "%s: the address for the planner is null", call);
    }
    PlannerSettings settings{};
    const distile_status status = read_planner_options(cuda->host, call, options, settings);
    if (status != DISTILE_OK) {
        return status;
    }
    return guarded_cuda(*cuda, [&] {
        *planner = std::make_unique<distile_cuda_planner>(*cuda, settings).release();
        return DISTILE_OK;
    });
}

void distile_cuda_planner_destroy(distile_cuda_planner *planner) {
    if (planner) {
        destroy_cuda(planner->cuda, planner);
    }
}

distile_status distile_cuda_planner_next(distile_cuda_planner *planner, const distile_output_spec *spec,
                                         distile_cuda_mask *mask, distile_store store, distile_tensor *output) {
    if (!planner) {
        return DISTILE_ERROR_NULL_POINTER;
    }
    const distile_status status =
        check_output(planner->cuda.host, &planner->cuda, "distile_cuda_planner_next", spec, mask, raw(store), output);
    if (status != DISTILE_OK) {
        return status;
    }
    return guarded_cuda(planner->cuda, [&] {
        *output = planner->next(*spec, *mask, store == DISTILE_STORE_TILES);
        return DISTILE_OK;
    });
}

distile_status distile_cuda_planner_join(distile_cuda_planner *planner) {
    if (!planner) {
        return DISTILE_ERROR_NULL_POINTER;
    }
    return guarded_cuda(planner->cuda, [&] {
        planner->join();
        return DISTILE_OK;
    });
}

int64_t distile_cuda_planner_bytes(const distile_cuda_planner *planner) {
    return planner ? bytes_of_all(planner->buffers) : 0;
}

}  // extern "C"
