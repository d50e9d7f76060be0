/** \file
 * The channels of pixels as float32, in memory of a task unless they are stored so.
 */
#ifndef DISTILE_FLOAT_ROWS_H
#define DISTILE_FLOAT_ROWS_H

#include "runtime/cpu/cpu_device.h"
#include "runtime/cpu/pixel_runs.h"
#include "runtime/cpu/to_float32.h"

namespace distile {

/** Some rows of channels for each task. Allocated before the tasks start, because they must not throw. */
class FloatRows {
public:
    FloatRows(CpuDevice &device, int32_t channels, int64_t tasks, int64_t rows_of_task)
        // Whole cache lines.
        : stride_((int64_t{channels} + 15) / 16 * 16), rows_of_task_(rows_of_task),
          memory_(device.take_scratch(static_cast<size_t>(tasks * rows_of_task * stride_) * sizeof(float))) {
    }
    float *row(int64_t task, int64_t number) const {
        return static_cast<float *>(memory_.get()) + (task * rows_of_task_ + number) * stride_;
    }

private:
    int64_t stride_, rows_of_task_;
    ScratchMemory memory_;
};

/** A pixel's channels: in place if they are float32, else converted into `memory`. */
inline const float *floats_at(const SimdLevel &level, const PixelRow &row, int64_t x, float *memory) {
    if (row.dtype == DISTILE_FLOAT32) {
        return reinterpret_cast<const float *>(row.at(x));
    }
    to_float32(level, row.dtype, row.at(x), memory, row.channels);
    return memory;
}

/** Where to compute a pixel's channels: in place if they are float32, else in `memory`, for store_floats(). */
inline float *result_at(const PixelRow &row, int64_t x, float *memory) {
    return row.dtype == DISTILE_FLOAT32 ? reinterpret_cast<float *>(row.at(x)) : memory;
}
inline void store_floats(const SimdLevel &level, const float *values, const PixelRow &row, int64_t x) {
    if (row.dtype != DISTILE_FLOAT32) {
        from_float32(level, row.dtype, values, row.at(x), row.channels);
    }
}

}  // namespace distile

#endif
