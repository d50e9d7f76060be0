/** \file
 * Hooks with which tests see what code would launch.
 */
#ifndef DISTILE_TESTS_ASKED_FOR_H
#define DISTILE_TESTS_ASKED_FOR_H

#include "kernels/call.h"
#include <distile/polykernel.h>
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

/** A call for 200 output channels of 30 x 40 pixels, from 600 input channels, that asks for what it needs. No GPU is
 * needed: nothing of the device is read. */
struct AskingCall {
    static constexpr int32_t channels = 200, inputs = 600, height = 30, width = 40, count = height * width;
    static constexpr int32_t multiprocessors = 132;

    explicit AskingCall(distile_dtype dtype, const distile_variant *variant = nullptr)
        : operands{array(dtype, inputs), array(dtype, 1), array(dtype, 1), array(dtype, channels)} {
        call.hooks = &asked.hooks.hooks;
        call.operands = operands;
        call.num_operands = 4;
        if (variant) {
            call.num_tiles =
                (height + variant->tile_h - 1) / variant->tile_h * ((width + variant->tile_w - 1) / variant->tile_w);
            call.height = height;
        }
    }
    // It points into itself.
    AskingCall(const AskingCall &) = delete;
    AskingCall &operator=(const AskingCall &) = delete;

    AskedFor asked;
    distile_array operands[4];
    distile_kernel_call call{};

private:
    static distile_array array(distile_dtype dtype, int32_t channels) {
        return {nullptr,
                dtype,
                4,
                {{0, channels, 1}, {0, width, channels}, {0, height, width * channels}, {0, 1, count * channels}}};
    }
};

}  // namespace distile

#endif
