#include "bindings/errors.h"
#include <stdexcept>

namespace distile::bindings {

void fail(const std::string &message) {
    throw std::runtime_error("distile: " + message);
}

void check(distile_status status, const distile_context *context) {
    if (status != DISTILE_OK) {
        fail(std::string(distile_context_message(context)) + " (" + distile_status_name(status) + ")");
    }
}

}  // namespace distile::bindings
