/** \file
 * A variant of a quantized operator on CPUs against the plain loops over integers.
 */
#ifndef DISTILE_TESTS_QUANTIZED_VARIANT_H
#define DISTILE_TESTS_QUANTIZED_VARIANT_H

#include "tests/support/catch.h"
#include "tests/support/quantized_model.h"
#include <distile/distile.hpp>
#include <random>

namespace distile {

/** Runs it and compares all of the output's memory. */
inline void check_quantized_variant(const Context &context, const Kernel &kernel, const Weights &weights,
                                    const QuantizedModel &model, QuantizedRuns &runs, int32_t variant,
                                    std::mt19937 &random) {
    INFO("variant " << variant);
    distile_variant_info info{};
    check(context, distile_kernel_get_variant(kernel.get(), variant, &info));
    check_quantized_run(model, runs.next(model.of), kernel, info, random, [&](const QuantizedCall &call) {
        const distile_tensor &output = call.output.view;
        const Mask mask = make_mask(context);
        check(context, distile_mask_set_bytes(mask.get(), call.mask.data(), output.batch, output.height, output.width,
                                              int64_t{output.height} * output.width, output.width));
        distile_run_args args{};
        args.input = &call.input.view;
        args.output = &output;
        args.residual = call.residual ? &call.residual->view : nullptr;
        args.weights = weights.get();
        args.mask = mask.get();
        args.inactive = call.run.inactive;
        args.store = call.run.store;
        check(context, distile_run_variant(kernel.get(), variant, &args));
    });
}

}  // namespace distile

#endif
