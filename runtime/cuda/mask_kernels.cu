// The kernels around the operators': bytes to bits, counts and lists of tiles, masks from masks and from tensors, zeros
// and masked copies. Compiled to PTX, which the library holds.
#include "mask_kernels.h"
#include <cstdint>

using namespace distile;

namespace {

constexpr uint32_t all_lanes = ~0u;

__device__ uint32_t lane() {
    return threadIdx.x % 32;
}

__device__ uint32_t divide(uint32_t number, const Divisor &by) {
    return by.value == 1 ? number : __umulhi(number, by.multiplier) >> by.shift;
}

__device__ uint32_t warp_sum(uint32_t value) {
    for (int step = 16; step > 0; step /= 2) {
        value += __shfl_xor_sync(all_lanes, value, step);
    }
    return value;
}

/** True if this lane's pixel of a word is active. */
__device__ bool is_set(const MaskBytes &bytes, int32_t width, uint32_t word) {
    const uint32_t row = divide(word, bytes.words_per_row), image = divide(row, bytes.height);
    const uint32_t x = (word - row * bytes.words_per_row.value) * 32 + lane(), y = row - image * bytes.height.value;
    return word < bytes.num_words && x < static_cast<uint32_t>(width) &&
           bytes.bytes[image * bytes.stride_n + y * bytes.stride_h + x] != 0;
}

/** The origin of a tile. */
struct Tile {
    int32_t x, y, image;
};

__device__ Tile tile_at(const TileGrid &grid, uint32_t tile) {
    const uint32_t row = divide(tile, grid.columns), image = divide(row, grid.rows);
    return {static_cast<int32_t>(tile - row * grid.columns.value) * grid.tile_w,
            static_cast<int32_t>(row - image * grid.rows.value) * grid.tile_h, static_cast<int32_t>(image)};
}

/** True if a tile has an active pixel. Bits beyond the width are 0. */
__device__ bool is_active(const DeviceBits &mask, const TileGrid &grid, uint32_t index) {
    if (grid.tile_h == 1 && grid.tile_w == 1) {
        const uint32_t row = divide(index, grid.columns), x = index - row * grid.columns.value;
        return (mask.words[row * mask.words_per_row + x / 32] >> (x % 32) & 1) != 0;
    }
    const Tile tile = tile_at(grid, index);
    const int32_t end_x = min(tile.x + grid.tile_w, mask.width), end_y = min(tile.y + grid.tile_h, mask.height);
    const int32_t first = tile.x / 32, last = (end_x - 1) / 32;
    const uint32_t first_bits = ~0u << (tile.x % 32), last_bits = ~0u >> (31 - (end_x - 1) % 32);
    // A mask has fewer than 2^31 words.
    const uint32_t *words = mask.words + (tile.image * mask.height + tile.y) * mask.words_per_row;
    for (int32_t y = tile.y; y < end_y; y++, words += mask.words_per_row) {
        for (int32_t i = first; i <= last; i++) {
            const uint32_t kept = (i == first ? first_bits : ~0u) & (i == last ? last_bits : ~0u);
            if ((words[i] & kept) != 0) {
                return true;
            }
        }
    }
    return false;
}

/** The active tiles of a warp's groups of 32, from tile `first` on: a lane gets the bits of the group of its number. */
__device__ uint32_t find_tiles(const DeviceBits &mask, const TileGrid &grid, uint32_t first) {
    uint32_t bits = 0;
#pragma unroll 4
    for (uint32_t group = 0; group < grid.groups; group++) {
        const uint32_t tile = first + group * 32 + lane();
        const uint32_t found = __ballot_sync(all_lanes, tile < grid.tiles && is_active(mask, grid, tile));
        bits = lane() == group ? found : bits;
    }
    return bits;
}

/** Lists what find_tiles() found from entry `at` on. */
__device__ void write_tiles(const TileGrid &grid, uint32_t first, uint32_t bits, uint32_t at) {
#pragma unroll 4
    for (uint32_t group = 0; group < grid.groups; group++) {
        const uint32_t found = __shfl_sync(all_lanes, bits, group);
        if ((found >> lane() & 1) != 0) {
            const uint32_t entry = at + __popc(found & ((1u << lane()) - 1));
            const Tile tile = tile_at(grid, first + group * 32 + lane());
            grid.xy[entry] = static_cast<uint32_t>(tile.x) | static_cast<uint32_t>(tile.y) << 16;
            grid.images[entry] = static_cast<uint32_t>(tile.image);
        }
        at += __popc(found);
    }
}

// A state's upper half: its lower half is the count of the block alone, or that of it and all blocks before.
enum : unsigned long long { of_block = 1ull << 32, of_all = 2ull << 32 };

/** The tiles of all blocks before this one, for which a warp of it waits: the hardware starts blocks in their order,
 * so that each waits only for running ones. A state is one word, so that no reader sees half of it. */
__device__ uint32_t look_back(volatile unsigned long long *states, uint32_t count) {
    const uint32_t block = blockIdx.x;
    if (lane() == 0) {
        states[block] = (block == 0 ? of_all : of_block) | count;
    }
    uint32_t before = 0;
    for (int64_t end = block; end > 0; end -= 32) {
        const int64_t other = end - 1 - lane();
        unsigned long long state = of_all;
        do {
            state = other >= 0 ? states[other] : state;
        } while (__any_sync(all_lanes, state == 0));
        const uint32_t knowing = __ballot_sync(all_lanes, state >= of_all);
        // The nearest that knows all before it is the last one to add.
        const bool adds = knowing == 0 || lane() < static_cast<uint32_t>(__ffs(knowing));
        before += warp_sum(adds ? static_cast<uint32_t>(state) : 0);
        if (knowing != 0) {
            break;
        }
    }
    if (lane() == 0 && block > 0) {
        states[block] = of_all | (before + count);
    }
    return before;
}

/** Clears the states of the grids that will be listed. */
__device__ void clear_states(const TileGrids &grids, uint32_t num_grids) {
    for (uint32_t i = 0; i < num_grids; i++) {
        const TileGrid &grid = grids.grids[i];
        for (uint32_t j = blockIdx.x * blockDim.x + threadIdx.x; j < grid.blocks; j += gridDim.x * blockDim.x) {
            grid.states[j] = 0;
        }
    }
}

}  // namespace

// Whatever sets a mask also clears the states of the grids that will be listed after it.

/** A warp packs words_per_warp words. */
extern "C" __global__ void __launch_bounds__(mask_threads)
    distile_pack_bits(MaskBytes bytes, DeviceBits mask, TileGrids grids, uint32_t num_grids, uint32_t *words) {
    clear_states(grids, num_grids);
    const uint32_t first = (blockIdx.x * (mask_threads / 32) + threadIdx.x / 32) * words_per_warp;
    bool active[words_per_warp];
#pragma unroll
    for (uint32_t i = 0; i < words_per_warp; i++) {
        active[i] = is_set(bytes, mask.width, first + i);
    }
#pragma unroll
    for (uint32_t i = 0; i < words_per_warp; i++) {
        const uint32_t word = __ballot_sync(all_lanes, active[i]);
        if (lane() == i && first + i < bytes.num_words) {
            words[first + i] = word;
        }
    }
}

/** Counts the active tiles of grids[blockIdx.y] and lists them in their order. */
extern "C" __global__ void __launch_bounds__(mask_threads)
    distile_list_tiles(DeviceBits mask, TileGrids grids, uint32_t *counts) {
    const TileGrid &grid = grids.grids[blockIdx.y];
    if (blockIdx.x >= grid.blocks) {
        return;
    }
    const uint32_t warp = threadIdx.x / 32;
    const uint32_t first = (blockIdx.x * (mask_threads / 32) + warp) * 32 * grid.groups;
    const uint32_t bits = find_tiles(mask, grid, first);
    const uint32_t count = warp_sum(__popc(bits));
    __shared__ uint32_t warp_counts[mask_threads / 32], before_block;
    if (lane() == 0) {
        warp_counts[warp] = count;
    }
    __syncthreads();
    const uint32_t other = lane() < mask_threads / 32 ? warp_counts[lane()] : 0;
    const uint32_t before_warp = warp_sum(lane() < warp ? other : 0);
    if (warp == 0) {
        const uint32_t found = warp_sum(other), before = look_back(grid.states, found);
        if (lane() == 0) {
            before_block = before;
            if (blockIdx.x == grid.blocks - 1) {
                counts[grid.slot] = before + found;
            }
        }
    }
    __syncthreads();
    if (grid.xy) {
        write_tiles(grid, first, bits, before_block + before_warp);
    }
}

// ---- Masks from masks ------------------------------------------------------------------------

namespace {

/** The 32 bits of a row that begin at a bit, which may lie before it; 0 beyond its ends. */
__device__ uint32_t word_at(const uint32_t *row, int32_t words, int32_t bit) {
    const int32_t word = bit >> 5;
    const uint32_t low = word >= 0 && word < words ? row[word] : 0;
    const uint32_t high = word + 1 >= 0 && word + 1 < words ? row[word + 1] : 0;
    return __funnelshift_r(low, high, bit & 31);
}

__device__ bool bit_at(const uint32_t *row, int32_t bit) {
    return (row[bit / 32] >> (bit % 32) & 1) != 0;
}

/** Calls read(f) for the rows [0, height) that row y of the result unites. */
template<typename Read>
__device__ void for_each_row(const BitColumn &column, int32_t height, uint32_t y, const Read &read) {
    const auto divisor = static_cast<int32_t>(column.divisor.value);
    int64_t at = static_cast<int64_t>(y) * column.scale + column.start;
    int32_t tap = 0;
    if (at + column.behind < 0) {
        tap = (static_cast<int32_t>(-at) - column.behind + column.dilation - 1) / column.dilation;
        at += static_cast<int64_t>(tap) * column.dilation;
    }
    if (divisor == 1 && column.behind == 0) {
        const int32_t taps = column.taps - tap, dilation = column.dilation;
        if (at < height && taps > 0) {
            const auto first = static_cast<int32_t>(at);
            const int32_t last = min((height - 1 - first) / dilation, taps - 1);
#pragma unroll 8
            for (int32_t i = 0; i <= last; i++) {
                read(first + i * dilation);
            }
        }
        return;
    }
    const int64_t end = static_cast<int64_t>(height - 1) * divisor + column.before;
    for (; tap < column.taps && at <= end; tap++, at += column.dilation) {
        const auto t = static_cast<int32_t>(at);
        const int32_t first =
            t <= column.before ? 0 : static_cast<int32_t>(divide(t - column.before + divisor - 1, column.divisor));
        const int32_t last = min(static_cast<int32_t>(divide(t + column.behind, column.divisor)), height - 1);
        for (int32_t row = first; row <= last; row++) {
            read(row);
        }
    }
}

/** A row on its way, and the threads of a block that move it. All teams of a block take the same steps. */
struct Team {
    int32_t rank, size, words;
    uint32_t *now, *next;

    /** Makes word i of the row make(i) from the words as they were. */
    template<typename Make> __device__ void step(const Make &make) {
        for (int32_t i = rank; i < words; i += size) {
            next[i] = make(i);
        }
        __syncthreads();
        uint32_t *const before = now;
        now = next;
        next = before;
    }
};

extern __shared__ uint32_t shared_words[];

}  // namespace

/** Makes a mask from another through a window: for every row of the result a team unites rows, and then moves the bits
 * of the union. */
extern "C" __global__ void __launch_bounds__(mask_threads)
    distile_transfer_bits(BitTransfer transfer, TileGrids grids, uint32_t num_grids, uint32_t *to) {
    clear_states(grids, num_grids);
    const BitRow &row = transfer.row;
    const uint32_t team_of_block = threadIdx.x / transfer.team;
    uint32_t *const words = shared_words + 2 * team_of_block * row.words;
    Team team = {static_cast<int32_t>(threadIdx.x % transfer.team), static_cast<int32_t>(transfer.team), row.words,
                 words + row.words, words};
    const uint32_t to_row = blockIdx.x * (mask_threads / transfer.team) + team_of_block;
    const bool exists = to_row < transfer.num_rows;
    const uint32_t image = divide(exists ? to_row : 0, transfer.height);
    const uint32_t y = to_row - image * transfer.height.value;
    const DeviceBits &from = transfer.from;
    const uint32_t *const from_words = from.words + static_cast<int64_t>(image) * from.height * from.words_per_row;

    team.step([&](int32_t i) {
        uint32_t any = 0;
        if (exists && i * 32 < row.from_bits) {
            for_each_row(transfer.column, from.height, y,
                         [&](int32_t at) { any |= from_words[static_cast<int64_t>(at) * from.words_per_row + i]; });
        }
        return any;
    });
    if (row.spread > 1) {
        team.step([&](int32_t i) {
            uint32_t word = 0;
            const int32_t first = (32 * i + row.spread - 1) / row.spread;
            for (int32_t bit = first, at = first * row.spread - 32 * i; at < 32 && bit < row.from_bits;
                 bit++, at += row.spread) {
                word |= static_cast<uint32_t>(bit_at(team.now, bit)) << at;
            }
            return word;
        });
    }
    for (int32_t s = 0; s < row.num_up; s++) {
        team.step([&](int32_t i) { return team.now[i] | word_at(team.now, row.words, 32 * i - row.up[s]); });
    }
    if (row.shift != 0) {
        team.step([&](int32_t i) { return word_at(team.now, row.words, 32 * i - row.shift); });
    }
    for (int32_t s = 0; s < row.num_down; s++) {
        team.step([&](int32_t i) { return team.now[i] | word_at(team.now, row.words, 32 * i + row.down[s]); });
    }
    if (!exists) {
        return;
    }
    for (int32_t i = team.rank; i < transfer.words_per_row; i += team.size) {
        uint32_t word = 0;
        const int32_t bits = min(row.to_bits - 32 * i, 32);
        if (row.take == 1) {
            word = bits > 0 ? team.now[i] & ~0u >> (32 - bits) : 0;
        } else {
            for (int32_t bit = 0; bit < bits; bit++) {
                word |= static_cast<uint32_t>(bit_at(team.now, (32 * i + bit) * row.take)) << bit;
            }
        }
        to[static_cast<int64_t>(to_row) * transfer.words_per_row + i] = word;
    }
}

/** Combines masks of one shape, a thread for a word. The result may be one of them. */
extern "C" __global__ void __launch_bounds__(mask_threads)
    distile_combine_bits(BitCombination combination, TileGrids grids, uint32_t num_grids, uint32_t *to) {
    clear_states(grids, num_grids);
    const uint32_t word = blockIdx.x * mask_threads + threadIdx.x;
    if (word >= combination.num_words) {
        return;
    }
    const uint32_t a = combination.a[word], b = combination.b[word];
    const uint32_t row = divide(word, combination.words_per_row), words = combination.words_per_row.value;
    switch (combination.how) {
    case Combination::Unite:
        to[word] = a | b;
        break;
    case Combination::Intersect:
        to[word] = a & b;
        break;
    case Combination::Subtract:
        to[word] = a & ~b;
        break;
    case Combination::Invert:
        to[word] = ~a & (word - row * words == words - 1 ? combination.last_bits : ~0u);
        break;
    }
}

// ---- Masks from tensors ----------------------------------------------------------------------

namespace {

/** Whether elements differ, or their difference is no number. */
__device__ uint32_t differing(float a, float b, float threshold) {
    // Not "above": a difference that is not a number must count.
    return !(fabsf(a - b) <= threshold) ? 1 : 0;
}
/** The same for the elements of vectors, as bits. */
__device__ uint32_t differing(const float4 &a, const float4 &b, float threshold) {
    return differing(a.x, b.x, threshold) | differing(a.y, b.y, threshold) << 1 | differing(a.z, b.z, threshold) << 2 |
           differing(a.w, b.w, threshold) << 3;
}

/** The pixels of a word in both tensors. */
struct ComparedWord {
    const float *a, *b;
    uint32_t pixels;  ///< 0 beyond the last word.
};

__device__ ComparedWord find_word(const Comparison &comparison, uint32_t word) {
    const uint32_t row = divide(word, comparison.words_per_row), image = divide(row, comparison.height);
    const uint32_t x = (word - row * comparison.words_per_row.value) * 32, y = row - image * comparison.height.value;
    const Elements &a = comparison.a, &b = comparison.b;
    return {a.data + image * a.stride_n + y * a.stride_h + x * a.stride_w,
            b.data + image * b.stride_n + y * b.stride_h + x * b.stride_w,
            word < comparison.num_words ? min(32u, comparison.width - x) : 0};
}

constexpr uint32_t vectors_at_once = 4;

/** Compares the elements of a word's pixels, a vector for each thread of a team at once: a power of two, from a warp to
 * a block. A vector lies in one pixel, or in two if there is nothing between pixels. */
template<typename Vector>
__device__ void compare(const Comparison &comparison, const TileGrids &grids, uint32_t num_grids, uint32_t *to) {
    clear_states(grids, num_grids);
    __shared__ uint32_t found_by_warp[mask_threads / 32];
    constexpr uint32_t size = sizeof(Vector) / sizeof(float), whole = (1u << size) - 1;
    const uint32_t team = comparison.team, rank = threadIdx.x % team;
    const uint32_t word = blockIdx.x * (mask_threads / team) + threadIdx.x / team;
    const ComparedWord compared = find_word(comparison, word);
    const uint32_t channels = comparison.channels.value, elements = compared.pixels * channels;
    const int64_t gap_a = comparison.a.stride_w - channels, gap_b = comparison.b.stride_w - channels;
    uint32_t bits = 0;
    for (uint32_t first = rank * size; first < elements; first += vectors_at_once * team * size) {
        // All loads come before the first use, and none waits for the end of the loop to be known.
        Vector a[vectors_at_once], b[vectors_at_once];
        uint32_t pixels[vectors_at_once];
#pragma unroll
        for (uint32_t i = 0; i < vectors_at_once; i++) {
            const uint32_t element = first + i * team * size;
            a[i] = b[i] = Vector{};
            pixels[i] = divide(element, comparison.channels);
            if (element + size <= elements) {
                a[i] = *reinterpret_cast<const Vector *>(compared.a + element + pixels[i] * gap_a);
                b[i] = *reinterpret_cast<const Vector *>(compared.b + element + pixels[i] * gap_b);
            }
        }
#pragma unroll
        for (uint32_t i = 0; i < vectors_at_once; i++) {
            const uint32_t element = first + i * team * size, pixel = pixels[i];
            const uint32_t found = differing(a[i], b[i], comparison.threshold);
            const uint32_t own = min((pixel + 1) * channels - element, size), of_own = found & whole >> (size - own);
            bits |= (of_own != 0 ? 1u : 0u) << pixel % 32 | (found != of_own ? 1u : 0u) << (pixel + 1) % 32;
        }
    }
    // Elements that do not fill a vector.
    const uint32_t rest = elements / size * size + rank;
    if (size > 1 && rank < size - 1 && rest < elements) {
        const uint32_t pixel = divide(rest, comparison.channels);
        bits |= differing(compared.a[rest + pixel * gap_a], compared.b[rest + pixel * gap_b], comparison.threshold)
                << pixel;
    }
    for (int step = 16; step > 0; step /= 2) {
        bits |= __shfl_xor_sync(all_lanes, bits, step);
    }
    if (lane() == 0) {
        found_by_warp[threadIdx.x / 32] = bits;
    }
    __syncthreads();
    if (rank == 0 && compared.pixels > 0) {
        for (uint32_t warp = 1; warp < team / 32; warp++) {
            bits |= found_by_warp[threadIdx.x / 32 + warp];
        }
        to[word] = bits;
    }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(mask_threads)
    distile_compare_1(Comparison comparison, TileGrids grids, uint32_t num_grids, uint32_t *to) {
    compare<float>(comparison, grids, num_grids, to);
}

extern "C" __global__ void __launch_bounds__(mask_threads)
    distile_compare_4(Comparison comparison, TileGrids grids, uint32_t num_grids, uint32_t *to) {
    compare<float4>(comparison, grids, num_grids, to);
}

namespace {

/** Compares packed pixels of rows of whole fours, four for each thread: they come in whole vectors, all at once. */
template<uint32_t channels>
__device__ void compare_pixels(const Comparison &comparison, const TileGrids &grids, uint32_t num_grids, uint32_t *to) {
    clear_states(grids, num_grids);
    const uint32_t thread = blockIdx.x * pixel_threads + threadIdx.x, word = thread / 8, first = thread % 8 * 4;
    const ComparedWord compared = find_word(comparison, word);
    const float *const a = compared.a + first * channels, *const b = compared.b + first * channels;
    uint32_t found = 0;
    if (first < compared.pixels) {
        float4 all_a[channels], all_b[channels];
#pragma unroll
        for (uint32_t i = 0; i < channels; i++) {
            all_a[i] = reinterpret_cast<const float4 *>(a)[i];
            all_b[i] = reinterpret_cast<const float4 *>(b)[i];
        }
#pragma unroll
        for (uint32_t i = 0; i < channels; i++) {
            found |= differing(all_a[i], all_b[i], comparison.threshold) << 4 * i;
        }
    }
    uint32_t bits = 0;
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
        bits |= ((found >> i * channels & ((1u << channels) - 1)) != 0 ? 1u : 0u) << (first + i);
    }
    for (int step = 4; step > 0; step /= 2) {
        bits |= __shfl_xor_sync(all_lanes, bits, step);
    }
    if (first == 0 && compared.pixels > 0) {
        to[word] = bits;
    }
}

}  // namespace

// A kernel for each number of channels: a small image takes hardly longer than it takes to fetch the code.

extern "C" __global__ void __launch_bounds__(pixel_threads)
    distile_compare_pixels_1(Comparison comparison, TileGrids grids, uint32_t num_grids, uint32_t *to) {
    compare_pixels<1>(comparison, grids, num_grids, to);
}

extern "C" __global__ void __launch_bounds__(pixel_threads)
    distile_compare_pixels_2(Comparison comparison, TileGrids grids, uint32_t num_grids, uint32_t *to) {
    compare_pixels<2>(comparison, grids, num_grids, to);
}

extern "C" __global__ void __launch_bounds__(pixel_threads)
    distile_compare_pixels_3(Comparison comparison, TileGrids grids, uint32_t num_grids, uint32_t *to) {
    compare_pixels<3>(comparison, grids, num_grids, to);
}

extern "C" __global__ void __launch_bounds__(pixel_threads)
    distile_compare_pixels_4(Comparison comparison, TileGrids grids, uint32_t num_grids, uint32_t *to) {
    compare_pixels<4>(comparison, grids, num_grids, to);
}

// ---- Pixels ----------------------------------------------------------------------------------

namespace {

/** Updates pixels, a warp for a run of them. `Vector` is what a thread stores at once. Without words all pixels are
 * active. With `flip` ~0 active pixels change places with inactive ones. */
template<typename Vector>
__device__ void update_pixels(const DeviceBits &mask, const PixelUpdate &update, uint32_t flip) {
    const uint32_t warps = gridDim.x * (mask_threads / 32);
    for (uint32_t run = blockIdx.x * (mask_threads / 32) + threadIdx.x / 32; run < update.num_runs; run += warps) {
        const uint32_t row = divide(run, update.runs), image = divide(row, update.height);
        const uint32_t x = (run - row * update.runs.value) * pixels_per_warp, y = row - image * update.height.value;
        const uint32_t pixels = min(pixels_per_warp, update.width - x);
        const uint32_t word = mask.words ? mask.words[row * mask.words_per_row + x / 32] : ~0u;
        const uint32_t active = (word ^ flip) >> (x % 32);
        Vector *to =
            static_cast<Vector *>(update.to) + image * update.stride_n + y * update.stride_h + x * update.stride_w;
        const Vector *from =
            static_cast<const Vector *>(update.from) + (static_cast<int64_t>(row) * update.width + x) * update.channels;
        for (uint32_t i = 0; i < pixels; i++, to += update.stride_w, from += update.channels) {
            const bool copy = (active >> i & 1) != 0;
            if (copy ? update.from != nullptr : update.zero != 0) {
                for (int32_t c = static_cast<int32_t>(lane()); c < update.channels; c += 32) {
                    to[c] = copy ? from[c] : Vector{};
                }
            }
        }
    }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(mask_threads)
    distile_update_pixels_1(DeviceBits mask, PixelUpdate update) {
    update_pixels<float>(mask, update, 0);
}

extern "C" __global__ void __launch_bounds__(mask_threads)
    distile_update_pixels_4(DeviceBits mask, PixelUpdate update) {
    update_pixels<float4>(mask, update, 0);
}

/** Makes the pixels of a buffer 0 that its last use wrote, and records which the next will write. */
extern "C" __global__ void __launch_bounds__(mask_threads) distile_hand_out(HandOut out) {
    __shared__ BufferRecord record;
    // All of it at once: to know the slot first would take as long again.
    static_assert(sizeof(record) % sizeof(uint32_t) == 0 && sizeof(record) / sizeof(uint32_t) <= mask_threads);
    if (threadIdx.x < sizeof(record) / sizeof(uint32_t)) {
        reinterpret_cast<uint32_t *>(&record)[threadIdx.x] =
            reinterpret_cast<const volatile uint32_t *>(out.record)[threadIdx.x];
    }
    __syncthreads();
    const uint32_t slot = record.current;
    if (out.clear != 0) {
        const WrittenPixels &last = record.slots[slot];
        if (last.lanes == 4) {
            update_pixels<float4>(last.bits, last.update, ~0u);
        } else {
            update_pixels<float>(last.bits, last.update, ~0u);
        }
    }
    if (out.keep != 0) {
        uint32_t *const kept = out.kept[1 - slot];
        for (uint32_t i = blockIdx.x * mask_threads + threadIdx.x; i < out.num_words; i += gridDim.x * mask_threads) {
            kept[i] = out.written.bits.words[i];
        }
        if (blockIdx.x == 0 && threadIdx.x == 0) {
            WrittenPixels &next = out.record->slots[1 - slot];
            next = out.written;
            next.bits.words = out.num_words > 0 ? kept : nullptr;
        }
        if (threadIdx.x == 0) {
            __threadfence();
            // The slots change places for the next launch, once every block of this one knows which is which.
            if (atomicInc(&out.record->blocks_done, gridDim.x - 1) == gridDim.x - 1) {
                out.record->current = 1 - slot;
            }
        }
    }
}
