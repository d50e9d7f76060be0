/** \file
 * What functions of the C API are called with, and what no tensor may be.
 */
#ifndef DISTILE_TESTS_SHARED_FIXTURE_H
#define DISTILE_TESTS_SHARED_FIXTURE_H

#include "tests/support/shared_arguments.h"
#include "tests/support/temporary_folder.h"
#include <cstring>
#include <limits>

namespace distile {

constexpr int32_t images = 2, rows = 6, columns = 7;
constexpr int32_t beyond = 65536; /**< One more than any extent may be. */
constexpr int64_t most64 = std::numeric_limits<int64_t>::max(), least64 = std::numeric_limits<int64_t>::min();

template<typename T> const T *misaligned(const T *pointer) {
    return reinterpret_cast<const T *>(reinterpret_cast<const char *>(pointer) + 1);
}

/** What the functions are called with. */
struct Fixture {
    /** An array of the device. */
    template<typename T> struct Array {
        Array(const Fixture &f, const std::vector<T> &values)
            : memory(f.device.copy(values.data(), values.size() * sizeof(T))) {
        }
        T *data() const {
            return static_cast<T *>(memory.get());
        }
        std::shared_ptr<void> memory;
    };
    /** A tensor with memory of its own. */
    struct Activation {
        Activation(const Fixture &f, int32_t scale, int32_t channels)
            : memory(f, std::vector<float>(size_t{images} * rows * columns * scale * scale * channels, 0.5f)),
              view(distile_tensor_make(memory.data(), images, rows * scale, columns * scale, channels)) {
        }
        Array<float> memory;
        distile_tensor view;
    };

    explicit Fixture(const TestedDevice &tested) : device(tested) {
        std::vector<uint8_t> few(size_t{images} * rows * columns, 0);
        few[5] = few[20] = 1;
        set(context, mask, Array<uint8_t>(*this, few));
        set(context, other_mask, Array<uint8_t>(*this, few));
        set(elsewhere, foreign_mask, bytes);
        check(context, distile_mask_set_bytes(small_mask.get(), bytes.data(), 1, 1, 1, 1, 1));
        source.filter = filter.data();
        source.order = DISTILE_OIHW;
        weights = pack_weights(context, kernel, source);
        const Kernel other = make_kernel(context, device.other);
        other_weights = pack_weights(context, other, source);
        run.input = &input.view;
        run.residual = &residual.view;
        run.output = &output.view;
        run.weights = weights.get();
        run.mask = mask.get();
    }

    static void set(const Context &of, const Mask &which, const Array<uint8_t> &to) {
        check(of, distile_mask_set_bytes(which.get(), to.data(), images, rows, columns, rows * columns, columns));
    }
    WrongArguments functions() const {
        return {[this] { return std::string(distile_context_message(context.get())); },
                [this] { distile_mask_set_bytes(mask.get(), bytes.data(), 1, 1, -77, 1, 1); }};
    }

    const TestedDevice &device;
    TemporaryFolder folder;
    Context context = device.make_context(), elsewhere = device.make_context();
    const distile_polykernel &polykernel = device.polykernel;
    Kernel kernel = make_kernel(context, polykernel);
    /** Two of few pixels, one to write to, one that was never set, one of another context, and one of another shape. */
    Mask mask = make_mask(context), other_mask = make_mask(context), result = make_mask(context),
         unset = make_mask(context), foreign_mask = make_mask(elsewhere), small_mask = make_mask(context);
    const Array<uint8_t> bytes = Array<uint8_t>(*this, std::vector<uint8_t>(size_t{images} * rows * columns, 1));
    std::vector<float> filter = std::vector<float>(size_t{9} * 48 * 48, 0.25f);
    distile_weights_source source{};
    Weights weights, other_weights;
    Activation input{*this, 1, 48}, residual{*this, 1, 16}, output{*this, 1, 16};
    distile_run_args run{};
    // On the host.
    float on_host = 0;
};

/** Everything that no tensor may be: refuse(status, the tensor with one member spoilt, or null) must be called for
 * each. For the shape and the channels these are values that no function allows; each function also has values that do
 * not fit its other arguments. */
template<typename Refuse> void spoil_tensor(Fixture &f, const distile_tensor &right, const Refuse &refuse) {
    const auto spoil = [&](distile_status status, const auto &change) {
        distile_tensor spoilt = right;
        change(spoilt);
        refuse(status, &spoilt);
    };
    refuse(DISTILE_ERROR_NULL_POINTER, nullptr);
    spoil(DISTILE_ERROR_NULL_POINTER, [](distile_tensor &view) { view.data = nullptr; });
    spoil(DISTILE_ERROR_BAD_ALIGNMENT, [](distile_tensor &view) { view.data = static_cast<char *>(view.data) + 1; });
    if (!f.device.host_memory) {
        spoil(DISTILE_ERROR_NOT_DEVICE_MEMORY, [&](distile_tensor &view) { view.data = &f.on_host; });
    }
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

// The functions that compute with tensors and masks, in shared_layer_arguments.cpp.

void check_upsampling(Fixture &f, WrongArguments &all);
void check_normalization(Fixture &f, WrongArguments &all);
void check_packing(Fixture &f, WrongArguments &all);
void check_pooling(Fixture &f, WrongArguments &all);
void check_global_pooling(Fixture &f, WrongArguments &all);
void check_combination(Fixture &f, WrongArguments &all);
void check_group_statistics(Fixture &f, WrongArguments &all);
void check_group_norm(Fixture &f, WrongArguments &all);
void check_scores(Fixture &f, WrongArguments &all);

}  // namespace distile

#endif
