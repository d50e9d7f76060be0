// Arm's procedure call standard keeps the register x18 for the system, and Android uses it
// (https://clang.llvm.org/docs/ShadowCallStack.html), but Halide's code for Android is LLVM's for Linux, which takes
// the register. So LLVM is told to leave it alone, by an option of its own, which no other architecture heeds.
#include <cstdlib>
#include <string>

namespace {

bool reserve_platform_register() {
    const char *given = std::getenv("HL_LLVM_ARGS");
    const std::string options = "-reserve-regs-for-regalloc=X18" + (given ? std::string(" ") + given : "");
    return setenv("HL_LLVM_ARGS", options.c_str(), 1) == 0;
}

// Before Halide starts LLVM.
const bool reserved = reserve_platform_register();

}  // namespace
