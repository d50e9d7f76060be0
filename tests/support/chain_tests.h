/** \file
 * Chains of layers in float32 on CPUs, with what one device computes of them.
 */
#ifndef DISTILE_TESTS_CHAIN_TESTS_H
#define DISTILE_TESTS_CHAIN_TESTS_H

#include "tests/support/catch.h"
#include <array>
#include <cstring>
#include <distile/distile.hpp>
#include <distile/general.h>
#include <distile/group.h>
#include <distile/polykernel.h>
#include <memory>
#include <random>
#include <string>
#include <vector>

namespace distile {

inline Context one_thread(distile_context_options options = {}) {
    options.threads = options.threads == 0 ? 1 : options.threads;
    return make_context(options);
}

inline void check_group(const distile_group *group, distile_status status) {
    INFO(distile_group_message(group));
    REQUIRE(std::string(distile_status_name(status)) == "DISTILE_OK");
}

/** A PolyKernel for any shape. */
using AnyShape = std::unique_ptr<const distile_polykernel, decltype(&distile_general_polykernel_destroy)>;

struct LayerShape {
    int32_t out_channels, kernel, stride, dilation, padding;
    bool residual;  ///< Adds the chain's input.
};

/** Chains whose first layer reads three channels: a residual, a dilation, strides, paddings of none and two, and a
 * single layer. */
inline std::vector<std::vector<LayerShape>> chains_of_all_shapes() {
    return {
        {{5, 3, 1, 1, 1, false}, {17, 1, 1, 1, 0, false}, {6, 5, 1, 1, 2, false}, {3, 3, 1, 1, 1, true}},
        {{4, 3, 1, 2, 2, false}, {4, 3, 1, 1, 1, false}, {4, 3, 1, 1, 1, false}},
        {{6, 3, 2, 1, 1, false}, {6, 3, 1, 1, 1, false}, {5, 3, 2, 1, 1, false}, {4, 3, 1, 1, 1, false}},
        {{3, 3, 1, 1, 0, false}, {4, 1, 1, 1, 2, false}, {3, 3, 1, 1, 1, false}},
        {{8, 3, 1, 1, 1, false}},
    };
}

/** Layers with weights, and what they compute on one device. */
struct TestLayers {
    /** Code for any shape. */
    TestLayers(int32_t in_channels, const std::vector<LayerShape> &shapes, uint32_t seed) : random(seed) {
        int32_t channels = in_channels;
        for (const LayerShape &shape : shapes) {
            distile_conv2d conv{};
            conv.in_channels = channels;
            conv.out_channels = shape.out_channels;
            conv.groups = 1;
            conv.kernel_h = conv.kernel_w = shape.kernel;
            conv.stride_h = conv.stride_w = shape.stride;
            conv.dilation_h = conv.dilation_w = shape.dilation;
            conv.pad_top = conv.pad_left = conv.pad_bottom = conv.pad_right = shape.padding;
            conv.epilogue = DISTILE_ACTIVATION_RELU;
            conv.residual = shape.residual ? 1 : 0;
            const distile_polykernel *made = nullptr;
            check(context, distile_general_polykernel_create(context.get(), DISTILE_MASKED_CONV2D, &conv,
                                                             DISTILE_FLOAT32, DISTILE_FLOAT32, &made));
            general.emplace_back(made, distile_general_polykernel_destroy);
            add(*made, conv);
            channels = shape.out_channels;
        }
    }
    explicit TestLayers(const std::vector<const distile_polykernel *> &given) : random(3) {
        for (const distile_polykernel *polykernel : given) {
            add(*polykernel, *static_cast<const distile_conv2d *>(polykernel->op));
        }
    }

    void add(const distile_polykernel &polykernel, const distile_conv2d &conv) {
        polykernels.push_back(&polykernel);
        convs.push_back(conv);
        filters.emplace_back(static_cast<size_t>(conv.out_channels) * conv.in_channels * conv.kernel_h * conv.kernel_w);
        for (float &value : filters.back()) {
            value = draw();
        }
        distile_weights_source source{};
        source.filter = filters.back().data();
        source.order = DISTILE_OIHW;
        sources.push_back(source);
    }
    float draw() {
        return std::uniform_real_distribution<float>(-1, 1)(random);
    }

    Chain chain(const Group &group, size_t devices) {
        Chain made;
        check_group(group.get(), make_chain(group, devices, made));
        return made;
    }
    distile_status make_chain(const Group &group, size_t devices, Chain &chain) {
        std::vector<distile_chain_layer> layers(polykernels.size());
        std::vector<std::vector<const distile_polykernel *>> copies;
        for (const distile_polykernel *polykernel : polykernels) {
            copies.emplace_back(devices, polykernel);
        }
        for (size_t i = 0; i < layers.size(); i++) {
            layers[i].polykernels = copies[i].data();
            layers[i].weights = &sources[i];
        }
        distile_chain *made = nullptr;
        const distile_status status =
            distile_chain_create(group.get(), layers.data(), static_cast<int32_t>(layers.size()), &made);
        chain.reset(made);
        return status;
    }

    std::mt19937 random;
    Context context = one_thread();
    std::vector<AnyShape> general;
    std::vector<const distile_polykernel *> polykernels;
    std::vector<distile_conv2d> convs;
    std::vector<std::vector<float>> filters;
    std::vector<distile_weights_source> sources;
};

/** An image, masks for each layer's output, and the result of one device. */
struct TestImages {
    TestImages(TestLayers &of, const Context &in, int32_t batch, int32_t height, int32_t width)
        : layers(of), context(in), shape{batch, height, width} {
        input.resize(static_cast<size_t>(batch) * height * width * layers.convs[0].in_channels);
        for (float &value : input) {
            value = layers.draw();
        }
        int32_t rows = height, columns = width;
        for (size_t i = 0; i < layers.convs.size(); i++) {
            kernels.push_back(make_kernel(context, *layers.polykernels[i]));
            weights.push_back(pack_weights(context, kernels[i], layers.sources[i]));
            check(context, distile_kernel_output_shape(kernels[i].get(), rows, columns, &rows, &columns));
            masks.push_back(make_mask(context));
            sizes.push_back({batch, rows, columns});
        }
        before.resize(static_cast<size_t>(batch) * rows * columns * layers.convs.back().out_channels);
        for (float &value : before) {
            value = layers.draw();
        }
    }

    /** Sets all masks: random pixels, each image with another density, or one rectangle. */
    void draw_masks(double density, bool rectangle) {
        for (size_t i = 0; i < masks.size(); i++) {
            const auto &[batch, rows, columns] = sizes[i];
            std::vector<uint8_t> bytes(static_cast<size_t>(batch) * rows * columns);
            for (int32_t n = 0; n < batch; n++) {
                const double part = density >= 1 ? 1 : density / (n + 1);
                for (int32_t y = 0; y < rows; y++) {
                    for (int32_t x = 0; x < columns; x++) {
                        const bool inside = y * 3 >= rows && y * 3 < 2 * rows && x * 2 < columns;
                        const bool drawn = std::uniform_real_distribution<double>(0, 1)(layers.random) < part;
                        bytes[(static_cast<size_t>(n) * rows + y) * columns + x] = rectangle ? inside : drawn;
                    }
                }
            }
            check(context, distile_mask_set_bytes(masks[i].get(), bytes.data(), batch, rows, columns,
                                                  int64_t{rows} * columns, columns));
        }
    }

    distile_tensor view(std::vector<float> &data, const std::array<int32_t, 3> &size, int32_t channels) const {
        return distile_tensor_make(data.data(), size[0], size[1], size[2], channels);
    }

    /** The result of one device, layer by layer, each with zeros outside its mask. */
    std::vector<float> expected(distile_inactive inactive) {
        std::vector<std::vector<float>> tensors{input};
        std::vector<distile_tensor> views{view(tensors[0], shape, layers.convs[0].in_channels)};
        tensors.reserve(kernels.size() + 1);
        views.reserve(kernels.size() + 1);
        for (size_t i = 0; i < kernels.size(); i++) {
            const bool last = i + 1 == kernels.size();
            const int32_t channels = layers.convs[i].out_channels;
            tensors.push_back(last ? before
                                   : std::vector<float>(static_cast<size_t>(sizes[i][0]) * sizes[i][1] * sizes[i][2] *
                                                        static_cast<size_t>(channels)));
            views.push_back(view(tensors.back(), sizes[i], channels));
            distile_run_args args{};
            args.input = &views[i];
            args.output = &views[i + 1];
            args.residual = layers.convs[i].residual != 0 ? &views[0] : nullptr;
            args.weights = weights[i].get();
            args.mask = masks[i].get();
            args.inactive = last ? inactive : DISTILE_ZERO;
            check(context, distile_run(kernels[i].get(), &args));
        }
        return tensors.back();
    }

    /** Runs on the input or the images that devices keep, for a result or for them to keep. A rank may lack the memory
     * of an input and the masks, and want no output. */
    distile_status run(const Chain &chain, distile_inactive inactive, std::vector<float> &result,
                       bool takes_kept = false, bool keeps = false, bool has_input = true, bool wants_output = true,
                       bool has_masks = true) {
        result = before;
        distile_tensor from = view(input, shape, layers.convs[0].in_channels),
                       to = view(result, sizes.back(), layers.convs.back().out_channels);
        from.data = has_input ? from.data : nullptr;
        to.data = wants_output ? to.data : nullptr;
        std::vector<distile_mask *> pointers;
        for (const Mask &mask : masks) {
            pointers.push_back(mask.get());
        }
        distile_chain_args args{};
        args.input = takes_kept ? nullptr : &from;
        args.output = keeps ? nullptr : &to;
        args.masks = has_masks ? pointers.data() : nullptr;
        args.inactive = inactive;
        return distile_chain_run(chain.get(), &args);
    }

    TestLayers &layers;
    const Context &context;
    std::array<int32_t, 3> shape;
    std::vector<float> input, before;
    std::vector<Kernel> kernels;
    std::vector<Weights> weights;
    std::vector<Mask> masks;
    std::vector<std::array<int32_t, 3>> sizes;
};

inline distile_chain_info info_of(const Chain &chain) {
    distile_chain_info info{};
    REQUIRE(distile_chain_get_info(chain.get(), &info) == DISTILE_OK);
    return info;
}

inline bool same_floats(const std::vector<float> &one, const std::vector<float> &other) {
    return one.size() == other.size() && std::memcmp(one.data(), other.data(), one.size() * sizeof(float)) == 0;
}

}  // namespace distile

#endif
