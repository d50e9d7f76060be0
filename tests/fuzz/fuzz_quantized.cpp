// distile_run of a quantized operator, with numbers and descriptors that the input spells, in memory between pages that
// nobody may touch: weights are packed or refused, and a call succeeds and writes what the mask asks for, or is refused
// and writes nothing. The code for every kind of CPU that this one can run writes the same.
#include "reference/conv2d_reference.h"
#include "tests/fuzz/fuzz_tensor.h"
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <distile/distile.hpp>
#include <distile/polykernel.h>
#include <distile/quantize.h>
#include <memory>
#include <test_conv3_24_40_residual_uint8.h>
#include <vector>

using namespace distile;

namespace {

constexpr const distile_polykernel &polykernel = test_conv3_24_40_residual_uint8;

struct Session {
    /** Null for the features: all that the CPU has. */
    Session(int32_t threads, const char *features)
        : context(make(threads, features)), kernel(make_kernel(context, polykernel)), mask(make_mask(context)) {
    }

    static Context make(int32_t threads, const char *features) {
        distile_context_options options{};
        options.threads = threads;
        options.parallel_for = run_backwards;
        options.cpu_features = features;
        return make_context(options);
    }

    Context context;
    Kernel kernel;
    Mask mask;
};

/** What the input spells of a layer. */
class Layer {
public:
    explicit Layer(Bytes &bytes) : conv_(convolution_of(polykernel)), filter_(filter_size(conv_)) {
        for (int8_t &weight : filter_) {
            // Mostly what the input does not spell.
            weight = static_cast<int8_t>(&weight - filter_.data() < 64 ? bytes.take<int8_t>()
                                                                       : (&weight - filter_.data()) * 37);
        }
        scales_.assign(conv_.out_channels, scale(bytes));
        scales_[bytes.choice(conv_.out_channels - 1)] = scale(bytes);
        bias_.assign(conv_.out_channels, 0);
        bias_[bytes.choice(conv_.out_channels - 1)] = bytes.take<int32_t>();
        numbers_.input = {scale(bytes), zero_point(bytes, 0)};
        numbers_.filter_scales = bytes.choice(31) != 0 ? scales_.data() : nullptr;
        numbers_.bias = bytes.flag() ? bias_.data() : nullptr;
        numbers_.output = {scale(bytes), zero_point(bytes, -128)};
        numbers_.residual = {scale(bytes), zero_point(bytes, -128)};
        dtype_ = bytes.flag() ? DISTILE_INT8 : DISTILE_INT4;
        if (bytes.choice(31) == 0) {
            dtype_ = bytes.take<int32_t>();
        }
        order_ = bytes.choice(31) == 0 ? bytes.take<int32_t>() : bytes.choice(3) + 1;
    }

    distile_status pack(const Session &session, Weights &weights) const {
        distile_weights_source source{};
        source.filter = filter_.data();
        std::memcpy(&source.dtype, &dtype_, sizeof(dtype_));
        std::memcpy(&source.order, &order_, sizeof(order_));
        source.quantization = &numbers_;
        distile_weights *made = nullptr;
        const distile_status status = distile_weights_pack(session.kernel.get(), &source, &made);
        require((status == DISTILE_OK) == (made != nullptr), "packing says other than it does");
        weights.reset(made);
        return status;
    }

    const distile_conv2d &conv() const {
        return conv_;
    }
    const distile_quantization &numbers() const {
        return numbers_;
    }
    /** Whether no product of scales exceeds a float, where code for different CPUs may round another way. */
    bool is_moderate() const {
        return moderate_;
    }

private:
    float scale(Bytes &bytes) {
        const int32_t selector = bytes.choice(63);
        if (selector > 0) {
            return static_cast<float>(selector) / 64;
        }
        moderate_ = false;
        return bytes.take<float>();
    }
    static int32_t zero_point(Bytes &bytes, int32_t least) {
        return bytes.choice(31) == 0 ? bytes.take<int32_t>() : least + bytes.choice(255);
    }

    distile_conv2d conv_;
    std::vector<int8_t> filter_;
    std::vector<float> scales_;
    std::vector<int32_t> bias_;
    distile_quantization numbers_{};
    int32_t dtype_ = 0, order_ = 0;
    bool moderate_ = true;
};

class Call {
public:
    Call(Bytes &bytes, const Layer &layer) : layer_(layer) {
        const distile_conv2d &conv = layer.conv();
        const auto extent = [](int64_t in, int64_t pads, int64_t kernel, int64_t stride) {
            return static_cast<int32_t>(std::clamp<int64_t>((in + pads - kernel) / stride + 1, 0, INT32_MAX));
        };
        input_.view =
            distile_tensor_make(nullptr, bytes.extent(2), bytes.extent(9), bytes.extent(21), conv.in_channels);
        spell_as(bytes, input_, DISTILE_UINT8, true);
        output_.view = distile_tensor_make(
            nullptr, input_.view.batch, extent(input_.view.height, conv.pad_top + conv.pad_bottom, 3, conv.stride_h),
            extent(input_.view.width, conv.pad_left + conv.pad_right, 3, conv.stride_w), conv.out_channels);
        residual_.view = output_.view;
        spell_as(bytes, output_, DISTILE_INT8, false);
        spell_as(bytes, residual_, DISTILE_INT8, false);
        in_place_ = bytes.choice(3) == 0;
        const auto options = bytes.take<uint8_t>();
        inactive_ = (options & 1) != 0 ? DISTILE_ZERO : DISTILE_KEEP;
        store_ = (options & 2) != 0 ? DISTILE_STORE_TILES : DISTILE_STORE_EXACT;
        fill_input();
        set_mask(bytes);
    }

    /** Calls the code of each session. */
    void run(const std::vector<std::unique_ptr<Session>> &sessions) {
        if (input_.huge || output_.huge || residual_.huge) {
            return;
        }
        const std::vector<uint32_t> before = output_.contents();
        std::vector<uint32_t> first;
        for (const auto &session : sessions) {
            Weights weights;
            if (layer_.pack(*session, weights) != DISTILE_OK) {
                require(first.empty(), "numbers are refused for one kind of CPU alone");
                return;
            }
            std::copy(before.begin(), before.end(), output_.memory->words());
            check(session->context, distile_mask_set_bytes(session->mask.get(), active_.data(), batch_, height_, width_,
                                                           int64_t{height_} * width_, width_));
            distile_run_args args{};
            args.input = input_.address();
            args.output = output_.address();
            args.residual = in_place_ ? output_.address() : residual_.address();
            args.weights = weights.get();
            args.mask = session->mask.get();
            args.inactive = inactive_;
            args.store = store_;
            const distile_status status = distile_run(session->kernel.get(), &args);
            if (status != DISTILE_OK) {
                require(status != DISTILE_ERROR_KERNEL, distile_context_message(session->context.get()));
                require(output_.contents() == before, "a run that was refused wrote to the output");
            } else if (store_ == DISTILE_STORE_EXACT) {
                check_inactive();
            }
            // Whole tiles differ with the variant.
            if (store_ == DISTILE_STORE_EXACT && layer_.is_moderate()) {
                require(first.empty() || output_.contents() == first,
                        "the code for two kinds of CPU writes other values");
                first = output_.contents();
            }
        }
    }

private:
    static void spell_as(Bytes &bytes, Tensor &tensor, distile_dtype dtype, bool bordered) {
        spell(bytes, tensor.view);
        if (number(tensor.view.dtype) == DISTILE_FLOAT32) {
            tensor.view.dtype = dtype;
        }
        tensor.element_bytes = 1;
        tensor.place(bytes, bordered);
    }

    /** Any pixels in a border of zeros. */
    void fill_input() {
        if (input_.huge || input_.memory->num_words() == 0) {
            return;
        }
        const auto zero = static_cast<uint8_t>(layer_.numbers().input.zero_point);
        std::memset(input_.memory->words(), zero, input_.memory->num_words() * sizeof(uint32_t));
        const auto *end = reinterpret_cast<const uint8_t *>(input_.memory->words() + input_.memory->num_words());
        const distile_tensor &view = input_.view;
        for (int64_t pixel = 0; view.data != end && pixel < int64_t{view.batch} * view.height * view.width; pixel++) {
            const int64_t x = pixel % view.width, y = pixel / view.width % view.height,
                          n = pixel / view.width / view.height;
            uint8_t *const channels =
                static_cast<uint8_t *>(view.data) + n * view.stride_n + y * view.stride_h + x * view.stride_w;
            for (int32_t c = 0; c < view.channels; c++) {
                channels[c] = static_cast<uint8_t>(pixel * 89 + c * 53);
            }
        }
    }

    void set_mask(Bytes &bytes) {
        const auto small = [](int32_t extent) { return extent >= 1 && extent <= 64; };
        const distile_tensor &view = output_.view;
        const bool fits = small(view.batch) && small(view.height) && small(view.width);
        batch_ = fits ? view.batch : 1;
        height_ = fits ? view.height : 1;
        width_ = fits ? view.width : 1;
        active_.assign(static_cast<size_t>(batch_) * height_ * width_, 0);
        uint8_t eight = 0;
        for (size_t i = 0; i < active_.size(); i++) {
            eight = i % 8 == 0 ? bytes.take<uint8_t>() : eight >> 1;
            active_[i] = eight & 1;
        }
    }

    /** What they were, or the zero point. */
    void check_inactive() const {
        const distile_tensor &view = output_.view;
        const auto *begin = reinterpret_cast<const uint8_t *>(output_.memory->words());
        for (size_t pixel = 0; pixel < active_.size(); pixel++) {
            const auto x = static_cast<int64_t>(pixel % width_), y = static_cast<int64_t>(pixel / width_ % height_),
                       n = static_cast<int64_t>(pixel / width_ / height_);
            const uint8_t *channels =
                static_cast<const uint8_t *>(view.data) + n * view.stride_n + y * view.stride_h + x * view.stride_w;
            for (int32_t c = 0; active_[pixel] == 0 && c < view.channels; c++) {
                const auto kept = static_cast<uint8_t>(untouched >> (8 * ((channels + c - begin) % sizeof(untouched))));
                const auto zero = static_cast<uint8_t>(layer_.numbers().output.zero_point);
                require(channels[c] == (inactive_ == DISTILE_ZERO ? zero : kept),
                        "an inactive pixel is not what it should be");
            }
        }
    }

    const Layer &layer_;
    Tensor input_, output_, residual_;
    bool in_place_ = false;
    distile_inactive inactive_ = DISTILE_KEEP;
    distile_store store_ = DISTILE_STORE_EXACT;
    int32_t batch_ = 1, height_ = 1, width_ = 1;
    std::vector<uint8_t> active_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const std::vector<std::unique_ptr<Session>> sessions = [] {
        std::vector<std::unique_ptr<Session>> made;
        made.push_back(std::make_unique<Session>(3, nullptr));
        made.push_back(std::make_unique<Session>(1, "avx2 avx sse41 fma f16c"));
        made.push_back(std::make_unique<Session>(2, ""));
        return made;
    }();
    Bytes bytes(data, size);
    const Layer layer(bytes);
    Call(bytes, layer).run(sessions);
    return 0;
}
