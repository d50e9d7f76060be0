/** \file
 * Hooks with which tests see what code would launch.
 */
#ifndef DISTILE_TESTS_ASKED_FOR_H
#define DISTILE_TESTS_ASKED_FOR_H

#include "kernels/call.h"
#include <string>

namespace distile {

/** Hooks that keep what code asks for, in place of a GPU. */
struct AskedFor {
    AskedFor() {
        gpu.use_module = [](distile_hooks *, const char *, size_t) { return 0; };
        gpu.launch = [](distile_hooks *of, const distile_gpu_launch *launch) {
            from(of).launched = *launch;
            return 0;
        };
        gpu.allocate = [](distile_hooks *of, uint64_t bytes, uint64_t *address) {
            from(of).scratch = bytes;
            *address = 256;
            return 0;
        };
        gpu.signals = [](distile_hooks *of, uint64_t bytes, uint64_t *address) {
            from(of).signals = bytes;
            *address = 256;
            return 0;
        };
        hooks.hooks.gpu = &gpu;
        hooks.hooks.report = [](distile_hooks *of, const char *message) { from(of).message = message; };
        hooks.owner = this;
    }
    AskedFor(const AskedFor &) = delete;
    AskedFor &operator=(const AskedFor &) = delete;

    struct Owned {
        distile_hooks hooks;  // The first member, of which code knows the address.
        AskedFor *owner;
    } hooks{};
    distile_gpu_hooks gpu{};
    distile_gpu_launch launched{};
    uint64_t scratch = 0, signals = 0;
    std::string message;

private:
    static AskedFor &from(distile_hooks *of) {
        return *reinterpret_cast<Owned *>(of)->owner;
    }
};

}  // namespace distile

#endif
