/** \file
 * The arguments of Halide's code.
 */
#ifndef DISTILE_HALIDE_BUFFERS_H
#define DISTILE_HALIDE_BUFFERS_H

#include "facts/type_functions.h"
#include "kernels/call.h"
#include <HalideRuntime.h>
#include <distile/polykernel.h>

namespace distile {

/** What generated code holds an element as (generators/storage_type.h). */
inline halide_type_t type_of(distile_dtype dtype) {
    return dtype == DISTILE_FLOAT32 ? halide_type_t(halide_type_float, 32)
                                    : halide_type_t(halide_type_uint, static_cast<uint8_t>(8 * element_bytes(dtype)));
}

/** A buffer; on a GPU its memory is on the device. */
struct Buffer {
    void set(const void *data, bool on_gpu, halide_type_t type, int dimensions) {
        buffer = halide_buffer_t{};
        buffer.host = on_gpu ? nullptr : static_cast<uint8_t *>(const_cast<void *>(data));
        buffer.device = on_gpu ? reinterpret_cast<uint64_t>(data) : 0;
        buffer.type = type;
        buffer.dimensions = dimensions;
        buffer.dim = dim;
    }
    void set_words(const void *data, bool on_gpu, int dimensions) {
        set(data, on_gpu, halide_type_t(halide_type_uint, 32), dimensions);
    }
    void set_operand(const distile_array &array, bool on_gpu) {
        set(array.data, on_gpu, type_of(array.dtype), array.dimensions);
        for (int i = 0; i < array.dimensions; i++) {
            dim[i] = halide_dimension_t(array.dim[i].min, array.dim[i].extent, array.dim[i].stride);
        }
    }

    halide_dimension_t dim[5];
    halide_buffer_t buffer;
};

}  // namespace distile

#endif
