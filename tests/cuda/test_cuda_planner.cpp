// Output buffers on a GPU: wrong arguments, memory and captures on a driver of our own.
#include "gpu_polykernels.h"
#include "runtime/base/types.h"
#include "tests/cuda/fake_session.h"
#include "tests/cuda/gpu_session.h"
#include "tests/support/catch.h"
#include "tests/support/reference.h"
#include <algorithm>
#include <cmath>
#include <cstring>
#include <distile/distile.hpp>
#include <distile/mask_algebra.h>
#include <distile/planner.h>
#include <random>

using namespace distile;

namespace {

const distile_clearing clearings[] = {DISTILE_CLEAR_WRITTEN, DISTILE_CLEAR_ALL, DISTILE_CLEAR_BACKGROUND};

}  // namespace

namespace {

/** A mask of 1 x 3 x 4 on the fake driver. */
struct FakeGpu {
    FakeGpu() {
        set(mask, 3, 4);
    }
    void set(const Mask &to, int32_t height, int32_t width) const {
        check(context,
              distile_mask_set_bytes(to.get(), bytes.data(), 1, height, width, int64_t{height} * width, width));
    }

    Context context = make_cuda_context();
    Mask mask = make_mask(context);
    DeviceArray<uint8_t> bytes = DeviceArray<uint8_t>(1 << 20);
};

constexpr distile_output_spec good_spec{1, 3, 4, 2, 1, 1, 1, 1, DISTILE_FLOAT32};

}  // namespace

TEST_CASE("A planner on a GPU refuses what makes no sense, and takes no buffer", "[.fake_driver]") {
    const FakeGpu gpu, other;
    distile_planner *made = nullptr;
    CHECK(distile_planner_create(gpu.context.get(), nullptr, nullptr) == DISTILE_ERROR_NULL_POINTER);
    for (int32_t buffers : {-1, 1, 65}) {
        const distile_planner_options options{buffers, DISTILE_CLEAR_WRITTEN, {}};
        CHECK(distile_planner_create(gpu.context.get(), &options, &made) == DISTILE_ERROR_BAD_VALUE);
    }
    distile_planner_options options{};
    const int32_t no_clearing = 3;
    std::memcpy(&options.clearing, &no_clearing, sizeof(no_clearing));
    CHECK(distile_planner_create(gpu.context.get(), &options, &made) == DISTILE_ERROR_BAD_VALUE);
    CHECK(made == nullptr);

    for (distile_clearing clearing : clearings) {
        const Planner planner = make_planner(gpu.context, {3, clearing, {}});
        const Mask unset = make_mask(gpu.context);
        const int64_t launches = count_fake("launches");
        distile_tensor output{};
        const auto refuse = [&](const distile_output_spec *spec, const Mask &mask, distile_tensor *to,
                                distile_status due) {
            CHECK(name_of(distile_planner_next(planner.get(), spec, mask.get(), DISTILE_STORE_EXACT, to)) ==
                  name_of(due));
            CHECK(contains(distile_context_message(gpu.context.get()), "distile_planner_next"));
        };
        refuse(nullptr, gpu.mask, &output, DISTILE_ERROR_NULL_POINTER);
        refuse(&good_spec, Mask(), &output, DISTILE_ERROR_NULL_POINTER);
        refuse(&good_spec, gpu.mask, nullptr, DISTILE_ERROR_NULL_POINTER);
        refuse(&good_spec, unset, &output, DISTILE_ERROR_BAD_MASK);
        refuse(&good_spec, other.mask, &output, DISTILE_ERROR_BAD_MASK);
        distile_output_spec bad = good_spec;
        bad.height = 4;
        refuse(&bad, gpu.mask, &output, DISTILE_ERROR_BAD_MASK);
        for (int32_t distile_output_spec::*member :
             {&distile_output_spec::border_top, &distile_output_spec::border_bottom, &distile_output_spec::border_left,
              &distile_output_spec::border_right}) {
            for (int32_t border : {-1, 65536}) {
                bad = good_spec;
                bad.*member = border;
                refuse(&bad, gpu.mask, &output, DISTILE_ERROR_BAD_VALUE);
            }
        }
        bad = good_spec;
        bad.channels = 0;
        refuse(&bad, gpu.mask, &output, DISTILE_ERROR_BAD_VALUE);
        bad.channels = 1 << 30;
        refuse(&bad, gpu.mask, &output, DISTILE_ERROR_BAD_STRIDE);
        distile_store store{};
        const int32_t no_store = 2;
        std::memcpy(&store, &no_store, sizeof(no_store));
        CHECK(distile_planner_next(planner.get(), &good_spec, gpu.mask.get(), store, &output) ==
              DISTILE_ERROR_BAD_VALUE);
        CHECK(output.data == nullptr);
        CHECK(distile_planner_bytes(planner.get()) == 0);
        CHECK(count_fake("launches") == launches);
    }
}

TEST_CASE("Any function of the driver may fail under a planner, and it goes on", "[.fake_driver]") {
    for (distile_clearing clearing : clearings) {
        for (const char *function : {"cuCtxPushCurrent", "cuMemAlloc", "cuMemsetD8Async", "cuLaunchKernel",
                                     "cuStreamCreate", "cuEventCreate", "cuEventRecord", "cuStreamWaitEvent"}) {
            CAPTURE(clearing, function);
            {
                const FakeGpu gpu;
                const distile_planner_options options{2, clearing, {}};
                fail_fake(function, CUDA_ERROR_NOT_PERMITTED);
                distile_planner *made = nullptr;
                const distile_status status = distile_planner_create(gpu.context.get(), &options, &made);
                CHECK((made == nullptr) == (status != DISTILE_OK));
                distile_planner_destroy(made);
                fail_fake(function, 0);
                const Planner planner = make_planner(gpu.context, options);
                std::vector<const void *> handed;
                for (int32_t step = 0; step < 6; step++) {
                    distile_tensor output{};
                    fail_fake(function, step % 2 == 1 ? CUDA_ERROR_NOT_PERMITTED : 0);
                    const distile_status next =
                        distile_planner_next(planner.get(), &good_spec, gpu.mask.get(), DISTILE_STORE_EXACT, &output);
                    CHECK((next == DISTILE_OK) == (output.data != nullptr));
                    CHECK((step % 2 == 1 || next == DISTILE_OK));
                    if (next == DISTILE_OK) {
                        handed.push_back(output.data);
                    }
                    fail_fake(function, 0);
                }
                // A call that failed took no buffer: the two still take turns.
                for (size_t i = 2; i < handed.size(); i++) {
                    CHECK(handed[i] == handed[i - 2]);
                    CHECK(handed[i] != handed[i - 1]);
                }
            }
            CHECK(count_fake("alive") == 0);
        }
    }
}

TEST_CASE("A planner on a GPU waits for nothing and allocates only for a larger tensor, so that graphs take it",
          "[.fake_driver]") {
    const FakeGpu gpu;
    const auto waits = [] {
        return count_fake("cuStreamSynchronize") + count_fake("cuCtxSynchronize") + count_fake("cuMemcpyDtoHAsync");
    };
    for (distile_clearing clearing : clearings) {
        CAPTURE(clearing);
        const Planner planner = make_planner(gpu.context, {3, clearing, {}});
        const Mask mask = make_mask(gpu.context);
        const auto next = [&](int32_t height, int32_t width, int32_t channels) {
            gpu.set(mask, height, width);
            const distile_output_spec spec{1, height, width, channels, 0, 0, 0, 0, DISTILE_FLOAT32};
            distile_tensor output{};
            return distile_planner_next(planner.get(), &spec, mask.get(), DISTILE_STORE_EXACT, &output);
        };
        CHECK(distile_planner_bytes(planner.get()) == 0);
        for (int32_t i = 0; i < 3; i++) {
            CHECK(next(40, 60, 4) == DISTILE_OK);
        }
        CHECK(distile_planner_bytes(planner.get()) == 3 * 40 * 60 * 4 * 4);
        const int64_t allocations = count_fake("cuMemAlloc"), launches = count_fake("launches"), waited = waits();
        for (int32_t i = 0; i < 20; i++) {
            CHECK(next(1 + i % 10, 30 - i, 4) == DISTILE_OK);
        }
        // A launch for the mask and one for the buffer; the background takes one more.
        CHECK(count_fake("launches") == launches + 20 * (clearing == DISTILE_CLEAR_ALL       ? 1
                                                         : clearing == DISTILE_CLEAR_WRITTEN ? 2
                                                                                             : 3));
        CHECK(distile_cuda_planner_join(planner.get()) == DISTILE_OK);
        {
            const FakeSetting capturing("capturing", 1, 0);
            CHECK(next(40, 60, 4) == DISTILE_OK);
            CHECK(next(30, 20, 7) == DISTILE_OK);
            CHECK(next(40, 60, 5) == DISTILE_ERROR_CAPTURING);
            CHECK(contains(distile_context_message(gpu.context.get()), "during graph capture"));
            CHECK(distile_cuda_planner_join(planner.get()) == DISTILE_OK);
            CHECK(count_fake("forbidden") == 0);
        }
        CHECK(count_fake("cuMemAlloc") == allocations);
        CHECK(waits() == waited);
    }
}

TEST_CASE("What is cleared in the background is joined before a capture", "[.fake_driver]") {
    const FakeGpu gpu;
    const Planner planner = make_planner(gpu.context, {2, DISTILE_CLEAR_BACKGROUND, {}});
    distile_tensor output{};
    const auto next = [&] {
        return distile_planner_next(planner.get(), &good_spec, gpu.mask.get(), DISTILE_STORE_EXACT, &output);
    };
    for (int32_t i = 0; i < 4; i++) {
        CHECK(next() == DISTILE_OK);
    }
    {
        const FakeSetting capturing("capturing", 1, 0);
        CHECK(next() == DISTILE_ERROR_CAPTURING);
        CHECK(contains(distile_context_message(gpu.context.get()), "distile_cuda_planner_join"));
        CHECK(distile_cuda_planner_join(planner.get()) == DISTILE_ERROR_CAPTURING);
    }
    const int64_t waits = count_fake("cuStreamWaitEvent");
    CHECK(distile_cuda_planner_join(planner.get()) == DISTILE_OK);
    CHECK(count_fake("cuStreamWaitEvent") == waits + 1);
    CHECK(distile_cuda_planner_join(planner.get()) == DISTILE_OK);
    CHECK(count_fake("cuStreamWaitEvent") == waits + 1);
    {
        // Without a join at its end, the capture fails, and nothing waits for what was part of it.
        const FakeSetting capturing("capturing", 1, 0);
        CHECK(next() == DISTILE_OK);
    }
    const int64_t before = count_fake("cuStreamWaitEvent");
    CHECK(next() == DISTILE_OK);
    CHECK(count_fake("cuStreamWaitEvent") == before + 1);
}
