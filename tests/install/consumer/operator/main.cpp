// Adds two channels at one pixel of a 4 x 4 image, and leaves the other pixels alone.
#include <cstdio>
#include <distile/distile.hpp>
#include <my_conv.h>
#include <vector>

int main() {
    constexpr int size = 4, pixels = size * size, in_channels = 2, out_channels = 3, active = 5;
    std::vector<float> input(pixels * in_channels), output(pixels * out_channels, -7);
    const std::vector<float> filter = {1, 1, 1, 0, 0, 1};
    for (int i = 0; i < pixels; i++) {
        input[i * in_channels] = static_cast<float>(i);
        input[i * in_channels + 1] = 100;
    }
    std::vector<unsigned char> bytes(pixels);
    bytes[active] = 1;

    const distile::Context context = distile::make_context();
    const distile::Kernel kernel = distile::make_kernel(context, my_conv);
    distile_weights_source source{};
    source.filter = filter.data();
    source.order = DISTILE_OIHW;
    const distile::Weights weights = distile::pack_weights(context, kernel, source);
    const distile::Mask mask = distile::make_mask(context);
    distile::check(context, distile_mask_set_bytes(mask.get(), bytes.data(), 1, size, size, pixels, size));

    const distile_tensor in = distile_tensor_make(input.data(), 1, size, size, in_channels);
    const distile_tensor out = distile_tensor_make(output.data(), 1, size, size, out_channels);
    distile_run_args args{};
    args.input = &in;
    args.output = &out;
    args.weights = weights.get();
    args.mask = mask.get();
    distile::check(context, distile_run(kernel.get(), &args));

    bool right = true;
    for (int i = 0; i < pixels; i++) {
        const float expected[out_channels] = {static_cast<float>(i) + 100, static_cast<float>(i), 100};
        for (int c = 0; c < out_channels; c++) {
            right = right && output[i * out_channels + c] == (i == active ? expected[c] : -7);
        }
    }
    std::printf("%s\n", right ? "right" : "wrong");
    return right ? 0 : 1;
}
