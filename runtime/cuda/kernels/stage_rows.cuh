/** \file
 * Which pixels a step of a stage computes. Called by whole warps.
 */
#ifndef DISTILE_CUDA_KERNELS_STAGE_ROWS_CUH
#define DISTILE_CUDA_KERNELS_STAGE_ROWS_CUH

#include "runtime/cuda/kernels/device.cuh"
#include "runtime/cuda/kernels/stage.h"

namespace distile {

/** The pixels before each chunk, and behind the last the number of all. */
using ChunkStarts = uint32_t[most_stage_chunks + 1];

/** What a block keeps of the last mask: its words if there is room, those of the pixels that the last reader reads, and
 * how many pixels come before each chunk of both. */
struct KeptRows {
    uint32_t mask[most_kept_words], grown[most_kept_words];
    ChunkStarts mask_starts, grown_starts;
};

/** The words of a mask in global memory. Another block may just have written them, so the first-level cache is passed
 * over. */
struct GlobalWords {
    const uint32_t *words;

    __device__ uint32_t operator[](uint32_t word) const {
        return __ldcg(words + word);
    }
};

/** A word of a mask, or 0 outside. */
template<class Words>
__device__ uint32_t mask_word(const StageRows &rows, const Words &words, uint32_t image, int32_t y, int32_t column) {
    if (y < 0 || y >= static_cast<int32_t>(rows.height) || column < 0 ||
        column >= static_cast<int32_t>(rows.words_per_row)) {
        return 0;
    }
    return words[(image * rows.height + y) * rows.words_per_row + column];
}

/** The 32 bits of a row that begin at pixel x, which may be negative. */
template<class Words>
__device__ uint32_t mask_bits(const StageRows &rows, const Words &words, uint32_t image, int32_t y, int32_t x) {
    const int32_t column = x >> 5;
    const uint32_t low = mask_word(rows, words, image, y, column);
    const uint32_t shift = x & 31;
    return shift == 0 ? low : __funnelshift_r(low, mask_word(rows, words, image, y, column + 1), shift);
}

/** The largest integer that is not above number / by. */
inline __device__ int32_t floor_divide(int32_t number, int32_t by) {
    return number >= 0 ? number / by : -((by - 1 - number) / by);
}

/** The pixels [x, x + 32), a whole word of a row, that windows without a stride read of this row. */
template<class Words>
__device__ uint32_t grown_row(const StageRows &rows, const Words &words, uint32_t image, int32_t y, int32_t x) {
    const StageWindow &across = rows.across;
    const int32_t column = x / 32;
    const uint32_t left = mask_word(rows, words, image, y, column - 1),
                   middle = mask_word(rows, words, image, y, column),
                   right = mask_word(rows, words, image, y, column + 1);
    if (across.kernel == 3 && across.dilation == 1 && across.pad == 1) {
        return middle | __funnelshift_r(middle, right, 1) | __funnelshift_l(left, middle, 1);
    }
    uint32_t found = 0;
    int32_t shift = across.pad;
#pragma unroll 1
    for (int32_t kx = 0; kx < across.kernel; kx++, shift -= across.dilation) {
        if (shift >= 0 && shift < 32) {
            found |= __funnelshift_r(middle, right, shift);
        } else if (shift < 0 && shift > -32) {
            found |= __funnelshift_l(left, middle, -shift);
        } else {
            found |= mask_bits(rows, words, image, y, x + shift);
        }
    }
    return found;
}

/** The pixels [x, x + 32) of row y that windows of the mask's pixels read. */
template<class Words>
__device__ uint32_t grown_bits(const StageRows &rows, const Words &words, uint32_t image, int32_t y, int32_t x) {
    uint32_t found = 0;
    const StageWindow &across = rows.across;
#pragma unroll 1
    for (int32_t ky = 0; ky < rows.down.kernel; ky++) {
        const int32_t at = y + rows.down.pad - ky * rows.down.dilation;
        const int32_t from_y = rows.down.stride == 1 ? at : floor_divide(at, rows.down.stride);
        if (from_y * rows.down.stride != at) {
            continue;
        }
        if (across.stride == 1) {
            found |= grown_row(rows, words, image, from_y, x);
            continue;
        }
        // Each pixel of the mask from the first whose window can reach x sets the bits that it reads.
        const int32_t reach = (across.kernel - 1) * across.dilation;
        const int32_t first = floor_divide(x + across.pad - reach, across.stride);
        const int32_t last = floor_divide(x + 31 + across.pad, across.stride);
#pragma unroll 1
        for (int32_t begin = first; begin <= last; begin += 32) {
#pragma unroll 1
            for (uint32_t left = mask_bits(rows, words, image, from_y, begin); left != 0; left &= left - 1) {
                const int32_t to = (begin + __ffs(left) - 1) * across.stride - across.pad - x;
#pragma unroll 1
                for (int32_t kx = 0; kx < across.kernel; kx++) {
                    const int32_t bit = to + kx * across.dilation;
                    found |= bit >= 0 && bit < 32 ? 1u << bit : 0;
                }
            }
        }
    }
    return found;
}

/** The pixels of a word of the step's output that the reader reads. */
template<class Words> __device__ uint32_t grown_word(const StageStep &step, const Words &words, uint32_t word) {
    const uint32_t row = divide(word, step.words_per_row), image = divide(row, step.height);
    const uint32_t x = (word - row * step.words_per_row.value) * 32, inside = step.width.value - x;
    return grown_bits(step.rows, words, image, row - image * step.height.value, x) &
           (inside < 32 ? (1u << inside) - 1 : ~0u);
}

inline __device__ uint32_t num_words(const StageStep &step) {
    return step.batch * step.height.value * step.words_per_row.value;
}
inline __device__ uint32_t num_chunks(const StageStep &step) {
    return (num_words(step) + stage_words_at_once - 1) / stage_words_at_once;
}

/** A warp adds up the pixels of chunks. */
inline __device__ void sum_chunks(uint32_t words, ChunkStarts &starts) {
    const uint32_t chunks = (words + stage_words_at_once - 1) / stage_words_at_once;
    uint32_t before = 0;
#pragma unroll 1
    for (uint32_t begin = 0; begin < chunks; begin += 32) {
        uint32_t sum = begin + lane() < chunks ? starts[begin + lane() + 1] : 0;
#pragma unroll
        for (uint32_t distance = 1; distance < 32; distance *= 2) {
            const uint32_t left = __shfl_up_sync(all_lanes, sum, distance);
            sum += lane() >= distance ? left : 0;
        }
        if (begin + lane() < chunks) {
            starts[begin + lane() + 1] = before + sum;
        }
        before += __shfl_sync(all_lanes, sum, 31);
    }
    if (lane() == 0) {
        starts[0] = 0;
    }
}

/** The pixels of a step with a mask, word by word, that every block has prepared. */
class MaskedRows {
public:
    __device__ MaskedRows(const StageStep &step, const KeptRows &kept) : step_(step), kept_(kept) {
    }

    __device__ const ChunkStarts &starts() const {
        return is_grown() ? kept_.grown_starts : kept_.mask_starts;
    }
    __device__ uint32_t count() const {
        return starts()[num_chunks(step_)];
    }

    /** A lane's share of a chunk: two words. */
    __device__ uint64_t chunk(uint32_t number) const {
        uint64_t found = 0;
#pragma unroll 1
        for (int32_t second = 1; second >= 0; second--) {
            found = found << 32 | word_at(number * stage_words_at_once + 2 * lane() + second);
        }
        return found;
    }

private:
    __device__ bool is_grown() const {
        return step_.rows.grown != 0;
    }

    __device__ uint32_t word_at(uint32_t word) const {
        if (word >= num_words(step_)) {
            return 0;
        }
        if (step_.rows.fits != 0) {
            return is_grown() ? kept_.grown[word] : kept_.mask[word];
        }
        const GlobalWords words{step_.rows.words};
        return is_grown() ? grown_word(step_, words, word) : words[word];
    }

    const StageStep &step_;
    const KeptRows &kept_;
};

/** Keeps a mask and counts its pixels, as `threads` threads that sync() lets wait for each other. */
template<uint32_t threads, class Sync>
__device__ void prepare_rows(const StageStep &step, KeptRows &kept, const Sync &sync) {
    const StageRows &rows = step.rows;
    const uint32_t mask_words = step.batch * rows.height * rows.words_per_row;
    const uint32_t grown_words = rows.grown != 0 ? num_words(step) : 0;
    const GlobalWords words{rows.words};
    if (rows.fits != 0) {
        for (uint32_t word = threadIdx.x; word < mask_words; word += threads) {
            kept.mask[word] = words[word];
        }
        sync();
#pragma unroll 1
        for (uint32_t word = threadIdx.x; word < grown_words; word += threads) {
            kept.grown[word] = grown_word(step, kept.mask, word);
        }
        sync();
    }
    // The pixels of each chunk, one behind its place.
    const auto count = [&](uint32_t all, ChunkStarts &to, const auto &word_at) {
#pragma unroll 1
        for (uint32_t chunk = threadIdx.x / 32; chunk * stage_words_at_once < all; chunk += threads / 32) {
            const uint32_t word = chunk * stage_words_at_once + lane();
            const uint32_t low = word < all ? __popc(word_at(word)) : 0;
            const uint32_t high = word + 32 < all ? __popc(word_at(word + 32)) : 0;
            const uint32_t pixels = warp_sum(low + high);
            if (lane() == 0) {
                to[chunk + 1] = pixels;
            }
        }
    };
    if (rows.fits != 0) {
        count(mask_words, kept.mask_starts, [&](uint32_t word) { return kept.mask[word]; });
        count(grown_words, kept.grown_starts, [&](uint32_t word) { return kept.grown[word]; });
    } else {
        count(mask_words, kept.mask_starts, [&](uint32_t word) { return words[word]; });
        count(grown_words, kept.grown_starts, [&](uint32_t word) { return grown_word(step, words, word); });
    }
    sync();
    const uint32_t warp = threadIdx.x / 32;
    if (warp < 2) {
        sum_chunks(warp == 0 ? mask_words : grown_words, warp == 0 ? kept.mask_starts : kept.grown_starts);
    }
    sync();
}

/** The place of the bit that has `rank` set bits below it. */
inline __device__ uint32_t find_bit(uint64_t bits, uint32_t rank) {
    uint32_t place = 0;
#pragma unroll
    for (uint32_t width = 32; width > 0; width /= 2) {
        const uint32_t below = __popcll(bits >> place & ((uint64_t{1} << width) - 1));
        if (rank >= below) {
            rank -= below;
            place += width;
        }
    }
    return place;
}

/** Calls visit(row, image, y, x) for rows [first, first + count) of a step with a mask, each in one lane. */
template<class Visit> __device__ void visit_masked_rows(const StageStep &step, const MaskedRows &masked, uint32_t first,
                                                        uint32_t count, const Visit &visit) {
    const ChunkStarts &starts = masked.starts();
    // The last chunk that begins at or before the first row. Empty chunks begin where the next one does.
    uint32_t chunk = 0;
    for (uint32_t low = 1, high = num_chunks(step); low < high;) {
        const uint32_t middle = (low + high) / 2;
        if (starts[middle] <= first) {
            chunk = middle;
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    for (; starts[chunk] < first + count; chunk++) {
        const uint64_t bits = masked.chunk(chunk);
        const uint32_t own = __popcll(bits);
        uint32_t before = own;
#pragma unroll
        for (uint32_t distance = 1; distance < 32; distance *= 2) {
            const uint32_t left = __shfl_up_sync(all_lanes, before, distance);
            before += lane() >= distance ? left : 0;
        }
        before -= own;
        const uint32_t start = starts[chunk], end = min(starts[chunk + 1], first + count);
        for (uint32_t row = max(first, start) + lane(); __any_sync(all_lanes, row < end); row += 32) {
            const uint32_t rank = row - start;
            uint32_t owner = 0;
#pragma unroll
            for (uint32_t step_size = 16; step_size > 0; step_size /= 2) {
                owner += __shfl_sync(all_lanes, before, owner + step_size) <= rank ? step_size : 0;
            }
            const uint64_t word = __shfl_sync(all_lanes, bits, owner);
            const uint32_t place = find_bit(word, rank - __shfl_sync(all_lanes, before, owner));
            if (row < end) {
                const uint32_t at = chunk * stage_words_at_once + 2 * owner + place / 32;
                const uint32_t line = divide(at, step.words_per_row), image = divide(line, step.height);
                visit(row - first, image, line - image * step.height.value,
                      (at - line * step.words_per_row.value) * 32 + place % 32);
            }
        }
    }
}

/** Calls visit(row, image, y, x) for some rows of a step that computes every pixel. */
template<class Visit>
__device__ void visit_all_rows(const StageStep &step, uint32_t first, uint32_t count, const Visit &visit) {
    for (uint32_t row = lane(); row < count; row += 32) {
        const uint32_t line = divide(first + row, step.width), image = divide(line, step.height);
        visit(row, image, line - image * step.height.value, first + row - line * step.width.value);
    }
}

}  // namespace distile

#endif
