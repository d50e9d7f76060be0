// Tensors on a GPU without an operator: nearest upsampling with a mask, and NCHW from and to NHWC.
#include "tests/gpu/gpu_session.h"
#include "tests/support/catch.h"
#include "tests/support/conv2d_cases.h"
#include <algorithm>
#include <distile/layout.h>
#include <distile/upsample.h>
#include <random>

using namespace distile;

namespace {

/** Bytes of a type that are all different for a while. */
std::vector<unsigned char> count_up(size_t elements, distile_dtype dtype) {
    std::vector<unsigned char> bytes(elements * distile_dtype_size(dtype));
    for (size_t i = 0; i < bytes.size(); i++) {
        bytes[i] = static_cast<unsigned char>(i * 167 + i / 251);
    }
    return bytes;
}

/** A tensor and its strides; without gaps, with gaps of whole vectors, and with odd ones. */
distile_tensor spread_tensor(void *data, distile_dtype dtype, int32_t batch, int32_t height, int32_t width,
                             int32_t channels, int32_t gap) {
    distile_tensor tensor = distile_tensor_make(data, batch, height, width, channels);
    tensor.dtype = dtype;
    tensor.stride_w = channels + gap;
    tensor.stride_h = width * tensor.stride_w + 2 * gap;
    tensor.stride_n = height * tensor.stride_h + 3 * gap;
    return tensor;
}

size_t elements_with_gaps(const distile_tensor &tensor) {
    return static_cast<size_t>(tensor.batch * tensor.stride_n);
}

int64_t element_at(const distile_tensor &tensor, int64_t n, int64_t y, int64_t x, int64_t c) {
    return n * tensor.stride_n + y * tensor.stride_h + x * tensor.stride_w + c;
}

}  // namespace

TEST_CASE("Nearest upsampling on a GPU copies and zeroes what is due, and nothing else", "[gpu_tensors]") {
    const Gpu gpu;
    if (!gpu) {
        return;
    }
    std::mt19937 random(6);
    const Mask mask = gpu.make_mask();
    const int32_t sizes[][3] = {{1, 1, 1}, {2, 7, 9}, {3, 5, 33}, {1, 40, 17}};
    const int32_t scales[][2] = {{1, 1}, {2, 2}, {3, 1}, {1, 4}, {5, 3}};
    int cases = 0;
    for (distile_dtype dtype : float_types) {
        const auto bytes = static_cast<int64_t>(distile_dtype_size(dtype));
        for (int32_t channels : {1, 2, 3, 8, 13, 48, 64, 264}) {
            for (const auto &[batch, height, width] : sizes) {
                for (const auto &[scale_h, scale_w] : scales) {
                    // In turns, and every way of gaps with every number of channels.
                    const int32_t in_gap = cases % 3 == 0 ? 0 : cases % 3 == 1 ? 8 : 3;
                    const int32_t out_gap = cases / 3 % 3 == 0 ? 0 : cases / 3 % 3 == 1 ? 16 : 1;
                    const distile_inactive inactive = cases % 2 == 0 ? DISTILE_ZERO : DISTILE_KEEP;
                    const char *name = mask_names[cases++ % std::size(mask_names)];
                    CAPTURE(dtype, channels, batch, height, width, scale_h, scale_w, in_gap, out_gap, inactive, name);
                    const int32_t out_height = height * scale_h, out_width = width * scale_w;
                    distile_tensor input = spread_tensor(nullptr, dtype, batch, height, width, channels, in_gap);
                    distile_tensor output =
                        spread_tensor(nullptr, dtype, batch, out_height, out_width, channels, out_gap);
                    const std::vector<unsigned char> in_bytes = count_up(elements_with_gaps(input), dtype);
                    std::vector<unsigned char> due(elements_with_gaps(output) * bytes, 0xee);
                    const DeviceArray<unsigned char> in_memory(in_bytes), out_memory(due);
                    input.data = in_memory.data();
                    output.data = out_memory.data();
                    const std::vector<uint8_t> active = make_mask(name, batch, out_height, out_width, random);
                    const DeviceArray<uint8_t> mask_memory(active);
                    gpu.check(distile_mask_set_bytes(mask.get(), mask_memory.data(), batch, out_height, out_width,
                                                     int64_t{out_height} * out_width, out_width));
                    distile_upsample_args args{};
                    args.input = &input;
                    args.output = &output;
                    args.mask = mask.get();
                    args.scale_h = scale_h;
                    args.scale_w = scale_w;
                    args.inactive = inactive;
                    gpu.check(distile_upsample_nearest(gpu.context.get(), &args));
                    size_t pixel = 0;
                    for (int64_t n = 0; n < batch; n++) {
                        for (int64_t y = 0; y < out_height; y++) {
                            for (int64_t x = 0; x < out_width; x++, pixel++) {
                                const int64_t from = element_at(input, n, y / scale_h, x / scale_w, 0) * bytes;
                                const int64_t to = element_at(output, n, y, x, 0) * bytes;
                                if (active[pixel] != 0) {
                                    std::copy_n(in_bytes.begin() + from, channels * bytes, due.begin() + to);
                                } else if (inactive == DISTILE_ZERO) {
                                    std::fill_n(due.begin() + to, channels * bytes, 0);
                                }
                            }
                        }
                    }
                    REQUIRE((out_memory.get() == due));
                    REQUIRE((in_memory.get() == in_bytes));
                }
            }
        }
    }
}

TEST_CASE("Layouts are converted on a GPU, and nothing beside the pixels is touched", "[gpu_tensors]") {
    const Gpu gpu;
    if (!gpu) {
        return;
    }
    const int32_t sizes[][3] = {{1, 1, 1}, {2, 7, 9}, {3, 5, 33}, {1, 40, 130}, {3000, 1, 2}};
    int cases = 0;
    for (distile_dtype dtype : float_types) {
        const auto bytes = static_cast<int64_t>(distile_dtype_size(dtype));
        for (int32_t channels : {1, 2, 3, 5, 16, 31, 32, 33, 100, 256}) {
            for (const auto &[batch, height, width] : sizes) {
                for (const bool to_planes : {false, true}) {
                    const int32_t gap = cases % 3 == 0 ? 0 : cases % 3 == 1 ? 4 : 3;
                    const int64_t row_gap = cases / 3 % 2 == 0 ? 0 : 5;
                    cases++;
                    CAPTURE(dtype, channels, batch, height, width, to_planes, gap, row_gap);
                    distile_tensor tensor = spread_tensor(nullptr, dtype, batch, height, width, channels, gap);
                    distile_nchw planes = distile_nchw_make(nullptr, channels, height, width);
                    planes.dtype = dtype;
                    planes.stride_h += row_gap;
                    planes.stride_c = planes.stride_h * height + row_gap;
                    planes.stride_n = planes.stride_c * channels + row_gap;
                    std::vector<unsigned char> pixel_bytes = count_up(elements_with_gaps(tensor), dtype);
                    std::vector<unsigned char> plane_bytes(batch * planes.stride_n * bytes, 0xee);
                    if (!to_planes) {
                        plane_bytes = count_up(plane_bytes.size() / bytes, dtype);
                        std::fill(pixel_bytes.begin(), pixel_bytes.end(), 0xee);
                    }
                    const DeviceArray<unsigned char> pixel_memory(pixel_bytes), plane_memory(plane_bytes);
                    tensor.data = pixel_memory.data();
                    planes.data = plane_memory.data();
                    gpu.check(to_planes ? distile_to_nchw(gpu.context.get(), &tensor, &planes)
                                        : distile_from_nchw(gpu.context.get(), &planes, &tensor));
                    for (int64_t n = 0; n < batch; n++) {
                        for (int64_t c = 0; c < channels; c++) {
                            for (int64_t y = 0; y < height; y++) {
                                for (int64_t x = 0; x < width; x++) {
                                    const auto pixel = pixel_bytes.begin() + element_at(tensor, n, y, x, c) * bytes;
                                    const auto plane =
                                        plane_bytes.begin() +
                                        (n * planes.stride_n + c * planes.stride_c + y * planes.stride_h + x) * bytes;
                                    std::copy_n(to_planes ? pixel : plane, bytes, to_planes ? plane : pixel);
                                }
                            }
                        }
                    }
                    REQUIRE((pixel_memory.get() == pixel_bytes));
                    REQUIRE((plane_memory.get() == plane_bytes));
                }
            }
        }
    }
}

TEST_CASE("Upsampling and layouts run in a graph", "[gpu_tensors]") {
    const Gpu gpu;
    if (!gpu) {
        return;
    }
    const StreamInUse stream(gpu);
    constexpr int32_t size = 12, channels = 20;
    const Mask mask = gpu.make_mask();
    DeviceArray<float> planes_memory(size * size * channels), pixels(size * size * channels),
        large(4 * size * size * channels);
    DeviceArray<uint8_t> bytes(std::vector<uint8_t>(4 * size * size, 1));
    const distile_nchw planes = distile_nchw_make(planes_memory.data(), channels, size, size);
    const distile_tensor tensor = distile_tensor_make(pixels.data(), 1, size, size, channels);
    const distile_tensor output = distile_tensor_make(large.data(), 1, 2 * size, 2 * size, channels);
    distile_upsample_args args{};
    args.input = &tensor;
    args.output = &output;
    args.mask = mask.get();
    args.scale_h = args.scale_w = 2;
    args.inactive = DISTILE_ZERO;
    const auto record = [&] {
        gpu.check(distile_mask_set_bytes(mask.get(), bytes.data(), 1, 2 * size, 2 * size, 4 * size * size, 2 * size));
        gpu.check(distile_from_nchw(gpu.context.get(), &planes, &tensor));
        gpu.check(distile_upsample_nearest(gpu.context.get(), &args));
    };
    record();
    const Graph graph(stream.get(), record);
    std::mt19937 random(7);
    for (int round = 0; round < 3; round++) {
        std::vector<float> values(size * size * channels);
        std::generate(values.begin(), values.end(), [&] { return static_cast<float>(random() % 1000); });
        planes_memory.set(values);
        const std::vector<uint8_t> active = make_mask("blob", 1, 2 * size, 2 * size, random);
        bytes.set(active);
        graph.launch();
        std::vector<float> due(4 * size * size * channels);
        for (int32_t y = 0; y < 2 * size; y++) {
            for (int32_t x = 0; x < 2 * size; x++) {
                for (int32_t c = 0; c < channels; c++) {
                    due[(y * 2 * size + x) * channels + c] =
                        active[y * 2 * size + x] != 0 ? values[(c * size + y / 2) * size + x / 2] : 0;
                }
            }
        }
        CHECK((large.get() == due));
    }
}
