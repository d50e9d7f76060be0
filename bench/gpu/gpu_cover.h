/** \file
 * The kernels that make a cover of mixed granularity on a GPU, on a mask.
 */
#ifndef DISTILE_BENCH_GPU_COVER_H
#define DISTILE_BENCH_GPU_COVER_H

#include "autoscheduler/measure/gpu.h"
#include "autoscheduler/measure/gpu_measure.h"
#include "bench/gpu/kernels/cover.h"
#include "cover_ptx.h"
#include "masks/mask_families.h"
#include <algorithm>
#include <array>
#include <memory>

namespace distile::bench {

/** A mask and the memory of its cover. */
class GpuCover {
public:
    /** `tile_us`: what a tile of each level takes; infinite: there are none of this size. */
    GpuCover(const GpuSlice &slice, const ByteMask &mask, const std::array<float, cover_levels> &tile_us)
        : slice_(slice), words_(words_of(mask)), bits_(words_) {
        call_.words = bits_.data();
        call_.words_per_row = (mask.width + 31) / 32;
        call_.batch = mask.batch;
        call_.height = mask.height;
        call_.width = mask.width;
        call_.node_rows = static_cast<uint32_t>((mask.height + largest_cover_tile - 1) / largest_cover_tile);
        call_.node_columns = static_cast<uint32_t>((mask.width + largest_cover_tile - 1) / largest_cover_tile);
        const uint32_t threads = 4 * call_.node_rows * call_.node_columns * static_cast<uint32_t>(mask.batch);
        blocks_ = (threads + cover_threads - 1) / cover_threads;
        const size_t all = size_t{blocks_} * cover_threads;
        pixels_ = std::make_unique<DeviceArray<uint64_t>>(all);
        nodes_ = std::make_unique<DeviceArray<uint32_t>>(all);
        counts_ = std::make_unique<DeviceArray<uint64_t>>(size_t{blocks_});
        totals_ = std::make_unique<DeviceArray<uint32_t>>(size_t{cover_levels});
        call_.pixels = reinterpret_cast<unsigned long long *>(pixels_->data());
        call_.nodes = nodes_->data();
        call_.counts = reinterpret_cast<unsigned long long *>(counts_->data());
        call_.totals = totals_->data();
        for (int32_t level = 0; level < cover_levels; level++) {
            const auto at = static_cast<size_t>(level);
            call_.tile_us[level] = tile_us[at];
            capacity_[at] = std::max<size_t>(all * 64 >> (2 * level), 1);
            lists_[at] = std::make_unique<DeviceArray<uint32_t>>(2 * capacity_[at]);
            call_.xy[level] = lists_[at]->data();
            call_.image[level] = lists_[at]->data() + capacity_[at];
        }
    }

    void run() const {
        std::array<void *, 1> arguments = {const_cast<CoverCall *>(&call_)};
        for (CUfunction kernel : {decide_, list_}) {
            CU(cuLaunchKernel, kernel, blocks_, 1U, 1U, cover_threads, 1U, 1U, 0U,
               static_cast<CUstream>(slice_.stream()), arguments.data(), static_cast<void **>(nullptr));
        }
    }
    const CoverCall &call() const {
        return call_;
    }
    /** The most tiles of a level: the image of a tile lies `capacity` words behind its origin. */
    size_t capacity(int32_t level) const {
        return capacity_[static_cast<size_t>(level)];
    }
    uint32_t count(int32_t level) const {
        return totals_->get()[static_cast<size_t>(level)];
    }
    /** The origins of a level's tiles, and then their images. */
    std::vector<uint32_t> tiles(int32_t level) const {
        const size_t tiles = count(level);
        std::vector<uint32_t> found = read_device(call_.xy[level], tiles);
        const std::vector<uint32_t> images = read_device(call_.image[level], tiles);
        found.insert(found.end(), images.begin(), images.end());
        return found;
    }

private:
    static std::vector<uint32_t> words_of(const ByteMask &mask) {
        const size_t per_row = static_cast<size_t>(mask.width + 31) / 32;
        std::vector<uint32_t> words(per_row * mask.height * mask.batch);
        for (size_t i = 0; i < mask.bytes.size(); i++) {
            const size_t x = i % mask.width, row = i / mask.width;
            words[row * per_row + x / 32] |= static_cast<uint32_t>(mask.bytes[i] != 0) << (x % 32);
        }
        return words;
    }

    const GpuSlice &slice_;
    std::vector<uint32_t> words_;
    DeviceArray<uint32_t> bits_;
    Module module_{distile_cover_ptx};
    CUfunction decide_ = module_.find("decide_cover"), list_ = module_.find("list_cover");
    CoverCall call_{};
    uint32_t blocks_ = 0;
    std::unique_ptr<DeviceArray<uint64_t>> pixels_, counts_;
    std::unique_ptr<DeviceArray<uint32_t>> nodes_, totals_;
    std::array<size_t, cover_levels> capacity_{};
    std::array<std::unique_ptr<DeviceArray<uint32_t>>, cover_levels> lists_;
};

}  // namespace distile::bench

#endif
