// Whole networks, small: each against plain loops, dense and then masked. The tag is [networks].
#include "catch.h"
#include "inputs.h"
#include "network_test_polykernels.h"
#include "runner.h"
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

using namespace distile::networks;

namespace {

Options small_options(double density = 0, int32_t batch = 1) {
    Options options;
    options.small = true;
    options.density = density;
    options.batch = batch;
    return options;
}

void no_progress(const std::string & /*what*/, int64_t /*done*/, int64_t /*total*/) {
}

/** Most layers of small networks then run PolyKernels, and not the loops that check them. */
void add_polykernels() {
    for (const distile_polykernel *polykernel : network_test_polykernels) {
        distile::bindings::add_polykernel(*polykernel);
    }
}

}  // namespace

TEST_CASE("Networks compute what dense ones leave behind a mask", "[networks]") {
    add_polykernels();
    for (const NetworkType &type : network_types()) {
        CAPTURE(type.name);
        Engine engine(2);
        const auto network = type.make(engine, small_options(type.by_density ? .4 : 0, type.by_density ? 2 : 1));
        const auto missing = missing_polykernels(engine, *network);
        CHECK(missing.size() < engine.operators().size());
        const Check checked = check(engine, *network, no_progress);
        CHECK(checked.error <= error_bound);
        CHECK(checked.difference > 100 * error_bound);  // The masks matter, so the check can fail.
        CHECK(*std::min_element(checked.densities.begin(), checked.densities.end()) < .7);
        // A step leaves nothing behind that changes the next one.
        engine.mode = Mode::masked;
        const auto first = values_of(network->step());
        CHECK(values_of(network->step()) == first);
    }
}
