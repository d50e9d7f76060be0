/** \file
 * An OpenCL device in use: the caller's queue, and the work on it.
 */
#ifndef DISTILE_OPENCL_DEVICE_H
#define DISTILE_OPENCL_DEVICE_H

#include "runtime/base/context.h"
#include "runtime/gpu/code_cache.h"
#include "runtime/opencl/address_space.h"
#include "runtime/opencl/growing_buffer.h"
#include "runtime/opencl/program.h"
#include <array>
#include <distile/opencl.h>
#include <memory>
#include <optional>
#include <string>

namespace distile {

class OpenClCode;

/** Work-items of a group of our own kernels. */
constexpr size_t group_items = 64;

/** The items of a launch, and of its groups. */
struct ItemGrid {
    std::array<size_t, 3> items, group;
};

/** A grid of whole groups of our own kernels, for at least `items` items. */
inline ItemGrid items_for(uint64_t items, uint64_t rows = 1) {
    const uint64_t groups = (items + group_items - 1) / group_items;
    return {{groups * group_items, rows, 1}, {group_items, 1, 1}};
}

/** Local memory for a kernel's argument. */
struct LocalBytes {
    size_t bytes;
};

/** Pixels to write: the active ones of the bits, or all. */
struct PixelChange {
    const uint32_t *words;  ///< Null: all pixels.
    int32_t words_per_row;
    bool invert;  ///< Swaps active and inactive.
    bool zero;    ///< Inactive pixels become 0; else they stay.
    int32_t scale_h = 1, scale_w = 1;
};

/** What our own kernels read and write at once: 16 bytes, or an element if some tensor's pixels do not start at
 * multiples of that. */
struct PixelUnit {
    int64_t bytes, lanes;  ///< `lanes` are elements.
};

class OpenClDevice : public Device {
public:
    OpenClDevice(distile_context &given, const OpenClLibrary &loaded);
    ~OpenClDevice() override;
    /** Must come before everything else. */
    void open(const distile_opencl_options &options);

    distile_device kind() const override {
        return DISTILE_OPENCL;
    }
    int32_t threads() const override {
        return compute_units_;
    }
    const void *memory_space() const override {
        return space.get();
    }
    void *stream() const override {
        return queue;
    }

    std::unique_ptr<distile_mask> make_mask() override;
    std::unique_ptr<distile_planner> make_planner(const PlannerSettings &settings) override;
    std::shared_ptr<const void> upload(const void *from, size_t bytes) override;

    distile_status check_memory(const char *call, const distile_tensor &tensor, const char *name) const override;
    ScratchMemory take_scratch(size_t bytes) override;
    void update_pixels(distile_mask *mask, const distile_tensor &output, const distile_tensor *from,
                       bool zero) override;
    void upsample_nearest(const distile_tensor &input, const distile_tensor &output, distile_mask &mask,
                          int32_t scale_h, int32_t scale_w, bool zero) override;
    void normalize(const Normalization &normalization) override;
    void pool(const Pooling &pooling) override;
    void pool_globally(const GlobalPooling &pooling) override;
    void combine(const TensorCombination &combination) override;
    void find_statistics(const GroupStatistics &statistics) override;
    void normalize_groups(const GroupNormalization &normalization) override;
    void pack(const distile_tensor &tensor, distile_mask &mask, const distile_tensor &packed) override;
    void unpack(const distile_tensor &packed, distile_mask &mask, const distile_tensor &tensor, bool zero) override;
    void convert_layout(const distile_nchw &planes, const distile_tensor &tensor, bool to_planes) override;

    std::string missing_features(const distile_polykernel &polykernel) const override;
    int64_t most_virtual_pixels() const override {
        return (int64_t{1} << 30) - 1;
    }
    std::unique_ptr<LoadedCode> load(const distile_kernel &kernel) override;
    RunResult run(LoadedCode *code, const VariantCalls &calls, const Zeros *zeros) override;

    // For the other files of this folder.

    /** Unless the result is CL_SUCCESS, stores a message about what failed and throws. */
    void check(cl_int result, const char *what) const;
    /** The place of an address. Throws Failure for one of no buffer. */
    Place place_of(const void *address, const char *name) const;
    /** Throws unless `bytes` bytes at a caller's pointer are in a buffer, and aligned. */
    void check_range(const void *pointer, uint64_t bytes, size_t alignment, const char *name) const;
    /** Throws unless all pixels of a caller's tensor are in a buffer, and aligned. */
    void check_view(const distile_tensor &tensor, const char *name) const;
    /** A new buffer. Throws Failure. */
    std::unique_ptr<OwnedBuffer> make_buffer(uint64_t bytes, const void *content = nullptr) const;
    void fill(const void *address, uint32_t word, uint64_t bytes) const;
    void copy(const void *from, void *to, uint64_t bytes) const;
    /** Copies to the host and waits. */
    void read(const void *from, void *to, uint64_t bytes) const;
    /** Launches one of our own kernels. A pointer is passed as a buffer and a byte of it. */
    template<typename... Args> void launch(const char *name, const ItemGrid &grid, const Args &...args) const {
        const Program::Kernel &kernel = own_->kernel(name);
        cl_uint index = 0;
        (set_argument(kernel.handle, index, args), ...);
        enqueue(kernel.handle, grid);
    }
    void enqueue(cl_kernel kernel, const ItemGrid &grid) const;
    static PixelUnit unit_of(const distile_tensor &tensor, const distile_tensor *other);
    void update_pixels(const distile_tensor &output, const distile_tensor *from, const PixelChange &update) const;
    /** Sets an argument that is a buffer. */
    void set_buffer(cl_kernel kernel, cl_uint index, cl_mem buffer) const;
    uint64_t local_bytes() const {
        return local_bytes_;
    }
    size_t most_items() const {
        return most_items_;
    }

    const OpenClLibrary &library;
    std::shared_ptr<AddressSpace> space;
    cl_device_id device = nullptr;
    cl_command_queue queue = nullptr;
    std::optional<CodeCache> cache;

    // State of the call of a variant.
    OpenClCode *running = nullptr;

private:
    /** The moments of blocks of pixels, [image][block][channel], in scratch memory. */
    struct PixelSums {
        const void *moments;
        uint32_t blocks;
        void *behind;  ///< Memory behind the moments.
    };
    /** Sums the active pixels of each image, with `bytes_behind` bytes behind the moments. */
    PixelSums sum_pixels(const distile_tensor &tensor, distile_mask *mask, bool largest, uint64_t bytes_behind = 0);
    void merge_groups(const PixelSums &sums, const GroupStatistics &statistics) const;
    void use_queue(cl_command_queue given);
    void make_queue(int32_t number);
    void share(const distile_context &other);
    void find_features(const char *cache_folder);
    std::string text_of(cl_device_info which) const;
    template<typename Value> Value value_of(cl_device_info which) const;
    bool is_inside(const distile_tensor &tensor, const Place &place) const;
    /** Copies between the active pixels of a tensor and the first ones of a packed tensor. */
    void move_packed(const distile_tensor &tensor, distile_mask &mask, const distile_tensor &packed, bool to_packed,
                     bool zero) const;
    /** On an out-of-order queue, a barrier: before and after each command. */
    void order() const;

    void set_argument(cl_kernel kernel, cl_uint &index, const void *address) const;
    void set_argument(cl_kernel kernel, cl_uint &index, const LocalBytes &local) const;
    template<typename Value> void set_argument(cl_kernel kernel, cl_uint &index, const Value &value) const {
        check(library.clSetKernelArg(kernel, index++, sizeof(Value), &value), "clSetKernelArg");
    }
    template<typename Value> void set_argument(cl_kernel kernel, cl_uint &index, Value *address) const {
        set_argument(kernel, index, static_cast<const void *>(address));
    }

    bool out_of_order_ = false;
    int32_t compute_units_ = 1;
    size_t most_items_ = 0;
    uint64_t local_bytes_ = 0, most_bytes_ = 0;
    int32_t version_ = 0;  ///< 12 for OpenCL 1.2.
    std::string extensions_;
    std::unique_ptr<Program> own_;
    std::unique_ptr<GrowingBuffer> scratch_;
};

}  // namespace distile

#endif
