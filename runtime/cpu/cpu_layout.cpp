#include "runtime/base/types.h"
#include "runtime/cpu/cpu_device.h"
#include "runtime/cpu/transpose.h"
#include <algorithm>

namespace distile {

namespace {

/** A conversion, split into parts of pixel rows. */
struct Conversion {
    distile_nchw planes;
    distile_tensor tensor;
    bool to_planes;
    /** The rows of an image, joined into one if both tensors allow it. */
    int64_t rows, columns;
    int64_t parts_per_row;
    int64_t num_tasks;

    /** The number of blocks per row. */
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
        const int64_t bytes = element_bytes(tensor.dtype);
        char *plane = static_cast<char *>(planes.data) + (n * planes.stride_n + row * planes.stride_h + begin) * bytes;
        char *pixel = static_cast<char *>(tensor.data) +
                      (n * tensor.stride_n + row * tensor.stride_h + begin * tensor.stride_w) * bytes;
        if (to_planes) {
            transpose_elements(pixel, tensor.stride_w, plane, planes.stride_c, end - begin, tensor.channels, bytes);
        } else {
            transpose_elements(plane, planes.stride_c, pixel, tensor.stride_w, tensor.channels, end - begin, bytes);
        }
    }
};

}  // namespace

void CpuDevice::convert_layout(const distile_nchw &planes, const distile_tensor &tensor, bool to_planes) {
    const int64_t height = tensor.height, width = tensor.width, channels = tensor.channels;
    const bool joined = planes.stride_h == width && tensor.stride_h == width * tensor.stride_w;
    Conversion conversion{planes, tensor, to_planes, joined ? 1 : height, joined ? height * width : width, 1, 1};
    // A few tasks per thread balance the load when other processes take time.
    const int64_t most_tasks = int64_t{4} * context.options.threads;
    // Below this many elements a second thread costs more than it saves.
    constexpr int64_t elements_per_task = 1 << 15;
    const int64_t row_elements = conversion.columns * channels;
    const int64_t most_parts = std::min(conversion.num_blocks(), most_tasks);
    conversion.parts_per_row = std::clamp<int64_t>(row_elements / elements_per_task, 1, most_parts);
    const int64_t wanted = row_elements * conversion.rows * tensor.batch / elements_per_task;
    conversion.num_tasks = std::clamp<int64_t>(wanted, 1, std::min(conversion.num_parts(), most_tasks));
    context.run_parallel([](void *closure, int32_t task) { static_cast<const Conversion *>(closure)->run(task); },
                         &conversion, static_cast<int32_t>(conversion.num_tasks));
}

}  // namespace distile
