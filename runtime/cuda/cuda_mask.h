/** \file
 * The mask object on a GPU: a bitmask, and the tile counts and lists that were asked of it.
 */
#ifndef DISTILE_CUDA_MASK_H
#define DISTILE_CUDA_MASK_H

#include "bitmask.h"
#include "device.h"
#include "mask_checks.h"
#include "mask_kernels.h"

namespace distile {

/** The active tiles at a granularity, on the device. */
struct DeviceTiles {
    const uint32_t *xy, *image, *count;
    int64_t capacity; /**< Tiles of the whole grid: the distance from xy to image, and the most that are listed. */
};

}  // namespace distile

/** Its functions throw distile::CudaFailure, and need the GPU's context. */
struct distile_cuda_mask {
    explicit distile_cuda_mask(distile_cuda &cuda);
    ~distile_cuda_mask();
    distile_cuda_mask(const distile_cuda_mask &) = delete;
    distile_cuda_mask &operator=(const distile_cuda_mask &) = delete;

    void set_bytes(const uint8_t *bytes, int64_t stride_n, int64_t stride_h, int32_t batch_, int32_t height,
                   int32_t width);
    /** Makes every pixel of a shape active. Waits for the device, so not in a capture. */
    void set_all(const distile::MaskShape &shape);
    /** Makes it the mask of a shape. `write(words, grids, num_grids)` puts the launch of a kernel on the stream that
     * sets the words, and clears the states of grids which are then listed. Where it throws, the mask holds nothing. */
    template<typename Write> void set_words(const distile::MaskShape &shape, const Write &write) {
        uint32_t num_grids = 0;
        const distile::TileGrids grids = begin_words(shape, num_grids);
        write(words_.as<uint32_t>(), grids, num_grids);
        launch_list(grids, num_grids);
        batch = shape.batch;
    }
    bool is_set() const {
        return batch > 0;
    }
    distile_context *host() const {
        return cuda.host;
    }
    const void *owner() const {
        return &cuda;
    }
    distile::MaskShape shape() const {
        return {batch, bits.height, bits.width};
    }
    distile_status check_shape(const char *call, const distile::MaskShape &shape) const;
    uint32_t num_words() const {
        return static_cast<uint32_t>(int64_t{batch} * bits.height * bits.words_per_row);
    }
    int64_t num_pixels() const {
        return int64_t{batch} * bits.height * bits.width;
    }
    /** The tiles of the whole grid, active or not. */
    int64_t num_tiles(distile::Granularity granularity) const {
        const int64_t rows = (int64_t{bits.height} + granularity.h - 1) / granularity.h;
        return batch * rows * ((int64_t{bits.width} + granularity.w - 1) / granularity.w);
    }
    /** Counts at several granularities; waits for the device where one of them was not yet read back. */
    void count(const std::vector<distile::Granularity> &granularities, int64_t *counts);
    /** True if count() would not wait. */
    bool knows(const std::vector<distile::Granularity> &granularities) const;
    /** Lists at a granularity, without any wait. */
    distile::DeviceTiles list(distile::Granularity granularity);

    distile_cuda &cuda;
    distile::DeviceBits bits{};
    int32_t batch = 0;
    bool captured = false; /**< It was set in a graph: what the host knows of it is not what the device holds. */

private:
    /** What is known of the mask at a granularity. Its index is the slot of its count. */
    struct Level {
        distile::TileGrid grid{};
        bool counted = false, read_back = false, listed = false;
        /** Asked for since the mask was set: then it is made at once when the mask is set again. */
        bool count_asked = false, list_asked = false;
        // Kept when the mask is set again.
        std::unique_ptr<distile::DeviceMemory> list, states;
    };

    /** Makes room for a shape. The mask holds nothing then. Gives the grids that will be asked for again. */
    distile::TileGrids begin_words(const distile::MaskShape &to, uint32_t &num_grids);
    Level &level(distile::Granularity granularity);
    /** What a launch is told that counts a level, and lists it. */
    distile::TileGrid grid_of(const Level &level, bool list) const;
    /** The same, with its states cleared. */
    distile::TileGrid prepared(const Level &level, bool list);
    /** Counts on the device what is wanted and was not counted. */
    void count_on_device();
    void launch_list(const distile::TileGrids &grids, uint32_t count);

    distile::DeviceMemory words_, counts_, bytes_;
    uint32_t *read_back_ = nullptr;  // Of the host, but the device writes it.
    std::vector<Level> levels_;
    std::vector<Level *> wanted_;  // In a call of count().
};

#endif
