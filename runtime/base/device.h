/** \file
 * The device interface: memory, masks, planners, pixel operations, and running code. To add a device, add a folder
 * beside cpu/ and cuda/ that implements this interface, the masks and the planner.
 *
 * Functions store a message in the context and throw distile::Failure, or throw std::bad_alloc. Callers have checked
 * the arguments and made the device current (distile::guarded).
 */
#ifndef DISTILE_DEVICE_H
#define DISTILE_DEVICE_H

#include "kernels/call.h"
#include "runtime/base/activation.h"
#include <distile/layers.h>
#include <distile/layout.h>
#include <distile/planner.h>
#include <distile/polykernel.h>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace distile {

struct ChoiceTable;
struct Exchange;
struct PlannerSettings;
struct Stage;
struct StageTrace;
struct StageTarget;

/** Layer norm or RMS norm of the active pixels. The output may be the input. */
struct Normalization {
    const distile_tensor &input, &output;
    distile_mask &mask;
    const float *gamma, *beta;  ///< Null: 1 and 0.
    float epsilon;
    bool centred;  ///< Subtracts the mean: layer norm.
    bool zero;     ///< Inactive pixels become 0; else they stay.
};

/** Pooling of the windows of the active pixels. No window is empty. */
struct Pooling {
    const distile_tensor &input, &output;
    distile_mask &mask;
    const distile_window &window;
    bool largest;        ///< Takes the maximum; else the average.
    bool count_padding;  ///< An average divides by the size of the kernel.
    bool zero;           ///< Inactive pixels become 0; else they stay.
};

/** Pooling of the active pixels of each image. */
struct GlobalPooling {
    const distile_tensor &input, &output;
    distile_mask *mask;  ///< Null: all pixels are active.
    bool largest;        ///< Takes the maximum; else the average.
};

/** The mean and the variance of the active pixels of each image and group of channels. */
struct GroupStatistics {
    const distile_tensor &input;
    distile_mask *mask;  ///< Null: all pixels are active.
    int32_t groups;
    float *mean, *variance;  ///< [image][group]
};

/** Group norm of the active pixels. The output may be the input. */
struct GroupNormalization {
    const distile_tensor &input, &output;
    distile_mask &mask;
    int32_t groups;
    const float *mean, *variance;  ///< [image][group], or shared [group]; null: those of the active pixels.
    bool shared;
    const float *gamma, *beta;  ///< Null: 1 and 0.
    float epsilon;
    Activation activation;
    bool zero;  ///< Inactive pixels become 0; else they stay.
};

/** A combination of the active pixels of two tensors. The output may be either. */
struct TensorCombination {
    const distile_tensor &input;
    /** With strides of 0 for rows and columns, one pixel serves all of an image. The input, for a copy. */
    const distile_tensor &other;
    const distile_tensor &output;
    distile_mask &mask;
    distile_combination how;
    Activation other_activation, activation;
    bool zero;  ///< Inactive pixels become 0; else they stay.
};

/** The code of a PolyKernel, loaded on a device. */
class LoadedCode {
public:
    LoadedCode() = default;
    virtual ~LoadedCode() = default;
    LoadedCode(const LoadedCode &) = delete;
    LoadedCode &operator=(const LoadedCode &) = delete;
};

/** Scratch memory that returns itself to its owner. */
using ScratchMemory = std::unique_ptr<void, std::function<void(void *)>>;

/** The zeros that a run writes to the inactive pixels of its output, beside its operator. */
struct Zeros {
    const distile_tensor &output;
    distile_mask &mask;
    uint8_t byte = 0;  ///< The byte of quantized zeros.
};

/** Calls of a PolyKernel's variants. Does not own them. */
struct VariantCalls {
    const distile_polykernel &polykernel;
    const int32_t *variants;  ///< The variant of each call.
    distile_kernel_call *calls;
    int32_t num_calls;
    const distile_gpu_choice *choice;  ///< If set, the code makes the call that the device chooses; else all are made.
};

/** The result of calls: the code's return value and, if that is not 0, the device's status for it, by default
 * DISTILE_ERROR_KERNEL, and the index of the call. */
struct RunResult {
    int code;
    distile_status status;
    int32_t failed;
};

/** Chooses among the variants of a kernel on the device, without the host. */
class DeviceChooser {
public:
    DeviceChooser() = default;
    virtual ~DeviceChooser() = default;
    DeviceChooser(const DeviceChooser &) = delete;
    DeviceChooser &operator=(const DeviceChooser &) = delete;

    /** What code needs that chooses itself. Valid until the next call. */
    virtual const distile_gpu_choice &describe(const ChoiceTable &table) = 0;
    /** Enqueues a choice for code that does not. */
    virtual void choose(const ChoiceTable &table) = 0;
    /** The address at which a choice leaves the number of tiles that the variant computes: 0 unless it is chosen. */
    virtual const uint32_t *tile_count(int32_t variant) const = 0;
};

class Device {
public:
    explicit Device(distile_context &given) : context(given) {
    }
    virtual ~Device() = default;
    Device(const Device &) = delete;
    Device &operator=(const Device &) = delete;

    virtual distile_device kind() const = 0;
    /** The `threads` of time tables. */
    virtual int32_t threads() const = 0;
    /** Contexts with the same address share memory and therefore weights. */
    virtual const void *memory_space() const = 0;
    /** What a launch costs in a choice on the device, in microseconds. */
    virtual double launch_us() const {
        return 0;
    }
    /** Makes the device current in this thread, until leave(). */
    virtual void enter() {
    }
    virtual void leave() noexcept {
    }
    /** How it gets pixels from other devices of a group; null: not at all. */
    virtual const Exchange *exchange() const {
        return nullptr;
    }
    /** The stream for dense candidates; null on a CPU. */
    virtual void *stream() const {
        return nullptr;
    }
    /** True during graph capture, when calls must neither wait nor allocate. */
    virtual bool is_capturing() const {
        return false;
    }

    // Objects.
    virtual std::unique_ptr<distile_mask> make_mask() = 0;
    virtual std::unique_ptr<distile_planner> make_planner(const PlannerSettings &settings) = 0;
    /** A copy of host memory, aligned to 64 bytes, that may outlive the context. */
    virtual std::shared_ptr<const void> upload(const void *from, size_t bytes) = 0;
    /** Such memory with what `fill` writes to host memory. */
    virtual std::shared_ptr<const void> make_filled(size_t bytes, const std::function<void(void *)> &fill);

    // Tensors. All but check_memory() reject memory of other devices.
    /** Rejects a tensor whose memory the operators' code cannot use on this device. */
    virtual distile_status check_memory(const char *call, const distile_tensor &tensor, const char *name) const = 0;
    /** Memory for a tensor, valid until the next work on the device. */
    virtual ScratchMemory take_scratch(size_t bytes) = 0;
    /** Copies `from`, unless null, to the pixels of `output` that are active in the mask; with `zero`, zeros the
     * others. A null mask means all pixels, or none without `from`. A CPU also converts to float32 from another type.
     */
    virtual void update_pixels(distile_mask *mask, const distile_tensor &output, const distile_tensor *from,
                               bool zero) = 0;
    /** Writes them. */
    virtual void write(const Zeros &zeros) {
        update_pixels(&zeros.mask, zeros.output, nullptr, true);
    }
    virtual void upsample_nearest(const distile_tensor &input, const distile_tensor &output, distile_mask &mask,
                                  int32_t scale_h, int32_t scale_w, bool zero) = 0;
    virtual void normalize(const Normalization &normalization) = 0;
    virtual void pool(const Pooling &pooling) = 0;
    virtual void pool_globally(const GlobalPooling &pooling) = 0;
    virtual void combine(const TensorCombination &combination) = 0;
    virtual void find_statistics(const GroupStatistics &statistics) = 0;
    virtual void normalize_groups(const GroupNormalization &normalization) = 0;
    /** Copies the active pixels of a tensor, in order, to the first pixels of `packed`, as far as it has room. */
    virtual void pack(const distile_tensor &tensor, distile_mask &mask, const distile_tensor &packed) = 0;
    /** The reverse. With `zero`, the other pixels become 0. */
    virtual void unpack(const distile_tensor &packed, distile_mask &mask, const distile_tensor &tensor, bool zero) = 0;
    /** Converts between the two, in either direction. */
    virtual void convert_layout(const distile_nchw &planes, const distile_tensor &tensor, bool to_planes) = 0;

    // Running.
    /** What stages must be here; null where there are none. */
    virtual const StageTarget *stage_target() const {
        return nullptr;
    }
    /** Runs a stage's steps, which have been checked for the target. With a trace, waits for them and adds their items.
     */
    virtual void run_stage(const Stage &stage, StageTrace *trace);
    /** The features that a PolyKernel's code needs and this device lacks; "" if none. */
    virtual std::string missing_features(const distile_polykernel &polykernel) const = 0;
    /** The most virtual pixels (tiles times tile size) that one call may have. */
    virtual int64_t most_virtual_pixels() const = 0;
    /** Loads the code of a kernel's variants; null if there is nothing to load. */
    virtual std::unique_ptr<LoadedCode> load(const distile_kernel &kernel) = 0;
    /** True if the device shall choose the variant for a mask, because the host cannot or need not know its counts. */
    virtual bool chooses_for(const distile_mask & /*mask*/) const {
        return false;
    }
    /** Null on a device that never chooses. */
    virtual std::unique_ptr<DeviceChooser> make_chooser(int32_t /*num_variants*/) {
        return nullptr;
    }
    /** Makes calls until one fails. The zeros, if any, do not overlap the pixels that they store; with
     * store_tiles they may, so they come first. */
    virtual RunResult run(LoadedCode *code, const VariantCalls &calls, const Zeros *zeros) = 0;

    distile_context &context;
};

}  // namespace distile

#endif
