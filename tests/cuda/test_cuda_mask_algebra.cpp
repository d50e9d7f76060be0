// Masks from masks and from tensors on a GPU: wrong arguments, memory and captures on a driver of our own.
#include "runtime/base/types.h"
#include "tests/cuda/fake_session.h"
#include "tests/cuda/gpu_session.h"
#include "tests/support/catch.h"
#include <algorithm>
#include <cmath>
#include <cstring>
#include <distile/distile.hpp>
#include <distile/mask_algebra.h>
#include <functional>
#include <limits>

using namespace distile;

namespace {

constexpr distile_window plain_3x3{3, 3, 1, 1, 1, 1, 1, 1, DISTILE_WINDOW_CONV};

/** Masks on the fake driver. */
struct FakeMasks {
    void set(const Mask &mask, int32_t batch, int32_t height, int32_t width) const {
        check(context,
              distile_mask_set_bytes(mask.get(), bytes.data(), batch, height, width, int64_t{height} * width, width));
    }
    /** Every function once, on masks of 1 x height x width. */
    void call_all(int32_t height, int32_t width) const {
        set(a, 1, height, width);
        set(b, 1, height, width);
        distile_mask *const x = a.get(), *const y = b.get(), *const to = result.get();
        const distile_tensor tensor = distile_tensor_make(floats.data(), 1, height, width, 3);
        for (distile_status status :
             {distile_mask_needed_input(to, x, &plain_3x3, 2 * height, width),
              distile_mask_affected_output(to, x, &plain_3x3, height, 2 * width), distile_mask_dilate(to, x, 2, 2),
              distile_mask_dilate(to, to, 2, 2), distile_mask_pool(to, to, 2, 2), distile_mask_unite(to, x, y),
              distile_mask_intersect(to, to, y), distile_mask_subtract(to, y, to), distile_mask_invert(to, to),
              distile_mask_set_difference(to, &tensor, &tensor, 0)}) {
            check(context, status);
        }
    }

    Context context = make_cuda_context();
    Mask a = make_mask(context), b = make_mask(context), result = make_mask(context);
    DeviceArray<uint8_t> bytes = DeviceArray<uint8_t>(1 << 20);
    DeviceArray<float> floats = DeviceArray<float>(1 << 20);
};

}  // namespace

TEST_CASE("Masks of masks on a GPU refuse what makes no sense, and launch nothing", "[.fake_driver]") {
    const FakeMasks masks, others;
    const Mask unset = make_mask(masks.context);
    masks.set(masks.a, 1, 4, 70);
    masks.set(masks.result, 1, 4, 70);
    masks.set(masks.b, 1, 4, 71);
    others.set(others.a, 1, 4, 70);
    distile_mask *const result = masks.result.get(), *const a = masks.a.get(), *const b = masks.b.get();
    const int64_t launches = count_fake("launches");
    const auto refuse = [&](distile_status status, distile_status due, const std::string &word = "") {
        INFO(distile_context_message(masks.context.get()));
        CHECK(name_of(status) == name_of(due));
        CHECK(contains(distile_context_message(masks.context.get()), "distile_mask_"));
        CHECK(contains(distile_context_message(masks.context.get()), word));
    };
    // What all functions of one operand refuse, and those of two in both places.
    const std::function<distile_status(distile_mask *)> of_one[] = {
        [&](distile_mask *mask) { return distile_mask_needed_input(result, mask, &plain_3x3, 4, 70); },
        [&](distile_mask *mask) { return distile_mask_affected_output(result, mask, &plain_3x3, 4, 70); },
        [&](distile_mask *mask) { return distile_mask_dilate(result, mask, 1, 1); },
        [&](distile_mask *mask) { return distile_mask_pool(result, mask, 2, 2); },
        [&](distile_mask *mask) { return distile_mask_invert(result, mask); },
        [&](distile_mask *mask) { return distile_mask_unite(result, mask, a); },
        [&](distile_mask *mask) { return distile_mask_unite(result, a, mask); },
        [&](distile_mask *mask) { return distile_mask_intersect(result, mask, a); },
        [&](distile_mask *mask) { return distile_mask_intersect(result, a, mask); },
        [&](distile_mask *mask) { return distile_mask_subtract(result, mask, a); },
        [&](distile_mask *mask) { return distile_mask_subtract(result, a, mask); }};
    for (const auto &call : of_one) {
        refuse(call(nullptr), DISTILE_ERROR_NULL_POINTER, "null");
        refuse(call(unset.get()), DISTILE_ERROR_BAD_MASK, "never set");
        refuse(call(others.a.get()), DISTILE_ERROR_BAD_MASK, "another context");
    }
    refuse(distile_mask_unite(result, a, b), DISTILE_ERROR_BAD_SHAPE, "1 x 4 x 71");
    refuse(distile_mask_intersect(result, b, a), DISTILE_ERROR_BAD_SHAPE);
    refuse(distile_mask_subtract(result, a, b), DISTILE_ERROR_BAD_SHAPE);

    distile_window upsampled = plain_3x3;
    upsampled.kind = DISTILE_WINDOW_UPSAMPLED;
    upsampled.stride_w = 2000;
    refuse(distile_mask_affected_output(result, a, &upsampled, 4, 70), DISTILE_ERROR_BAD_SHAPE, "131070");
    // As many pixels as a mask on a CPU may have, but not one on a GPU.
    masks.set(masks.b, 60000, 1, 1);
    refuse(distile_mask_needed_input(result, b, &plain_3x3, 60000, 2), DISTILE_ERROR_BAD_SHAPE, "2^31");
    // One launch was that of the mask with 60000 images.
    CHECK(count_fake("launches") == launches + 1);
    const uint32_t *words = nullptr;
    int32_t words_per_row = 0;
    check(masks.context, distile_mask_bits(result, &words, &words_per_row));
    CHECK(words_per_row == 3);
}

TEST_CASE("Masks of masks on a GPU wait for nothing and allocate only for a new shape, so that graphs take them",
          "[.fake_driver]") {
    const FakeMasks masks;
    masks.call_all(40, 50);
    const int64_t allocations = count_fake("cuMemAlloc"), launches = count_fake("launches"),
                  copies = count_fake("cuMemcpyDtoDAsync");
    const auto waits = [] {
        return count_fake("cuStreamSynchronize") + count_fake("cuCtxSynchronize") + count_fake("cuMemcpyDtoHAsync");
    };
    const int64_t waited = waits();
    masks.call_all(40, 50);
    masks.call_all(20, 50);
    {
        const FakeSetting capturing("capturing", 1, 0);
        masks.call_all(40, 50);
        CHECK(distile_mask_dilate(masks.result.get(), masks.a.get(), 1, 1) == DISTILE_OK);
        CHECK(distile_mask_needed_input(masks.result.get(), masks.a.get(), &plain_3x3, 400, 500) ==
              DISTILE_ERROR_CAPTURING);
        CHECK(contains(distile_context_message(masks.context.get()), "during graph capture"));
        CHECK(count_fake("forbidden") == 0);
    }
    CHECK(count_fake("cuMemAlloc") == allocations);
    CHECK(waits() == waited);
    // A launch for each, the setting of two masks included, and a copy for the two windows in place.
    CHECK(count_fake("launches") == launches + 3 * 12 + 1);
    CHECK(count_fake("cuMemcpyDtoDAsync") == copies + 3 * 2);
}

TEST_CASE("A mask of masks whose launch failed holds nothing, and its operand is as it was", "[.fake_driver]") {
    const FakeMasks masks;
    masks.call_all(5, 6);
    const uint32_t *words = nullptr;
    int32_t words_per_row = 0;
    for (int result : {CUDA_ERROR_NOT_PERMITTED, CUDA_ERROR_ILLEGAL_ADDRESS}) {
        masks.set(masks.result, 1, 5, 6);
        fail_fake("cuLaunchKernelEx", result);
        const distile_status due =
            result == CUDA_ERROR_ILLEGAL_ADDRESS ? DISTILE_ERROR_DEVICE_LOST : DISTILE_ERROR_KERNEL;
        CHECK(name_of(distile_mask_dilate(masks.result.get(), masks.a.get(), 1, 1)) == name_of(due));
        fail_fake("cuLaunchKernelEx", 0);
        CHECK(distile_mask_bits(masks.result.get(), &words, &words_per_row) == DISTILE_ERROR_BAD_MASK);
        CHECK(distile_mask_bits(masks.a.get(), &words, &words_per_row) == DISTILE_OK);
    }
    // Without memory the result stays as it was.
    masks.set(masks.result, 1, 5, 6);
    fail_fake("cuMemAlloc", CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(name_of(distile_mask_needed_input(masks.result.get(), masks.a.get(), &plain_3x3, 500, 60)) ==
          "DISTILE_ERROR_OUT_OF_DEVICE_MEMORY");
    fail_fake("cuMemAlloc", 0);
    CHECK(distile_mask_bits(masks.result.get(), &words, &words_per_row) == DISTILE_OK);
    CHECK(words_per_row == 1);
}
