/** \file
 * Tests of launchers whose kernels read the operator at run time: what they launch, and what the launches compute.
 */
#ifndef DISTILE_TESTS_OPERATOR_LAUNCHES_H
#define DISTILE_TESTS_OPERATOR_LAUNCHES_H

#include "tests/cuda/asked_for.h"
#include "tests/gpu/gpu_operator.h"
#include "tests/support/catch.h"
#include "tests/support/nonzero_cases.h"
#include <string>

namespace distile::gpu_operator {

/** Calls check(set, variant, pixels, asked, launch) for the launch of each variant of each set, with the pixels of its
 * tiles. The operator is to have the channels of AskingCall. */
template<typename Sets, typename Check> void
check_launches(const Sets &sets, const NonzeroCase &one, const char *layout, distile_dtype dtype, const Check &check) {
    for (const InstructionSet &set : sets) {
        for (int32_t variant = 0; variant < InstructionSet::num_variants; variant++) {
            const DotProductKernel kernel(set, operator_of(one, layout));
            const distile_variant &of = kernel.polykernel().variants[variant];
            CAPTURE(set.name, variant, dtype);
            AskingCall asking(dtype, &of);
            asking.call.threads = AskingCall::multiprocessors;
            REQUIRE(of.run(&asking.call) == 0);
            const distile_gpu_launch launch = asking.asked.launched;
            check(set, variant, asking.call.num_tiles * of.tile_h * of.tile_w, asking.asked, launch);
            // The runtime knows kernels by the addresses of their names.
            REQUIRE(of.run(&asking.call) == 0);
            CHECK(asking.asked.launched.kernel == launch.kernel);
        }
    }
}

/** Checks that no variant of a set has a kernel for a type. */
inline void check_no_kernel(const InstructionSet &set, const NonzeroCase &one, const char *layout,
                            distile_dtype dtype) {
    for (int32_t variant = 0; variant < InstructionSet::num_variants; variant++) {
        const DotProductKernel kernel(set, operator_of(one, layout));
        CAPTURE(set.name, variant, dtype);
        const AskingCall asking(dtype, &kernel.polykernel().variants[variant]);
        CHECK(kernel.polykernel().variants[variant].run(&asking.call) != 0);
        CHECK(asking.asked.message.find("no kernel") != std::string::npos);
    }
}

/** Compares each variant of a set with the plain loop, if the GPU can run them. */
inline void compare(const Gpu &gpu, const InstructionSet &set, const NonzeroCase &one, const char *layout,
                    bool two_of_four = false) {
    INFO(one.name);
    const DotProductKernel kernel(set, operator_of(one, layout));
    if (can_run(gpu, kernel.polykernel())) {
        OperatorTest test(gpu, {&kernel.polykernel(), nullptr}, one.zeros, two_of_four, one.kept);
        run_pairwise(test);
    }
}

}  // namespace distile::gpu_operator

#endif
