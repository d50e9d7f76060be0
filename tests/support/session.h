/** \file
 * A context with all that a call needs, for tests of what else runs in the program.
 */
#ifndef DISTILE_TESTS_SESSION_H
#define DISTILE_TESTS_SESSION_H

#include "test_conv3_16_48_avx2.h"
#include "tests/support/reference.h"
#include "tests/support/test_tensor.h"
#include <algorithm>
#include <cstdint>
#include <distile/distile.hpp>
#include <distile/polykernel.h>
#include <random>
#include <string>
#include <vector>

namespace distile {

/** The PolyKernel of all sessions: for AVX2, and for any CPU. */
inline const distile_polykernel &session_kernel = test_conv3_16_48_avx2;

inline distile_planner_options planner_options(int32_t buffers, distile_clearing clearing) {
    distile_planner_options options{};
    options.buffers = buffers;
    options.clearing = clearing;
    return options;
}

inline void set_mask(const Context &context, const Mask &mask, const std::vector<uint8_t> &bytes, int32_t batch,
                     int32_t height, int32_t width) {
    check(context,
          distile_mask_set_bytes(mask.get(), bytes.data(), batch, height, width, int64_t{height} * width, width));
}

/** It shares nothing with others except the constant PolyKernel. */
struct Session {
    /** On an image of this size, the call puts a border around the input in scratch memory. */
    static constexpr int32_t small_height = 9, small_width = 11;
    /** On one of this size, the code copies the tiles at the edges to scratch memory. */
    static constexpr int32_t large_height = 80, large_width = 76;

    explicit Session(const distile_context_options &options = {}, uint32_t seed = 1,
                     const distile_polykernel &polykernel = session_kernel, int32_t of_height = small_height,
                     int32_t of_width = small_width)
        : height(of_height), width(of_width), random(seed), context(make_context(options)),
          kernel(make_kernel(context, polykernel)), mask(make_mask(context)), input(1, height, width, 16),
          output(1, height, width, 48) {
        input.draw(Values::Integers, random);
        set_operator(reference, polykernel);
        reference.input = input.view();
        reference.filter = draw(Values::Integers, 9 * 16 * 48, random);
        distile_weights_source source{};
        source.filter = reference.filter.data();
        source.order = DISTILE_HWIO;
        weights = pack_weights(context, kernel, source);
        draw_mask();
    }

    void draw_mask() {
        reference.mask.resize(static_cast<size_t>(height) * width);
        std::generate(reference.mask.begin(), reference.mask.end(),
                      [&] { return static_cast<uint8_t>(random() % 3 == 0); });
        check(context,
              distile_mask_set_bytes(mask.get(), reference.mask.data(), 1, height, width, height * width, width));
    }

    /** Runs a variant, or the dispatcher's choice, on a new mask, and says what is wrong; "" if nothing is. The input
     * is plain. */
    std::string run(const char *variant = nullptr) {
        draw_mask();
        distile_run_args args{};
        args.input = &input.view();
        args.output = &output.view();
        args.weights = weights.get();
        args.mask = mask.get();
        args.variant = variant;
        const auto before = output.snapshot();
        if (distile_run(kernel.get(), &args) != DISTILE_OK) {
            return message();
        }
        return output.difference(before, reference_masked_conv2d(reference), 0);
    }

    std::string message() const {
        return distile_context_message(context.get());
    }

    int32_t height, width;
    std::mt19937 random;
    Context context;
    Kernel kernel;
    Mask mask;
    Weights weights;
    TestTensor input, output;
    ReferenceArgs reference;
};

}  // namespace distile

#endif
