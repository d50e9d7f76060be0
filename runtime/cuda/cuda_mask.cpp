#include "cuda_mask.h"
#include "tensor.h"
#include <algorithm>

using namespace distile;

distile_cuda_mask::distile_cuda_mask(distile_cuda &cuda) : cuda(cuda), words_(cuda), counts_(cuda), bytes_(cuda) {
    // Pointers into levels_ stay valid.
    levels_.reserve(most_counts);
    wanted_.reserve(most_counts);
    counts_.reserve(most_counts * sizeof(uint32_t));
    void *pinned = nullptr;
    cuda.check(cuda.driver.cuMemAllocHost(&pinned, most_counts * sizeof(uint32_t)), "cuMemAllocHost");
    read_back_ = static_cast<uint32_t *>(pinned);
}

distile_cuda_mask::~distile_cuda_mask() {
    cuda.driver.cuMemFreeHost(read_back_);
}

TileGrids distile_cuda_mask::begin_words(const MaskShape &to, uint32_t &num_grids) {
    const int32_t words_per_row = (to.width + 31) / 32;
    words_.reserve(static_cast<uint64_t>(to.batch) * to.height * words_per_row * sizeof(uint32_t));
    const bool same_shape = shape() == to;
    // If a launch fails, the mask holds nothing.
    batch = 0;
    bits = {words_.as<uint32_t>(), to.height, to.width, words_per_row};
    captured = cuda.is_capturing();
    // What was asked of the mask before will be asked again.
    TileGrids grids{};
    num_grids = 0;
    for (Level &level : levels_) {
        const bool make = same_shape && level.count_asked && num_grids < most_grids;
        level.counted = make;
        level.listed = make && level.list_asked;
        level.read_back = level.count_asked = level.list_asked = false;
        if (make) {
            grids.grids[num_grids++] = grid_of(level, level.listed);
        } else if (!same_shape) {
            // Another shape has another grid, in the memory of the old one.
            level.grid.tiles = 0;
        }
    }
    return grids;
}

void distile_cuda_mask::set_bytes(const uint8_t *bytes, int64_t stride_n, int64_t stride_h, int32_t batch_,
                                  int32_t height, int32_t width) {
    set_words({batch_, height, width}, [&](uint32_t *words, const TileGrids &grids, uint32_t num_grids) {
        const auto num_words = static_cast<uint32_t>(int64_t{batch_} * height * bits.words_per_row);
        const MaskBytes source = {bytes,
                                  stride_n,
                                  stride_h,
                                  make_divisor(static_cast<uint32_t>(bits.words_per_row)),
                                  make_divisor(static_cast<uint32_t>(height)),
                                  num_words};
        constexpr uint32_t words_per_block = words_per_warp * (mask_threads / 32);
        cuda.launch(cuda.pack_bits, cuda.stream, {(num_words + words_per_block - 1) / words_per_block}, source, bits,
                    grids, num_grids, words);
    });
}

void distile_cuda_mask::set_all(const MaskShape &shape) {
    const int64_t image = int64_t{shape.height} * shape.width;
    const auto bytes = static_cast<size_t>(shape.batch * image);
    bytes_.reserve(bytes);
    // It is rare, so it may wait.
    cuda.check(cuda.driver.cuMemsetD8(bytes_.address(), 1, bytes), "cuMemsetD8");
    cuda.check(cuda.driver.cuCtxSynchronize(), "cuCtxSynchronize");
    set_bytes(bytes_.as<const uint8_t>(), image, shape.width, shape.batch, shape.height, shape.width);
}

distile_cuda_mask::Level &distile_cuda_mask::level(Granularity granularity) {
    auto found = std::find_if(levels_.begin(), levels_.end(), [&](const Level &level) {
        return level.grid.tile_h == granularity.h && level.grid.tile_w == granularity.w;
    });
    if (found == levels_.end()) {
        if (levels_.size() == most_counts) {
            throw CudaFailure{fail(cuda.host, DISTILE_ERROR_BAD_VALUE, "a mask on a GPU knows at most %d granularities",
                                   static_cast<int>(most_counts))};
        }
        Level added;
        added.grid.tile_h = granularity.h;
        added.grid.tile_w = granularity.w;
        added.grid.slot = static_cast<uint32_t>(levels_.size());
        added.list = std::make_unique<DeviceMemory>(cuda);
        added.states = std::make_unique<DeviceMemory>(cuda);
        levels_.push_back(std::move(added));
        found = levels_.end() - 1;
    }
    TileGrid &grid = found->grid;
    if (grid.tiles == 0) {
        const auto tiles_along = [](int32_t extent, int32_t tile) { return (extent + tile - 1) / tile; };
        grid.rows = make_divisor(static_cast<uint32_t>(tiles_along(bits.height, granularity.h)));
        grid.columns = make_divisor(static_cast<uint32_t>(tiles_along(bits.width, granularity.w)));
        const auto tiles = static_cast<uint32_t>(num_tiles(granularity));
        // Enough blocks for the chip, and few enough for each to know soon how many tiles are before its own.
        constexpr uint32_t blocks = 128;
        grid.groups = std::clamp(tiles / (blocks * mask_threads), 1u, most_groups);
        grid.blocks = (tiles + mask_threads * grid.groups - 1) / (mask_threads * grid.groups);
        found->states->reserve(grid.blocks * sizeof(*grid.states));
        grid.states = found->states->as<unsigned long long>();
        grid.tiles = tiles;
    }
    return *found;
}

TileGrid distile_cuda_mask::grid_of(const Level &level, bool list) const {
    TileGrid grid = level.grid;
    if (list) {
        grid.xy = level.list->as<uint32_t>();
        grid.images = grid.xy + grid.tiles;
    }
    return grid;
}

TileGrid distile_cuda_mask::prepared(const Level &level, bool list) {
    const TileGrid grid = grid_of(level, list);
    cuda.check(cuda.driver.cuMemsetD8Async(level.states->address(), 0, grid.blocks * sizeof(*grid.states), cuda.stream),
               "cuMemsetD8Async");
    return grid;
}

void distile_cuda_mask::launch_list(const TileGrids &grids, uint32_t count) {
    uint32_t blocks = 0;
    for (uint32_t i = 0; i < count; i++) {
        blocks = std::max(blocks, grids.grids[i].blocks);
    }
    if (count > 0) {
        cuda.launch(cuda.list_tiles, cuda.stream, {blocks, count}, bits, grids, counts_.as<uint32_t>());
    }
}

void distile_cuda_mask::count_on_device() {
    TileGrids grids{};
    uint32_t count = 0;
    for (Level *level : wanted_) {
        if (!level->counted) {
            grids.grids[count++] = prepared(*level, false);
        }
        if (count == most_grids) {
            launch_list(grids, count);
            count = 0;
        }
    }
    launch_list(grids, count);
    for (Level *level : wanted_) {
        level->counted = true;
    }
}

void distile_cuda_mask::count(const std::vector<Granularity> &granularities, int64_t *counts) {
    wanted_.clear();
    bool read_back = true;
    for (Granularity granularity : granularities) {
        Level &one = level(granularity);
        one.count_asked = true;
        if (std::find(wanted_.begin(), wanted_.end(), &one) == wanted_.end()) {
            wanted_.push_back(&one);
        }
        read_back = read_back && one.read_back;
    }
    if (!read_back) {
        count_on_device();
        cuda.check(cuda.driver.cuMemcpyDtoHAsync(read_back_, counts_.address(), levels_.size() * sizeof(uint32_t),
                                                 cuda.stream),
                   "cuMemcpyDtoHAsync");
        cuda.check(cuda.driver.cuStreamSynchronize(cuda.stream), "cuStreamSynchronize");
        for (Level &one : levels_) {
            one.read_back = one.counted;
        }
    }
    for (size_t i = 0; i < granularities.size(); i++) {
        counts[i] = read_back_[level(granularities[i]).grid.slot];
    }
}

bool distile_cuda_mask::knows(const std::vector<Granularity> &granularities) const {
    return std::all_of(granularities.begin(), granularities.end(), [&](Granularity granularity) {
        return std::any_of(levels_.begin(), levels_.end(), [&](const Level &level) {
            return level.read_back && level.grid.tile_h == granularity.h && level.grid.tile_w == granularity.w;
        });
    });
}

DeviceTiles distile_cuda_mask::list(Granularity granularity) {
    Level &one = level(granularity);
    const int64_t capacity = one.grid.tiles;
    one.list->reserve(2 * static_cast<uint64_t>(capacity) * sizeof(uint32_t));
    one.count_asked = one.list_asked = true;
    auto *xy = one.list->as<uint32_t>();
    if (!one.listed) {
        if (!captured && cuda.is_capturing()) {
            throw CudaFailure{fail(cuda.host, DISTILE_ERROR_BAD_VALUE,
                                   "a graph is being captured, and the mask was set before: set it within the graph, "
                                   "or make the same call once before the capture")};
        }
        TileGrids grids{};
        grids.grids[0] = prepared(one, true);
        launch_list(grids, 1);
        // Of a mask that a graph sets, a list made outside of the graph is soon another mask's.
        one.counted = one.listed = !captured || cuda.is_capturing();
    }
    return {xy, xy + capacity, counts_.as<uint32_t>() + one.grid.slot, capacity};
}

distile_status distile_cuda_mask::check_shape(const char *call, const MaskShape &shape) const {
    const auto &[images, height, width] = shape;
    if (images < 1 || height < 1 || width < 1 || images > largest_extent || height > largest_extent ||
        width > largest_extent || int64_t{images} * height * width > INT32_MAX) {
        return fail(cuda.host, DISTILE_ERROR_BAD_SHAPE,
                    "%s: the mask is %d x %d x %d (batch, height, width): each goes from 1 to %d, and all pixels are "
                    "fewer than 2^31",
                    call, images, height, width, largest_extent);
    }
    return DISTILE_OK;
}

extern "C" {

distile_status distile_cuda_mask_create(distile_cuda *cuda, distile_cuda_mask **mask) {
    if (!cuda) {
        return DISTILE_ERROR_NULL_POINTER;
    }
    if (!mask) {
        return fail(cuda->host, DISTILE_ERROR_NULL_POINTER,
                    "distile_cuda_mask_create: the address for the mask is null");
    }
    return guarded_cuda(*cuda, [&] {
        *mask = std::make_unique<distile_cuda_mask>(*cuda).release();
        return DISTILE_OK;
    });
}

void distile_cuda_mask_destroy(distile_cuda_mask *mask) {
    if (mask) {
        destroy_cuda(mask->cuda, mask);
    }
}

distile_status distile_cuda_mask_set_bytes(distile_cuda_mask *mask, const uint8_t *bytes, int32_t batch, int32_t height,
                                           int32_t width, int64_t stride_n, int64_t stride_h) {
    if (!mask) {
        return DISTILE_ERROR_NULL_POINTER;
    }
    constexpr const char *call = "distile_cuda_mask_set_bytes";
    distile_context *host = mask->cuda.host;
    if (!bytes) {
        return fail(host, DISTILE_ERROR_NULL_POINTER, "%s: the bytes are null", call);
    }
    const distile_status status = mask->check_shape(call, {batch, height, width});
    if (status != DISTILE_OK) {
        return status;
    }
    if (stride_h < width || (batch > 1 && (stride_n < 0 || stride_n / height < stride_h))) {
        return fail(host, DISTILE_ERROR_BAD_STRIDE, "%s: the strides are n %lld, h %lld: smaller than what they span",
                    call, static_cast<long long>(stride_n), static_cast<long long>(stride_h));
    }
    return guarded_cuda(mask->cuda, [&] {
        mask->cuda.check_pointer(bytes, call, "mask");
        mask->set_bytes(bytes, stride_n, stride_h, batch, height, width);
        return DISTILE_OK;
    });
}

distile_status distile_cuda_mask_bits(distile_cuda_mask *mask, const uint32_t **words, int32_t *words_per_row) {
    if (!mask) {
        return DISTILE_ERROR_NULL_POINTER;
    }
    if (!words || !words_per_row) {
        return fail(mask->cuda.host, DISTILE_ERROR_NULL_POINTER, "distile_cuda_mask_bits: an address is null");
    }
    const distile_status status = check_mask(mask->host(), mask->owner(), "distile_cuda_mask_bits", mask);
    if (status != DISTILE_OK) {
        return status;
    }
    *words = mask->bits.words;
    *words_per_row = mask->bits.words_per_row;
    return DISTILE_OK;
}

distile_status distile_cuda_mask_tiles(distile_cuda_mask *mask, int32_t tile_h, int32_t tile_w, const uint32_t **xy,
                                       const uint32_t **image, const uint32_t **count) {
    if (!mask) {
        return DISTILE_ERROR_NULL_POINTER;
    }
    distile_context *host = mask->cuda.host;
    if (!xy || !image || !count) {
        return fail(host, DISTILE_ERROR_NULL_POINTER, "distile_cuda_mask_tiles: an address is null");
    }
    const distile_status status = check_mask(host, mask->owner(), "distile_cuda_mask_tiles", mask);
    if (status != DISTILE_OK) {
        return status;
    }
    if (tile_h < 1 || tile_w < 1 || tile_h > largest_extent || tile_w > largest_extent) {
        return fail(host, DISTILE_ERROR_BAD_VALUE, "distile_cuda_mask_tiles: tiles of %d x %d", tile_h, tile_w);
    }
    return guarded_cuda(mask->cuda, [&] {
        const DeviceTiles tiles = mask->list({tile_h, tile_w});
        *xy = tiles.xy;
        *image = tiles.image;
        *count = tiles.count;
        return DISTILE_OK;
    });
}

}  // extern "C"
