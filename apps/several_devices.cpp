// An image over several devices: a chain of masked convolutions on a group of contexts, and on one. Usage:
// several_devices [DEVICES]
#include <cstdio>
#include <cstdlib>
#include <distile/distile.hpp>
#include <distile/general.h>
#include <distile/group.h>
#include <memory>
#include <vector>

namespace {

constexpr int32_t size = 192, channels = 32, num_layers = 4;

using AnyShape = std::unique_ptr<const distile_polykernel, decltype(&distile_general_polykernel_destroy)>;

/** Code for any 3x3 convolution; an application may have compiled PolyKernels. */
AnyShape make_code(const distile::Context &context) {
    distile_conv2d conv{};
    conv.in_channels = conv.out_channels = channels;
    conv.groups = conv.stride_h = conv.stride_w = conv.dilation_h = conv.dilation_w = 1;
    conv.kernel_h = conv.kernel_w = 3;
    conv.pad_top = conv.pad_bottom = conv.pad_left = conv.pad_right = 1;
    conv.epilogue = DISTILE_ACTIVATION_RELU;
    const distile_polykernel *made = nullptr;
    distile::check(context, distile_general_polykernel_create(context.get(), DISTILE_MASKED_CONV2D, &conv,
                                                              DISTILE_FLOAT32, DISTILE_FLOAT32, &made));
    return {made, distile_general_polykernel_destroy};
}

void check(const distile::Group &group, distile_status status) {
    if (status != DISTILE_OK) {
        throw distile::Error(status, distile_group_message(group.get()));
    }
}

/** The result of the layers on some devices. */
std::vector<float> run(size_t num_devices) {
    std::vector<distile::Context> contexts;
    std::vector<distile_context *> devices;
    distile_context_options options{};
    options.threads = 1;
    for (size_t i = 0; i < num_devices; i++) {
        contexts.push_back(distile::make_context(options));
        devices.push_back(contexts.back().get());
    }
    const AnyShape code = make_code(contexts[0]);
    std::vector<float> filter(size_t{channels} * channels * 9);
    for (size_t i = 0; i < filter.size(); i++) {
        filter[i] = static_cast<float>(i % 17) / 170 - 0.05F;
    }
    distile_weights_source source{};
    source.filter = filter.data();
    source.order = DISTILE_OIHW;

    distile_group *made_group = nullptr;
    const distile_status status =
        distile_group_create(devices.data(), static_cast<int32_t>(num_devices), nullptr, &made_group);
    const distile::Group group(made_group);
    check(group, status);
    // Every device has a PolyKernel for every layer.
    const std::vector<const distile_polykernel *> codes(num_devices, code.get());
    std::vector<distile_chain_layer> layers(num_layers);
    for (distile_chain_layer &layer : layers) {
        layer.polykernels = codes.data();
        layer.weights = &source;
    }
    distile_chain *made_chain = nullptr;
    check(group, distile_chain_create(group.get(), layers.data(), num_layers, &made_chain));
    const distile::Chain chain(made_chain);

    // A disc of active pixels, the mask of every layer.
    std::vector<uint8_t> bytes(size_t{size} * size);
    for (int32_t y = 0; y < size; y++) {
        for (int32_t x = 0; x < size; x++) {
            const int32_t dy = y - size / 3, dx = x - size / 2;
            bytes[static_cast<size_t>(y) * size + x] = dy * dy + dx * dx < size * size / 9 ? 1 : 0;
        }
    }
    const distile::Mask mask = distile::make_mask(contexts[0]);
    distile::check(contexts[0],
                   distile_mask_set_bytes(mask.get(), bytes.data(), 1, size, size, int64_t{size} * size, size));
    std::vector<float> from(size_t{size} * size * channels), to(from.size());
    for (size_t i = 0; i < from.size(); i++) {
        from[i] = static_cast<float>(i % 13) / 13 - 0.5F;
    }
    const distile_tensor input = distile_tensor_make(from.data(), 1, size, size, channels),
                         output = distile_tensor_make(to.data(), 1, size, size, channels);
    const std::vector<distile_mask *> masks(num_layers, mask.get());
    distile_chain_args args{};
    args.input = &input;
    args.output = &output;
    args.masks = masks.data();
    check(group, distile_chain_run(chain.get(), &args));

    distile_chain_info info{};
    check(group, distile_chain_get_info(chain.get(), &info));
    std::printf(
        "%d devices: %lld pixels, the slowest %.1f %% above the mean, %lld bytes exchanged (bands of rows: %lld)\n",
        info.devices, static_cast<long long>(info.pixels), 100 * info.imbalance,
        static_cast<long long>(info.halo_bytes), static_cast<long long>(info.row_bytes));
    return to;
}

}  // namespace

int main(int argc, char **argv) {
    const long asked = argc > 1 ? std::strtol(argv[1], nullptr, 10) : 4;
    try {
        const std::vector<float> one = run(1), several = run(static_cast<size_t>(asked < 1 ? 1 : asked));
        std::printf("The results are %s.\n", one == several ? "equal" : "NOT equal");
        return one == several ? 0 : 1;
    } catch (const std::exception &error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
}
