/** \file
 * Loops over the active or inactive pixels of a tensor: row by row, on the context's threads, in runs of pixels.
 */
#ifndef DISTILE_PIXEL_RUNS_H
#define DISTILE_PIXEL_RUNS_H

#include "runtime/base/context.h"
#include "runtime/base/types.h"
#include <algorithm>
#include <cstdint>
#include <cstring>

namespace distile {

/** The first pixel of a row, from x on, whose state is `active`; the width if there is none. */
inline int32_t find_pixel(const uint64_t *words, int32_t x, int32_t width, bool active) {
    while (x < width) {
        const uint64_t found = (active ? words[x / 64] : ~words[x / 64]) >> (x % 64);
        if (found != 0) {
            return std::min(x + __builtin_ctzll(found), width);
        }
        x = (x / 64 + 1) * 64;
    }
    return width;
}

/** Calls visit(begin, end) for every run of pixels in a row whose state is `active`. */
template<typename Visit> void for_each_run(const uint64_t *words, int32_t width, bool active, const Visit &visit) {
    for (int32_t begin = find_pixel(words, 0, width, active); begin < width;) {
        const int32_t end = find_pixel(words, begin, width, !active);
        visit(begin, end);
        begin = find_pixel(words, end, width, active);
    }
}

/** Row `row` of a tensor, counted over all images. */
inline char *row_of(const distile_tensor &tensor, int64_t row) {
    const int64_t elements = row / tensor.height * tensor.stride_n + row % tensor.height * tensor.stride_h;
    return static_cast<char *>(tensor.data) + elements * element_bytes(tensor.dtype);
}

/** A row of pixels, in bytes. */
struct PixelRow {
    PixelRow(const distile_tensor &tensor, int64_t row)
        : first(row_of(tensor, row)), stride(tensor.stride_w * element_bytes(tensor.dtype)),
          bytes(tensor.channels * element_bytes(tensor.dtype)), channels(tensor.channels), dtype(tensor.dtype) {
    }
    char *at(int64_t x) const {
        return first + x * stride;
    }

    char *first;
    int64_t stride, bytes, channels;
    distile_dtype dtype;
};

inline void fill_pixels(const PixelRow &row, int32_t begin, int32_t end, uint8_t byte) {
    for (int32_t x = begin; x < end; x++) {
        std::memset(row.at(x), byte, row.bytes);
    }
}

inline void zero_pixels(const PixelRow &row, int32_t begin, int32_t end) {
    fill_pixels(row, begin, end, 0);
}

/** The number of tasks for up to `most` parts of some work. `bytes`, the total of its reads and writes, determines how
 * many threads are worth waking; for few bytes the calling thread does all. */
inline int64_t num_tasks(const distile_context &context, int64_t bytes, int64_t most) {
    // What one thread can move while another wakes.
    constexpr int64_t bytes_per_task = 256 << 10;
    const int64_t threads = context.options.threads;
    // A few tasks per thread balance parts with unequal work.
    return std::clamp<int64_t>(bytes / bytes_per_task, 1, threads > 1 ? std::min(most, 4 * threads) : 1);
}

/** Calls visit(row) for all rows of a tensor's images, on as many threads as are worth waking to move `bytes` bytes. */
template<typename Visit>
void for_each_row(distile_context &context, const distile_tensor &tensor, int64_t bytes, const Visit &visit) {
    struct Rows {
        const Visit &visit;
        int64_t count, tasks;

        void run(int64_t task) const {
            const int64_t end = count * (task + 1) / tasks;
            for (int64_t row = count * task / tasks; row < end; row++) {
                visit(row);
            }
        }
    } rows{visit, int64_t{tensor.batch} * tensor.height, 1};
    rows.tasks = num_tasks(context, bytes, rows.count);
    if (rows.tasks == 1) {
        rows.run(0);
    } else {
        context.run_parallel([](void *closure, int32_t task) { static_cast<const Rows *>(closure)->run(task); }, &rows,
                             static_cast<int32_t>(rows.tasks));
    }
}

}  // namespace distile

#endif
