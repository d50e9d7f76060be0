// NaN, infinity and overflow: what reaches an output pixel, and what an epilogue and a type make of it.
#include "test_polykernels.h"
#include "tests/support/catch.h"
#include "tests/support/operator_test.h"
#include "tests/support/special_values.h"
#include <algorithm>
#include <cmath>
#include <distile/distile.hpp>
#include <limits>
#include <set>
#include <string>

using namespace distile;

namespace {

const char *const levels[] = {test_conv3_16_48_avx512.features, test_conv3_16_48_avx2.features, ""};

/** Every element of 8 bits plus every other one, by an operator with a residual whose filter is 1 in the middle of the
 * channels' first input and else 0. The pixels that are active lie so far apart that none reads another's. */
struct EverySum {
    static constexpr int32_t elements = 256, apart = 3;
    ReferenceArgs args;
    int32_t extent;
    TestTensor input, residual;

    explicit EverySum(const distile_polykernel &polykernel)
        : EverySum(polykernel, convolution_of(polykernel), type_of(polykernel)) {
    }

private:
    EverySum(const distile_polykernel &polykernel, const distile_conv2d &conv, distile_dtype dtype)
        : extent(apart * extent_of(elements * elements / conv.out_channels + elements)),
          input(1, extent, extent, conv.in_channels, {}, Flush::Back, dtype),
          residual(1, extent, extent, conv.out_channels, {}, Flush::Back, dtype) {
        set_operator(args, polykernel);
        const int32_t inputs = conv.in_channels / conv.groups;
        args.filter.resize(filter_size(conv));
        std::fill_n(args.filter.begin() + 4 * inputs * conv.out_channels, conv.out_channels, 1.0f);
        args.bias.resize(conv.out_channels);
        args.mask.resize(static_cast<size_t>(extent) * extent);
        args.input = input.view();
        args.residual = &residual.view();
        const int32_t pixels = extent / apart,
                      pixels_of_element = (elements + conv.out_channels - 1) / conv.out_channels;
        for (int32_t y = 0; y < extent; y++) {
            for (int32_t x = 0; x < extent; x++) {
                const int32_t number = y / apart * pixels + x / apart, element = number / pixels_of_element;
                const bool active = y % apart == 1 && x % apart == 1 && element < elements;
                args.mask[y * extent + x] = active ? 1 : 0;
                for (int32_t c = 0; c < conv.in_channels; c++) {
                    put(input, y, x, c, active && (c == 0 || inputs == 1) ? element : 0);
                }
                for (int32_t c = 0; active && c < conv.out_channels; c++) {
                    put(residual, y, x, c, number % pixels_of_element * conv.out_channels + c);
                }
            }
        }
    }

    static int32_t extent_of(int32_t pixels) {
        return static_cast<int32_t>(std::ceil(std::sqrt(pixels)));
    }
    static void put(const TestTensor &tensor, int32_t y, int32_t x, int32_t channel, int32_t element) {
        const distile_tensor &view = tensor.view();
        static_cast<uint8_t *>(view.data)[y * view.stride_h + x * view.stride_w + channel] =
            static_cast<uint8_t>(element);
    }
};

Context context_of(const char *features) {
    distile_context_options options{};
    options.cpu_features = features;
    options.threads = 2;
    return make_context(options);
}

}  // namespace

TEST_CASE("NaN, infinity and overflow reach the outputs that read them, and no others", "[special_values]") {
    int64_t infinite = 0;
    for (const distile_polykernel *polykernel : test_polykernels) {
        const SpecialCalls calls(*polykernel);
        std::set<std::string> taken;
        for (const char *features : levels) {
            const Context context = context_of(features);
            distile_kernel *created = nullptr;
            const distile_status status = distile_kernel_create(context.get(), polykernel, &created);
            const Kernel kernel(created);
            if (status == DISTILE_ERROR_UNSUPPORTED_DEVICE) {
                continue;
            }
            distile_kernel_info info{};
            check(context, distile_kernel_get_info(created, &info));
            if (!taken.insert(info.name).second) {
                continue;
            }
            INFO(info.name);
            const ValueClasses classes = check_special_values(context, kernel, calls);
            CHECK(classes.nan > 0);
            CHECK(classes.finite > 0);
            infinite += classes.infinite;
        }
        if (taken.empty()) {
            WARN("skipped: this CPU cannot run " << polykernel->name);
        }
    }
    CHECK(infinite > 0);
}

TEST_CASE("Types of 8 bits store every sum of two elements to the bit", "[special_values]") {
    std::set<distile_dtype> types;
    for (const distile_polykernel *polykernel : test_polykernels) {
        if (distile_dtype_size(type_of(*polykernel)) != 1 || !can_run_or_warn(*polykernel)) {
            continue;
        }
        types.insert(type_of(*polykernel));
        const EverySum every(*polykernel);
        const ReferenceOutput expected = reference_masked_conv2d(every.args);
        CHECK(std::count(every.args.mask.begin(), every.args.mask.end(), 1) *
                  convolution_of(*polykernel).out_channels >=
              EverySum::elements * EverySum::elements);
        const Context context = context_of(nullptr);
        const Kernel kernel = make_kernel(context, *polykernel);
        distile_weights_source source{};
        source.filter = every.args.filter.data();
        source.order = DISTILE_HWIO;
        const Weights weights = pack_weights(context, kernel, source);
        const Mask mask = make_mask(context);
        check(context, distile_mask_set_bytes(mask.get(), every.args.mask.data(), 1, every.extent, every.extent,
                                              int64_t{every.extent} * every.extent, every.extent));
        TestTensor output(1, every.extent, every.extent, every.residual.view().channels, {}, Flush::Back,
                          type_of(*polykernel));
        const auto before = output.snapshot();
        distile_run_args args{};
        args.input = &every.input.view();
        args.residual = &every.residual.view();
        args.output = &output.view();
        args.weights = weights.get();
        args.mask = mask.get();
        check(context, distile_run(kernel.get(), &args));
        INFO(polykernel->name);
        CHECK(output.difference(before, expected, 0) == "");
    }
    CHECK(types.size() == 2);
}

TEST_CASE("A comparison with the reference tells NaN, infinities and numbers apart", "[special_values]") {
    constexpr float nan = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();
    const float values[] = {nan, infinity, -infinity, 1.0f};
    for (const distile_dtype dtype : {DISTILE_FLOAT32, DISTILE_FLOAT16, DISTILE_BFLOAT16, DISTILE_FLOAT8_E5M2}) {
        for (const float got : values) {
            for (const float due : values) {
                CAPTURE(dtype, got, due);
                TestTensor tensor(1, 1, 1, 1, {}, Flush::Back, dtype);
                const auto before = tensor.snapshot();
                tensor.set(0, 0, 0, 0, got);
                const ReferenceOutput expected{{PixelState::Computed}, {due}, {due}, 1};
                const bool same = std::isnan(due) ? std::isnan(got) : got == due;
                CHECK((tensor.difference(before, expected) == "") == same);
                CHECK((tensor.difference(before, expected, 0) == "") == same);
            }
        }
    }
    // The NaN of another sign and payload too, and a number near infinity is none.
    TestTensor tensor(1, 1, 1, 1);
    const auto before = tensor.snapshot();
    tensor.set(0, 0, 0, 0, -nan);
    CHECK(tensor.difference(before, {{PixelState::Computed}, {nan}, {nan}, 1}) == "");
    tensor.set(0, 0, 0, 0, std::numeric_limits<float>::max());
    CHECK(tensor.difference(before, {{PixelState::Computed}, {infinity}, {infinity}, infinity}) != "");
}
