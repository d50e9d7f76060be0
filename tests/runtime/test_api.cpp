// The contract of the C API: what it refuses, and that it then says why and writes nothing.
#include "tests/support/api_call.h"
#include "tests/support/callers.h"
#include "tests/support/catch.h"
#include "tests/support/cpu_features_of.h"
#include "tests/support/descriptors.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <distile/distile.hpp>
#include <distile/polykernel.h>
#include <functional>
#include <limits>
#include <set>
#include <string>
#include <sys/mman.h>
#include <vector>

using namespace distile;

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
    distile_kernel *new_kernel = nullptr;
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
    const auto run_nothing = [](void *, void *, const distile_run_args *) { return 0; };
    distile_kernel_info info{};
    const int32_t index = 0;
    uint8_t written = 0;
    const distile_dense_candidate dense{"x", run_nothing, nullptr};

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
    CHECK((!new_kernel && !new_mask && !weights && !words));
}

TEST_CASE("Null pointers to arguments are refused with a message in the context", "[api]") {
    Call call;
    distile_context *context = call.context.get();
    distile_kernel *kernel = call.kernel.get(), *new_kernel = nullptr;
    distile_mask *mask = call.mask.get(), *new_mask = nullptr;
    distile_weights *weights = nullptr;
    const uint8_t byte = 1;
    const uint32_t *words = nullptr;
    int32_t words_per_row = 0;
    distile_choice choice{};
    distile_weights_source source{};
    source.filter = call.reference.filter.data();
    source.order = DISTILE_OIHW;
    distile_weights_source no_filter = source;
    no_filter.filter = nullptr;
    const auto run_nothing = [](void *, void *, const distile_run_args *) { return 0; };
    const distile_dense_candidate no_name{nullptr, run_nothing, nullptr}, no_function{"x", nullptr, nullptr};

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
