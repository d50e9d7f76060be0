#include "bindings/activation.h"
#include "bindings/errors.h"
#include "facts/activation_names.h"

namespace distile::bindings {

distile_activation activation_of(const std::string &name) {
    std::string known;
    int32_t number = 0;
    for (const char *const there : activation_names) {
        if (name == there) {
            return static_cast<distile_activation>(number);
        }
        known += (number++ > 0 ? ", " : "") + std::string(there);
    }
    fail("there is no activation '" + name + "'; there are " + known);
}

}  // namespace distile::bindings
