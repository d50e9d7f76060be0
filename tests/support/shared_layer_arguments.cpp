#include "facts/activations.h"
#include "tests/support/shared_fixture.h"
#include <cmath>
#include <distile/layers.h>
#include <distile/tokens.h>
#include <distile/upsample.h>

namespace distile {

void check_upsampling(Fixture &f, WrongArguments &all) {
    using Args = distile_upsample_args;
    constexpr int32_t scale = 2;
    const Fixture::Activation large(f, scale, 16);
    const Fixture::Array<uint8_t> bytes(f, std::vector<uint8_t>(size_t{images} * rows * columns * scale * scale, 1));
    const Mask mask = make_mask(f.context);
    check(f.context, distile_mask_set_bytes(mask.get(), bytes.data(), images, rows * scale, columns * scale,
                                            rows * columns * scale * scale, columns * scale));
    Args args{};
    args.input = &f.residual.view;
    args.output = &large.view;
    args.mask = mask.get();
    args.scale_h = args.scale_w = scale;
    auto upsample = all.of("distile_upsample_nearest", distile_upsample_nearest, f.context.get(), &args);
    upsample.wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .wrong<1>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .wrong<1>(DISTILE_ERROR_NULL_POINTER, &Args::mask, {nullptr})
        .wrong<1>(DISTILE_ERROR_BAD_MASK, &Args::mask, {f.unset.get(), f.foreign_mask.get()})
        .wrong<1>(DISTILE_ERROR_BAD_VALUE, &Args::scale_h, {0, -1, INT_MIN})
        .wrong<1>(DISTILE_ERROR_BAD_VALUE, &Args::scale_w, {0, -1, INT_MIN})
        .wrong<1>(DISTILE_ERROR_BAD_SHAPE, &Args::scale_h, {1, 3, INT_MAX})
        .wrong<1>(DISTILE_ERROR_BAD_SHAPE, &Args::scale_w, {1, 3, INT_MAX})
        .wrong_number<1>(DISTILE_ERROR_BAD_VALUE, &Args::inactive, {-1, 2, INT_MAX})
        .reserved<1>(&Args::reserved);
    for (const distile_tensor *Args::*tensor : {&Args::input, &Args::output}) {
        spoil_tensor(f, *(args.*tensor), [&](distile_status status, const distile_tensor *spoilt) {
            upsample.wrong<1>(status, tensor, {spoilt});
        });
    }
    distile_tensor over = large.view;
    over.data = f.residual.view.data;
    upsample.wrong<1>(DISTILE_ERROR_ALIASING, &Args::output, {&over});
}

void check_normalization(Fixture &f, WrongArguments &all) {
    using Args = distile_normalize_args;
    const Fixture::Array<float> gamma(f, std::vector<float>(16, 1)), beta(f, std::vector<float>(16, 0));
    Args args{};
    args.input = &f.residual.view;
    args.output = &f.output.view;
    args.mask = f.mask.get();
    args.gamma = gamma.data();
    args.beta = beta.data();
    args.epsilon = 1e-5f;
    auto normalize = all.of("distile_normalize", distile_normalize, f.context.get(), &args);
    normalize.wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .wrong<1>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .wrong<1>(DISTILE_ERROR_NULL_POINTER, &Args::mask, {nullptr})
        .wrong<1>(DISTILE_ERROR_BAD_MASK, &Args::mask, {f.unset.get(), f.foreign_mask.get(), f.small_mask.get()})
        .wrong<1>(DISTILE_ERROR_BAD_VALUE, &Args::epsilon, {-1e-9f, std::nanf(""), HUGE_VALF, -HUGE_VALF})
        .wrong_number<1>(DISTILE_ERROR_BAD_VALUE, &Args::norm, {-1, 2, INT_MIN, INT_MAX})
        .wrong_number<1>(DISTILE_ERROR_BAD_VALUE, &Args::inactive, {-1, 2, INT_MAX})
        .reserved<1>(&Args::reserved);
    for (const float *Args::*vector : {&Args::gamma, &Args::beta}) {
        const float *const output = static_cast<const float *>(f.output.view.data);
        normalize.wrong<1>(DISTILE_ERROR_BAD_ALIGNMENT, vector, {misaligned(gamma.data())})
            .wrong<1>(DISTILE_ERROR_ALIASING, vector, {output, output + 3});
        if (!f.device.host_memory) {
            normalize.wrong<1>(DISTILE_ERROR_NOT_DEVICE_MEMORY, vector, {&f.on_host});
        }
    }
    for (const distile_tensor *Args::*tensor : {&Args::input, &Args::output}) {
        const distile_tensor &right = *(args.*tensor);
        spoil_tensor(f, right, [&](distile_status status, const distile_tensor *spoilt) {
            normalize.wrong<1>(status, tensor, {spoilt});
        });
        distile_tensor spoilt = right;
        spoilt.channels = 15;
        normalize.wrong<1>(DISTILE_ERROR_BAD_CHANNELS, tensor, {&spoilt});
        spoilt = right;
        spoilt.height--;
        normalize.wrong<1>(DISTILE_ERROR_BAD_SHAPE, tensor, {&spoilt});
    }
    distile_tensor over = f.residual.view;
    over.data = static_cast<float *>(over.data) + 4;
    normalize.wrong<1>(DISTILE_ERROR_ALIASING, &Args::output, {&over});
}

namespace {

/** Two arguments of a function that are a tensor and a packed one, and the mask between them. */
template<size_t tensor, size_t packed, typename Function>
void refuse_packing(Fixture &f, Function &function, const distile_tensor &given, const distile_tensor &to_pack) {
    function.template wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .template wrong<2>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .template wrong<2>(DISTILE_ERROR_BAD_MASK, {f.unset.get(), f.foreign_mask.get(), f.small_mask.get()});
    spoil_tensor(f, given, [&](distile_status status, const distile_tensor *spoilt) {
        function.template wrong<tensor>(status, {spoilt});
    });
    spoil_tensor(f, to_pack, [&](distile_status status, const distile_tensor *spoilt) {
        function.template wrong<packed>(status, {spoilt});
    });
    distile_tensor spoilt = to_pack;
    spoilt.channels = 15;
    function.template wrong<packed>(DISTILE_ERROR_BAD_CHANNELS, {&spoilt});
    spoilt = to_pack;
    spoilt.data = given.data;
    function.template wrong<packed>(DISTILE_ERROR_ALIASING, {&spoilt});
    if (f.device.host_memory) {
        // A packed tensor of one pixel for two active pixels.
        spoilt = to_pack;
        spoilt.batch = spoilt.height = spoilt.width = 1;
        function.template wrong<packed>(DISTILE_ERROR_BAD_SHAPE, {&spoilt});
    }
}

}  // namespace

void check_packing(Fixture &f, WrongArguments &all) {
    const distile_tensor &tensor = f.output.view, &packed = f.residual.view;
    auto pack = all.of("distile_pack", distile_pack, f.context.get(), &tensor, f.mask.get(), &packed);
    refuse_packing<1, 3>(f, pack, tensor, packed);
    auto unpack =
        all.of("distile_unpack", distile_unpack, f.context.get(), &packed, f.mask.get(), &tensor, DISTILE_ZERO);
    refuse_packing<3, 1>(f, unpack, tensor, packed);
    distile_inactive below{}, above{};
    const int32_t numbers[] = {-1, 2};
    std::memcpy(&below, &numbers[0], sizeof(below));
    std::memcpy(&above, &numbers[1], sizeof(above));
    unpack.wrong<4>(DISTILE_ERROR_BAD_VALUE, {below, above});
    const int32_t *lengths = nullptr;
    all.of("distile_mask_cumulative_lengths", distile_mask_cumulative_lengths, f.mask.get(), &lengths)
        .wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .wrong<0>(DISTILE_ERROR_BAD_MASK, {f.unset.get()})
        .wrong<1>(DISTILE_ERROR_NULL_POINTER, {nullptr});
}

namespace {

/** What every function of layers.h refuses of its arguments' context, mask and pooling. */
template<typename Args, typename Function> void refuse_common(Fixture &f, Function &function) {
    function.template wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .template wrong<1>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .template wrong<1>(DISTILE_ERROR_BAD_MASK, &Args::mask,
                           {f.unset.get(), f.foreign_mask.get(), f.small_mask.get()})
        .template reserved<1>(&Args::reserved);
}

/** Tensors that no function of layers.h takes as its input or output, or that overlap. */
template<typename Args, typename Function>
void refuse_tensors(Fixture &f, Function &function, const Args &args, const distile_tensor &over) {
    for (const distile_tensor *Args::*tensor : {&Args::input, &Args::output}) {
        const distile_tensor &right = *(args.*tensor);
        spoil_tensor(f, right, [&](distile_status status, const distile_tensor *spoilt) {
            function.template wrong<1>(status, tensor, {spoilt});
        });
        distile_tensor spoilt = right;
        spoilt.channels = 15;
        function.template wrong<1>(DISTILE_ERROR_BAD_CHANNELS, tensor, {&spoilt});
        spoilt = right;
        spoilt.batch--;
        function.template wrong<1>(DISTILE_ERROR_BAD_SHAPE, tensor, {&spoilt});
    }
    function.template wrong<1>(DISTILE_ERROR_ALIASING, &Args::output, {&over});
}

}  // namespace

void check_pooling(Fixture &f, WrongArguments &all) {
    using Args = distile_pool_args;
    Args args{};
    args.input = &f.residual.view;
    args.output = &f.output.view;
    args.mask = f.mask.get();
    args.window = {3, 3, 1, 1, 1, 1, 1, 1, DISTILE_WINDOW_CONV};
    auto pool = all.of("distile_pool", distile_pool, f.context.get(), &args);
    refuse_common<Args>(f, pool);
    refuse_tensors(f, pool, args, f.residual.view);
    std::vector<distile_window> windows;
    const auto spoil = [&](int32_t distile_window::*member, std::initializer_list<int32_t> values) {
        for (int32_t value : values) {
            windows.push_back(args.window);
            windows.back().*member = value;
        }
    };
    using Window = distile_window;
    for (int32_t Window::*member : {&Window::kernel_h, &Window::kernel_w, &Window::stride_h, &Window::stride_w,
                                    &Window::dilation_h, &Window::dilation_w}) {
        spoil(member, {0, -1, beyond, INT_MIN, INT_MAX});
    }
    spoil(&Window::pad_top, {-1, beyond, INT_MIN});
    spoil(&Window::pad_left, {-1, beyond, INT_MIN});
    for (int32_t number : {-1, 1, 2, 3, INT_MAX}) {
        windows.push_back(args.window);
        std::memcpy(&windows.back().kind, &number, sizeof(number));
    }
    for (const distile_window &window : windows) {
        pool.wrong<1>(DISTILE_ERROR_BAD_VALUE, &Args::window, {window});
    }
    windows.clear();
    // Windows without a pixel.
    spoil(&Window::stride_h, {2, beyond - 1});
    spoil(&Window::stride_w, {2, beyond - 1});
    spoil(&Window::pad_top, {3, beyond - 1});
    spoil(&Window::pad_left, {3, beyond - 1});
    for (const distile_window &window : windows) {
        pool.wrong<1>(DISTILE_ERROR_BAD_SHAPE, &Args::window, {window});
    }
    pool.wrong<1>(DISTILE_ERROR_NULL_POINTER, &Args::mask, {nullptr})
        .wrong<1>(DISTILE_ERROR_BAD_VALUE, &Args::count_padding, {-1, 2})
        .wrong_number<1>(DISTILE_ERROR_BAD_VALUE, &Args::pooling, {-1, 2, INT_MAX})
        .wrong_number<1>(DISTILE_ERROR_BAD_VALUE, &Args::inactive, {-1, 2, INT_MAX});
}

void check_global_pooling(Fixture &f, WrongArguments &all) {
    using Args = distile_global_pool_args;
    distile_tensor pixels = f.output.view, over = f.residual.view;
    pixels.height = pixels.width = over.height = over.width = 1;
    Args args{};
    args.input = &f.residual.view;
    args.output = &pixels;
    args.mask = f.mask.get();
    auto pool = all.of("distile_global_pool", distile_global_pool, f.context.get(), &args);
    refuse_common<Args>(f, pool);
    refuse_tensors(f, pool, args, over);
    distile_tensor wide = pixels, high = pixels;
    wide.width = high.height = 2;
    pool.wrong<1>(DISTILE_ERROR_BAD_SHAPE, &Args::output, {&wide, &high})
        .wrong_number<1>(DISTILE_ERROR_BAD_VALUE, &Args::pooling, {-1, 2, INT_MAX});
}

void check_combination(Fixture &f, WrongArguments &all) {
    using Args = distile_combine_args;
    const Fixture::Activation other(f, 1, 16);
    Args args{};
    args.input = &f.residual.view;
    args.other = &other.view;
    args.output = &f.output.view;
    args.mask = f.mask.get();
    args.combination = DISTILE_MULTIPLY;
    auto combine = all.of("distile_combine", distile_combine, f.context.get(), &args);
    distile_tensor over = f.residual.view, shifted = f.output.view, row = other.view;
    over.data = static_cast<float *>(over.data) + 16;
    shifted.data = static_cast<float *>(shifted.data) + 16;
    row.height = 1;
    refuse_common<Args>(f, combine);
    refuse_tensors(f, combine, args, over);
    spoil_tensor(f, other.view, [&](distile_status status, const distile_tensor *spoilt) {
        combine.wrong<1>(status, &Args::other, {spoilt});
    });
    combine.wrong<1>(DISTILE_ERROR_ALIASING, &Args::other, {&shifted})
        .wrong<1>(DISTILE_ERROR_BAD_SHAPE, &Args::other, {&row})
        .wrong<1>(DISTILE_ERROR_NULL_POINTER, &Args::mask, {nullptr})
        .wrong<1>(DISTILE_ERROR_BAD_VALUE, &Args::combination, {DISTILE_COPY})
        .wrong_number<1>(DISTILE_ERROR_BAD_VALUE, &Args::combination, {-1, 3, INT_MAX})
        .wrong_number<1>(DISTILE_ERROR_BAD_VALUE, &Args::activation, {-1, DISTILE_NUM_ACTIVATIONS, INT_MAX})
        .wrong_number<1>(DISTILE_ERROR_BAD_VALUE, &Args::other_activation, {-1, DISTILE_NUM_ACTIVATIONS, INT_MAX})
        .wrong<1>(DISTILE_ERROR_BAD_ALIGNMENT, &Args::slope, {misaligned(&f.on_host)})
        .wrong<1>(DISTILE_ERROR_BAD_ALIGNMENT, &Args::other_slope, {misaligned(&f.on_host)})
        .wrong_number<1>(DISTILE_ERROR_BAD_VALUE, &Args::inactive, {-1, 2, INT_MAX});
}

namespace {

/** Vectors of floats that a function does not take, of which the first is right. */
template<typename Args, typename Function, typename Pointer>
void refuse_vector(Fixture &f, Function &function, Pointer *Args::*vector, Pointer *right, const distile_tensor &over) {
    auto *const overlapping = static_cast<Pointer *>(over.data);
    function.template wrong<1>(DISTILE_ERROR_BAD_ALIGNMENT, vector, {const_cast<Pointer *>(misaligned(right))})
        .template wrong<1>(DISTILE_ERROR_ALIASING, vector, {overlapping, overlapping + 3});
    if (!f.device.host_memory) {
        function.template wrong<1>(DISTILE_ERROR_NOT_DEVICE_MEMORY, vector, {&f.on_host});
    }
}

}  // namespace

void check_group_statistics(Fixture &f, WrongArguments &all) {
    using Args = distile_group_statistics_args;
    const Fixture::Array<float> memory(f, std::vector<float>(size_t{2} * images * 4, 1));
    Args args{};
    args.input = &f.residual.view;
    args.mask = f.mask.get();
    args.groups = 4;
    args.mean = memory.data();
    args.variance = memory.data() + images * 4;
    auto find = all.of("distile_group_statistics", distile_group_statistics, f.context.get(), &args);
    refuse_common<Args>(f, find);
    spoil_tensor(f, f.residual.view, [&](distile_status status, const distile_tensor *spoilt) {
        find.wrong<1>(status, &Args::input, {spoilt});
    });
    find.wrong<1>(DISTILE_ERROR_BAD_VALUE, &Args::groups, {0, -1, 3, 17, INT_MIN, INT_MAX})
        .wrong<1>(DISTILE_ERROR_NULL_POINTER, &Args::mean, {nullptr})
        .wrong<1>(DISTILE_ERROR_NULL_POINTER, &Args::variance, {nullptr})
        .wrong<1>(DISTILE_ERROR_ALIASING, &Args::mean, {args.variance, args.variance + 1});
    refuse_vector(f, find, &Args::mean, args.mean, f.residual.view);
    refuse_vector(f, find, &Args::variance, args.variance, f.residual.view);
}

void check_group_norm(Fixture &f, WrongArguments &all) {
    using Args = distile_group_norm_args;
    const Fixture::Array<float> memory(f, std::vector<float>(16, 1));
    Args args{};
    args.input = &f.residual.view;
    args.output = &f.output.view;
    args.mask = f.mask.get();
    args.groups = 4;
    args.mean = args.variance = args.gamma = args.beta = memory.data();
    auto norm = all.of("distile_group_norm", distile_group_norm, f.context.get(), &args);
    distile_tensor over = f.residual.view;
    over.data = static_cast<float *>(over.data) + 4;
    refuse_common<Args>(f, norm);
    refuse_tensors(f, norm, args, over);
    norm.wrong<1>(DISTILE_ERROR_BAD_VALUE, &Args::groups, {0, -1, 3, 17, INT_MIN, INT_MAX})
        .wrong<1>(DISTILE_ERROR_NULL_POINTER, &Args::mask, {nullptr})
        .wrong<1>(DISTILE_ERROR_NULL_POINTER, &Args::mean, {nullptr})
        .wrong<1>(DISTILE_ERROR_NULL_POINTER, &Args::variance, {nullptr})
        .wrong<1>(DISTILE_ERROR_BAD_VALUE, &Args::shared_statistics, {-1, 2})
        .wrong<1>(DISTILE_ERROR_BAD_VALUE, &Args::epsilon, {-1e-9f, std::nanf(""), HUGE_VALF, -HUGE_VALF})
        .wrong_number<1>(DISTILE_ERROR_BAD_VALUE, &Args::activation, {-1, DISTILE_NUM_ACTIVATIONS, INT_MAX})
        .wrong<1>(DISTILE_ERROR_BAD_ALIGNMENT, &Args::slope, {misaligned(&f.on_host)})
        .wrong_number<1>(DISTILE_ERROR_BAD_VALUE, &Args::inactive, {-1, 2, INT_MAX});
    for (const float *Args::*vector : {&Args::mean, &Args::variance, &Args::gamma, &Args::beta}) {
        refuse_vector(f, norm, vector, args.mean, f.output.view);
    }
}

void check_scores(Fixture &f, WrongArguments &all) {
    const Fixture::Array<float> weights(f, std::vector<float>(16, 1));
    const float *const right = weights.data();
    const distile_tensor *const tensor = &f.residual.view;
    auto set = all.of("distile_mask_set_scores", distile_mask_set_scores, f.result.get(), tensor, right, 0.5f, 0.25f);
    spoil_tensor(f, *tensor,
                 [&](distile_status status, const distile_tensor *spoilt) { set.wrong<1>(status, {spoilt}); });
    set.wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .any<2>({nullptr})
        .wrong<2>(DISTILE_ERROR_BAD_ALIGNMENT, {misaligned(right)})
        .wrong<3>(DISTILE_ERROR_BAD_VALUE, {std::nanf("")})
        .wrong<4>(DISTILE_ERROR_BAD_VALUE, {std::nanf("")});
    if (!f.device.host_memory) {
        set.wrong<2>(DISTILE_ERROR_NOT_DEVICE_MEMORY, {&f.on_host});
    }
}

}  // namespace distile
