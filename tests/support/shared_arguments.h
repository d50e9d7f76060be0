/** \file
 * What functions for CPUs and for GPUs take alike, wrong in turn: tensors, masks, windows, weights and planners.
 */
#ifndef DISTILE_TESTS_SHARED_ARGUMENTS_H
#define DISTILE_TESTS_SHARED_ARGUMENTS_H

#include "wrong_arguments.h"
#include <climits>
#include <cmath>
#include <distile/mask_algebra.h>
#include <distile/planner.h>
#include <limits>
#include <vector>

namespace distile {

constexpr int32_t beyond = 65536; /**< One more than any extent may be. */
constexpr int64_t most64 = std::numeric_limits<int64_t>::max(), least64 = std::numeric_limits<int64_t>::min();

/** Everything that no tensor may be: refuse(status, the tensor with one member spoilt, or null) must be called for
 * each. Of the shape and the channels that is what no function allows; each has more that do not fit its other
 * arguments. */
template<typename Refuse> void spoil_tensor(const distile_tensor &right, const Refuse &refuse) {
    const auto spoil = [&](distile_status status, const auto &change) {
        distile_tensor spoilt = right;
        change(spoilt);
        refuse(status, &spoilt);
    };
    refuse(DISTILE_ERROR_NULL_POINTER, nullptr);
    spoil(DISTILE_ERROR_NULL_POINTER, [](distile_tensor &view) { view.data = nullptr; });
    spoil(DISTILE_ERROR_BAD_ALIGNMENT, [](distile_tensor &view) { view.data = static_cast<char *>(view.data) + 1; });
    for (int32_t dtype : {0, -1, 4, INT_MIN, INT_MAX}) {
        spoil(DISTILE_ERROR_BAD_TYPE, [&](distile_tensor &view) { std::memcpy(&view.dtype, &dtype, sizeof(dtype)); });
    }
    for (int32_t bad : {0, -1, beyond, INT_MIN, INT_MAX}) {
        spoil(DISTILE_ERROR_BAD_SHAPE, [&](distile_tensor &view) { view.batch = bad; });
        spoil(DISTILE_ERROR_BAD_SHAPE, [&](distile_tensor &view) { view.height = bad; });
        spoil(DISTILE_ERROR_BAD_SHAPE, [&](distile_tensor &view) { view.width = bad; });
    }
    for (int32_t bad : {0, -1, INT_MIN}) {
        spoil(DISTILE_ERROR_BAD_CHANNELS, [&](distile_tensor &view) { view.channels = bad; });
    }
    for (int64_t bad : {int64_t{0}, int64_t{-1}, int64_t{1} << 31, least64, most64}) {
        spoil(DISTILE_ERROR_BAD_STRIDE, [&](distile_tensor &view) { view.stride_n = bad; });
        spoil(DISTILE_ERROR_BAD_STRIDE, [&](distile_tensor &view) { view.stride_h = bad; });
        spoil(DISTILE_ERROR_BAD_STRIDE, [&](distile_tensor &view) { view.stride_w = bad; });
    }
}

/** Masks to call functions with. */
template<typename Mask> struct MaskArguments {
    Mask *result, *mask, *other;
    Mask *unset, *foreign; /**< Never set, and of another context or GPU. */
    Mask *small;           /**< Of another shape. */
};

/** Arguments 0 and 1 of a function: the mask that it sets, and the one that it reads. */
template<typename Function, typename Mask> void refuse_masks(Function &function, const MaskArguments<Mask> &masks) {
    function.template wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .template wrong<0>(DISTILE_ERROR_BAD_MASK, {masks.foreign})
        .template wrong<1>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .template wrong<1>(DISTILE_ERROR_BAD_MASK, {masks.unset, masks.foreign});
}

/** A function of a mask, a window and the size of the result. */
template<typename Mask, typename Called>
void refuse_windows(WrongArguments &all, const char *name, Called *called, const MaskArguments<Mask> &masks,
                    const distile_window &window, int32_t height, int32_t width) {
    auto function = all.of(name, called, masks.result, masks.mask, &window, height, width);
    refuse_masks(function, masks);
    function.template wrong<2>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .template wrong<3>(DISTILE_ERROR_BAD_SHAPE, {0, -1, beyond, INT_MIN, INT_MAX})
        .template wrong<4>(DISTILE_ERROR_BAD_SHAPE, {0, -1, beyond, INT_MIN, INT_MAX});
    for (int32_t distile_window::*extent :
         {&distile_window::kernel_h, &distile_window::kernel_w, &distile_window::stride_h, &distile_window::stride_w,
          &distile_window::dilation_h, &distile_window::dilation_w}) {
        function.template wrong<2>(DISTILE_ERROR_BAD_VALUE, extent, {0, -1, beyond, INT_MIN, INT_MAX});
    }
    function.template wrong_number<2>(DISTILE_ERROR_BAD_VALUE, &distile_window::kind, {-1, 3, INT_MIN, INT_MAX});
    for (int32_t distile_window::*pad : {&distile_window::pad_top, &distile_window::pad_left}) {
        function.template wrong<2>(DISTILE_ERROR_BAD_VALUE, pad, {-1, beyond, INT_MIN, INT_MAX});
    }
}

/** A function of a mask and two numbers. */
template<typename Mask, typename Called> void refuse_numbers(WrongArguments &all, const char *name, Called *called,
                                                             const MaskArguments<Mask> &masks,
                                                             std::initializer_list<int32_t> bad) {
    auto function = all.of(name, called, masks.result, masks.mask, 1, 2);
    refuse_masks(function, masks);
    function.template wrong<2>(DISTILE_ERROR_BAD_VALUE, bad).template wrong<3>(DISTILE_ERROR_BAD_VALUE, bad);
}

/** A function of two masks. */
template<typename Mask, typename Called>
void refuse_pairs(WrongArguments &all, const char *name, Called *called, const MaskArguments<Mask> &masks) {
    auto function = all.of(name, called, masks.result, masks.mask, masks.other);
    refuse_masks(function, masks);
    function.template wrong<1>(DISTILE_ERROR_BAD_SHAPE, {masks.small})
        .template wrong<2>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .template wrong<2>(DISTILE_ERROR_BAD_MASK, {masks.unset, masks.foreign})
        .template wrong<2>(DISTILE_ERROR_BAD_SHAPE, {masks.small});
}

/** The function of a mask that sets it to the difference of two tensors like `right`, of 16 channels. */
template<typename Function> void refuse_difference(Function &difference, const distile_tensor &right) {
    const auto spoil = [&](auto place) {
        constexpr size_t t = decltype(place)::value;
        spoil_tensor(right, [&](distile_status status, const distile_tensor *spoilt) {
            difference.template wrong<t>(status, {spoilt});
        });
        difference.template wrong<t>(DISTILE_ERROR_BAD_SHAPE, &distile_tensor::channels, {15})
            .template wrong<t>(DISTILE_ERROR_BAD_SHAPE, &distile_tensor::batch, {1})
            .template wrong<t>(DISTILE_ERROR_BAD_SHAPE, &distile_tensor::height, {5})
            .template wrong<t>(DISTILE_ERROR_BAD_SHAPE, &distile_tensor::width, {6});
    };
    difference.template wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .template wrong<3>(DISTILE_ERROR_BAD_VALUE, {-1.0f, std::nanf(""), -std::numeric_limits<float>::infinity()});
    spoil(std::integral_constant<size_t, 1>());
    spoil(std::integral_constant<size_t, 2>());
}

/** The function that packs weights for a kernel. */
template<typename Kernel, typename Weights>
void refuse_weights(WrongArguments &all, const char *name,
                    distile_status (*pack)(Kernel *, const distile_weights_source *, Weights **),
                    void (*destroy)(Weights *), Kernel *kernel, distile_weights_source source) {
    const std::vector<float> vector(16, 0.5f), negative(16, -3.0f), nan(16, std::nanf(""));
    source.bn_mean = source.bn_variance = vector.data();
    Weights *made = nullptr;
    all.of(name, pack, kernel, &source, &made)
        .then([&] {
            destroy(made);
            made = nullptr;
        })
        .template wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .template wrong<1>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .template wrong<1>(DISTILE_ERROR_NULL_POINTER, &distile_weights_source::filter, {nullptr})
        .template wrong_number<1>(DISTILE_ERROR_BAD_TYPE, &distile_weights_source::dtype, {-1, 4, INT_MIN, INT_MAX})
        .template wrong_number<1>(DISTILE_ERROR_BAD_VALUE, &distile_weights_source::order, {0, -1, 5, INT_MAX})
        .template reserved<1>(&distile_weights_source::reserved)
        .template wrong<1>(DISTILE_ERROR_BAD_VALUE, &distile_weights_source::bn_mean, {nullptr})
        .template wrong<1>(DISTILE_ERROR_BAD_VALUE, &distile_weights_source::bn_variance,
                           {nullptr, negative.data(), nan.data()})
        .template wrong<1>(DISTILE_ERROR_BAD_VALUE, &distile_weights_source::bn_epsilon, {-1.0f, std::nanf("")})
        .template wrong<2>(DISTILE_ERROR_NULL_POINTER, {nullptr});
}

/** The function that makes a planner of a context or a GPU. */
template<typename Owner, typename Planner>
void refuse_planner_options(WrongArguments &all, const char *name,
                            distile_status (*create)(Owner *, const distile_planner_options *, Planner **),
                            void (*destroy)(Planner *), Owner *owner) {
    const distile_planner_options options{};
    Planner *made = nullptr;
    all.of(name, create, owner, &options, &made)
        .then([&] {
            destroy(made);
            made = nullptr;
        })
        .template wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .template any<1>({nullptr})
        .template wrong<1>(DISTILE_ERROR_BAD_VALUE, &distile_planner_options::buffers, {1, -1, 65, INT_MIN, INT_MAX})
        .template wrong_number<1>(DISTILE_ERROR_BAD_VALUE, &distile_planner_options::clearing,
                                  {-1, 3, INT_MIN, INT_MAX})
        .template reserved<1>(&distile_planner_options::reserved)
        .template wrong<2>(DISTILE_ERROR_NULL_POINTER, {nullptr});
}

/** The function of a planner that hands out the next output, for masks of the specification's shape. */
template<typename Planner, typename Mask, typename Called>
void refuse_outputs(WrongArguments &all, const char *name, Called *called, Planner *planner,
                    const MaskArguments<Mask> &masks, const distile_output_spec &spec) {
    distile_tensor tensor{};
    distile_store no_store{}, neither{};
    const int32_t below = -1, above = 2;
    std::memcpy(&no_store, &below, sizeof(below));
    std::memcpy(&neither, &above, sizeof(above));
    auto next = all.of(name, called, planner, &spec, masks.mask, DISTILE_STORE_EXACT, &tensor);
    next.template wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .template wrong<1>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .template wrong<1>(DISTILE_ERROR_BAD_MASK, &distile_output_spec::batch, {0, 1, -1, beyond, INT_MIN, INT_MAX})
        .template wrong<1>(DISTILE_ERROR_BAD_MASK, &distile_output_spec::height, {0, 1, -1, beyond, INT_MIN, INT_MAX})
        .template wrong<1>(DISTILE_ERROR_BAD_MASK, &distile_output_spec::width, {0, 1, -1, beyond, INT_MIN, INT_MAX})
        .template wrong<1>(DISTILE_ERROR_BAD_VALUE, &distile_output_spec::channels, {0, -1, INT_MIN})
        .template wrong<1>(DISTILE_ERROR_BAD_STRIDE, &distile_output_spec::channels, {INT_MAX})
        .template wrong_number<1>(DISTILE_ERROR_BAD_TYPE, &distile_output_spec::dtype, {-1, 4, INT_MIN, INT_MAX})
        .template wrong<2>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .template wrong<2>(DISTILE_ERROR_BAD_MASK, {masks.unset, masks.foreign})
        .template wrong<3>(DISTILE_ERROR_BAD_VALUE, {no_store, neither})
        .template wrong<4>(DISTILE_ERROR_NULL_POINTER, {nullptr});
    for (int32_t distile_output_spec::*border :
         {&distile_output_spec::border_top, &distile_output_spec::border_bottom, &distile_output_spec::border_left,
          &distile_output_spec::border_right}) {
        next.template wrong<1>(DISTILE_ERROR_BAD_VALUE, border, {-1, beyond, INT_MIN, INT_MAX});
    }
}

}  // namespace distile

#endif
