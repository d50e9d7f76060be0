/** \file
 * The mask object on a GPU: a bitmask and its requested tile counts and lists.
 */
#ifndef DISTILE_CUDA_MASK_H
#define DISTILE_CUDA_MASK_H

#include "runtime/cuda/cuda_device.h"
#include "runtime/cuda/kernels/mask_sources.h"
#include "runtime/mask/mask.h"
#include <memory>
#include <vector>

namespace distile {

class CudaMask : public distile_mask {
public:
    explicit CudaMask(CudaDevice &device);
    ~CudaMask() override;

    distile_status check_shape(const char *call, const MaskShape &wanted) const override;
    void set_bytes(const MaskShape &to, const uint8_t *bytes, int64_t stride_n, int64_t stride_h) override;
    void set_bits(const MaskShape &to, const uint32_t *words, int64_t words_per_row) override;
    void set_indices(const char *call, const MaskShape &to, const int32_t *indices, const int32_t *counts,
                     int64_t stride_n) override;
    void set_all(const MaskShape &to) override;
    void set_window(const MaskShape &to, distile_mask &from, const distile_window &given, Direction direction) override;
    void set_combination(Combination how, distile_mask &a, distile_mask *b) override;
    void set_difference(const distile_tensor &a, const distile_tensor &b, float threshold) override;
    void set_scores(const distile_tensor &tensor, const Scores &scores) override;

    /** Makes room for words of a shape, which a kernel writes that the caller launches; then comes end_words(). */
    uint32_t *start_words(const MaskShape &to) {
        started_ = begin_words(to);
        shape = to;
        return words_.as<uint32_t>();
    }
    /** Lists again what was listed before, behind the kernel. */
    void end_words() {
        launch_list(started_);
        started_ = {};
    }

    MaskBits bits() override {
        return {bits_.words, bits_.words_per_row};
    }
    void check_bytes(const MaskShape &of, const MaskBytes &to) const override;
    void get_bytes(const MaskBytes &to) override;
    const DeviceBits &device_bits() const {
        return bits_;
    }
    uint32_t num_words() const {
        return static_cast<uint32_t>(int64_t{shape.batch} * bits_.height * bits_.words_per_row);
    }
    bool counts_on_host() const override {
        return false;
    }
    /** False if count() would fail, because a graph sets the mask or is being captured. */
    bool host_may_count() const;
    void count(const Granularity *granularities, int32_t num_granularities, int64_t *counts) override;
    int64_t active_pixels() override;
    TileList list(Granularity granularity, const TileRect &interior) override;
    const int32_t *cumulative_lengths() override {
        // They come with the list.
        list({1, 1}, {});
        return lengths_.as<const int32_t>();
    }

private:
    /** The state of the mask at a granularity. Its index is the slot of its count. */
    struct Level {
        TileGrid grid{};
        bool counted = false, read_back = false, listed = false;
        /** Requested since the mask was set, so made at once when the mask is set again. */
        bool count_asked = false, list_asked = false;
        // Kept when the mask is set again.
        std::unique_ptr<DeviceMemory> list, states;
    };

    /** What a launch counts and lists. */
    struct Listing {
        TileGrids grids{};
        uint32_t count = 0;

        void add(const TileGrid &grid) {
            grids.grids[count++] = grid;
        }
        /** Takes out the grid of single pixels; returns one without states if there is none. */
        TileGrid take_pixels();
    };

    /** Sets the mask to a shape. `write(words, listing)` enqueues the kernels that set the words; they may take a grid
     * out of the listing, and the rest is listed after them. If it throws, the mask holds no data. */
    template<typename Write> void set_words(MaskShape to, const Write &write) {
        Listing listing = begin_words(to);
        write(words_.as<uint32_t>(), listing);
        launch_list(listing);
        shape = to;
    }
    /** Makes room for a shape, leaving the mask without data. Returns what to list again. */
    Listing begin_words(const MaskShape &to);
    /** Sets the words from bytes or bits; lists the pixels, too, if the listing asks for them. */
    template<typename Source> void launch_source(CUfunction function, const MaskShape &to, Source source,
                                                 Listing &listing, uint32_t *words) const;
    /** Copies words into the mask, without bits beyond the width. */
    void launch_copy(const MaskShape &to, const uint32_t *from, int64_t stride, Listing &listing,
                     uint32_t *words) const;
    Level &level(Granularity granularity);
    /** The launch argument that counts a level and, on request, lists it. */
    TileGrid grid_of_level(const Level &level, bool list) const;
    /** Counts the wanted levels that are not counted yet on the device. */
    void count_on_device();
    void launch_list(const Listing &listing) const;
    /** Throws during the capture of a graph that does not set the mask: work on it in the graph would go stale. Returns
     * whether a graph is being captured. */
    bool refuse_stale_capture() const;
    /** Launches one of the kernels that set and list masks. */
    template<typename... Args> void launch(CUfunction function, LaunchGrid grid, const Args &...args) const {
        grid.early = device_.kernels->masks_wait;
        device_.launch(function, device_.caller_stream, grid, args...);
    }

    CudaDevice &device_;
    DeviceBits bits_{};
    bool captured_ = false;  ///< Set in a graph, so the host's counts may not match the device.
    DeviceMemory words_, counts_, lengths_;
    uint32_t *read_back_ = nullptr;  // Host memory that the device writes.
    std::vector<Level> levels_;
    Listing started_;
    std::vector<Level *> wanted_;  // During count().
};

}  // namespace distile

#endif
