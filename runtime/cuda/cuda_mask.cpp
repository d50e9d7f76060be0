#include "runtime/cuda/cuda_mask.h"
#include <algorithm>
#include <utility>

namespace distile {

namespace {

/** The most granularities of a mask: those of a kernel, and single pixels. */
constexpr uint32_t most_levels = 65;

uint32_t words_for(const MaskShape &shape) {
    return static_cast<uint32_t>(int64_t{shape.batch} * shape.height * ((shape.width + 31) / 32));
}

/** The words of a mask for the kernels that set them. Those that also list the pixels have few blocks, so that each
 * soon knows how many pixels precede its own. */
WordGrid word_grid(const MaskShape &shape, bool lists) {
    constexpr uint32_t most_blocks = 256, words_of_block = words_at_once * (block_threads / 32);
    const uint32_t num_words = words_for(shape);
    const uint32_t loads = lists ? num_words / (most_blocks * words_of_block) + 1 : 1;
    return {make_divisor(static_cast<uint32_t>((shape.width + 31) / 32)),
            make_divisor(static_cast<uint32_t>(shape.height)), num_words, std::min(words_at_once * loads, most_groups)};
}

bool is_pixels(const TileGrid &grid) {
    return grid.tile_h == 1 && grid.tile_w == 1;
}

uint32_t blocks_of(const WordGrid &grid) {
    const uint32_t words_of_block = grid.words_per_warp * (block_threads / 32);
    return (grid.num_words + words_of_block - 1) / words_of_block;
}

}  // namespace

CudaMask::CudaMask(CudaDevice &device)
    : distile_mask(device.context), device_(device), words_(device), counts_(device), lengths_(device) {
    // Pointers into levels_ must stay valid.
    levels_.reserve(most_levels);
    wanted_.reserve(most_levels);
    counts_.reserve(most_levels * sizeof(uint32_t));
    void *pinned = nullptr;
    device.check(device.driver.cuMemAllocHost(&pinned, most_levels * sizeof(uint32_t)), "cuMemAllocHost");
    read_back_ = static_cast<uint32_t *>(pinned);
}

CudaMask::~CudaMask() {
    device_.driver.cuMemFreeHost(read_back_);
}

distile_status CudaMask::check_shape(const char *call, const MaskShape &wanted) const {
    return wanted.num_pixels() <= INT32_MAX ? DISTILE_OK
                                            : fail(&context, DISTILE_ERROR_BAD_SHAPE,
                                                   "%s: the mask is %d x %d x %d (batch, height, width); on a GPU it "
                                                   "must have fewer than 2^31 pixels",
                                                   call, wanted.batch, wanted.height, wanted.width);
}

// ---- Setting ---------------------------------------------------------------------------------

TileGrid CudaMask::Listing::take_pixels() {
    for (uint32_t i = 0; i < count; i++) {
        TileGrid &grid = grids.grids[i];
        if (is_pixels(grid)) {
            return std::exchange(grid, grids.grids[--count]);
        }
    }
    return {};
}

CudaMask::Listing CudaMask::begin_words(const MaskShape &to) {
    words_.reserve(uint64_t{words_for(to)} * sizeof(uint32_t));
    const bool same_shape = shape == to;
    captured_ = device_.is_capturing();
    // If a launch fails, the mask holds no data.
    shape = {};
    bits_ = {words_.as<uint32_t>(), to.height, to.width, (to.width + 31) / 32};
    // Levels that were requested before will be requested again.
    Listing listing;
    for (Level &level : levels_) {
        const bool make = same_shape && level.count_asked && listing.count < most_grids;
        level.counted = make;
        level.listed = make && level.list_asked;
        level.read_back = level.count_asked = level.list_asked = false;
        if (make) {
            listing.add(grid_of_level(level, level.listed));
        } else if (!same_shape) {
            // A new shape has a new grid, in the memory of the old one.
            level.grid.tiles = 0;
        }
    }
    return listing;
}

template<typename Source> void CudaMask::launch_source(CUfunction function, const MaskShape &to, Source source,
                                                       Listing &listing, uint32_t *words) const {
    const TileGrid pixels = listing.take_pixels();
    source.grid = word_grid(to, pixels.states != nullptr);
    launch(function, {blocks_of(source.grid)}, source, pixels, counts_.as<uint32_t>(), device_.patience, words);
}

void CudaMask::set_bytes(const MaskShape &to, const uint8_t *bytes, int64_t stride_n, int64_t stride_h) {
    device_.check_pointer(bytes, 1, "mask's bytes");
    set_words(to, [&](uint32_t *words, Listing &listing) {
        BytesSource source{};
        source.bytes = bytes;
        source.stride_n = stride_n;
        source.stride_h = stride_h;
        source.width = static_cast<uint32_t>(to.width);
        launch_source(device_.kernels->pack_bytes, to, source, listing, words);
    });
}

void CudaMask::launch_copy(const MaskShape &to, const uint32_t *from, int64_t stride, Listing &listing,
                           uint32_t *words) const {
    BitsSource source{};
    source.words = from;
    source.stride = stride;
    source.last_bits = ~0u >> (32 * bits_.words_per_row - bits_.width);
    launch_source(device_.kernels->copy_bits, to, source, listing, words);
}

void CudaMask::set_bits(const MaskShape &to, const uint32_t *words, int64_t words_per_row) {
    device_.check_pointer(words, sizeof(uint32_t), "mask's words");
    set_words(to, [&](uint32_t *own, Listing &listing) { launch_copy(to, words, words_per_row, listing, own); });
}

void CudaMask::set_all(const MaskShape &to) {
    set_words(to, [&](uint32_t *words, Listing &listing) {
        device_.check(device_.driver.cuMemsetD8Async(words_.address(), 0xff, words_for(to) * sizeof(uint32_t),
                                                     device_.caller_stream),
                      "cuMemsetD8Async");
        launch_copy(to, words, bits_.words_per_row, listing, words);
    });
}

void CudaMask::set_indices(const char *, const MaskShape &to, const int32_t *indices, const int32_t *counts,
                           int64_t stride_n) {
    if (stride_n > 0) {
        device_.check_pointer(indices, sizeof(int32_t), "list of indices");
    }
    if (counts) {
        device_.check_pointer(counts, sizeof(int32_t), "list of counts");
    }
    set_words(to, [&](uint32_t *words, Listing &) {
        device_.check(device_.driver.cuMemsetD8Async(words_.address(), 0, words_for(to) * sizeof(uint32_t),
                                                     device_.caller_stream),
                      "cuMemsetD8Async");
        const auto words_per_row = static_cast<uint32_t>(bits_.words_per_row);
        const auto height = static_cast<uint32_t>(to.height), width = static_cast<uint32_t>(to.width);
        const IndicesSource source = {
            indices, counts, stride_n, make_divisor(width), height * width, words_per_row, height * words_per_row};
        LaunchGrid grid = grid_of(static_cast<uint64_t>(std::max<int64_t>(stride_n, 1)));
        grid.x = std::min(grid.x, device_.most_blocks());
        grid.y = static_cast<uint32_t>(to.batch);
        launch(device_.kernels->set_indices, grid, source, words);
    });
}

void CudaMask::check_bytes(const MaskShape &, const MaskBytes &to) const {
    device_.check_pointer(to.bytes, 1, "memory for bytes");
}

void CudaMask::get_bytes(const MaskBytes &to) {
    check_bytes(shape, to);
    const BytesTarget target = {to, make_divisor(static_cast<uint32_t>(bits_.width)),
                                make_divisor(static_cast<uint32_t>(bits_.height)),
                                static_cast<uint32_t>(shape.num_pixels())};
    launch(device_.kernels->unpack_bytes, grid_of(target.pixels), bits_, target);
}

// ---- Counting and listing --------------------------------------------------------------------

CudaMask::Level &CudaMask::level(Granularity granularity) {
    auto found = std::find_if(levels_.begin(), levels_.end(), [&](const Level &level) {
        return level.grid.tile_h == granularity.h && level.grid.tile_w == granularity.w;
    });
    if (found == levels_.end()) {
        if (levels_.size() == most_levels) {
            throw Failure{fail(&context, DISTILE_ERROR_BAD_VALUE, "a mask on a GPU can have at most %d granularities",
                               static_cast<int>(most_levels))};
        }
        Level added;
        added.grid.tile_h = granularity.h;
        added.grid.tile_w = granularity.w;
        added.grid.slot = static_cast<uint32_t>(levels_.size());
        added.list = std::make_unique<DeviceMemory>(device_);
        added.states = std::make_unique<DeviceMemory>(device_);
        levels_.push_back(std::move(added));
        found = levels_.end() - 1;
    }
    TileGrid &grid = found->grid;
    if (grid.tiles == 0) {
        const auto tiles_along = [](int32_t extent, int32_t tile) { return (extent + tile - 1) / tile; };
        grid.rows = make_divisor(static_cast<uint32_t>(tiles_along(bits_.height, granularity.h)));
        grid.columns = make_divisor(static_cast<uint32_t>(tiles_along(bits_.width, granularity.w)));
        const auto tiles = static_cast<uint32_t>(num_tiles(shape, granularity));
        // Enough blocks to fill the chip, but few enough that each soon knows how many tiles precede its own.
        constexpr uint32_t blocks = 128;
        grid.groups = std::clamp(tiles / (blocks * block_threads), 1u, most_groups);
        grid.blocks = (tiles + block_threads * grid.groups - 1) / (block_threads * grid.groups);
        // The launch that sets the mask may list the pixels, too.
        const uint32_t states =
            is_pixels(grid) ? std::max(grid.blocks, blocks_of(word_grid(shape, true))) : grid.blocks;
        found->states->reserve_zeros((uint64_t{states} + 1) * sizeof(*grid.states));
        grid.states = found->states->as<unsigned long long>();
        grid.tiles = tiles;
        grid.batch = static_cast<uint32_t>(shape.batch);
    }
    return *found;
}

TileGrid CudaMask::grid_of_level(const Level &level, bool list) const {
    TileGrid grid = level.grid;
    if (list) {
        grid.xy = level.list->as<uint32_t>();
        grid.images = grid.xy + grid.tiles;
        if (is_pixels(grid)) {
            grid.lengths = lengths_.as<int32_t>();
        }
    }
    return grid;
}

void CudaMask::launch_list(const Listing &listing) const {
    uint32_t blocks = 0;
    for (uint32_t i = 0; i < listing.count; i++) {
        blocks = std::max(blocks, listing.grids.grids[i].blocks);
    }
    if (listing.count > 0) {
        launch(device_.kernels->list_tiles, {blocks, listing.count}, bits_, listing.grids, counts_.as<uint32_t>(),
               device_.patience);
    }
}

void CudaMask::count_on_device() {
    Listing listing;
    for (Level *level : wanted_) {
        if (!level->counted) {
            listing.add(grid_of_level(*level, false));
        }
        if (listing.count == most_grids) {
            launch_list(listing);
            listing.count = 0;
        }
    }
    launch_list(listing);
    for (Level *level : wanted_) {
        level->counted = true;
    }
}

bool CudaMask::host_may_count() const {
    const bool was_read = std::any_of(levels_.begin(), levels_.end(), [](const Level &one) { return one.read_back; });
    return was_read || !(captured_ || device_.is_capturing());
}

void CudaMask::count(const Granularity *granularities, int32_t num_granularities, int64_t *counts) {
    wanted_.clear();
    bool read_back = true;
    for (int32_t i = 0; i < num_granularities; i++) {
        Level &one = level(granularities[i]);
        one.count_asked = true;
        if (std::find(wanted_.begin(), wanted_.end(), &one) == wanted_.end()) {
            wanted_.push_back(&one);
        }
        read_back = read_back && one.read_back;
    }
    if (!read_back) {
        if (captured_ || device_.is_capturing()) {
            throw Failure{fail(&context, DISTILE_ERROR_CAPTURING,
                               "the host cannot know the tile counts of a mask that a graph sets; name a variant, or "
                               "set the mask again")};
        }
        count_on_device();
        device_.check(device_.driver.cuMemcpyDtoHAsync(read_back_, counts_.address(), levels_.size() * sizeof(uint32_t),
                                                       device_.caller_stream),
                      "cuMemcpyDtoHAsync");
        device_.check(device_.driver.cuStreamSynchronize(device_.caller_stream), "cuStreamSynchronize");
        for (Level &one : levels_) {
            one.read_back = one.counted;
        }
    }
    for (int32_t i = 0; i < num_granularities; i++) {
        counts[i] = read_back_[level(granularities[i]).grid.slot];
    }
}

int64_t CudaMask::active_pixels() {
    const Granularity pixels{1, 1};
    int64_t active = 0;
    count(&pixels, 1, &active);
    return active;
}

bool CudaMask::refuse_stale_capture() const {
    const bool capturing = device_.is_capturing();
    if (!captured_ && capturing) {
        throw Failure{fail(&context, DISTILE_ERROR_CAPTURING,
                           "the mask was set before the graph capture began; set it within the graph, or make the "
                           "same call once before the capture")};
    }
    return capturing;
}

TileList CudaMask::list(Granularity granularity, const TileRect &) {
    Level &one = level(granularity);
    const int64_t capacity = one.grid.tiles;
    one.list->reserve(2 * static_cast<uint64_t>(capacity) * sizeof(uint32_t));
    if (is_pixels(one.grid)) {
        lengths_.reserve((uint64_t{one.grid.batch} + 1) * sizeof(int32_t));
    }
    one.count_asked = one.list_asked = true;
    if (!one.listed) {
        const bool capturing = refuse_stale_capture();
        Listing listing;
        listing.add(grid_of_level(one, true));
        launch_list(listing);
        // If a graph sets the mask, a list made outside the graph soon goes stale.
        one.counted = one.listed = !captured_ || capturing;
    }
    const auto *xy = one.list->as<const uint32_t>();
    return {-1, 0, capacity, xy, xy + capacity, counts_.as<const uint32_t>() + one.grid.slot};
}

}  // namespace distile
