#include "python/csrc/torch_errors.h"
#include "bindings/errors.h"
#include <algorithm>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>

namespace distile::python {

namespace {

/** What the last failed call says; null before PyTorch 2.13. */
const char *last_failure() {
#ifdef TORCH_DYNAMIC_VERSION_CALL_2_13_0
    using torch::stable::detail::torch_shim_bc_const_char_ptr;
    return TORCH_DYNAMIC_VERSION_CALL_2_13_0(torch_exception_get_what_without_backtrace, torch_shim_bc_const_char_ptr);
#else
    return nullptr;
#endif
}

}  // namespace

std::string sentence_of(const std::string &what) {
    std::string text = what.substr(0, std::min(what.find("\n\nAt:\n"), what.find("\nException raised from ")));
    // Ours have no other type, and are said once.
    for (const std::string prefix : {"RuntimeError: ", "distile: "}) {
        if (text.rfind(prefix, 0) == 0) {
            text = text.substr(prefix.size());
        }
    }
    return text;
}

void check_torch(int32_t error, const char *call) {
    if (error != AOTI_TORCH_SUCCESS) {
        const char *const what = last_failure();
        bindings::fail(what ? sentence_of(what) : std::string("PyTorch's ") + call + " failed");
    }
}

}  // namespace distile::python
