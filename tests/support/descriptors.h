/** \file
 * Descriptors of PolyKernels that tests change, and the time tables that go with them.
 */
#ifndef DISTILE_TESTS_DESCRIPTORS_H
#define DISTILE_TESTS_DESCRIPTORS_H

#include "reference/conv2d_reference.h"
#include <cstdio>
#include <distile/polykernel.h>
#include <string>
#include <vector>

namespace distile {

/** A copy of the PolyKernel of a convolution, with parts of its own. */
struct Descriptor {
    explicit Descriptor(const distile_polykernel &of)
        : polykernel(of), conv(*static_cast<const distile_conv2d *>(of.op)),
          operands(of.operands, of.operands + of.num_operands), variants(of.variants, of.variants + of.num_variants) {
        polykernel.op = &conv;
        polykernel.operands = operands.data();
        polykernel.variants = variants.data();
    }
    Descriptor(const Descriptor &) = delete;
    Descriptor &operator=(const Descriptor &) = delete;

    /** Leaves one variant, whose code is a function's. */
    void run_only(const char *name, distile_kernel_function run) {
        variants = {{name, 1, 1, 0, variants[0].layout, run, {}, 0, 0, 0}};
        polykernel.variants = variants.data();
        polykernel.num_variants = 1;
    }

    distile_polykernel polykernel;
    distile_conv2d conv;
    std::vector<distile_operand> operands;
    std::vector<distile_variant> variants;
};

/** The hash of a PolyKernel's plan, as files hold it. */
inline std::string hash_of(const distile_polykernel &polykernel) {
    char text[17] = "";
    std::snprintf(text, sizeof(text), "%016llx", static_cast<unsigned long long>(polykernel.plan_hash));
    return text;
}

/** A time table of a PolyKernel, with rows as JSON has them. */
inline std::string time_table(const distile_polykernel &of, const std::string &rows) {
    return std::string(R"({"distile_times": 2, "kernel": ")") + of.name + R"(", "plan_hash": ")" + hash_of(of) +
           R"(", "times": [)" + rows + "]}";
}

}  // namespace distile

#endif
