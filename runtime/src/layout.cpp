#include "context.h"
#include "tensor.h"
#include "tensor_buffer.h"
#include "transpose.h"
#include <algorithm>
#include <distile/layout.h>

using namespace distile;

namespace {

/** A conversion, cut into parts of a row of pixels. */
struct Conversion {
    distile_nchw planes;
    distile_tensor tensor;
    bool to_planes;
    /** Rows of an image, joined to one where both tensors allow it. */
    int64_t rows, columns;
    int64_t parts_per_row;
    int64_t num_tasks;
    const TransposeLevel &level;

    /** What a row can be cut into. */
    int64_t num_blocks() const {
        return (columns + transpose_block - 1) / transpose_block;
    }
    int64_t num_parts() const {
        return tensor.batch * rows * parts_per_row;
    }

    void run(int64_t task) const {
        const int64_t end = num_parts() * (task + 1) / num_tasks;
        for (int64_t part = num_parts() * task / num_tasks; part < end; part++) {
            convert_part(part % parts_per_row, part / parts_per_row % rows, part / parts_per_row / rows);
        }
    }

private:
    void convert_part(int64_t part, int64_t row, int64_t n) const {
        const int64_t begin = num_blocks() * part / parts_per_row * transpose_block;
        const int64_t end = std::min(num_blocks() * (part + 1) / parts_per_row * transpose_block, columns);
        float *plane = planes.data + n * planes.stride_n + row * planes.stride_h + begin;
        float *pixel =
            static_cast<float *>(tensor.data) + n * tensor.stride_n + row * tensor.stride_h + begin * tensor.stride_w;
        if (to_planes) {
            transpose(level, pixel, tensor.stride_w, plane, planes.stride_c, end - begin, tensor.channels);
        } else {
            transpose(level, plane, planes.stride_c, pixel, tensor.stride_w, tensor.channels, end - begin);
        }
    }
};

distile_status convert(const char *call, distile_context *context, const distile_nchw *planes,
                       const distile_tensor *tensor, bool to_planes) {
    if (!context) {
        return DISTILE_ERROR_NULL_POINTER;
    }
    if (!planes || !planes->data) {
        return fail(context, DISTILE_ERROR_NULL_POINTER, "%s: the NCHW tensor or its data is null", call);
    }
    if (!tensor) {
        return fail(context, DISTILE_ERROR_NULL_POINTER, "%s: the tensor is null", call);
    }
    if (tensor->channels < 1) {
        return fail(context, DISTILE_ERROR_BAD_CHANNELS, "%s: the tensor has %d channels", call, tensor->channels);
    }
    const distile_status status =
        check_tensor(context, DISTILE_FLOAT32, call, tensor, "tensor", tensor->channels, false);
    if (status != DISTILE_OK) {
        return status;
    }
    const int64_t height = tensor->height, width = tensor->width, channels = tensor->channels;
    // By division, because products of strides may be too large.
    if (planes->stride_h < width || planes->stride_c < width ||
        (planes->stride_c - width) / planes->stride_h < height - 1 ||
        (tensor->batch > 1 && planes->stride_n / planes->stride_c < channels)) {
        return fail(context, DISTILE_ERROR_BAD_STRIDE,
                    "%s: the NCHW tensor has strides n %lld, c %lld, h %lld: each must be at least what it spans", call,
                    static_cast<long long>(planes->stride_n), static_cast<long long>(planes->stride_c),
                    static_cast<long long>(planes->stride_h));
    }
    const int64_t images = tensor->batch;
    // No memory is larger, and what follows cannot overflow.
    constexpr int64_t most_elements = int64_t{1} << 60;
    if (planes->stride_c > most_elements / channels || (images > 1 && planes->stride_n > most_elements / images)) {
        return fail(context, DISTILE_ERROR_BAD_STRIDE,
                    "%s: the NCHW tensor has strides n %lld, c %lld: no memory holds what they span", call,
                    static_cast<long long>(planes->stride_n), static_cast<long long>(planes->stride_c));
    }
    const int64_t span = (images > 1 ? (images - 1) * planes->stride_n : 0) + (channels - 1) * planes->stride_c +
                         (height - 1) * planes->stride_h + width;
    if (overlap(without_border(*tensor), planes->data, static_cast<uintptr_t>(span) * sizeof(float))) {
        return fail(context, DISTILE_ERROR_ALIASING, "%s: the tensors overlap", call);
    }
    return guarded(context, [&] {
        const bool joined = planes->stride_h == width && tensor->stride_h == width * tensor->stride_w;
        Conversion conversion{*planes,
                              *tensor,
                              to_planes,
                              joined ? 1 : height,
                              joined ? height * width : width,
                              1,
                              1,
                              supported_transpose_levels().best()};
        // A few for each thread even out what others take of its time.
        const int64_t most_tasks = int64_t{4} * context->options.threads;
        // Below this many elements a second thread costs more than it saves.
        constexpr int64_t elements_per_task = 1 << 15;
        const int64_t row_elements = conversion.columns * channels;
        const int64_t most_parts = std::min(conversion.num_blocks(), most_tasks);
        conversion.parts_per_row = std::clamp<int64_t>(row_elements / elements_per_task, 1, most_parts);
        const int64_t wanted = row_elements * conversion.rows * tensor->batch / elements_per_task;
        conversion.num_tasks = std::clamp<int64_t>(wanted, 1, std::min(conversion.num_parts(), most_tasks));
        context->run_parallel([](void *closure, int32_t task) { static_cast<const Conversion *>(closure)->run(task); },
                              &conversion, static_cast<int32_t>(conversion.num_tasks));
        return DISTILE_OK;
    });
}

}  // namespace

extern "C" {

distile_nchw distile_nchw_make(float *data, int32_t channels, int32_t height, int32_t width) {
    // Of extents that no tensor has the product may be too large; the calls refuse them.
    const int64_t plane = int64_t{height} * width;
    return {data, static_cast<int64_t>(static_cast<uint64_t>(plane) * static_cast<uint64_t>(channels)), plane, width};
}

distile_status distile_from_nchw(distile_context *context, const distile_nchw *from, const distile_tensor *to) {
    return convert("distile_from_nchw", context, from, to, false);
}

distile_status distile_to_nchw(distile_context *context, const distile_tensor *from, const distile_nchw *to) {
    return convert("distile_to_nchw", context, to, from, true);
}

}  // extern "C"
