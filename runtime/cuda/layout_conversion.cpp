// NCHW from and to NHWC on a GPU.
#include "runtime/base/types.h"
#include "runtime/cuda/cuda_device.h"
#include "runtime/cuda/kernels/layout.h"

namespace distile {

void CudaDevice::convert_layout(const distile_nchw &planes, const distile_tensor &tensor, bool to_planes) {
    const int64_t bytes = element_bytes(tensor.dtype);
    check_pointer(planes.data, bytes, "NCHW tensor");
    check_pointer(tensor.data, bytes, "tensor");
    // Contiguous rows form one row.
    const bool joined = planes.stride_h == tensor.width && tensor.stride_h == tensor.width * tensor.stride_w;
    const auto height = static_cast<uint32_t>(tensor.height), width = static_cast<uint32_t>(tensor.width);
    Conversion conversion{};
    conversion.planes = planes.data;
    conversion.pixels = tensor.data;
    conversion.plane_stride_n = planes.stride_n;
    conversion.plane_stride_c = planes.stride_c;
    conversion.plane_stride_h = planes.stride_h;
    conversion.pixel_stride_n = tensor.stride_n;
    conversion.pixel_stride_h = tensor.stride_h;
    conversion.pixel_stride_w = tensor.stride_w;
    conversion.columns = joined ? height * width : width;
    conversion.channels = static_cast<uint32_t>(tensor.channels);
    const uint32_t rows = joined ? 1 : height;
    // With fewer channels, a tile has more pixels.
    uint32_t tile_channels = 1;
    while (tile_channels < most_tile_channels && tile_channels < conversion.channels) {
        tile_channels *= 2;
        conversion.log_channels++;
    }
    const uint32_t tile_columns = tile_elements / tile_channels;
    const uint32_t column_tiles = (conversion.columns + tile_columns - 1) / tile_columns;
    const uint32_t channel_tiles = (conversion.channels + tile_channels - 1) / tile_channels;
    conversion.column_tiles = make_divisor(column_tiles);
    conversion.channel_tiles = make_divisor(channel_tiles);
    conversion.rows = make_divisor(rows);
    launch(kernels->convert_layout(bytes, to_planes), caller_stream,
           {static_cast<uint32_t>(tensor.batch) * rows * channel_tiles * column_tiles}, conversion);
}

}  // namespace distile
