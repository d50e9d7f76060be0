/** \file
 * What the runtime asks of a device: memory, masks, planners, work on pixels, and running code. A further device is a
 * folder beside cpu/ and cuda/ that implements this interface, the masks and the planner.
 *
 * Functions throw distile::Failure, whose message they stored in the context, or std::bad_alloc. Where they are called,
 * the device is current (distile::guarded). Arguments were checked.
 */
#ifndef DISTILE_DEVICE_H
#define DISTILE_DEVICE_H

#include <distile/layout.h>
#include <distile/planner.h>
#include <distile/polykernel.h>
#include <functional>
#include <memory>
#include <string>

namespace distile {

struct PlannerSettings;

/** The code of a PolyKernel, as a device has loaded it. */
class LoadedCode {
public:
    LoadedCode() = default;
    virtual ~LoadedCode() = default;
    LoadedCode(const LoadedCode &) = delete;
    LoadedCode &operator=(const LoadedCode &) = delete;
};

/** Scratch memory that goes back to where it came from. */
using ScratchMemory = std::unique_ptr<void, std::function<void(void *)>>;

/** Zeros that a run writes beside its operator, into the inactive pixels of its output. */
struct Zeros {
    const distile_tensor &output;
    distile_mask &mask;
};

/** What became of a variant's call: what its code returned, and if that is not 0, what kind of error the device knows
 * it to be, else DISTILE_ERROR_KERNEL. */
struct RunResult {
    int code;
    distile_status status;
};

class Device {
public:
    explicit Device(distile_context &given) : context(given) {
    }
    virtual ~Device() = default;
    Device(const Device &) = delete;
    Device &operator=(const Device &) = delete;

    virtual distile_device kind() const = 0;
    /** What `threads` means in time tables. */
    virtual int32_t threads() const = 0;
    /** Contexts with the same address share memory, and so weights. */
    virtual const void *memory_space() const = 0;
    /** Makes the device current in this thread, until leave(). */
    virtual void enter() {
    }
    virtual void leave() noexcept {
    }
    /** What dense candidates put their work on; null on a CPU. */
    virtual void *stream() const {
        return nullptr;
    }
    /** True while calls are recorded, and must neither wait nor take memory. */
    virtual bool is_capturing() const {
        return false;
    }

    // Objects.
    virtual std::unique_ptr<distile_mask> make_mask() = 0;
    virtual std::unique_ptr<distile_planner> make_planner(const PlannerSettings &settings) = 0;
    /** A copy of host memory, aligned to 64 bytes, which may outlive the context. */
    virtual std::shared_ptr<const void> upload(const void *from, size_t bytes) = 0;

    // Tensors. All but check_memory() refuse memory that is not the device's.
    /** Refuses a tensor whose memory the device cannot use as the code of operators needs it. */
    virtual distile_status check_memory(const char *call, const distile_tensor &tensor, const char *name) const = 0;
    /** Memory for a tensor, until what comes next on the device. */
    virtual ScratchMemory take_scratch(size_t bytes) = 0;
    /** Copies pixels of `from`, unless it is null, to those of `output` that are active in the mask, and with `zero`
     * makes the others zero. A null mask stands for all pixels. */
    virtual void update_pixels(distile_mask *mask, const distile_tensor &output, const distile_tensor *from,
                               bool zero) = 0;
    virtual void upsample_nearest(const distile_tensor &input, const distile_tensor &output, distile_mask &mask,
                                  int32_t scale_h, int32_t scale_w, bool zero) = 0;
    /** Converts between the two, in either direction. */
    virtual void convert_layout(const distile_nchw &planes, const distile_tensor &tensor, bool to_planes) = 0;

    // Running.
    /** "", or the features that the code of a PolyKernel needs and this device lacks. */
    virtual std::string missing_features(const distile_polykernel &polykernel) const = 0;
    /** The most virtual pixels (tiles times their size) that code can be called for. */
    virtual int64_t most_virtual_pixels() const = 0;
    /** Loads the code of a kernel's variants; null where there is nothing to load. */
    virtual std::unique_ptr<LoadedCode> load(const distile_kernel &kernel) = 0;
    /** Runs a variant. Its zeros, if there are any, are other pixels than those that it stores; but with store_tiles
     * they come first. */
    virtual RunResult run(LoadedCode *code, const distile_variant &variant, distile_kernel_call &call,
                          const Zeros *zeros) = 0;

    distile_context &context;
};

}  // namespace distile

#endif
