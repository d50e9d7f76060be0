#include "runtime/cpu/transpose.h"
#include "tests/support/catch.h"
#include "tests/support/test_tensor.h"
#include <cstdint>
#include <cstring>
#include <distile/distile.hpp>
#include <distile/layout.h>
#include <random>
#include <vector>

using namespace distile;

TEST_CASE("Tensors go to NCHW and come back", "[layout]") {
    std::mt19937 random(21);
    for (int32_t threads : {1, 3}) {
        distile_context_options options{};
        options.threads = threads;
        const Context context = make_context(options);
        const TensorLayout layouts[] = {{}, {3, 0, 0}, {0, 5, 7}, {2, 9, 30, 1, 2, 1, 2}};
        // The last two have work for more parts than a row has blocks.
        const int32_t shapes[][4] = {{1, 1, 1, 1},    {2, 3, 5, 7},   {1, 16, 16, 16}, {2, 9, 33, 40},
                                     {1, 20, 20, 65}, {3, 2, 100, 3}, {1, 40, 60, 33}, {2, 1, 1, 300},
                                     {1, 4, 4, 4096}, {1, 8, 8, 2560}};
        for (const auto &shape : shapes) {
            const distile_dtype types[] = {DISTILE_FLOAT32, DISTILE_FLOAT16, DISTILE_FLOAT8_E4M3FN};
            const int32_t batch = shape[0], height = shape[1], width = shape[2], channels = shape[3];
            for (const TensorLayout &layout : layouts) {
                for (int32_t gap : {0, 4}) {
                    // Every shape in a type of every size: those of one size are moved alike.
                    const distile_dtype dtype = types[(gap / 4 + threads / 2 * 2) % 3];
                    const auto bytes = static_cast<int64_t>(distile_dtype_size(dtype));
                    CAPTURE(dtype, threads, batch, height, width, channels, layout.pixel_gap, layout.row_gap, gap);
                    TestTensor tensor(batch, height, width, channels, layout, Flush::Back, dtype);
                    tensor.draw(Values::Floats, random);
                    distile_nchw planes = distile_nchw_make(nullptr, channels, height, width);
                    planes.dtype = dtype;
                    if (gap > 0) {
                        planes.stride_h = width + gap;
                        planes.stride_c = planes.stride_h * height + gap;
                        planes.stride_n = planes.stride_c * channels + gap;
                    }
                    constexpr char untouched = 0x5a;
                    std::vector<char> values(static_cast<size_t>(planes.stride_n) * batch * bytes, untouched);
                    planes.data = values.data();
                    REQUIRE(distile_to_nchw(context.get(), &tensor.view(), &planes) == DISTILE_OK);

                    const auto *pixels = static_cast<const char *>(tensor.view().data);
                    std::vector<char> expected(values.size(), untouched);
                    for (int32_t n = 0; n < batch; n++) {
                        for (int32_t y = 0; y < height; y++) {
                            for (int32_t x = 0; x < width; x++) {
                                for (int32_t c = 0; c < channels; c++) {
                                    const int64_t to =
                                        n * planes.stride_n + c * planes.stride_c + y * planes.stride_h + x;
                                    const int64_t from = n * tensor.view().stride_n + y * tensor.view().stride_h +
                                                         x * tensor.view().stride_w + c;
                                    std::memcpy(&expected[to * bytes], pixels + from * bytes, bytes);
                                }
                            }
                        }
                    }
                    CHECK(values == expected);

                    // Back into a view whose gaps and border must keep what they hold.
                    TestTensor back(batch, height, width, channels, layout, Flush::Front, dtype);
                    back.draw(Values::Floats, random);
                    const std::vector<uint32_t> before = back.snapshot();
                    REQUIRE(distile_from_nchw(context.get(), &planes, &back.view()) == DISTILE_OK);
                    ReferenceOutput all;
                    for (int32_t n = 0; n < batch; n++) {
                        for (int32_t y = 0; y < height; y++) {
                            for (int32_t x = 0; x < width; x++) {
                                all.states.push_back(PixelState::Computed);
                                for (int32_t c = 0; c < channels; c++) {
                                    all.values.push_back(tensor.get(n, y, x, c));
                                }
                            }
                        }
                    }
                    CHECK(back.difference(before, all, 0).empty());
                }
            }
        }
    }
}

TEST_CASE("Every level transposes alike", "[layout]") {
    std::mt19937 random(22);
    // Rows and columns, and the gaps behind the rows of either side. Few channels, tails, places that lie a power of
    // two apart, and what takes several panels.
    struct Case {
        int64_t rows, columns, from_gap, to_gap;
    };
    std::vector<Case> cases = {{64, 16, 0, 960},  {16, 130, 894, 0},   {130, 20, 0, 894},  {80, 33, 5, 944},
                               {3, 10000, 7, 0},  {10000, 3, 0, 7},    {300, 1000, 0, 24}, {1000, 300, 24, 0},
                               {1030, 50, 3, 18}, {70, 1024, 0, 1978}, {1, 40, 3, 2},      {40, 1, 3, 2}};
    for (int64_t rows : {1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 48}) {
        for (int64_t columns : {1, 3, 4, 6, 8, 16, 31, 50}) {
            cases.push_back({rows, columns, 0, 0});
            cases.push_back({rows, columns, 50, 51});
        }
    }
    for (const SimdLevel &level : supported_simd_levels()) {
        for (const Case &one : cases) {
            const int64_t from_stride = one.columns + one.from_gap, to_stride = one.rows + one.to_gap;
            CAPTURE(level.name, one.rows, one.columns, from_stride, to_stride);
            // Nothing lies behind the last element, so that sanitizers see what goes beyond.
            const std::vector<float> from = draw(Values::Floats, (one.rows - 1) * from_stride + one.columns, random);
            std::vector<float> to((one.columns - 1) * to_stride + one.rows, 0), expected = to;
            transpose(level, from.data(), from_stride, to.data(), to_stride, one.rows, one.columns);
            for (int64_t r = 0; r < one.rows; r++) {
                for (int64_t c = 0; c < one.columns; c++) {
                    expected[c * to_stride + r] = from[r * from_stride + c];
                }
            }
            CHECK(to == expected);
        }
    }
}

TEST_CASE("A conversion refuses what makes no sense", "[layout]") {
    const Context context = make_context();
    std::vector<float> values(120), others(120);
    const distile_tensor tensor = distile_tensor_make(values.data(), 2, 3, 4, 5);
    const distile_nchw planes = distile_nchw_make(others.data(), 5, 3, 4);
    CHECK(distile_from_nchw(nullptr, &planes, &tensor) == DISTILE_ERROR_NULL_POINTER);
    CHECK(distile_from_nchw(context.get(), nullptr, &tensor) == DISTILE_ERROR_NULL_POINTER);
    CHECK(distile_from_nchw(context.get(), &planes, nullptr) == DISTILE_ERROR_NULL_POINTER);
    CHECK(distile_to_nchw(context.get(), nullptr, &planes) == DISTILE_ERROR_NULL_POINTER);
    distile_nchw bad = planes;
    bad.data = nullptr;
    CHECK(distile_to_nchw(context.get(), &tensor, &bad) == DISTILE_ERROR_NULL_POINTER);
    for (int64_t distile_nchw::*stride : {&distile_nchw::stride_h, &distile_nchw::stride_c, &distile_nchw::stride_n}) {
        bad = planes;
        bad.*stride -= 1;
        CHECK(distile_to_nchw(context.get(), &tensor, &bad) == DISTILE_ERROR_BAD_STRIDE);
    }
    distile_tensor wrong = tensor;
    wrong.channels = 0;
    CHECK(distile_to_nchw(context.get(), &wrong, &planes) == DISTILE_ERROR_BAD_CHANNELS);
    wrong = tensor;
    wrong.height = 0;
    CHECK(distile_to_nchw(context.get(), &wrong, &planes) == DISTILE_ERROR_BAD_SHAPE);
    wrong = tensor;
    wrong.stride_w = 4;
    CHECK(distile_to_nchw(context.get(), &wrong, &planes) == DISTILE_ERROR_BAD_STRIDE);
    bad = planes;
    bad.stride_n = int64_t{1} << 60;
    CHECK(distile_to_nchw(context.get(), &tensor, &bad) == DISTILE_ERROR_BAD_STRIDE);
    bad = planes;
    bad.dtype = DISTILE_BFLOAT16;
    CHECK(distile_to_nchw(context.get(), &tensor, &bad) == DISTILE_ERROR_BAD_TYPE);
    bad = planes;
    bad.data = reinterpret_cast<char *>(others.data()) + 2;
    CHECK(distile_to_nchw(context.get(), &tensor, &bad) == DISTILE_ERROR_BAD_ALIGNMENT);
    // Types of 16 bits need no more.
    distile_tensor narrow = tensor;
    narrow.dtype = bad.dtype = DISTILE_FLOAT16;
    CHECK(distile_to_nchw(context.get(), &narrow, &bad) == DISTILE_OK);
    CHECK(others == std::vector<float>(120));
    // In a buffer for both, 120 elements after the other's first is the nearest that they may be.
    std::vector<float> both(360, 1);
    wrong = tensor;
    wrong.data = both.data() + 120;
    for (int64_t begin : {0, 1, 119, 120, 121, 239, 240}) {
        CAPTURE(begin);
        bad = planes;
        bad.data = both.data() + begin;
        const distile_status due = begin == 0 || begin == 240 ? DISTILE_OK : DISTILE_ERROR_ALIASING;
        CHECK(distile_to_nchw(context.get(), &wrong, &bad) == due);
        CHECK(distile_from_nchw(context.get(), &bad, &wrong) == due);
    }
    CHECK(both == std::vector<float>(360, 1));
}
