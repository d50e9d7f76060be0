#include "plans/architecture.h"

namespace distile {

const Architecture &arm_64_architecture() {
    static const Architecture architecture = {
        "arm-64",
        "AArch64 CPU",
        "neon",
        {
            {"arm_dot_prod", "dotprod"},
            {"arm_fp16", "fp16"},
        },
        {
            {"dotprod", "arm_dot_prod", "arm_dot_prod-arm_fp16", "generic_armv82"},
            {"neon", "", "", "generic_aarch64"},
        },
        [](const std::vector<std::string> &) {
            return Vectors{4, 32};
        },
    };
    return architecture;
}

}  // namespace distile
