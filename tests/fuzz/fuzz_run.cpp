// distile_run, chains on two devices, nearest upsampling, normalization, packing and the conversions of tensors, with
// descriptors that the input spells. Every tensor that may be legal lies in memory of just its span between pages that
// nobody may touch, and every other where all access is a fault: a call succeeds and writes what the mask asks for, or
// is refused and writes nothing.
#include "reference/conv2d_reference.h"
#include "runtime/base/types.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/fuzz_tensor.h"
#include "tests/support/cpu_features_of.h"
#include <algorithm>
#include <array>
#include <cstring>
#include <distile/distile.hpp>
#include <distile/group.h>
#include <distile/layout.h>
#include <distile/polykernel.h>
#include <distile/tokens.h>
#include <distile/upsample.h>
#include <limits>
#include <memory>
#include <optional>
#include <test_conv3_16_48_avx2.h>
#include <test_conv3_48_16_residual_avx2.h>
#include <test_depthwise3_24_avx2.h>
#include <test_transpose34_s23_3_17_avx2.h>
#include <test_upsample3_s2_16_17_avx2.h>
#include <vector>

using namespace distile;

namespace {

/** The application's dense candidate: zeros. */
int fill_zero(void *, void *, const distile_run_args *args) {
    const distile_tensor *const output = args->output;
    for (int32_t n = 0; n < output->batch; n++) {
        for (int32_t y = 0; y < output->height; y++) {
            for (int32_t x = 0; x < output->width; x++) {
                std::fill_n(static_cast<float *>(output->data) + n * output->stride_n + y * output->stride_h +
                                x * output->stride_w,
                            output->channels, 0.0f);
            }
        }
    }
    return 0;
}

/** A kernel with weights. */
struct Loaded {
    Loaded(const Context &context, const distile_polykernel &polykernel)
        : kind(polykernel.kind), conv(convolution_of(polykernel)), kernel(make_kernel(context, polykernel)) {
        const std::vector<float> filter(filter_size(conv), 0.25f);
        distile_weights_source source{};
        source.filter = filter.data();
        source.order = DISTILE_OHWI;
        weights = pack_weights(context, kernel, source);
        const distile_dense_candidate dense{"vendor", fill_zero, nullptr};
        check(context, distile_kernel_add_dense(kernel.get(), &dense));
    }

    distile_operator_kind kind;
    distile_conv2d conv;
    Kernel kernel;
    Weights weights;
};

struct Session {
    explicit Session(int32_t threads)
        : context(make(threads)), plain(context, test_conv3_16_48_avx2),
          residual(context, test_conv3_48_16_residual_avx2), depthwise(context, test_depthwise3_24_avx2),
          transposed(context, test_transpose34_s23_3_17_avx2), upsampled(context, test_upsample3_s2_16_17_avx2),
          mask(make_mask(context)), second(make(1)) {
        distile_context *contexts[] = {context.get(), second.get()};
        distile_group_options options{};
        options.overlap = threads > 1 ? DISTILE_OVERLAP_ALWAYS : DISTILE_OVERLAP_NEVER;
        distile_group *made = nullptr;
        require(distile_group_create(contexts, 2, &options, &made) == DISTILE_OK, "no group can be made");
        group.reset(made);
        const distile_polykernel *const polykernels[][2] = {
            {&test_conv3_16_48_avx2, &test_conv3_16_48_avx2},
            {&test_conv3_48_16_residual_avx2, &test_conv3_48_16_residual_avx2}};
        const std::vector<float> filter(filter_size(plain.conv), 0.25f);
        distile_weights_source source{};
        source.filter = filter.data();
        source.order = DISTILE_OHWI;
        distile_chain_layer layers[2] = {};
        for (size_t i = 0; i < 2; i++) {
            layers[i].polykernels = polykernels[i];
            layers[i].weights = &source;
        }
        distile_chain *linked = nullptr;
        require(distile_chain_create(group.get(), layers, 2, &linked) == DISTILE_OK, "no chain can be made");
        chain.reset(linked);
    }

    static Context make(int32_t threads) {
        distile_context_options options{};
        options.threads = threads;
        options.parallel_for = run_backwards;
        return make_context(options);
    }

    Context context;
    Loaded plain, residual, depthwise, transposed, upsampled;
    Mask mask;
    // A block of two convolutions on two devices.
    Context second;
    Group group;
    Chain chain;
};

/** The output's extent that is due for an input's along an axis, as far as it is a number of 32 bits. */
int32_t extent_of(distile_operator_kind kind, int64_t input, int64_t pads, int64_t kernel, int64_t stride,
                  int64_t dilation) {
    const int64_t span = dilation * (kernel - 1) + 1;
    const int64_t output = kind == DISTILE_MASKED_CONV_TRANSPOSE2D  ? (input - 1) * stride + span - pads
                           : kind == DISTILE_MASKED_UPSAMPLE_CONV2D ? input * stride + pads - span + 1
                                                                    : (input + pads - span) / stride + 1;
    return static_cast<int32_t>(std::clamp<int64_t>(output, 0, std::numeric_limits<int32_t>::max()));
}

class Call {
public:
    Call(Bytes &bytes, Session &session) : bytes_(bytes), session_(session) {
    }

    void run(const Loaded &loaded) {
        const distile_conv2d &conv = loaded.conv;
        spell_input(conv.in_channels);
        output_.view.height = extent_of(loaded.kind, input_.view.height, int64_t{conv.pad_top} + conv.pad_bottom,
                                        conv.kernel_h, conv.stride_h, conv.dilation_h);
        output_.view.width = extent_of(loaded.kind, input_.view.width, int64_t{conv.pad_left} + conv.pad_right,
                                       conv.kernel_w, conv.stride_w, conv.dilation_w);
        output_.view.channels = conv.out_channels;
        residual_.view = output_.view;
        spell(bytes_, output_.view);
        spell(bytes_, residual_.view);
        distile_run_args args{};
        args.input = input_.address();
        args.output = output_.address();
        args.residual = conv.residual != 0 ? residual_.address() : nullptr;
        args.weights = loaded.weights.get();
        args.mask = session_.mask.get();
        place(true);
        residual_.place(bytes_, false);
        // Overlaps, of which some are legal.
        switch (bytes_.choice(15)) {
        case 0:
            args.residual = output_.address();
            break;
        case 1:
            lay_over_input(conv.in_channels);
            break;
        case 2:
            args.residual = nullptr;
            break;
        case 3:
            args.weights = (&loaded == &session_.plain ? session_.residual : session_.plain).weights.get();
            break;
        default:
            break;
        }
        const auto options = bytes_.take<uint8_t>();
        spell_inactive(options, args.inactive);
        const int32_t store = options / 16 == 15 ? options : options >> 4 & 1;
        std::memcpy(&args.store, &store, sizeof(store));
        const int32_t num_variants = distile_kernel_num_variants(loaded.kernel.get());
        const int32_t variant = bytes_.choice(num_variants + 1);
        args.variant = variant <= num_variants ? distile_kernel_variant_name(loaded.kernel.get(), variant) : "none";
        set_mask();
        check_call(args, [&] { return distile_run(loaded.kernel.get(), &args); });
    }

    void chain() {
        constexpr int32_t channels = 16;
        spell_input(channels);
        output_.view = input_.view;
        spell(bytes_, output_.view);
        place(false);
        if (bytes_.choice(15) == 0) {
            lay_over_input(channels);
        }
        distile_chain_args args{};
        args.input = input_.address();
        args.output = output_.address();
        distile_mask *const masks[] = {session_.mask.get(), session_.mask.get()};
        args.masks = masks;
        spell_inactive(bytes_.take<uint8_t>(), args.inactive);
        set_mask();
        const int32_t kept = bytes_.choice(7);
        if (kept == 1 && !input_.huge && !output_.huge) {
            // The devices keep the result.
            args.output = nullptr;
            fill_input();
            const std::vector<uint32_t> before = output_.contents();
            distile_chain_run(session_.chain.get(), &args);
            require(output_.contents() == before, "a run without an output wrote to one");
            return;
        }
        if (kept == 2 && !aliased_) {
            args.input = nullptr;
        }
        distile_run_args written{};
        // It may be no enumerator, so it is copied and not read.
        std::memcpy(&written.inactive, &args.inactive, sizeof(written.inactive));
        check_call(written, [&] { return distile_chain_run(session_.chain.get(), &args); });
    }

    void upsample() {
        spell_input(bytes_.extent(20));
        distile_upsample_args args{};
        args.scale_h = bytes_.extent(3);
        args.scale_w = bytes_.extent(3);
        const auto enlarged = [](int32_t extent, int32_t scale) {
            return extent_of(DISTILE_MASKED_UPSAMPLE_CONV2D, extent, 0, 1, scale, 1);
        };
        output_.view.height = enlarged(input_.view.height, args.scale_h);
        output_.view.width = enlarged(input_.view.width, args.scale_w);
        output_.view.channels = input_.view.channels;
        spell(bytes_, output_.view);
        args.input = input_.address();
        args.output = output_.address();
        args.mask = session_.mask.get();
        // Only pixels are read.
        place(false);
        if (bytes_.choice(15) == 0) {
            lay_over_input(std::clamp(input_.view.channels, 1, 64));
        }
        // What the output must be is that of a run.
        distile_run_args written{};
        const auto options = bytes_.take<uint8_t>();
        spell_inactive(options, args.inactive);
        spell_inactive(options, written.inactive);
        set_mask();
        check_call(written, [&] { return distile_upsample_nearest(session_.context.get(), &args); });
    }

    void normalize() {
        spell_input(bytes_.extent(40));
        output_.view = input_.view;
        spell(bytes_, output_.view);
        place(false);
        const int32_t channels = input_.view.channels;
        const size_t length = channels >= 1 && channels <= 65535 ? static_cast<size_t>(channels) : 0;
        const GuardedMemory gamma(length * sizeof(float), Flush::Back), beta(length * sizeof(float), Flush::Front);
        for (const GuardedMemory *vector : {&gamma, &beta}) {
            std::fill_n(vector->words(), vector->num_words(), 0x3f800000);  // 1
        }
        distile_normalize_args args{};
        args.input = input_.address();
        args.output = output_.address();
        args.mask = session_.mask.get();
        const auto options = bytes_.take<uint8_t>();
        args.gamma = (options & 2) != 0 ? static_cast<const float *>(gamma.data()) : nullptr;
        args.beta = (options & 4) != 0 ? static_cast<const float *>(beta.data()) : nullptr;
        const int32_t norm = bytes_.choice(7) == 0 ? options : options >> 3 & 1;
        std::memcpy(&args.norm, &norm, sizeof(norm));
        args.epsilon = bytes_.choice(3) == 0 ? bytes_.take<float>() : 1;
        distile_run_args written{};
        spell_inactive(options, args.inactive);
        spell_inactive(options, written.inactive);
        const int32_t overlap = bytes_.choice(7);
        if (overlap == 0) {
            lay_over_input(std::clamp(input_.view.channels, 1, 64));
        } else if (overlap == 1) {
            args.output = input_.address();
        }
        set_mask();
        const auto call = [&] { return distile_normalize(session_.context.get(), &args); };
        if (overlap == 1 || (overlap == 0 && is_same_view())) {
            // In place, which is legal.
            if (!input_.huge) {
                call();
            }
            return;
        }
        check_call(written, call);
    }

    void pack(bool to_packed) {
        spell_input(bytes_.extent(20));
        // The output is the packed tensor, or has the mask.
        output_.view.height = bytes_.extent(4);
        output_.view.width = bytes_.extent(60);
        output_.view.channels = input_.view.channels;
        spell(bytes_, output_.view);
        place(false);
        if (bytes_.choice(15) == 0) {
            lay_over_input(std::clamp(input_.view.channels, 1, 64));
        }
        const auto options = bytes_.take<uint8_t>();
        if (!to_packed) {
            // An argument of C++ is an enumerator of its type, whatever the input spells.
            const distile_inactive inactive = (options & 1) != 0 ? DISTILE_ZERO : DISTILE_KEEP;
            distile_run_args written{};
            written.inactive = inactive;
            set_mask();
            check_call(written, [&] {
                return distile_unpack(session_.context.get(), input_.address(), session_.mask.get(), output_.address(),
                                      inactive);
            });
            return;
        }
        set_mask_for(input_.view);
        if (input_.huge || output_.huge) {
            return;
        }
        const std::vector<uint32_t> before = output_.contents();
        const distile_status status =
            distile_pack(session_.context.get(), input_.address(), session_.mask.get(), output_.address());
        require(status == DISTILE_OK || output_.contents() == before, "a call that was refused wrote to the output");
        require(status != DISTILE_OK || !aliased_, "an output that lies over the input is accepted");
    }

private:
    void spell_input(int32_t channels) {
        input_.view.batch = bytes_.extent(2);
        input_.view.height = bytes_.extent(10);
        input_.view.width = bytes_.extent(10);
        input_.view.channels = channels;
        spell(bytes_, input_.view);
        output_.view.batch = input_.view.batch;
    }
    void place(bool bordered) {
        input_.place(bytes_, bordered);
        output_.place(bytes_, false);
    }
    /** Within the channels of the input: elsewhere a view of equal strides might be legal. */
    void lay_over_input(int32_t channels) {
        const Type *const type = find_type(number(input_.view.dtype));
        const int32_t bytes = type ? type->bytes : 4;
        output_.view.data = static_cast<char *>(input_.view.data) + bytes_.choice(channels - 1) * bytes;
        aliased_ = true;
    }
    bool is_same_view() const {
        const distile_tensor &a = input_.view, &b = output_.view;
        return a.data == b.data && a.stride_w == b.stride_w && a.stride_h == b.stride_h &&
               (a.batch == 1 || a.stride_n == b.stride_n);
    }
    static void spell_inactive(uint8_t options, distile_inactive &inactive) {
        const int32_t number = options % 16 == 15 ? options : options & 1;
        std::memcpy(&inactive, &number, sizeof(number));
    }

    void fill_input() const {
        std::fill_n(input_.memory->words(), input_.memory->num_words(), 0x3f000000);  // 0.5
    }

    /** Makes the call, unless it needs too much memory. */
    template<typename Function> void check_call(const distile_run_args &args, const Function &function) {
        if (input_.huge || output_.huge || residual_.huge) {
            return;
        }
        fill_input();
        const std::vector<uint32_t> before = output_.contents();
        const distile_status status = function();
        if (status != DISTILE_OK) {
            require(status != DISTILE_ERROR_KERNEL, distile_context_message(session_.context.get()));
            require(output_.contents() == before, "a run that was refused wrote to the output");
        } else {
            require(!aliased_, "an output that lies over the input is accepted");
            check_output(args);
        }
    }

    void set_mask() {
        set_mask_for(output_.view);
    }
    void set_mask_for(distile_tensor shape) {
        if (bytes_.choice(15) == 0) {
            shape.height = bytes_.extent(10);
            shape.width = bytes_.extent(10);
        }
        const auto small = [](int32_t extent) { return extent >= 1 && extent <= 64; };
        if (!small(shape.batch) || !small(shape.height) || !small(shape.width)) {
            shape.batch = shape.height = shape.width = 1;
        }
        height_ = shape.height;
        width_ = shape.width;
        pixels_.assign(static_cast<size_t>(shape.batch) * height_ * width_, 0);
        uint8_t eight = 0;
        for (size_t i = 0; i < pixels_.size(); i++) {
            eight = i % 8 == 0 ? bytes_.take<uint8_t>() : eight >> 1;
            pixels_[i] = eight & 1;
        }
        check(session_.context, distile_mask_set_bytes(session_.mask.get(), pixels_.data(), shape.batch, height_,
                                                       width_, int64_t{height_} * width_, width_));
    }

    /** Every active pixel is computed. With DISTILE_KEEP the others are what they were, if only pixels are stored. */
    void check_output(const distile_run_args &args) const {
        const distile_tensor &view = output_.view;
        if (number(view.dtype) != DISTILE_FLOAT32) {
            return;  // Upsampling, normalization and packing take any type.
        }
        const auto *data = static_cast<const uint32_t *>(view.data);
        for (size_t pixel = 0; pixel < pixels_.size(); pixel++) {
            const auto x = static_cast<int64_t>(pixel % width_), y = static_cast<int64_t>(pixel / width_ % height_);
            const auto n = static_cast<int64_t>(pixel / width_ / height_);
            const uint32_t *channels = data + n * view.stride_n + y * view.stride_h + x * view.stride_w;
            const auto is_untouched = [](uint32_t word) { return word == untouched; };
            if (args.store == DISTILE_STORE_EXACT && pixels_[pixel] == 0) {
                require(std::all_of(channels, channels + view.channels,
                                    [&](uint32_t word) {
                                        return args.inactive == DISTILE_KEEP ? is_untouched(word) : word == 0;
                                    }),
                        "an inactive pixel is not what it should be");
            } else if (pixels_[pixel] != 0 && !args.residual) {
                require(std::none_of(channels, channels + view.channels, is_untouched),
                        "an active pixel was not computed");
            }
        }
    }

    Bytes &bytes_;
    Session &session_;
    Tensor input_, output_, residual_;
    bool aliased_ = false;
    int32_t height_ = 0, width_ = 0;
    std::vector<uint8_t> pixels_;
};

/** NCHW to ours or back. */
void convert(Bytes &bytes, Session &session) {
    Tensor tensor;
    tensor.view = distile_tensor_make(nullptr, bytes.extent(2), bytes.extent(9), bytes.extent(40), bytes.extent(40));
    spell(bytes, tensor.view);
    // These calls read and write pixels only, and ignore the border.
    tensor.place(bytes, false);
    const distile_tensor &given = tensor.view;
    distile_nchw planes{};
    std::memcpy(&planes.dtype, &given.dtype, sizeof(planes.dtype));
    constexpr int64_t range = int64_t{1} << 31;
    planes.stride_h = bytes.stride(given.width);
    planes.stride_c = bytes.stride(planes.stride_h % range * given.height);
    planes.stride_n = bytes.stride(planes.stride_c % range * (given.channels % 65536));
    const bool positive = given.batch >= 1 && given.height >= 1 && given.width >= 1 && given.channels >= 1 &&
                          planes.stride_h >= 1 && planes.stride_c >= 1 && (given.batch == 1 || planes.stride_n >= 1);
    __int128 elements = 0;
    if (positive) {
        elements = __int128{given.channels - 1} * planes.stride_c + __int128{given.height - 1} * planes.stride_h +
                   given.width + (given.batch > 1 ? __int128{given.batch - 1} * planes.stride_n : 0);
    }
    if (tensor.huge || elements > most_elements) {
        return;
    }
    const GuardedMemory memory(static_cast<size_t>(elements) * sizeof(float),
                               bytes.flag() ? Flush::Front : Flush::Back);
    planes.data = static_cast<float *>(elements > 0 ? memory.data() : memory.words() + memory.num_words());
    if (bytes.flag()) {
        distile_from_nchw(session.context.get(), &planes, &given);
    } else {
        distile_to_nchw(session.context.get(), &given, &planes);
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (!can_run(test_conv3_16_48_avx2)) {
        return 0;  // Nothing can be run here.
    }
    static Session one(1), three(3);
    Bytes bytes(data, size);
    // The highest numbers are for what came later, so that older inputs do what they did.
    constexpr uint8_t later = 224, chains = 204, normalizes = 208, packs = 216;
    const auto first = bytes.take<uint8_t>();
    Session &session = first % 2 != 0 ? one : three;
    if (first >= later) {
        Call call(bytes, session);
        switch ((first - later) / 8) {
        case 0:
            call.run(session.depthwise);
            break;
        case 1:
            call.run(session.transposed);
            break;
        case 2:
            call.run(session.upsampled);
            break;
        default:
            call.upsample();
        }
    } else if (first >= packs) {
        Call(bytes, session).pack(first % 4 < 2);
    } else if (first >= normalizes) {
        Call(bytes, session).normalize();
    } else if (first >= chains) {
        Call(bytes, session).chain();
    } else if (bytes.choice(3) == 0) {
        convert(bytes, session);
    } else {
        const Loaded &loaded = bytes.flag() ? session.plain : session.residual;
        Call(bytes, session).run(loaded);
    }
    return 0;
}
