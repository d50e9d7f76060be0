// NaN, infinity and overflow: what reaches an output pixel, and what an epilogue and a type make of it.
#include "test_polykernels.h"
#include "tests/support/catch.h"
#include "tests/support/operator_test.h"
#include "tests/support/special_values.h"
#include <cmath>
#include <distile/distile.hpp>
#include <limits>
#include <set>
#include <string>

using namespace distile;

namespace {

const char *const levels[] = {test_conv3_16_48_avx512.features, test_conv3_16_48_avx2.features, ""};

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
