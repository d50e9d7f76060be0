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

/** What a block keeps of the last mask. If there is room (StageRows::fits): its words, those of the pixels that the
 * last reader reads, and how many pixels of both come before each word. Otherwise how many come before each chunk. */
struct KeptRows {
    uint32_t mask[most_kept_words], grown[most_kept_words];
    union {
        uint32_t before[most_kept_words + 1];  ///< The mask's in the low half, the grown one's in the high half.
        ChunkStarts starts[2];                 ///< The mask's and the grown one's.
    };
    uint32_t of_warps[4];  ///< What each warp that prepares counts.
};
static_assert(most_kept_words * 32 < 1u << 16, "numbers of pixels take halves of words");

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

/** The pixels of a word that windows of 3 x 3 read whose middle is a pixel of the mask, which has as many rows. */
inline __device__ uint32_t grown_by_one(const uint32_t *words, uint32_t y, uint32_t column, uint32_t height,
                                        uint32_t words_per_row) {
    uint32_t found = 0;
#pragma unroll
    for (int32_t down = -1; down <= 1; down++) {
        const uint32_t *const word = words + down * static_cast<int32_t>(words_per_row);
        if (y + down < height) {
            const uint32_t left = column > 0 ? word[-1] : 0, right = column + 1 < words_per_row ? word[1] : 0;
            found |= *word | __funnelshift_r(*word, right, 1) | __funnelshift_l(left, *word, 1);
        }
    }
    return found;
}

inline __device__ bool grows_by_one(const StageWindow &window) {
    return window.kernel == 3 && window.stride == 1 && window.dilation == 1 && window.pad == 1;
}

/** The pixels of a word of the step's output that the reader reads, whatever its window. */
template<class Words> __device__ uint32_t grown_word(const StageStep &step, const Words &words, uint32_t word) {
    const uint32_t row = divide(word, step.words_per_row), image = divide(row, step.height);
    const uint32_t x = (word - row * step.words_per_row.value) * 32, inside = step.width.value - x;
    return grown_bits(step.rows, words, image, row - image * step.height.value, x) &
           (inside < 32 ? (1u << inside) - 1 : ~0u);
}

inline __device__ uint32_t num_words(const StageStep &step) {
    return step.batch * step.height.value * step.words_per_row.value;
}
inline __device__ uint32_t chunks_of(uint32_t words) {
    return (words + stage_words_at_once - 1) / stage_words_at_once;
}
inline __device__ uint32_t num_chunks(const StageStep &step) {
    return chunks_of(num_words(step));
}

/** The sum of a number of this lane and those of the lanes before. */
inline __device__ uint32_t sum_to_lane(uint32_t number) {
#pragma unroll
    for (uint32_t distance = 1; distance < 32; distance *= 2) {
        const uint32_t left = __shfl_up_sync(all_lanes, number, distance);
        number += lane() >= distance ? left : 0;
    }
    return number;
}

/** A warp adds up the pixels of chunks. */
inline __device__ void sum_chunks(uint32_t words, ChunkStarts &starts) {
    const uint32_t chunks = chunks_of(words);
    uint32_t before = 0;
#pragma unroll 1
    for (uint32_t begin = 0; begin < chunks; begin += 32) {
        const uint32_t sum = sum_to_lane(begin + lane() < chunks ? starts[begin + lane() + 1] : 0);
        if (begin + lane() < chunks) {
            starts[begin + lane() + 1] = before + sum;
        }
        before += __shfl_sync(all_lanes, sum, 31);
    }
    if (lane() == 0) {
        starts[0] = 0;
    }
}

struct StagePixel {
    int32_t image, y, x;
};

/** The pixel of a bit of a word of the step's output. */
inline __device__ StagePixel pixel_of(const StageStep &step, uint32_t word, uint32_t bit) {
    const uint32_t line = divide(word, step.words_per_row), image = divide(line, step.height);
    return {static_cast<int32_t>(image), static_cast<int32_t>(line - image * step.height.value),
            static_cast<int32_t>((word - line * step.words_per_row.value) * 32 + bit)};
}

/** The place of the bit that has `rank` set bits below it. */
template<class Bits> __device__ uint32_t find_bit(Bits bits, uint32_t rank) {
    uint32_t place = 0;
#pragma unroll
    for (uint32_t width = sizeof(Bits) * 4; width > 0; width /= 2) {
        const Bits low = bits >> place & ((Bits{1} << width) - 1);
        const uint32_t below = sizeof(Bits) == 8 ? __popcll(low) : __popc(static_cast<uint32_t>(low));
        if (rank >= below) {
            rank -= below;
            place += width;
        }
    }
    return place;
}

/** The pixels of a step with a mask that every block has prepared. */
class MaskedRows {
public:
    __device__ MaskedRows(const StageStep &step, const KeptRows &kept)
        : step_(step), kept_(kept), is_grown_(step.rows.grown != 0) {
    }

    __device__ uint32_t count() const {
        return step_.rows.fits != 0 ? before(num_words(step_)) : starts()[num_chunks(step_)];
    }

    /** The pixel of a row, if the words are kept. */
    __device__ StagePixel find(uint32_t row) const {
        return find(row, 0, num_words(step_));
    }
    /** The pixel of a row in some of the words. */
    __device__ StagePixel find(uint32_t row, uint32_t word, uint32_t end) const {
#pragma unroll 1
        while (end - word > 1) {
            const uint32_t middle = (word + end) / 2;
            if (before(middle) <= row) {
                word = middle;
            } else {
                end = middle;
            }
        }
        return pixel_of(step_, word, find_bit((is_grown_ ? kept_.grown : kept_.mask)[word], row - before(word)));
    }

    /** How many rows are in the words before one, if they are kept. */
    __device__ uint32_t before(uint32_t word) const {
        const uint32_t both = kept_.before[word];
        return is_grown_ ? both >> 16 : both & 0xffff;
    }

    /** Calls visit(row, pixel) for rows [first, first + count), each in one lane, if the words are not kept. */
    template<class Visit> __device__ void visit(uint32_t first, uint32_t count, const Visit &visit) const;

private:
    __device__ const ChunkStarts &starts() const {
        return kept_.starts[is_grown_ ? 1 : 0];
    }

    /** A lane's share of a chunk: two words. */
    __device__ uint64_t chunk(uint32_t number) const {
        const GlobalWords words{is_grown_ ? step_.rows.counted : step_.rows.words};
        const uint32_t word = number * stage_words_at_once + 2 * lane(), all = num_words(step_);
        const uint64_t low = word < all ? words[word] : 0, high = word + 1 < all ? words[word + 1] : 0;
        return high << 32 | low;
    }

    const StageStep &step_;
    const KeptRows &kept_;
    const bool is_grown_;
};

/** Keeps the words of a mask, as `threads` threads that sync() lets wait for each other. Calls came() when they are
 * there. */
template<uint32_t threads, class Sync, class Came>
__device__ void keep_words(const StageStep &step, uint32_t mask_words, uint32_t grown_words, KeptRows &kept,
                           const Sync &sync, const Came &came) {
    constexpr uint32_t most = (most_kept_words + threads - 1) / threads;
    const GlobalWords words{step.rows.words};
    // Before anything is stored: the compiler would read the step again.
    const Divisor words_per_row = step.words_per_row, height = step.height;
    const bool by_one = grows_by_one(step.rows.down) && grows_by_one(step.rows.across) &&
                        step.rows.height == height.value && step.rows.words_per_row == words_per_row.value;
    const uint32_t width = step.width.value;
    const uint32_t all = max(mask_words, grown_words), own = (all + threads - 1) / threads;
    const uint32_t thread = threadIdx.x % threads, first = thread * own;
    uint32_t loaded[most];
#pragma unroll
    for (uint32_t i = 0; i < most; i++) {
        loaded[i] = i < own && first + i < mask_words ? words[first + i] : 0;
    }
#pragma unroll
    for (uint32_t i = 0; i < most; i++) {
        if (i < own && first + i < mask_words) {
            kept.mask[first + i] = loaded[i];
        }
    }
    sync();
    came();
    // A word has the mask's pixels in the low half and the grown ones in the high half.
    const auto pixels_at = [&](uint32_t word) {
        return (word < mask_words ? __popc(kept.mask[word]) : 0) +
               (word < grown_words ? __popc(kept.grown[word]) << 16 : 0);
    };
    const uint32_t end = min(first + own, all);
    uint32_t sum = 0;
#pragma unroll 1
    for (uint32_t word = first; word < end; word++) {
        if (word < grown_words) {
            uint32_t bits;
            if (by_one) {  // As most windows do.
                const uint32_t row = divide(word, words_per_row), y = row - divide(row, height) * height.value;
                const uint32_t column = word - row * words_per_row.value, inside = width - column * 32;
                bits = grown_by_one(kept.mask + word, y, column, height.value, words_per_row.value) &
                       (inside < 32 ? (1u << inside) - 1 : ~0u);
            } else {
                bits = grown_word(step, kept.mask, word);
            }
            kept.grown[word] = bits;
        }
        sum += pixels_at(word);
    }
    uint32_t before = sum_to_lane(sum);
    const uint32_t warp = thread / 32;
    if (lane() == 31) {
        kept.of_warps[warp] = before;
    }
    sync();
    before -= sum;
#pragma unroll
    for (uint32_t other = 0; other < threads / 32; other++) {
        const uint32_t more = kept.of_warps[other];
        before += other < warp ? more : 0;
    }
#pragma unroll 1
    for (uint32_t word = first; word < end; word++) {
        kept.before[word] = before;
        before += pixels_at(word);
        if (word + 1 == all) {
            kept.before[all] = before;
        }
    }
}

/** The chunks of a mask, and those of what its reader reads. */
struct CountedChunks {
    uint32_t mask_words, read_words;

    __device__ explicit CountedChunks(const StageStep &step)
        : mask_words(step.batch * step.rows.height * step.rows.words_per_row),
          read_words(step.rows.grown != 0 ? num_words(step) : 0) {
    }
    __device__ uint32_t of_mask() const {
        return chunks_of(mask_words);
    }
    __device__ uint32_t all() const {
        return of_mask() + chunks_of(read_words);
    }
};

/** A warp counts the pixels of a chunk, which it first finds if they are those that the reader reads. */
inline __device__ void count_chunk(const StageStep &step, uint32_t number) {
    const CountedChunks chunks(step);
    const GlobalWords words{step.rows.words};
    const bool is_read = number >= chunks.of_mask();
    const uint32_t all = is_read ? chunks.read_words : chunks.mask_words;
    const uint32_t first = (number - (is_read ? chunks.of_mask() : 0)) * stage_words_at_once + lane();
    uint32_t pixels = 0;
#pragma unroll 1
    for (uint32_t word = first; word < min(first + stage_words_at_once, all); word += 32) {
        uint32_t bits;
        if (is_read) {
            bits = grown_word(step, words, word);
            __stcg(step.rows.counted + word, bits);
        } else {
            bits = words[word];
        }
        pixels += __popc(bits);
    }
    __syncwarp();
    pixels = warp_sum(pixels);
    if (lane() == 0) {
        __stcg(step.rows.counted + chunks.read_words + number, pixels);
    }
}

/** Prepares a mask, as `threads` threads that sync() lets wait for each other: keeps its words, or how many pixels come
 * before each chunk. */
template<uint32_t threads, class Sync, class Came>
__device__ void prepare_rows(const StageStep &step, KeptRows &kept, const Sync &sync, const Came &came) {
    const CountedChunks chunks(step);
    if (step.rows.fits != 0) {
        keep_words<threads>(step, chunks.mask_words, chunks.read_words, kept, sync, came);
        return;
    }
    const uint32_t of_mask = chunks.of_mask();
    for (uint32_t chunk = threadIdx.x % threads; chunk < chunks.all(); chunk += threads) {
        uint32_t &to = chunk < of_mask ? kept.starts[0][chunk + 1] : kept.starts[1][chunk - of_mask + 1];
        to = __ldcg(step.rows.counted + chunks.read_words + chunk);
    }
    sync();
    came();
    const uint32_t warp = threadIdx.x % threads / 32;
    if (warp < 2) {
        sum_chunks(warp == 0 ? chunks.mask_words : chunks.read_words, kept.starts[warp]);
    }
}

template<class Visit> __device__ void MaskedRows::visit(uint32_t first, uint32_t count, const Visit &visit) const {
    // The last chunk that begins at or before the first row. Empty chunks begin where the next one does.
    uint32_t number = 0;
    for (uint32_t low = 1, high = num_chunks(step_); low < high;) {
        const uint32_t middle = (low + high) / 2;
        if (starts()[middle] <= first) {
            number = middle;
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    for (; starts()[number] < first + count; number++) {
        const uint64_t bits = chunk(number);
        const uint32_t own = __popcll(bits);
        const uint32_t before = sum_to_lane(own) - own;
        const uint32_t start = starts()[number], end = min(starts()[number + 1], first + count);
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
                visit(row, pixel_of(step_, number * stage_words_at_once + 2 * owner + place / 32, place % 32));
            }
        }
    }
}

/** The pixel of a row of a step that computes every pixel. */
inline __device__ StagePixel dense_pixel(const StageStep &step, uint32_t row) {
    const uint32_t line = divide(row, step.width), image = divide(line, step.height);
    return {static_cast<int32_t>(image), static_cast<int32_t>(line - image * step.height.value),
            static_cast<int32_t>(row - line * step.width.value)};
}

}  // namespace distile

#endif
