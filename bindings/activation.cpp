#include "activation.h"
#include "errors.h"

namespace distile::bindings {

distile_epilogue epilogue_of(const std::string &activation) {
    static const char *const names[] = {"none", "relu", "relu6", "silu", "gelu", "sigmoid", "hardsigmoid", "hardswish"};
    for (int32_t i = DISTILE_EPILOGUE_NONE; i <= DISTILE_EPILOGUE_HARDSWISH; i++) {
        if (activation == names[i]) {
            return static_cast<distile_epilogue>(i);
        }
    }
    fail("there is no activation '" + activation +
         "'; there are none, relu, relu6, silu, gelu, sigmoid, "
         "hardsigmoid and hardswish");
}

}  // namespace distile::bindings
