// A masked operator as a plain Halide library, scheduled by the plugin with no plan: one tile of 2 x 2 on a 5 x 5
// image, which reaches beyond its edge.
#include <HalideBuffer.h>
#include <cstdio>
#include <untuned.h>

int main() {
    using Halide::Runtime::Buffer;
    constexpr int size = 5, in_channels = 3, out_channels = 4, block = 16;
    Buffer<float> input(in_channels, size, size, 1), weights(block, in_channels, 3, 3, 1), bias(block);
    Buffer<float> output(out_channels, size, size, 1);
    input.for_each_element(
        [&](int c, int x, int y, int n) { input(c, x, y, n) = static_cast<float>(c + 2 * x + 5 * y); });
    weights.for_each_element([&](int o, int c, int x, int y, int b) {
        weights(o, c, x, y, b) = o < out_channels ? static_cast<float>(o - c + x * y) : 0;
    });
    bias.for_each_element([&](int o) { bias(o) = o < out_channels ? static_cast<float>(o) : 0; });
    output.fill(-7);

    // The tile at (4, 2), of which the pixels (4, 2) and (4, 3) exist, and only the latter is active.
    Buffer<uint32_t> tiles(1, 2), bits(1, size, 1);
    tiles(0, 0) = 4 | 2 << 16;
    tiles(0, 1) = 0;
    bits.fill(0);
    bits(0, 3, 0) = 1 << 4;
    if (untuned(input, weights, bias, tiles, bits, 0, 1, 2, false, output) != 0) {
        return 1;
    }
    bool right = true;
    output.for_each_element([&](int o, int x, int y, int) {
        float expected = -7;
        if (x == 4 && y == 3) {
            expected = bias(o);
            for (int dy = 0; dy < 3; dy++) {
                for (int dx = 0; dx < 3; dx++) {
                    for (int c = 0; c < in_channels; c++) {
                        const int from_x = x + dx - 1, from_y = y + dy - 1;
                        const bool inside = from_x < size && from_y < size;
                        expected += inside ? weights(o, c, dx, dy, 0) * input(c, from_x, from_y, 0) : 0;
                    }
                }
            }
        }
        right = right && output(o, x, y, 0) == expected;
    });
    std::printf("%s\n", right ? "right" : "wrong");
    return right ? 0 : 1;
}
