// Runs the operator at two pixels of a 5 x 4 image, and looks at all of them.
#include <HalideBuffer.h>
#include <cstdio>
#include <pointwise.h>

int main() {
    using Halide::Runtime::Buffer;
    constexpr int width = 5, height = 4, in_channels = 3, out_channels = 4, block = 16;
    Buffer<float> input(in_channels, width, height, 1), weights(block, in_channels, 1, 1, 1);
    Buffer<float> output(out_channels, width, height, 1);
    input.for_each_element(
        [&](int c, int x, int y, int n) { input(c, x, y, n) = static_cast<float>(c + 2 * x + 5 * y); });
    weights.for_each_element([&](int o, int c, int x, int y, int b) {
        weights(o, c, x, y, b) = o < out_channels ? static_cast<float>(o - 2 * c) : 0;
    });
    output.fill(-7);
    Buffer<int32_t> pixels(2, 2);
    pixels(0, 0) = 4, pixels(0, 1) = 3;
    pixels(1, 0) = 1, pixels(1, 1) = 2;
    if (pointwise(input, weights, pixels, 1, output) != 0) {
        return 1;
    }
    bool right = true;
    output.for_each_element([&](int o, int x, int y, int n) {
        float expected = -7;
        if ((x == 4 && y == 3) || (x == 1 && y == 2)) {
            expected = 0;
            for (int c = 0; c < in_channels; c++) {
                expected += weights(o, c, 0, 0, 0) * input(c, x, y, n);
            }
        }
        right = right && output(o, x, y, n) == expected;
    });
    std::printf("%s\n", right ? "right" : "wrong");
    return right ? 0 : 1;
}
