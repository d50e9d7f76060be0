// The functions of the C API on a CPU with every argument wrong in turn.
#include "test_polykernels.h"
#include "tests/support/shared_arguments.h"
#include <cstdlib>
#include <cstring>

using namespace distile;

TEST_CASE("Every function of the C API refuses every argument that is wrong", "[arguments]") {
    const auto copy = [](const void *bytes, size_t count) {
        std::shared_ptr<void> memory(std::malloc(count), std::free);
        std::memcpy(memory.get(), bytes, count);
        return memory;
    };
    refuse_wrong_arguments({[] { return make_context(); },
                            copy,
                            true,
                            test_conv3_48_16_residual_avx2,
                            test_point_17_48_avx2,
                            {"none_such"},
                            DISTILE_CUDA},
                           DISTILE_INCLUDE_FOLDER);
}
