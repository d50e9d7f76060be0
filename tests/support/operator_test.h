/** \file
 * A PolyKernel against the plain loops. Variants, sizes, masks, layouts and options are too many to try all
 * combinations: any two values of any two of them meet in at least one case.
 */
#ifndef DISTILE_TESTS_OPERATOR_TEST_H
#define DISTILE_TESTS_OPERATOR_TEST_H

#include "tests/support/kept_weights.h"
#include "tests/support/special_values.h"
#include <distile/distile.hpp>
#include <distile/polykernel.h>

namespace distile {

/** False, and says so, where this CPU lacks what a PolyKernel needs. */
bool can_run_or_warn(const distile_polykernel &polykernel);

/** Runs all of its variants, and the dispatcher's own choice. A share of the weights is 0; `sharing` output channels
 * have most zeros in the same places. Others than those `kept` are 0, too. The contexts allow all features of the CPU,
 * or these. */
void test_operator(const distile_polykernel &polykernel, double zeros = 0, const char *cpu_features = nullptr,
                   int32_t sharing = 1, Kept kept = Kept::Anything);

/** The sizes above are small enough for the runtime to put a border around inputs that lack one. On a large image the
 * code itself handles the edges. */
void test_large_edges(const distile_polykernel &polykernel);

/** Runs all of a kernel's variants on each of the calls. */
ValueClasses check_special_values(const Context &context, const Kernel &kernel, const SpecialCalls &calls);

}  // namespace distile

#endif
