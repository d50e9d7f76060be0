// Copies spans of pixels between tensors, some of which may lie in other GPUs' memory or be messages.
#include "runtime/cuda/kernels/copy_spans.h"
#include "runtime/cuda/kernels/device.cuh"

using namespace distile;

namespace {

constexpr uint32_t warp_threads = 32;

template<typename Unit> __device__ Unit *find(const PlacedPixels &pixels, const DeviceSpan &span) {
    return static_cast<Unit *>(pixels.data) + (span.image - pixels.image) * pixels.stride_n +
           (span.y - pixels.y) * pixels.stride_h + (span.first - pixels.x) * pixels.stride_w;
}

/** A warp copies a chunk of a span at a time; the chunks of a span are blocks along y. Loads from another GPU take
 * long, so a thread issues several before it stores. */
template<typename Unit> __device__ void copy_spans(const SpanCopy &copy) {
    const uint32_t number = (blockIdx.x * block_threads + threadIdx.x) / warp_threads;
    if (number >= copy.count) {
        return;
    }
    const uint32_t lane = threadIdx.x % warp_threads;
    const DeviceSpan span = copy.from_spans[number];
    const Unit *const from = find<const Unit>(copy.from, span);
    Unit *const to = find<Unit>(copy.to, copy.to_spans[number]);
    const uint32_t units = static_cast<uint32_t>(span.last - span.first) * copy.units.value;
    const auto place = [&](uint32_t unit, const PlacedPixels &pixels) -> int64_t {
        if (copy.contiguous != 0) {
            return unit;
        }
        const uint32_t pixel = divide(unit, copy.units);
        return pixel * pixels.stride_w + (unit - pixel * copy.units.value);
    };
    constexpr uint32_t chunk = warp_threads * units_at_once;
    for (uint32_t first = blockIdx.y * chunk; first < units; first += gridDim.y * chunk) {
        Unit values[units_at_once];
#pragma unroll
        for (uint32_t i = 0; i < units_at_once; i++) {
            const uint32_t unit = first + i * warp_threads + lane;
            if (unit < units) {
                values[i] = from[place(unit, copy.from)];
            }
        }
#pragma unroll
        for (uint32_t i = 0; i < units_at_once; i++) {
            const uint32_t unit = first + i * warp_threads + lane;
            if (unit < units) {
                to[place(unit, copy.to)] = values[i];
            }
        }
    }
}

}  // namespace

#define DISTILE_COPY_SPANS(name, Unit)                                                                                 \
    extern "C" __global__ void __launch_bounds__(block_threads) name(const __grid_constant__ SpanCopies copies) {      \
        copy_spans<Unit>(copies.copies[blockIdx.z]);                                                                   \
    }

DISTILE_COPY_SPANS(distile_copy_spans_1, uint8_t)
DISTILE_COPY_SPANS(distile_copy_spans_2, uint16_t)
DISTILE_COPY_SPANS(distile_copy_spans_4, uint32_t)
DISTILE_COPY_SPANS(distile_copy_spans_16, uint4)
