/** \file
 * Shared by the host and copy_spans.cu.
 */
#ifndef DISTILE_CUDA_KERNELS_COPY_SPANS_H
#define DISTILE_CUDA_KERNELS_COPY_SPANS_H

#include "runtime/cuda/kernels/common.h"

namespace distile {

/** Pixels [first, last) of a row, in the whole tensor: a Span of a group's plan. */
struct DeviceSpan {
    int32_t image, y, first, last;
};

/** A tensor in units of the copy, and where it lies in the whole one. */
struct PlacedPixels {
    void *data;
    int64_t stride_n, stride_h, stride_w;
    int32_t image, y, x;
};

/** Copies spans from one tensor to another, of which one may lie in another GPU's memory, or be a message: a row of
 * pixels, in which they have other places. */
struct SpanCopy {
    PlacedPixels from, to;
    const DeviceSpan *from_spans, *to_spans;  ///< As long as each other, span by span.
    uint32_t count;
    Divisor units;        ///< In a pixel.
    uint32_t contiguous;  ///< 1: the pixels of a row follow each other in both tensors.
};

constexpr uint32_t most_transfers = 16;
/** Copies in one launch, each along z. */
struct SpanCopies {
    SpanCopy copies[most_transfers];
};
static_assert(sizeof(SpanCopies) <= 4096, "more arguments than every driver takes");

constexpr uint32_t units_at_once = 8;  ///< Units that a thread has on the way at once.

}  // namespace distile

#endif
