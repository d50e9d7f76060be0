// Time tables, the only files that the runtime reads: a table is taken whole or not at all, and gives a choice.
#include "kernels/call.h"
#include "tests/fuzz/fuzz.h"
#include <cmath>
#include <distile/distile.hpp>
#include <distile/polykernel.h>
#include <string>

using namespace distile;

namespace {

int run_nothing(const distile_kernel_call *) {
    return 0;
}

const distile_variant variants[] = {{"fine", 1, 1, 0, "cpu-o16", run_nothing, {}, 0, 0, 0},
                                    {"coarse", 8, 8, 0, "cpu-o16", run_nothing, {}, 0, 0, 0},
                                    {"dense", 4, 4, 1, "cpu-o16", run_nothing, {}, 0, 0, 0}};
const distile_conv2d conv = {1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 1, 1, DISTILE_ACTIVATION_NONE, 0};
const distile_operand operands[] = {{DISTILE_ROLE_INPUT, DISTILE_FLOAT32, 1},
                                    {DISTILE_ROLE_WEIGHTS, DISTILE_FLOAT32, 1},
                                    {DISTILE_ROLE_BIAS, DISTILE_FLOAT32, 1},
                                    {DISTILE_ROLE_OUTPUT, DISTILE_FLOAT32, 1}};
const distile_time_point times[] = {{0, 1, 10, 5}, {1, 1, 2, 4}, {2, 1, 6, 7}};

distile_polykernel make_polykernel() {
    distile_polykernel made{};
    made.version = DISTILE_POLYKERNEL_VERSION;
    made.name = "fuzzed";
    made.kind = DISTILE_MASKED_CONV2D;
    made.op = &conv;
    made.num_operands = 4;
    made.operands = operands;
    made.device = DISTILE_CPU;
    made.features = "";
    made.plan_hash = 0xfedcba9876543210;
    made.num_variants = 3;
    made.variants = variants;
    made.num_times = 3;
    made.times = times;
    return made;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const InputFile file;
    static const distile_polykernel polykernel = make_polykernel();
    static const Context context = make_context();
    static const Mask mask = [] {
        Mask made = make_mask(context);
        const uint8_t bytes[12 * 11] = {1, 0, 1, 1};
        check(context, distile_mask_set_bytes(made.get(), bytes, 1, 11, 12, 132, 12));
        return made;
    }();
    file.write(data, size);
    const Kernel kernel = make_kernel(context, polykernel);
    const distile_status status = distile_kernel_load_times(kernel.get(), file.path().c_str());
    require(status == DISTILE_OK || status == DISTILE_ERROR_BAD_FILE || status == DISTILE_ERROR_VERSION ||
                status == DISTILE_ERROR_OTHER_OPERATOR,
            "a time table is refused with another status than is documented");
    distile_choice choice{};
    require(distile_kernel_choose(kernel.get(), mask.get(), &choice) == DISTILE_OK, "no variant is chosen");
    require(choice.variant_index >= 0 && choice.variant_index < 3 && choice.predicted_us > 0 && choice.tiles >= 1,
            "a choice makes no sense");
    if (status != DISTILE_OK) {
        require(std::string(choice.variant) == "coarse" && choice.predicted_us == 4, "a refused table left its traces");
    }
    return 0;
}
