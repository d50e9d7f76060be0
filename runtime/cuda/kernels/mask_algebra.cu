// Masks from masks: through windows, and bit by bit.
#include "runtime/cuda/kernels/device.cuh"
#include "runtime/cuda/kernels/mask_algebra.h"

using namespace distile;

namespace {

/** The 32 bits of a row from `bit` on, which may be negative; 0 outside the row. */
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

/** A row in progress, and the threads of a block that move it. All teams of a block take the same steps. */
struct Team {
    int32_t rank, size, words;
    uint32_t *now, *next;

    /** Replaces word i of the row with make(i), which reads the old words. */
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

/** Maps a mask through a window: for every row of the result, a team unites rows and then moves the bits of the
 * union. */
extern "C" __global__ void __launch_bounds__(block_threads) distile_transfer_bits(BitTransfer transfer, uint32_t *to) {
    wait_for_earlier_kernels();
    const BitRow &row = transfer.row;
    const uint32_t team_of_block = threadIdx.x / transfer.team;
    uint32_t *const words = shared_words + 2 * team_of_block * row.words;
    Team team = {static_cast<int32_t>(threadIdx.x % transfer.team), static_cast<int32_t>(transfer.team), row.words,
                 words + row.words, words};
    const uint32_t to_row = blockIdx.x * (block_threads / transfer.team) + team_of_block;
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
    for (int32_t i = team.rank; exists && i < transfer.words_per_row; i += team.size) {
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
        if (i < row.words) {
            team.next[i] = word;
        }
    }
    if (!transfer.mirror.bytes) {
        return;
    }
    __syncthreads();
    uint8_t *const bytes = row_of(transfer.mirror, image, y);
    for (int32_t x = team.rank; exists && x < transfer.width; x += team.size) {
        bytes[x] = x < row.to_bits && bit_at(team.next, x) ? 1 : 0;
    }
}

/** Combines two masks of the same shape, one thread per word. The result may be one of them. */
extern "C" __global__ void __launch_bounds__(block_threads)
    distile_combine_bits(BitCombination combination, uint32_t *to) {
    wait_for_earlier_kernels();
    const uint32_t word = blockIdx.x * block_threads + threadIdx.x;
    if (word >= combination.num_words) {
        return;
    }
    const uint32_t a = combination.a[word], b = combination.b[word];
    const uint32_t row = divide(word, combination.words_per_row), words = combination.words_per_row.value;
    switch (combination.how) {
    case BitOperation::Unite:
        to[word] = a | b;
        break;
    case BitOperation::Intersect:
        to[word] = a & b;
        break;
    case BitOperation::Subtract:
        to[word] = a & ~b;
        break;
    case BitOperation::Invert:
        to[word] = ~a & (word - row * words == words - 1 ? combination.last_bits : ~0u);
        break;
    }
}
