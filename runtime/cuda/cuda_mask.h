/** \file
 * The mask object on a GPU: a bitmask and its requested tile counts and lists.
 */
#ifndef DISTILE_CUDA_MASK_H
#define DISTILE_CUDA_MASK_H

#include "cuda_device.h"
#include "mask.h"
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

    MaskBits bits() override {
        return {bits_.words, bits_.words_per_row};
    }
    const DeviceBits &device_bits() const {
        return bits_;
    }
    uint32_t num_words() const {
        return static_cast<uint32_t>(int64_t{shape.batch} * bits_.height * bits_.words_per_row);
    }
    bool counts_on_host() const override {
        return false;
    }
    void count(const Granularity *granularities, int32_t num_granularities, int64_t *counts) override;
    int64_t active_pixels() override;
    TileList list(Granularity granularity, const TileRect &interior) override;

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

    /** Sets the mask to a shape. `write(words, grids, num_grids)` enqueues the kernels that set the words; the last one
     * clears the states of the grids, which are then listed. If it throws, the mask holds no data. */
    template<typename Write> void set_words(MaskShape to, const Write &write) {
        uint32_t num_grids = 0;
        const TileGrids grids = begin_words(to, num_grids);
        write(words_.as<uint32_t>(), grids, num_grids);
        launch_list(grids, num_grids);
        shape = to;
    }
    /** Makes room for a shape, leaving the mask without data. Returns the grids to list again. */
    TileGrids begin_words(const MaskShape &to, uint32_t &num_grids);
    /** Copies words into the mask, without bits beyond the width. */
    void launch_copy(const uint32_t *from, int64_t stride, const TileGrids &grids, uint32_t num_grids, uint32_t *words,
                     uint32_t num_words) const;
    Level &level(Granularity granularity);
    /** The launch argument that counts a level and, on request, lists it. */
    TileGrid grid_of_level(const Level &level, bool list) const;
    /** The same, with its states cleared. */
    TileGrid prepared(const Level &level, bool list);
    /** Counts the wanted levels that are not counted yet on the device. */
    void count_on_device();
    void launch_list(const TileGrids &grids, uint32_t count);

    CudaDevice &device_;
    DeviceBits bits_{};
    bool captured_ = false;  ///< Set in a graph, so the host's counts may not match the device.
    DeviceMemory words_, counts_;
    uint32_t *read_back_ = nullptr;  // Host memory that the device writes.
    std::vector<Level> levels_;
    std::vector<Level *> wanted_;  // During count().
};

}  // namespace distile

#endif
