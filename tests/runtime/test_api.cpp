// The contract of the C API: what it refuses, and that it then says why and writes nothing; the dispatcher's choice;
// time tables; weights; dense candidates of the application's.
#include "kernels/call.h"
#include "test_polykernels.h"
#include "tests/support/callers.h"
#include "tests/support/catch.h"
#include "tests/support/cpu_features_of.h"
#include "tests/support/descriptors.h"
#include "tests/support/reference.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/test_tensor.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <distile/distile.hpp>
#include <distile/polykernel.h>
#include <functional>
#include <limits>
#include <random>
#include <set>
#include <string>
#include <sys/mman.h>
#include <thread>
#include <vector>

using namespace distile;

namespace {

const distile_polykernel &plain_kernel = test_conv3_16_48_avx2;
const distile_polykernel &residual_kernel = test_conv3_48_16_residual_avx2;
const distile_polykernel &timed_kernel = test_point_17_48_avx2;

/** An enumerator that does not exist: a C program can pass any. */
template<typename Enum> void set_raw(Enum &value, int32_t raw) {
    static_assert(sizeof(Enum) == sizeof(raw));
    std::memcpy(&value, &raw, sizeof(raw));
}

bool contains(const std::string &text, const std::string &part) {
    return text.find(part) != std::string::npos;
}

/** A legal call with random values. Tests spoil one argument, run it, and look at what it says and at the output. */
struct Call {
    explicit Call(const distile_polykernel &polykernel = plain_kernel, const distile_context_options &options = {},
                  int32_t batch = 2, int32_t height = 6, int32_t width = 7)
        : conv(convolution_of(polykernel)), context(make_context(options)), kernel(make_kernel(context, polykernel)),
          mask(make_mask(context)), input(batch, height, width, conv.in_channels),
          output(batch, reference_output_height(conv, height), reference_output_width(conv, width), conv.out_channels),
          residual(batch, output.view().height, output.view().width, conv.out_channels), input_view(input.view()),
          output_view(output.view()), residual_view(residual.view()) {
        input.draw(Values::Integers, random);
        residual.draw(Values::Integers, random);
        set_operator(reference, polykernel);
        reference.input = input_view;
        reference.filter = draw(Values::Integers, filter_size(conv), random);
        reference.bias = draw(Values::Integers, conv.out_channels, random);
        distile_weights_source source{};
        source.filter = reference.filter.data();
        source.order = DISTILE_HWIO;
        source.bias = reference.bias.data();
        weights = pack_weights(context, kernel, source);
        reference.mask.resize(size_t(output_view.batch) * output_view.height * output_view.width);
        std::generate(reference.mask.begin(), reference.mask.end(), [&] { return uint8_t(random() % 2); });
        set_mask();
        args.input = &input_view;
        args.output = &output_view;
        if (conv.residual) {
            args.residual = &residual_view;
            reference.residual = &residual_view;
        }
        args.weights = weights.get();
        args.mask = mask.get();
    }

    void set_mask() {
        REQUIRE(distile_mask_set_bytes(mask.get(), reference.mask.data(), output_view.batch, output_view.height,
                                       output_view.width, int64_t{output_view.height} * output_view.width,
                                       output_view.width) == DISTILE_OK);
    }
    std::string message() const {
        return distile_context_message(context.get());
    }
    /** The call fails with this status, its message has these words, and the output is what it was. */
    void refuse(distile_status status, const std::vector<std::string> &words) {
        const auto before = output.snapshot();
        CHECK(std::string(distile_status_name(distile_run(kernel.get(), &args))) == distile_status_name(status));
        for (const std::string &word : words) {
            INFO("the message is: " << message());
            CHECK(contains(message(), word));
        }
        CHECK(output.snapshot() == before);
    }
    /** The call succeeds, and the output is what the reference says for the variant of `args`. */
    void accept() {
        distile_choice choice{};
        REQUIRE(distile_kernel_choose(kernel.get(), mask.get(), &choice) == DISTILE_OK);
        reference.tile_h = choice.tile_h;
        reference.tile_w = choice.tile_w;
        reference.dense = choice.dense != 0;
        reference.inactive = args.inactive;
        reference.store = args.store;
        reference.residual = args.residual;
        const ReferenceOutput expected = reference_masked_conv2d(reference);
        const auto before = output.snapshot();
        const distile_status status = distile_run(kernel.get(), &args);
        INFO("the message is: " << message());
        REQUIRE(status == DISTILE_OK);
        REQUIRE(output.difference(before, expected, 0) == "");
    }

    /** accept() for a variant that the call names. */
    void accept_variant(const char *name) {
        args.variant = name;
        const int32_t count = distile_kernel_num_variants(kernel.get());
        for (int32_t i = 0; i < count; i++) {
            if (std::string(distile_kernel_variant_name(kernel.get(), i)) == name) {
                accept();
            }
        }
        args.variant = nullptr;
    }

    distile_conv2d conv;
    std::mt19937 random{2};
    Context context;
    Kernel kernel;
    Mask mask;
    Weights weights;
    TestTensor input, output, residual;
    distile_tensor input_view, output_view, residual_view;
    ReferenceArgs reference;
    distile_run_args args{};
};

distile_choice choose(const Call &call) {
    distile_choice choice{};
    REQUIRE(distile_kernel_choose(call.kernel.get(), call.mask.get(), &choice) == DISTILE_OK);
    return choice;
}

/** A mask with the first pixels active. */
void activate_first(Call &call, size_t pixels) {
    std::fill(call.reference.mask.begin(), call.reference.mask.end(), uint8_t{0});
    std::fill_n(call.reference.mask.begin(), pixels, uint8_t{1});
    call.set_mask();
}

}  // namespace

TEST_CASE("Every status has its name", "[api]") {
    std::vector<std::string> names;
    for (int i = DISTILE_OK; i <= DISTILE_ERROR_DEVICE_LOST; i++) {
        names.emplace_back(distile_status_name(static_cast<distile_status>(i)));
        CHECK(names.back().rfind("DISTILE_", 0) == 0);
    }
    CHECK(names[DISTILE_ERROR_ALIASING] == "DISTILE_ERROR_ALIASING");
    std::sort(names.begin(), names.end());
    CHECK(std::unique(names.begin(), names.end()) == names.end());
}

TEST_CASE("A legal call is accepted", "[api]") {
    Call call;
    CHECK(call.message().empty());
    call.accept();
    CHECK(call.message().empty());
    Call with_residual(residual_kernel);
    with_residual.accept();
}

TEST_CASE("Context options are checked", "[api]") {
    distile_context *context = nullptr;
    CHECK(distile_context_create(nullptr, nullptr) == DISTILE_ERROR_NULL_POINTER);
    for (int32_t threads : {-1, 4097, std::numeric_limits<int32_t>::min()}) {
        distile_context_options options{};
        options.threads = threads;
        CHECK(distile_context_create(&options, &context) == DISTILE_ERROR_BAD_VALUE);
    }
    CallersAllocator allocator;
    for (bool allocate : {false, true}) {
        distile_context_options options{};
        allocator.use_in(options);
        (allocate ? options.deallocate = nullptr : options.deallocate);
        (allocate ? options.allocate : options.allocate = nullptr);
        CHECK(distile_context_create(&options, &context) == DISTILE_ERROR_BAD_VALUE);
    }
    CHECK(context == nullptr);
    REQUIRE(distile_context_create(nullptr, &context) == DISTILE_OK);
    CHECK(distile_context_threads(context) >= 1);
    CHECK(std::string(distile_context_message(context)).empty());
    distile_context_destroy(context);
    distile_context_options options{};
    options.threads = 7;
    CHECK(distile_context_threads(make_context(options).get()) == 7);
    options.threads = 1;
    for (distile_math math : {DISTILE_MATH_DEFAULT, DISTILE_MATH_FLOAT32, DISTILE_MATH_TF32}) {
        options.math = math;
        const Context any = make_context(options);
        distile_kernel_info info{};
        check(any, distile_kernel_get_info(make_kernel(any, plain_kernel).get(), &info));
        CHECK(info.math == DISTILE_MATH_FLOAT32);
    }
    set_raw(options.math, 3);
    CHECK(distile_context_create(&options, &context) == DISTILE_ERROR_BAD_VALUE);
    CHECK(contains(distile_context_message(nullptr), "math is 3"));
}

TEST_CASE("Null objects are allowed where nothing is to do, and refused elsewhere", "[api]") {
    distile_context_destroy(nullptr);
    distile_mask_destroy(nullptr);
    distile_kernel_destroy(nullptr);
    distile_weights_destroy(nullptr);
    CHECK(distile_context_threads(nullptr) == 0);
    CHECK(distile_context_message(nullptr) != nullptr);
    CHECK(distile_kernel_num_variants(nullptr) == 0);
    CHECK(distile_kernel_variant_name(nullptr, 0) == nullptr);

    Call call;
    distile_context *context = call.context.get();
    distile_kernel *kernel = call.kernel.get(), *new_kernel = nullptr;
    distile_mask *mask = call.mask.get(), *new_mask = nullptr;
    distile_weights *weights = nullptr;
    const uint8_t byte = 1;
    const uint32_t word = 1, *words = nullptr;
    int32_t words_per_row = 0;
    int64_t number = 0;
    distile_tile_list list{};
    distile_choice choice{};
    distile_weights_source source{};
    source.filter = call.reference.filter.data();
    source.order = DISTILE_OIHW;
    distile_weights_source no_filter = source;
    no_filter.filter = nullptr;
    const auto run_nothing = [](void *, void *, const distile_run_args *) { return 0; };
    distile_kernel_info info{};
    const int32_t index = 0;
    uint8_t written = 0;
    const distile_dense_candidate dense{"x", run_nothing, nullptr};
    const distile_dense_candidate no_name{nullptr, run_nothing, nullptr}, no_function{"x", nullptr, nullptr};

    // Without the object there is no context that could keep a message: the thread does.
    const std::function<distile_status()> without_context[] = {
        [&] { return distile_mask_create(nullptr, &new_mask); },
        [&] { return distile_mask_set_bytes(nullptr, &byte, 1, 1, 1, 1, 1); },
        [&] { return distile_mask_set_bits(nullptr, &word, 1, 1, 1, 1); },
        [&] { return distile_mask_set_indices(nullptr, &index, nullptr, 1, 1, 1, 1); },
        [&] { return distile_mask_bits(nullptr, &words, &words_per_row); },
        [&] { return distile_mask_get_bytes(nullptr, &written, 1, 1); },
        [&] { return distile_mask_active_pixels(nullptr, &number); },
        [&] { return distile_mask_count_tiles(nullptr, 1, 1, &number); },
        [&] { return distile_mask_tiles(nullptr, 1, 1, &list); },
        [&] { return distile_kernel_create(nullptr, &plain_kernel, &new_kernel); },
        [&] { return distile_kernel_get_info(nullptr, &info); },
        [&] { return distile_kernel_output_shape(nullptr, 1, 1, &words_per_row, &words_per_row); },
        [&] { return distile_kernel_load_times(nullptr, "x"); },
        [&] { return distile_kernel_add_time(nullptr, "x", 1, 1); },
        [&] { return distile_kernel_add_dense(nullptr, &dense); },
        [&] { return distile_weights_pack(nullptr, &source, &weights); },
        [&] { return distile_run(nullptr, &call.args); },
        [&] { return distile_run_variant(nullptr, 0, &call.args); },
        [&] { return distile_kernel_choose(nullptr, mask, &choice); },
    };
    for (const auto &function : without_context) {
        CHECK(distile_context_create(nullptr, nullptr) == DISTILE_ERROR_NULL_POINTER);
        const std::string before = distile_context_message(nullptr);
        CHECK(before == "distile_context_create: the pointer to the context is null");
        CHECK(function() == DISTILE_ERROR_NULL_POINTER);
        CHECK(distile_context_message(nullptr) != before);
        CHECK(call.message().empty());
    }
    CHECK(std::string(distile_context_message(nullptr)) == "distile_kernel_choose: the kernel is null");
    const std::function<distile_status()> spoken[] = {
        [&] { return distile_mask_create(context, nullptr); },
        [&] { return distile_mask_set_bytes(mask, nullptr, 1, 1, 1, 1, 1); },
        [&] { return distile_mask_set_bits(mask, nullptr, 1, 1, 1, 1); },
        [&] { return distile_mask_set_indices(mask, nullptr, nullptr, 1, 1, 1, 1); },
        [&] { return distile_mask_bits(mask, nullptr, &words_per_row); },
        [&] { return distile_mask_bits(mask, &words, nullptr); },
        [&] { return distile_mask_get_bytes(mask, nullptr, 1, 1); },
        [&] { return distile_mask_active_pixels(mask, nullptr); },
        [&] { return distile_mask_count_tiles(mask, 1, 1, nullptr); },
        [&] { return distile_mask_tiles(mask, 1, 1, nullptr); },
        [&] { return distile_kernel_create(context, nullptr, &new_kernel); },
        [&] { return distile_kernel_create(context, &plain_kernel, nullptr); },
        [&] { return distile_kernel_get_info(kernel, nullptr); },
        [&] { return distile_kernel_output_shape(kernel, 1, 1, nullptr, &words_per_row); },
        [&] { return distile_kernel_output_shape(kernel, 1, 1, &words_per_row, nullptr); },
        [&] { return distile_kernel_load_times(kernel, nullptr); },
        [&] { return distile_kernel_add_time(kernel, nullptr, 1, 1); },
        [&] { return distile_kernel_add_dense(kernel, nullptr); },
        [&] { return distile_kernel_add_dense(kernel, &no_name); },
        [&] { return distile_kernel_add_dense(kernel, &no_function); },
        [&] { return distile_weights_pack(kernel, nullptr, &weights); },
        [&] { return distile_weights_pack(kernel, &no_filter, &weights); },
        [&] { return distile_weights_pack(kernel, &source, nullptr); },
        [&] { return distile_run(kernel, nullptr); },
        [&] { return distile_run_variant(kernel, 0, nullptr); },
        [&] { return distile_kernel_choose(kernel, nullptr, &choice); },
        [&] { return distile_kernel_choose(kernel, mask, nullptr); },
    };
    for (size_t i = 0; i < std::size(spoken); i++) {
        CAPTURE(i);
        CHECK(distile_mask_set_bytes(mask, &byte, 1, 1, -77, 1, 1) == DISTILE_ERROR_BAD_SHAPE);
        CHECK(spoken[i]() == DISTILE_ERROR_NULL_POINTER);
        CHECK(contains(call.message(), "null"));
        CHECK_FALSE(contains(call.message(), "-77"));
    }
    CHECK((!new_kernel && !new_mask && !weights && !words));
    CHECK(distile_kernel_num_variants(kernel) == plain_kernel.num_variants);
}

TEST_CASE("A run without one of its arguments is refused", "[api]") {
    Call call(residual_kernel);
    const distile_run_args good = call.args;
    const std::pair<const char *, const distile_tensor * distile_run_args::*> tensors[] = {
        {"input", &distile_run_args::input},
        {"output", &distile_run_args::output},
        {"residual", &distile_run_args::residual}};
    for (const auto &[name, member] : tensors) {
        call.args = good;
        call.args.*member = nullptr;
        call.refuse(DISTILE_ERROR_NULL_POINTER, {name});
        distile_tensor empty = *(good.*member);
        empty.data = nullptr;
        call.args.*member = &empty;
        call.refuse(DISTILE_ERROR_NULL_POINTER, {name});
    }
    call.args = good;
    call.args.weights = nullptr;
    call.refuse(DISTILE_ERROR_NULL_POINTER, {"weights"});
    call.args = good;
    call.args.mask = nullptr;
    call.refuse(DISTILE_ERROR_NULL_POINTER, {"mask"});
    call.args = good;
    call.accept();
}

TEST_CASE("Tensors of another type or shape are refused", "[api]") {
    Call call(residual_kernel);
    const std::pair<const char *, distile_tensor *> tensors[] = {
        {"input", &call.input_view}, {"output", &call.output_view}, {"residual", &call.residual_view}};
    for (const auto &[name, tensor] : tensors) {
        CAPTURE(name);
        const distile_tensor good = *tensor;
        set_raw(tensor->dtype, 17);
        call.refuse(DISTILE_ERROR_BAD_TYPE, {name, "17"});
        *tensor = good;
        tensor->channels++;
        call.refuse(DISTILE_ERROR_BAD_CHANNELS,
                    {name, std::to_string(good.channels + 1), std::to_string(good.channels)});
        *tensor = good;
        for (int32_t distile_tensor::*extent :
             {&distile_tensor::batch, &distile_tensor::height, &distile_tensor::width}) {
            for (int32_t bad : {0, -3, 65536}) {
                *tensor = good;
                tensor->*extent = bad;
                call.refuse(DISTILE_ERROR_BAD_SHAPE, {name, std::to_string(bad)});
            }
            // Smaller, so that no stride is too small for it.
            *tensor = good;
            (tensor->*extent)--;
            call.refuse(DISTILE_ERROR_BAD_SHAPE,
                        {std::string(name) == "residual" ? "residual" : "output", std::to_string(tensor->*extent)});
        }
        *tensor = good;
    }
    call.accept();
}

TEST_CASE("An input smaller than the kernel has no output", "[api]") {
    // A 3 x 3 kernel without padding, and an input of 2 x 9.
    Call call(test_valid3_250_3_residual_avx2, {}, 1, 3, 9);
    call.accept();
    call.input_view.height = 2;
    call.refuse(DISTILE_ERROR_BAD_SHAPE, {"output", "1 x 0 x 7"});
}

TEST_CASE("Strides that are too small or too large are refused", "[api]") {
    Call call(residual_kernel);
    const std::pair<const char *, distile_tensor *> tensors[] = {
        {"input", &call.input_view}, {"output", &call.output_view}, {"residual", &call.residual_view}};
    for (const auto &[name, tensor] : tensors) {
        const distile_tensor good = *tensor;
        for (int64_t distile_tensor::*stride :
             {&distile_tensor::stride_w, &distile_tensor::stride_h, &distile_tensor::stride_n}) {
            const int64_t least = good.*stride;
            for (int64_t bad : {least - 1, int64_t{0}, -least, int64_t{1} << 31, int64_t{1} << 40,
                                std::numeric_limits<int64_t>::max(), std::numeric_limits<int64_t>::min()}) {
                CAPTURE(name, bad);
                *tensor = good;
                tensor->*stride = bad;
                call.refuse(DISTILE_ERROR_BAD_STRIDE, {name, std::to_string(bad)});
            }
        }
        // Each stride can be addressed, but not the last element.
        *tensor = good;
        tensor->stride_h = int64_t{1} << 30;
        tensor->stride_n = int64_t{6} << 30;
        call.refuse(DISTILE_ERROR_BAD_STRIDE, {name});
        *tensor = good;
        tensor->stride_n = (int64_t{1} << 31) - 1;
        call.refuse(DISTILE_ERROR_BAD_STRIDE, {name});
        *tensor = good;
    }
    call.accept();
}

TEST_CASE("The stride of a batch of one does not matter", "[api]") {
    for (int64_t stride : {int64_t{0}, int64_t{-5}, std::numeric_limits<int64_t>::max()}) {
        Call call(residual_kernel, {}, 1);
        call.input_view.stride_n = call.output_view.stride_n = call.residual_view.stride_n = stride;
        call.accept();
    }
}

TEST_CASE("Views that span all that can be addressed are computed", "[api]") {
    // Halide also counts the elements behind the last image, up to where another would begin: together below 2^31. The
    // memory between the images is never touched.
    Call call;
    const distile_tensor &small = call.input.view();
    const int64_t pixels = small.stride_n;
    distile_tensor large = small;
    large.stride_n = (int64_t{1} << 30) - 1;
    const size_t bytes = (size_t{1} << 31) * sizeof(float);
    void *memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
        WARN("skipped: this system grants no 8 GiB of addresses");
        return;
    }
    large.data = memory;
    for (int64_t n = 0; n < 2; n++) {
        std::copy_n(static_cast<float *>(small.data) + n * pixels, pixels,
                    static_cast<float *>(memory) + n * large.stride_n);
    }
    call.input_view = large;
    call.accept();
    call.input_view.stride_n++;
    call.refuse(DISTILE_ERROR_BAD_STRIDE, {"input"});
    munmap(memory, bytes);
}

TEST_CASE("Borders that cannot be are refused", "[api]") {
    Call call;
    const distile_tensor good = call.input_view;
    for (int32_t distile_tensor::*border : {&distile_tensor::border_top, &distile_tensor::border_bottom,
                                            &distile_tensor::border_left, &distile_tensor::border_right}) {
        for (int32_t bad : {-1, 65536, std::numeric_limits<int32_t>::max(), std::numeric_limits<int32_t>::min()}) {
            call.input_view = good;
            call.input_view.*border = bad;
            call.refuse(DISTILE_ERROR_BAD_VALUE, {"input", "border", std::to_string(bad)});
        }
    }
    call.input_view = good;
    // A plain tensor has no room for one.
    call.input_view.border_left = 1;
    call.refuse(DISTILE_ERROR_BAD_STRIDE,
                {"input", "border of 0/0/1/0", "no room", "stride_h is " + std::to_string(good.stride_h),
                 "at least " + std::to_string(good.stride_h + good.stride_w)});
    call.input_view = good;
    call.input_view.border_bottom = 2;
    call.refuse(DISTILE_ERROR_BAD_STRIDE,
                {"input", "border of 0/2/0/0", "no room", "stride_n is " + std::to_string(good.stride_n),
                 "at least " + std::to_string(good.stride_n + 2 * good.stride_h)});
    call.input_view = good;
    // Outputs and residuals have none, so that whatever stands there is ignored.
    call.output_view.border_left = -9;
    call.output_view.border_top = 1 << 30;
    call.accept();
}

TEST_CASE("Enumerators that do not exist are refused", "[api]") {
    Call call;
    for (int32_t bad : {-1, 2, 1 << 20}) {
        set_raw(call.args.inactive, bad);
        call.refuse(DISTILE_ERROR_BAD_VALUE, {"inactive", std::to_string(bad)});
        call.args.inactive = DISTILE_KEEP;
        set_raw(call.args.store, bad);
        call.refuse(DISTILE_ERROR_BAD_VALUE, {"store", std::to_string(bad)});
        call.args.store = DISTILE_STORE_EXACT;
        distile_weights_source source{};
        source.filter = call.reference.filter.data();
        set_raw(source.order, bad == 2 ? 5 : bad);
        distile_weights *weights = nullptr;
        CHECK(distile_weights_pack(call.kernel.get(), &source, &weights) == DISTILE_ERROR_BAD_VALUE);
        CHECK(contains(call.message(), std::to_string(bad == 2 ? 5 : bad)));
        CHECK(weights == nullptr);
    }
    call.accept();
}

TEST_CASE("Masks that do not fit the output are refused", "[api]") {
    Call call;
    const Mask other = make_mask(call.context);
    call.args.mask = other.get();
    call.refuse(DISTILE_ERROR_BAD_MASK, {"mask", "never set"});
    const std::vector<uint8_t> bytes(1000, 1);
    const int32_t shapes[][3] = {{1, 6, 7}, {2, 5, 7}, {2, 6, 8}};
    for (const auto &shape : shapes) {
        REQUIRE(distile_mask_set_bytes(other.get(), bytes.data(), shape[0], shape[1], shape[2], shape[1] * shape[2],
                                       shape[2]) == DISTILE_OK);
        call.refuse(DISTILE_ERROR_BAD_MASK, {"mask", std::to_string(shape[0]) + " x " + std::to_string(shape[1]) +
                                                         " x " + std::to_string(shape[2])});
    }
    Call elsewhere;
    call.args.mask = elsewhere.mask.get();
    call.refuse(DISTILE_ERROR_BAD_MASK, {"mask", "another context"});
    call.args.mask = call.mask.get();
    call.accept();
}

TEST_CASE("A residual is due exactly where the operator adds one", "[api]") {
    Call with(residual_kernel), without;
    with.args.residual = nullptr;
    with.refuse(DISTILE_ERROR_NULL_POINTER, {"residual"});
    without.args.residual = &without.residual_view;
    without.refuse(DISTILE_ERROR_BAD_VALUE, {"residual", plain_kernel.name});
}

TEST_CASE("Weights of another operator are refused", "[api]") {
    Call call, other(residual_kernel);
    call.args.weights = other.weights.get();
    call.refuse(DISTILE_ERROR_BAD_WEIGHTS, {"weights", "48 -> 16", "16 -> 48", plain_kernel.name});
    Call fewer(timed_kernel);
    call.args.weights = fewer.weights.get();
    call.refuse(DISTILE_ERROR_BAD_WEIGHTS, {"17 -> 48", "1 x 1", "3 x 3"});
    call.args.weights = call.weights.get();
    call.accept();
    // Weights of the same channels and kernel in other groups are refused.
    Descriptor ungrouped(test_groups2_32_32_avx2);
    ungrouped.conv.groups = 1;
    Call grouped(test_groups2_32_32_avx2), dense(ungrouped.polykernel);
    grouped.args.weights = dense.weights.get();
    grouped.refuse(DISTILE_ERROR_BAD_WEIGHTS, {"in 1 groups", "32 -> 32 channels in 2"});
}

TEST_CASE("An unknown variant is refused", "[api]") {
    Call call;
    for (const char *name : {"no_such_variant", "", "DENSE"}) {
        call.args.variant = name;
        call.refuse(DISTILE_ERROR_BAD_VALUE, {std::string("'") + name + "'", plain_kernel.name});
    }
    CHECK(distile_kernel_variant_name(call.kernel.get(), -1) == nullptr);
    CHECK(distile_kernel_variant_name(call.kernel.get(), plain_kernel.num_variants) == nullptr);
    for (int32_t i = 0; i < distile_kernel_num_variants(call.kernel.get()); i++) {
        CHECK(std::string(distile_kernel_variant_name(call.kernel.get(), i)) == plain_kernel.variants[i].name);
    }
}

TEST_CASE("Tensors that overlap are refused", "[api]") {
    // 48 -> 48 channels, a 1 x 1 kernel: all three tensors may have the same shape.
    if (!can_run(test_point_48_48_residual_avx512)) {
        WARN("skipped: the CPU cannot run the PolyKernel");
        return;
    }
    Call call(test_point_48_48_residual_avx512);
    std::vector<float> memory(call.input.view().stride_n * 8);
    const auto view_at = [&](int64_t element, int64_t stride_w) {
        distile_tensor view = distile_tensor_make(memory.data() + element, 2, 6, 7, 48);
        view.stride_w = stride_w;
        view.stride_h = 7 * stride_w;
        view.stride_n = 6 * view.stride_h;
        return view;
    };
    const auto refuse = [&](const distile_tensor &input, const distile_tensor &residual, const distile_tensor &output,
                            const char *which) {
        call.input_view = input;
        call.residual_view = residual;
        call.output_view = output;
        std::fill(memory.begin(), memory.end(), 3.0f);
        CHECK(distile_run(call.kernel.get(), &call.args) == DISTILE_ERROR_ALIASING);
        INFO("the message is: " << call.message());
        CHECK(contains(call.message(), which));
        CHECK(std::all_of(memory.begin(), memory.end(), [](float value) { return value == 3; }));
    };
    const distile_tensor apart = call.residual.view(), input = call.input.view();
    const int64_t size = input.stride_n * 2;
    refuse(view_at(0, 48), apart, view_at(0, 48), "input");
    refuse(view_at(0, 48), apart, view_at(size - 1, 48), "input");
    refuse(view_at(size - 1, 48), apart, view_at(0, 48), "input");
    // One pixel further: crops of one tensor, but they share all columns but one.
    refuse(view_at(0, 48), apart, view_at(48, 48), "input");
    refuse(view_at(0, 96), apart, view_at(47, 96), "input");
    refuse(view_at(49, 96), apart, view_at(0, 96), "input");
    refuse(view_at(0, 96), apart, view_at(48, 48), "input");
    refuse(input, view_at(0, 48), view_at(1, 48), "residual");
    refuse(input, view_at(0, 96), view_at(47, 96), "residual");
    refuse(input, view_at(0, 48), view_at(0, 96), "residual");
    // A residual is the output's view moved by one row: the sums would add the residuals of other pixels.
    refuse(input, view_at(7 * 48, 48), view_at(0, 48), "residual");
}

TEST_CASE("Disjoint channels of one tensor may be input, residual and output", "[api]") {
    if (!can_run(test_point_48_48_residual_avx512)) {
        WARN("skipped: the CPU cannot run the PolyKernel");
        return;
    }
    Call call(test_point_48_48_residual_avx512);
    TestTensor all(2, 6, 7, 144);
    all.draw(Values::Integers, call.random);
    const auto channels = [&](int32_t first) {
        distile_tensor view = all.view();
        view.data = static_cast<float *>(view.data) + first;
        view.channels = 48;
        return view;
    };
    for (const auto &[input, residual, output] :
         {std::array<int32_t, 3>{0, 48, 96}, {96, 48, 0}, {48, 0, 96}, {0, 96, 96}, {96, 0, 0}}) {
        CAPTURE(input, residual, output);
        call.input_view = channels(input);
        call.residual_view = channels(residual);
        call.output_view = channels(output);
        call.reference.input = call.input_view;
        call.reference.residual = &call.residual_view;
        const distile_choice choice = choose(call);
        call.reference.tile_h = choice.tile_h;
        call.reference.tile_w = choice.tile_w;
        const ReferenceOutput expected = reference_masked_conv2d(call.reference);
        std::vector<uint32_t> due = all.snapshot();
        const auto first =
            reinterpret_cast<uint32_t *>(call.output_view.data) - reinterpret_cast<uint32_t *>(all.view().data);
        const auto origin = due.size() - size_t(2) * 6 * 7 * 144;
        for (size_t pixel = 0; pixel < expected.states.size(); pixel++) {
            if (expected.states[pixel] == PixelState::Computed) {
                std::memcpy(&due[origin + first + pixel * 144], &expected.values[pixel * 48], 48 * sizeof(float));
            }
        }
        const distile_status status = distile_run(call.kernel.get(), &call.args);
        INFO("the message is: " << call.message());
        REQUIRE(status == DISTILE_OK);
        CHECK(all.snapshot() == due);
    }
}

TEST_CASE("A PolyKernel of another version or for another CPU is refused", "[api]") {
    const Context context = make_context();
    distile_kernel *kernel = nullptr;
    distile_polykernel other = plain_kernel;
    other.version = 77;
    CHECK(distile_kernel_create(context.get(), &other, &kernel) == DISTILE_ERROR_VERSION);
    CHECK(contains(distile_context_message(context.get()), "77"));
    other = plain_kernel;
    set_raw(other.kind, 78);
    CHECK(distile_kernel_create(context.get(), &other, &kernel) == DISTILE_ERROR_VERSION);
    CHECK(contains(distile_context_message(context.get()), "kind 78"));
    // Numbers of groups that do not divide 16 -> 48 channels.
    for (int32_t groups : {0, -1, 3, 32}) {
        Descriptor grouped(plain_kernel);
        grouped.conv.groups = groups;
        CHECK(distile_kernel_create(context.get(), &grouped.polykernel, &kernel) == DISTILE_ERROR_BAD_CHANNELS);
        CHECK(contains(distile_context_message(context.get()), std::to_string(groups) + " groups"));
    }
    Descriptor unknown(plain_kernel);
    unknown.variants.back().layout = "cpu-o17";
    CHECK(distile_kernel_create(context.get(), &unknown.polykernel, &kernel) == DISTILE_ERROR_VERSION);
    CHECK(contains(distile_context_message(context.get()), "cpu-o17"));
    CHECK(contains(distile_context_message(context.get()), unknown.variants.back().name));
    other = plain_kernel;
    other.device = DISTILE_CUDA;
    CHECK(distile_kernel_create(context.get(), &other, &kernel) == DISTILE_ERROR_OTHER_DEVICE);
    CHECK(contains(distile_context_message(context.get()), "an NVIDIA GPU"));
    other = plain_kernel;
    other.fallback = nullptr;
    const std::string quantum = features_of(plain_kernel).front() + " quantum " + features_of(plain_kernel).back();
    other.features = quantum.c_str();
    CHECK(distile_kernel_create(context.get(), &other, &kernel) == DISTILE_ERROR_UNSUPPORTED_DEVICE);
    CHECK(contains(distile_context_message(context.get()), "quantum"));
    CHECK(contains(distile_context_message(context.get()), plain_kernel.name));
    CHECK(kernel == nullptr);
    other.features = "";
    REQUIRE(distile_kernel_create(context.get(), &other, &kernel) == DISTILE_OK);
    distile_kernel_destroy(kernel);
}

TEST_CASE("Masks are checked, and keep what they held where they are refused", "[api]") {
    const Context context = make_context();
    const Mask mask = make_mask(context);
    const auto message = [&] { return std::string(distile_context_message(context.get())); };
    int64_t number = -5;
    const uint32_t *words = nullptr;
    int32_t words_per_row = 0;
    distile_tile_list list{};
    CHECK(distile_mask_active_pixels(mask.get(), &number) == DISTILE_ERROR_BAD_MASK);
    CHECK(distile_mask_bits(mask.get(), &words, &words_per_row) == DISTILE_ERROR_BAD_MASK);
    CHECK(distile_mask_count_tiles(mask.get(), 1, 1, &number) == DISTILE_ERROR_BAD_MASK);
    CHECK(distile_mask_tiles(mask.get(), 1, 1, &list) == DISTILE_ERROR_BAD_MASK);
    CHECK(number == -5);

    // Two images of 3 x 5 pixels, with ones between the rows and the images.
    std::vector<uint8_t> bytes(2 * 40, 1);
    for (int32_t n = 0; n < 2; n++) {
        for (int32_t y = 0; y < 3; y++) {
            std::fill_n(&bytes[n * 40 + y * 9], 5, uint8_t{0});
        }
    }
    bytes[0 * 40 + 1 * 9 + 4] = 255;
    bytes[1 * 40 + 2 * 9 + 0] = 2;
    bytes[1 * 40 + 2 * 9 + 1] = 1;
    REQUIRE(distile_mask_set_bytes(mask.get(), bytes.data(), 2, 3, 5, 40, 9) == DISTILE_OK);

    for (int32_t bad : {0, -4, 65536}) {
        const std::string text = std::to_string(bad);
        CHECK(distile_mask_set_bytes(mask.get(), bytes.data(), bad, 3, 5, 40, 9) == DISTILE_ERROR_BAD_SHAPE);
        CHECK(contains(message(), "batch " + text));
        CHECK(distile_mask_set_bytes(mask.get(), bytes.data(), 2, bad, 5, 40, 9) == DISTILE_ERROR_BAD_SHAPE);
        CHECK(contains(message(), "height " + text));
        CHECK(distile_mask_set_bytes(mask.get(), bytes.data(), 2, 3, bad, 40, 9) == DISTILE_ERROR_BAD_SHAPE);
        CHECK(contains(message(), "width " + text));
        CHECK(distile_mask_count_tiles(mask.get(), bad, 1, &number) == DISTILE_ERROR_BAD_VALUE);
        CHECK(contains(message(), text));
        CHECK(distile_mask_tiles(mask.get(), 1, bad, &list) == DISTILE_ERROR_BAD_VALUE);
        CHECK(contains(message(), text));
    }
    CHECK(distile_mask_set_bytes(mask.get(), bytes.data(), 65535, 65535, 65535, int64_t{1} << 40, 65535) ==
          DISTILE_ERROR_BAD_SHAPE);
    CHECK(distile_mask_set_bytes(mask.get(), bytes.data(), 2, 3, 5, 40, 4) == DISTILE_ERROR_BAD_STRIDE);
    CHECK(contains(message(), "4"));
    CHECK(distile_mask_set_bytes(mask.get(), bytes.data(), 2, 3, 5, 26, 9) == DISTILE_ERROR_BAD_STRIDE);
    CHECK(contains(message(), "26"));
    CHECK(distile_mask_set_bytes(mask.get(), bytes.data(), 2, 3, 5, -40, 9) == DISTILE_ERROR_BAD_STRIDE);

    REQUIRE(distile_mask_active_pixels(mask.get(), &number) == DISTILE_OK);
    CHECK(number == 3);
    REQUIRE(distile_mask_bits(mask.get(), &words, &words_per_row) == DISTILE_OK);
    // A CPU pads rows to 64 bits.
    CHECK(words_per_row == 2);
    CHECK(std::vector<uint32_t>(words, words + 12) == std::vector<uint32_t>{0, 0, 16, 0, 0, 0, 0, 0, 0, 0, 3, 0});
    // A batch of one has no stride between images.
    CHECK(distile_mask_set_bytes(mask.get(), bytes.data(), 1, 3, 5, 0, 9) == DISTILE_OK);
}

TEST_CASE("Tile lists follow the mask when it is set again", "[api]") {
    const Context context = make_context();
    const Mask mask = make_mask(context);
    std::mt19937 random(3);
    for (int32_t round = 0; round < 20; round++) {
        const int32_t batch = 1 + round % 3, height = 1 + int32_t(random() % 20), width = 1 + int32_t(random() % 90);
        std::vector<uint8_t> bytes(size_t(batch) * height * width);
        std::generate(bytes.begin(), bytes.end(), [&] { return uint8_t(random() % 7 == 0); });
        REQUIRE(distile_mask_set_bytes(mask.get(), bytes.data(), batch, height, width, int64_t{height} * width,
                                       width) == DISTILE_OK);
        for (int repeat = 0; repeat < 2; repeat++) {
            for (const auto &[tile_h, tile_w] : {std::pair<int32_t, int32_t>{1, 1}, {2, 3}, {8, 8}, {65535, 65535}}) {
                CAPTURE(round, tile_h, tile_w);
                distile_tile_list list{};
                REQUIRE(distile_mask_tiles(mask.get(), tile_h, tile_w, &list) == DISTILE_OK);
                int64_t count = -1;
                REQUIRE(distile_mask_count_tiles(mask.get(), tile_h, tile_w, &count) == DISTILE_OK);
                CHECK(count == reference_active_tiles(bytes, batch, height, width, tile_h, tile_w));
                REQUIRE(list.count == count);
                // Ordered and different, of tiles on the grid that are active: with the right number, all of them.
                int64_t last = -1, wrong = 0;
                for (int64_t t = 0; t < list.count; t++) {
                    const int64_t x = list.xy[t] & 0xffff, y = list.xy[t] >> 16, n = list.image[t];
                    const int64_t place = (n * height + y) * width + x;
                    bool active = false;
                    for (int64_t j = y; j < std::min<int64_t>(y + tile_h, height); j++) {
                        for (int64_t i = x; i < std::min<int64_t>(x + tile_w, width); i++) {
                            active = active || bytes[(n * height + j) * width + i];
                        }
                    }
                    wrong += !active || place <= last || x % tile_w != 0 || y % tile_h != 0;
                    last = place;
                }
                CHECK(wrong == 0);
            }
        }
    }
}

TEST_CASE("A call after the mask is set again runs on the new one", "[api]") {
    Call call;
    for (int round = 0; round < 5; round++) {
        std::generate(call.reference.mask.begin(), call.reference.mask.end(),
                      [&] { return uint8_t(call.random() % (round + 2) == 0); });
        call.set_mask();
        call.accept();
    }
}

TEST_CASE("Without times the variant that computes the fewest pixels is chosen", "[api]") {
    Call call;
    REQUIRE(plain_kernel.num_times == 0);
    activate_first(call, 1);
    const distile_choice one = choose(call);
    CHECK(std::string(one.kernel) == plain_kernel.name);
    CHECK(std::string(one.variant) == "t1x1_p6c16_o0");
    CHECK(one.variant_index == 0);
    CHECK(one.dense == 0);
    CHECK(one.tiles == 1);
    CHECK(one.active_pixels == 1);
    CHECK(one.predicted_us == 0);
    CHECK(one.elapsed_us == 0);
    // Where all of them compute every pixel, the one that needs no list.
    activate_first(call, call.reference.mask.size());
    CHECK(choose(call).dense == 1);
    activate_first(call, call.reference.mask.size() - 1);
    CHECK(choose(call).dense == 0);
}

TEST_CASE("The built-in times decide, by the number of threads", "[api]") {
    // By the plan, with n + 1 tiles and one thread: t1x1 takes 1 + n, t1x2 50 + n / 2, and dense, whose tiles are 2 x 2
    // and of which 100 cover this image, 200 + n / 4. With four threads all is four times as fast; other numbers have
    // no times.
    for (int32_t threads : {1, 2, 3, 4, 64}) {
        distile_context_options options{};
        options.threads = threads;
        Call call(timed_kernel, options, 1, 20, 20);
        const double faster = std::min(threads, 4);
        CAPTURE(threads);
        activate_first(call, 10);
        distile_choice choice = choose(call);
        CHECK(std::string(choice.variant) == "t1x1_p6c16_o0");
        CHECK(choice.predicted_us == Approx(10 / faster));
        call.accept();
        activate_first(call, 300);
        choice = choose(call);
        CHECK(std::string(choice.variant) == "t1x2_p1c48_o1");
        CHECK(choice.tiles == 150);
        CHECK(choice.tile_w == 2);
        CHECK(choice.predicted_us == Approx((50 + 149 * 0.5) / faster));
        call.accept();
        REQUIRE(distile_kernel_add_time(call.kernel.get(), "t1x2_p1c48_o1", 1, 1e6) == DISTILE_OK);
        choice = choose(call);
        CHECK(choice.dense == 1);
        CHECK(choice.tiles == 100);
        CHECK(choice.active_pixels == 300);
        CHECK(choice.predicted_us == Approx((200 + 99 * 0.25) / faster));
        call.accept();
    }
}

TEST_CASE("The dispatcher takes the first of the plan's variants with equal times", "[api]") {
    const TemporaryFolder folder;
    distile_context_options options{};
    options.threads = 3;
    Call call(timed_kernel, options, 1, 20, 20);
    const auto run_nothing = [](void *, void *, const distile_run_args *) { return 0; };
    const distile_dense_candidate own{"own", run_nothing, nullptr};
    REQUIRE(distile_kernel_add_dense(call.kernel.get(), &own) == DISTILE_OK);
    // From the last to the first, so that the order of the rows decides nothing.
    std::string rows;
    for (int32_t i = distile_kernel_num_variants(call.kernel.get()); i-- > 0;) {
        const std::string row =
            std::string(R"({"variant": ")") + distile_kernel_variant_name(call.kernel.get(), i) + R"(", "threads": )";
        rows += row + R"(4, "tiles": 1000, "us": 9}, )" + row + R"(2, "tiles": 1000, "us": 5})" + (i > 0 ? ", " : "");
    }
    const std::string table = folder.write("times.json", time_table(timed_kernel, rows));
    REQUIRE(distile_kernel_load_times(call.kernel.get(), table.c_str()) == DISTILE_OK);
    for (size_t pixels : {1, 100, 400}) {
        activate_first(call, pixels);
        CHECK(choose(call).variant_index == 0);
        // A third of the way from 1/4 to 1/2.
        CHECK(choose(call).predicted_us == Approx(9 - 4. / 3));
    }
}

TEST_CASE("A time table that is loaded decides from then on", "[api]") {
    const TemporaryFolder folder;
    Call call(timed_kernel, {}, 1, 20, 20);
    activate_first(call, 10);
    CHECK(std::string(choose(call).variant) == "t1x1_p6c16_o0");
    const std::string table = folder.write("times.json", time_table(timed_kernel, R"(
            {"variant": "t1x1_p6c16_o0", "threads": 1, "tiles": 1, "us": 500},
            {"variant": "t8x8_p14c8_o0", "threads": 1, "tiles": 2, "us": 7.5},
            {"variant": "t8x8_p14c8_o0", "threads": 1, "tiles": 4, "us": 11.5},
            {"variant": "of_another_machine", "threads": 1, "tiles": 1, "us": 1})"));
    REQUIRE(distile_kernel_load_times(call.kernel.get(), table.c_str()) == DISTILE_OK);
    // 10 pixels of the first row lie in two tiles of 8 x 8, 30 in the three of the first row of tiles.
    CHECK(std::string(choose(call).variant) == "t8x8_p14c8_o0");
    CHECK(choose(call).predicted_us == Approx(7.5));
    call.accept();
    activate_first(call, 30);
    CHECK(choose(call).predicted_us == Approx(9.5));
    // Below the first point a table knows no less than its time; beyond the last, time grows with the tiles.
    activate_first(call, 1);
    CHECK(choose(call).predicted_us == Approx(7.5));
    activate_first(call, 400);
    CHECK(choose(call).tiles == 9);
    CHECK(choose(call).predicted_us == Approx(11.5 * 9 / 4));
}

TEST_CASE("Time tables that are wrong are refused, and the old one stays", "[api]") {
    const TemporaryFolder folder;
    Call call(timed_kernel);
    const std::string name = timed_kernel.name;
    const std::string row = R"({"variant": "dense", "threads": 1, "tiles": 1, "us": 0.5})";
    const std::string hash = hash_of(timed_kernel);
    const auto hashed = [&](const std::string &plan_hash) {
        return "{\"distile_times\": 2, \"kernel\": \"" + name + "\"" + plan_hash + ", \"times\": [" + row + "]}";
    };
    const auto table = [&](const std::string &version, const std::string &kernel, const std::string &rows) {
        return "{\"distile_times\": " + version + ", \"kernel\": " + kernel + ", \"plan_hash\": \"" + hash +
               "\", \"times\": " + rows + "}";
    };
    std::string other_hash = hash;
    other_hash.back() = other_hash.back() == '0' ? '1' : '0';
    const auto rows = [&](const std::string &variant, const std::string &threads, const std::string &tiles,
                          const std::string &us) {
        return table("2", '"' + name + '"',
                     "[" + row + ", {\"variant\": " + variant + ", \"threads\": " + threads + ", \"tiles\": " + tiles +
                         ", \"us\": " + us + "}]");
    };
    struct Case {
        distile_status status;
        std::string text, word;
    };
    const Case cases[] = {
        {DISTILE_ERROR_BAD_FILE, "", "JSON"},
        {DISTILE_ERROR_BAD_FILE, "{\"distile_times\": 2,", "JSON"},
        {DISTILE_ERROR_BAD_FILE, "[1]", "JSON"},
        {DISTILE_ERROR_BAD_FILE, "{}", "distile_times"},
        {DISTILE_ERROR_BAD_FILE, std::string(1000000, '['), "nested deeper"},
        {DISTILE_ERROR_BAD_FILE, R"({"distile_times": 2, "distile_times": 2})", "\"distile_times\" twice"},
        {DISTILE_ERROR_BAD_FILE, table("\"2\"", '"' + name + '"', "[" + row + "]"), "distile_times"},
        {DISTILE_ERROR_VERSION, table("3", '"' + name + '"', "[" + row + "]"), "version 3"},
        {DISTILE_ERROR_VERSION, table("1", '"' + name + '"', "[" + row + "]"), "version 1"},
        {DISTILE_ERROR_VERSION, table("-2", '"' + name + '"', "[" + row + "]"), "version -2"},
        {DISTILE_ERROR_BAD_FILE, hashed(", \"plan_hsh\": \"" + hash + "\""),
         "\"plan_hsh\"; the nearest known one is \"plan_hash\""},
        {DISTILE_ERROR_BAD_FILE, rows("\"dense\"", "1, \"thread\": 1", "1", "1"),
         "\"thread\"; the nearest known one is \"threads\""},
        {DISTILE_ERROR_VERSION, "{\"version\": 3, \"distile_times\": 3}", "version 3"},
        {DISTILE_ERROR_OTHER_OPERATOR, hashed(""), hash},
        {DISTILE_ERROR_OTHER_OPERATOR, hashed(", \"plan_hash\": \"" + other_hash + "\""), other_hash},
        {DISTILE_ERROR_OTHER_OPERATOR, hashed(", \"plan_hash\": \"" + hash + "0\""), "distile profile"},
        {DISTILE_ERROR_OTHER_OPERATOR, hashed(", \"plan_hash\": \"" + hash.substr(1) + "\""), "plan_hash"},
        {DISTILE_ERROR_OTHER_OPERATOR, hashed(", \"plan_hash\": " + std::to_string(timed_kernel.plan_hash)),
         "plan_hash"},
        {DISTILE_ERROR_OTHER_OPERATOR, table("2", "\"other\"", "[" + row + "]"), "other"},
        {DISTILE_ERROR_OTHER_OPERATOR, table("2", "3", "[" + row + "]"), "3"},
        {DISTILE_ERROR_OTHER_OPERATOR, "{\"distile_times\": 2, \"times\": [" + row + "]}", "none"},
        {DISTILE_ERROR_BAD_FILE, table("2", '"' + name + '"', "{}"), "times"},
        {DISTILE_ERROR_BAD_FILE, table("2", '"' + name + '"', "[]"), "times"},
        {DISTILE_ERROR_BAD_FILE, table("2", '"' + name + '"', "[4]"), "4"},
        {DISTILE_ERROR_BAD_FILE, table("2", '"' + name + '"', "[[" + row + "]]"), "[...]"},
        {DISTILE_ERROR_BAD_FILE, table("2", '"' + name + '"', R"([{"times": [)" + row + "]}]"), "no member \"times\""},
        {DISTILE_ERROR_BAD_FILE, table("2", '"' + name + '"', "[{}]"), "null"},
        {DISTILE_ERROR_BAD_FILE, rows("\"dense\"", "[1]", "1", "1"), "\"threads\":[...]"},
        {DISTILE_ERROR_OTHER_OPERATOR,
         table("2", '"' + name + '"', R"([{"variant": "unknown", "threads": 1, "tiles": 1, "us": 1}])"), "variant"},
        {DISTILE_ERROR_BAD_FILE, rows("7", "1", "1", "1"), "7"},
        {DISTILE_ERROR_BAD_FILE, rows("\"dense\"", "0", "1", "1"), "\"threads\":0"},
        {DISTILE_ERROR_BAD_FILE, rows("\"dense\"", "-2", "1", "1"), "-2"},
        {DISTILE_ERROR_BAD_FILE, rows("\"dense\"", "1.5", "1", "1"), "1.5"},
        {DISTILE_ERROR_BAD_FILE, rows("\"dense\"", "1", "-3", "1"), "-3"},
        {DISTILE_ERROR_BAD_FILE, rows("\"dense\"", "1", "1e99", "1"), "1e99"},
        {DISTILE_ERROR_BAD_FILE, rows("\"dense\"", "1", "1", "0"), "\"us\":0"},
        {DISTILE_ERROR_BAD_FILE, rows("\"dense\"", "1", "1", "-4.5"), "-4.5"},
        {DISTILE_ERROR_BAD_FILE, rows("\"dense\"", "1", "1", "NaN"), "JSON"},
        {DISTILE_ERROR_BAD_FILE, rows("\"dense\"", "1", "1", "1e999"), "JSON"},
        {DISTILE_ERROR_BAD_FILE, rows("\"dense\"", "1", "1", "\"fast\""), "fast"},
    };
    const auto refuse = [&](distile_status status, const std::string &path, const std::string &word) {
        CHECK(std::string(distile_status_name(distile_kernel_load_times(call.kernel.get(), path.c_str()))) ==
              distile_status_name(status));
        INFO("the message is: " << call.message());
        CHECK(contains(call.message(), path));
        CHECK(contains(call.message(), word));
        CHECK(choose(call).predicted_us > 0.5);
    };
    for (const Case &bad : cases) {
        CAPTURE(bad.text);
        refuse(bad.status, folder.write("bad.json", bad.text), bad.word);
    }
    refuse(DISTILE_ERROR_BAD_FILE, folder.path() + "/missing.json", "cannot be read");
    refuse(DISTILE_ERROR_BAD_FILE, folder.path(), "");
    REQUIRE(distile_kernel_load_times(
                call.kernel.get(), folder.write("good.json", rows("\"dense\"", "1", "2", "9")).c_str()) == DISTILE_OK);
}

TEST_CASE("Times that are added are checked and replace older ones", "[api]") {
    Call call(timed_kernel, {}, 1, 20, 20);
    distile_kernel *kernel = call.kernel.get();
    CHECK(distile_kernel_add_time(kernel, "unknown", 1, 1) == DISTILE_ERROR_BAD_VALUE);
    CHECK(contains(call.message(), "'unknown'"));
    for (int64_t tiles : {int64_t{0}, int64_t{-1}}) {
        CHECK(distile_kernel_add_time(kernel, "dense", tiles, 1) == DISTILE_ERROR_BAD_VALUE);
        CHECK(contains(call.message(), std::to_string(tiles)));
    }
    for (double time : {0.0, -1.0, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
        CHECK(distile_kernel_add_time(kernel, "dense", 1, time) == DISTILE_ERROR_BAD_VALUE);
        CHECK(contains(call.message(), "microseconds"));
    }
    activate_first(call, 64);
    for (double time : {0.25, 0.125}) {
        REQUIRE(distile_kernel_add_time(kernel, "dense", 100, time) == DISTILE_OK);
        CHECK(choose(call).dense == 1);
        CHECK(choose(call).predicted_us == Approx(time));
    }
}

TEST_CASE("A first time for a number of threads keeps the curve of others", "[api]") {
    distile_context_options options{};
    options.threads = 64;
    double predicted = 0;
    options.trace = [](void *user, const distile_choice *choice) {
        *static_cast<double *>(user) = choice->predicted_us;
    };
    options.trace_user = &predicted;
    Call call(timed_kernel, options, 1, 20, 20);
    call.args.variant = "t1x2_p1c48_o1";
    const auto predict = [&](size_t tiles) {
        activate_first(call, 2 * tiles);
        REQUIRE(distile_run(call.kernel.get(), &call.args) == DISTILE_OK);
        return predicted;
    };
    const auto add = [&](int64_t tiles, double microseconds) {
        REQUIRE(distile_kernel_add_time(call.kernel.get(), call.args.variant, tiles, microseconds) == DISTILE_OK);
    };
    // By the plan (50 + n / 2) / 4 with n + 1 tiles, for 4 threads.
    REQUIRE(predict(150) == Approx((50 + 149 * 0.5) / 4));
    add(150, 249);
    CHECK(predict(150) == Approx(249));
    CHECK(predict(50) == Approx(2 * (50 + 49 * 0.5)));
    CHECK(predict(1) == Approx(2 * 50));
    // From then on the points are the variant's own.
    add(50, 7);
    CHECK(predict(50) == Approx(7));
    CHECK(predict(150) == Approx(249));
    add(150, 20);
    CHECK(predict(150) == Approx(20));
    CHECK(predict(50) == Approx(7));
}

TEST_CASE("A trace tells what ran, and only when it ran", "[api]") {
    struct Traced {
        int calls = 0;
        distile_choice choice{};
        std::thread::id thread;
    } traced;
    distile_context_options options{};
    options.trace = [](void *user, const distile_choice *choice) {
        auto *to = static_cast<Traced *>(user);
        to->calls++;
        to->choice = *choice;
        to->thread = std::this_thread::get_id();
    };
    options.trace_user = &traced;
    Call call(timed_kernel, options, 1, 20, 20);
    activate_first(call, 10);
    choose(call);
    CHECK(traced.calls == 0);
    call.args.variant = "no_such_variant";
    call.refuse(DISTILE_ERROR_BAD_VALUE, {});
    CHECK(traced.calls == 0);
    call.args.variant = nullptr;
    call.accept();
    CHECK(traced.calls == 1);
    CHECK(traced.thread == std::this_thread::get_id());
    CHECK(traced.choice.elapsed_us > 0);
    CHECK(traced.choice.predicted_us == choose(call).predicted_us);
    for (int32_t i = 0; i < timed_kernel.num_variants; i++) {
        const distile_variant &variant = timed_kernel.variants[i];
        call.args.variant = variant.name;
        REQUIRE(distile_run(call.kernel.get(), &call.args) == DISTILE_OK);
        CHECK(traced.calls == 2 + i);
        CHECK(std::string(traced.choice.kernel) == timed_kernel.name);
        CHECK(std::string(traced.choice.variant) == variant.name);
        CHECK(traced.choice.variant_index == i);
        CHECK(traced.choice.tile_h == variant.tile_h);
        CHECK(traced.choice.tile_w == variant.tile_w);
        CHECK(traced.choice.dense == variant.dense);
        CHECK(traced.choice.active_pixels == 10);
        const std::vector<uint8_t> &bytes = call.reference.mask, every(bytes.size(), 1);
        CHECK(traced.choice.tiles ==
              reference_active_tiles(variant.dense ? every : bytes, 1, 20, 20, variant.tile_h, variant.tile_w));
    }
}

TEST_CASE("The mask alone decides, so that a choice holds for every mode", "[api]") {
    distile_choice traced{};
    distile_context_options options{};
    options.threads = 1;
    options.trace = [](void *user, const distile_choice *choice) { *static_cast<distile_choice *>(user) = *choice; };
    options.trace_user = &traced;
    Call call(timed_kernel, options, 1, 20, 20);
    REQUIRE(distile_kernel_add_time(call.kernel.get(), "dense", 100, 100) == DISTILE_OK);
    std::set<int32_t> chosen;
    for (size_t pixels : {10, 200, 400}) {
        activate_first(call, pixels);
        const distile_choice choice = choose(call);
        chosen.insert(choice.variant_index);
        for (distile_inactive inactive : {DISTILE_KEEP, DISTILE_ZERO}) {
            for (distile_store store : {DISTILE_STORE_EXACT, DISTILE_STORE_TILES}) {
                CAPTURE(pixels, inactive, store);
                call.args.inactive = inactive;
                call.args.store = store;
                call.accept();
                CHECK(traced.variant_index == choice.variant_index);
                CHECK(traced.predicted_us == choice.predicted_us);
            }
        }
    }
    CHECK(chosen.size() == 3);
}

TEST_CASE("The orders of a filter's dimensions mean the same weights", "[api]") {
    const distile_polykernel *polykernel =
        GENERATE(&plain_kernel, &test_groups2_32_32_avx2, &test_depthwise3_24_avx2, &test_multiplier_8_24_avx2);
    CAPTURE(polykernel->name);
    Call call(*polykernel);
    const distile_conv2d &conv = call.conv;
    const size_t o_count = conv.out_channels, i_count = conv.in_channels / conv.groups, h_count = conv.kernel_h,
                 w_count = conv.kernel_w;
    std::vector<float> oihw(call.reference.filter.size()), ohwi(oihw.size());
    for (size_t o = 0; o < o_count; o++) {
        for (size_t i = 0; i < i_count; i++) {
            for (size_t h = 0; h < h_count; h++) {
                for (size_t w = 0; w < w_count; w++) {
                    const float value = call.reference.filter[((h * w_count + w) * i_count + i) * o_count + o];
                    oihw[((o * i_count + i) * h_count + h) * w_count + w] = value;
                    ohwi[((o * h_count + h) * w_count + w) * i_count + i] = value;
                }
            }
        }
    }
    for (const auto &[filter, order] : {std::pair{&oihw, DISTILE_OIHW}, std::pair{&ohwi, DISTILE_OHWI}}) {
        distile_weights_source source{};
        source.filter = filter->data();
        source.order = order;
        source.bias = call.reference.bias.data();
        const Weights weights = pack_weights(call.context, call.kernel, source);
        call.args.weights = weights.get();
        call.accept();
    }
}

TEST_CASE("Packed weights do not need their source, and serve every kernel of the operator", "[api]") {
    Call call;
    Call again;
    const std::vector<float> filter = call.reference.filter;
    std::fill(call.reference.filter.begin(), call.reference.filter.end(), 9.0f);
    std::vector<float> bias(call.conv.out_channels, 9.0f);
    bias.swap(call.reference.bias);
    call.reference.filter = filter;
    call.reference.bias = bias;
    call.accept();
    const Kernel second = make_kernel(call.context, plain_kernel);
    call.kernel.reset();
    REQUIRE(distile_run(second.get(), &call.args) == DISTILE_OK);
}

TEST_CASE("Batch normalisation is folded into the weights", "[api]") {
    Call call(timed_kernel);
    std::mt19937 random(5);
    call.input.draw(Values::Floats, random);
    const size_t channels = call.conv.out_channels;
    call.reference.filter = draw(Values::Floats, call.reference.filter.size(), random);
    const std::vector<float> bias = draw(Values::Floats, channels, random);
    const std::vector<float> gamma = draw(Values::Floats, channels, random),
                             beta = draw(Values::Floats, channels, random);
    const std::vector<float> mean = draw(Values::Floats, channels, random);
    std::vector<float> variance = draw(Values::Floats, channels, random);
    for (float &value : variance) {
        value = value * value;
    }
    variance[3] = 0;  // The epsilon alone.
    for (int parts = 0; parts < 8; parts++) {
        CAPTURE(parts);
        distile_weights_source source{};
        source.filter = call.reference.filter.data();
        source.order = DISTILE_HWIO;
        source.bias = parts & 1 ? bias.data() : nullptr;
        source.bn_gamma = parts & 2 ? gamma.data() : nullptr;
        source.bn_beta = parts & 4 ? beta.data() : nullptr;
        source.bn_mean = mean.data();
        source.bn_variance = variance.data();
        source.bn_epsilon = 1e-3f;
        const Weights weights = pack_weights(call.context, call.kernel, source);
        call.args.weights = weights.get();

        call.reference.bias = parts & 1 ? bias : std::vector<float>();
        ReferenceOutput expected = reference_masked_conv2d(call.reference);
        double largest = 0;
        for (size_t i = 0; i < expected.values.size(); i++) {
            const size_t o = i % channels;
            if (expected.states[i / channels] == PixelState::Computed) {
                const double scale = (parts & 2 ? gamma[o] : 1) / std::sqrt(double{variance[o]} + 1e-3f);
                expected.values[i] =
                    static_cast<float>(scale * (double{expected.values[i]} - mean[o]) + (parts & 4 ? beta[o] : 0));
                largest = std::max(largest, std::abs(double{expected.values[i]}));
            }
        }
        const auto before = call.output.snapshot();
        REQUIRE(distile_run(call.kernel.get(), &call.args) == DISTILE_OK);
        CHECK(call.output.difference(before, expected, 1e-5 * largest) == "");
    }

    distile_weights *weights = nullptr;
    distile_weights_source source{};
    source.filter = call.reference.filter.data();
    source.order = DISTILE_HWIO;
    const float *distile_weights_source::*const members[] = {
        &distile_weights_source::bn_gamma, &distile_weights_source::bn_beta, &distile_weights_source::bn_mean,
        &distile_weights_source::bn_variance};
    for (const auto member : members) {
        distile_weights_source alone = source;
        alone.*member = mean.data();
        CHECK(distile_weights_pack(call.kernel.get(), &alone, &weights) == DISTILE_ERROR_BAD_VALUE);
        CHECK(contains(call.message(), "mean and variance"));
    }
    source.bn_mean = mean.data();
    source.bn_variance = variance.data();
    CHECK(distile_weights_pack(call.kernel.get(), &source, &weights) == DISTILE_ERROR_BAD_VALUE);
    CHECK(contains(call.message(), "output channel 3"));
    CHECK(weights == nullptr);
}

TEST_CASE("An allocator that returns null ends a call that needs scratch memory", "[api]") {
    for (int32_t threads : {1, 3}) {
        CallersAllocator allocator;
        {
            distile_context_options options{};
            options.threads = threads;
            allocator.use_in(options);
            // Every pixel of a row reads beyond the image, so that no tile can be read in place.
            Call call(plain_kernel, options, 1, 1, 9);
            const int64_t made = allocator.calls();
            allocator.run_out();
            call.refuse(DISTILE_ERROR_OUT_OF_MEMORY, {});
            CHECK(allocator.calls() > made);
            call.args.variant = "dense";
            call.refuse(DISTILE_ERROR_OUT_OF_MEMORY, {});
            allocator.refill();
            call.accept_variant("dense");
            call.args.variant = nullptr;
            call.accept();
            // From now on the blocks are kept, and nothing is allocated.
            const int64_t calls = allocator.calls();
            allocator.run_out();
            if (threads == 1) {
                call.accept();
                call.accept_variant("dense");
                CHECK(allocator.calls() == calls);
            }
        }
        CHECK(allocator.blocks_in_use() == 0);
        CHECK(allocator.mistakes() == 0);
    }
}

TEST_CASE("A kernel that gets no scratch memory says so", "[api]") {
    CallersAllocator allocator;
    distile_context_options options{};
    allocator.use_in(options);
    Descriptor hungry(plain_kernel);
    hungry.run_only("hungry", [](const distile_kernel_call *call) {
        void *memory = call->hooks->allocate(call->hooks, 1000);
        if (!memory) {
            return DISTILE_CALL_OUT_OF_MEMORY;
        }
        call->hooks->deallocate(call->hooks, memory);
        return 0;
    });
    Call call(hungry.polykernel, options);
    // The first call makes the lists of the mask, so that only the kernel's memory is left to fail.
    REQUIRE(distile_run(call.kernel.get(), &call.args) == DISTILE_OK);
    const int64_t calls = allocator.calls();
    REQUIRE(distile_run(call.kernel.get(), &call.args) == DISTILE_OK);
    CHECK(allocator.calls() == calls);
    hungry.variants[0].run = [](const distile_kernel_call *given) {
        void *memory = given->hooks->allocate(given->hooks, 100000);
        return memory ? 0 : DISTILE_CALL_OUT_OF_MEMORY;
    };
    call.kernel = make_kernel(call.context, hungry.polykernel);
    allocator.run_out();
    call.refuse(DISTILE_ERROR_OUT_OF_MEMORY, {"'hungry'", plain_kernel.name});
}

TEST_CASE("A bordered input needs no scratch memory", "[api]") {
    CallersAllocator allocator;
    distile_context_options options{};
    allocator.use_in(options);
    Call call(plain_kernel, options);
    TestTensor bordered(2, 6, 7, 16, {0, 0, 0, 1, 1, 1, 1});
    bordered.draw(Values::Integers, call.random);
    call.input_view = bordered.view();
    call.reference.input = bordered.view();
    // The mask's lists, once.
    call.accept();
    allocator.run_out();
    const int64_t calls = allocator.calls();
    for (int round = 0; round < 3; round++) {
        call.accept();
    }
    CHECK(allocator.calls() == calls);
    // Without the border the input is copied, which needs memory.
    const Kernel fresh = make_kernel(call.context, plain_kernel);
    call.input_view = call.input.view();
    CHECK(distile_run(fresh.get(), &call.args) == DISTILE_ERROR_OUT_OF_MEMORY);
}

TEST_CASE("The caller's thread pool runs the loops", "[api]") {
    CallersPool pool;
    distile_context_options options{};
    pool.use_in(options);
    Call call(plain_kernel, options);
    call.accept();
    CHECK(pool.loops() > 0);
}

TEST_CASE("Packed weights do not need the PolyKernel that they were packed for", "[api]") {
    Call call;
    std::string layout = plain_kernel.variants[0].layout;
    Descriptor copy(plain_kernel);
    for (distile_variant &variant : copy.variants) {
        variant.layout = layout.c_str();
    }
    distile_weights_source source{};
    source.filter = call.reference.filter.data();
    source.order = DISTILE_HWIO;
    source.bias = call.reference.bias.data();
    const Weights weights = pack_weights(call.context, make_kernel(call.context, copy.polykernel), source);
    std::fill(layout.begin(), layout.end(), '?');
    call.args.weights = weights.get();
    call.accept();
}

TEST_CASE("The message is that of the last call that failed", "[api]") {
    int code = 0;
    Call call;
    const distile_dense_candidate candidate{
        "mine", [](void *user, void *, const distile_run_args *) { return *static_cast<int *>(user); }, &code};
    REQUIRE(distile_kernel_add_dense(call.kernel.get(), &candidate) == DISTILE_OK);
    REQUIRE(distile_kernel_add_time(call.kernel.get(), "nobody", 1, 1) == DISTILE_ERROR_BAD_VALUE);
    const std::string message = call.message();
    REQUIRE(contains(message, "nobody"));
    call.accept();
    CHECK(call.message() == message);
    call.args.variant = "mine";
    REQUIRE(distile_run(call.kernel.get(), &call.args) == DISTILE_OK);
    CHECK(call.message() == message);
    // It is no reason for what fails next. The number is a PolyKernel's for a lack of memory, but the candidate is
    // none.
    for (const int failure : {DISTILE_CALL_OUT_OF_MEMORY, -11}) {
        code = failure;
        call.refuse(DISTILE_ERROR_KERNEL, {"'mine'", "code " + std::to_string(failure)});
        CHECK_FALSE(contains(call.message(), "nobody"));
    }
}

TEST_CASE("What a kernel reports reaches the caller", "[api]") {
    Descriptor broken(plain_kernel);
    broken.run_only("broken", [](const distile_kernel_call *call) {
        call->hooks->report(call->hooks, "the moon is full");
        call->hooks->report(call->hooks, "and so are the stars");
        return -12345;
    });
    Call call(broken.polykernel);
    call.refuse(DISTILE_ERROR_KERNEL, {"'broken'", plain_kernel.name, "-12345", "the moon is full"});
}

namespace {

/** A dense candidate that fills the output with ones, and the calls that it got. */
struct Ones {
    int calls = 0, code = 0;
    bool overlapped = false;

    static int run(void *user, void *stream, const distile_run_args *args) {
        const distile_tensor *const output = args->output;
        auto *self = static_cast<Ones *>(user);
        if (stream) {
            return 77;  // A CPU has none.
        }
        self->calls++;
        self->overlapped = self->overlapped || (args->residual && args->residual->data == output->data);
        if (self->code != 0) {
            return self->code;
        }
        for (int32_t n = 0; n < output->batch; n++) {
            for (int32_t y = 0; y < output->height; y++) {
                for (int32_t x = 0; x < output->width; x++) {
                    std::fill_n(static_cast<float *>(output->data) + n * output->stride_n + y * output->stride_h +
                                    x * output->stride_w,
                                output->channels, 1.0f);
                }
            }
        }
        return 0;
    }
};

}  // namespace

TEST_CASE("A dense candidate of the application's changes exactly the pixels that are due", "[api]") {
    for (const distile_polykernel *polykernel : {&plain_kernel, &residual_kernel}) {
        for (int options = 0; options < 16; options++) {
            const bool full = options & 1, aliased = (options & 2) && convolution_of(*polykernel).residual;
            // Some so large that several threads copy and zero.
            const int32_t extent = options % 4 == 0 ? 60 : 7;
            CAPTURE(polykernel->name, options, extent);
            distile_context_options three{};
            three.threads = 3;
            Call call(*polykernel, three, 2, extent, extent);
            Ones ones;
            const distile_dense_candidate candidate{"vendor", &Ones::run, &ones};
            REQUIRE(distile_kernel_add_dense(call.kernel.get(), &candidate) == DISTILE_OK);
            CHECK(distile_kernel_num_variants(call.kernel.get()) == polykernel->num_variants + 1);
            CHECK(std::string(distile_kernel_variant_name(call.kernel.get(), polykernel->num_variants)) == "vendor");
            if (full) {
                activate_first(call, call.reference.mask.size());
            }
            call.output.draw(Values::Integers, call.random);
            call.args.residual = aliased ? &call.output_view : call.args.residual;
            call.args.inactive = options & 4 ? DISTILE_ZERO : DISTILE_KEEP;
            call.args.store = options & 8 ? DISTILE_STORE_TILES : DISTILE_STORE_EXACT;
            call.args.variant = "vendor";
            call.reference.residual = call.args.residual;
            call.reference.inactive = call.args.inactive;
            call.reference.store = call.args.store;
            call.reference.dense = true;
            ReferenceOutput expected = reference_masked_conv2d(call.reference);
            for (size_t pixel = 0; pixel < expected.states.size(); pixel++) {
                if (expected.states[pixel] == PixelState::Computed) {
                    std::fill_n(&expected.values[pixel * call.conv.out_channels], call.conv.out_channels, 1.0f);
                }
            }
            const auto before = call.output.snapshot();
            const distile_status status = distile_run(call.kernel.get(), &call.args);
            INFO("the message is: " << call.message());
            REQUIRE(status == DISTILE_OK);
            CHECK(call.output.difference(before, expected, 0) == "");
            CHECK(ones.calls == 1);
            CHECK_FALSE(ones.overlapped);
        }
    }
}

TEST_CASE("A dense candidate of the application's is chosen by its times", "[api]") {
    const TemporaryFolder folder;
    Call call(timed_kernel, {}, 1, 20, 20);
    Ones ones;
    std::string name = "vendor";
    const distile_dense_candidate candidate{name.c_str(), &Ones::run, &ones};
    REQUIRE(distile_kernel_add_dense(call.kernel.get(), &candidate) == DISTILE_OK);
    name = "gone!!";
    activate_first(call, 400);
    CHECK(std::string(choose(call).variant) != "vendor");
    REQUIRE(distile_kernel_add_time(call.kernel.get(), "vendor", 400, 2) == DISTILE_OK);
    const distile_choice choice = choose(call);
    CHECK(std::string(choice.variant) == "vendor");
    CHECK(choice.dense == 1);
    CHECK(choice.tiles == 400);
    CHECK(choice.tile_h == 1);
    CHECK(choice.predicted_us == Approx(2));
    REQUIRE(distile_run(call.kernel.get(), &call.args) == DISTILE_OK);
    CHECK(ones.calls == 1);
    activate_first(call, 1);
    CHECK(std::string(choose(call).variant) == "t1x1_p6c16_o0");
    // A time table may name it, too.
    const std::string table = folder.write(
        "times.json", time_table(timed_kernel, R"({"variant": "vendor", "threads": 1, "tiles": 400, "us": 3})"));
    REQUIRE(distile_kernel_load_times(call.kernel.get(), table.c_str()) == DISTILE_OK);
    CHECK(std::string(choose(call).variant) == "vendor");

    for (const char *taken : {"vendor", "dense"}) {
        const distile_dense_candidate twice{taken, &Ones::run, &ones};
        CHECK(distile_kernel_add_dense(call.kernel.get(), &twice) == DISTILE_ERROR_BAD_VALUE);
        CHECK(contains(call.message(), std::string("'") + taken + "'"));
    }
    ones.code = 42;
    call.refuse(DISTILE_ERROR_KERNEL, {"'vendor'", "42"});
}

TEST_CASE("The C++ header throws what the C API returns", "[api]") {
    const Context context = make_context();
    distile_polykernel other = plain_kernel;
    other.version = 77;
    try {
        make_kernel(context, other);
        FAIL("a PolyKernel of version 77 was accepted");
    } catch (const Error &error) {
        CHECK(error.status() == DISTILE_ERROR_VERSION);
        CHECK(contains(error.what(), "DISTILE_ERROR_VERSION"));
        CHECK(contains(error.what(), "77"));
    }
    distile_context_options options{};
    options.threads = -1;
    CHECK_THROWS_AS(make_context(options), Error);
}
