// Every PolyKernel of the tests against the plain loop.
#include "reference/conv2d_reference.h"
#include "test_polykernels.h"
#include "tests/support/catch.h"
#include "tests/support/operator_test.h"

using namespace distile;

TEST_CASE("Every variant computes what the plain loop computes, and touches nothing else", "[masked_conv2d]") {
    for (const distile_polykernel *polykernel : test_polykernels) {
        for (; polykernel; polykernel = polykernel->fallback) {
            if (can_run_or_warn(*polykernel)) {
                test_operator(*polykernel);
            }
        }
    }
}

TEST_CASE("Every variant computes the edges of large images without a border", "[masked_conv2d]") {
    // The plain loops take long for larger filters.
    constexpr size_t most_weights = 1000;
    for (const distile_polykernel *polykernel : test_polykernels) {
        for (; polykernel; polykernel = polykernel->fallback) {
            if (filter_size(convolution_of(*polykernel)) <= most_weights && can_run_or_warn(*polykernel)) {
                test_large_edges(*polykernel);
            }
        }
    }
}
