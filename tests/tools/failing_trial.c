/* A trial that does not do what it should, for the tests of the workers: BEHAVIOUR says what it does instead, and
 * PLAN_HASH is that of the plan that it stands for. */
#include "kernels/call.h"
#include <distile/polykernel.h>
#include <stdlib.h>

enum { RIGHT, CRASH, HANG, WRONG, MEMORY, FAIL };

static int run(const distile_kernel_call *call) {
    distile_hooks *hooks = call->hooks;
    switch (BEHAVIOUR) {
    case CRASH:
        *(volatile int *)16 = 1;
        break;
    case HANG:
        for (volatile int forever = 1; forever;) {}
        break;
    case MEMORY:
        for (size_t bytes = 1 << 20; bytes <= 1 << 30; bytes *= 2) {
            char *memory = hooks->allocate(hooks, bytes);
            if (!memory) {
                return DISTILE_CALL_OUT_OF_MEMORY;
            }
            for (size_t i = 0; i < bytes; i += 4096) {
                memory[i] = 1;
            }
        }
        break; /* Nobody stopped it. */
    case FAIL:
        hooks->report(hooks, "it does not want to");
        return 2;
    default:
        break;
    }
    return 0;
}

static const distile_conv2d op = {.in_channels = 2,
                                  .out_channels = 3,
                                  .groups = 1,
                                  .kernel_h = 1,
                                  .kernel_w = 1,
                                  .stride_h = 1,
                                  .stride_w = 1,
                                  .dilation_h = 1,
                                  .dilation_w = 1};
static const distile_operand operands[] = {{DISTILE_ROLE_INPUT, DISTILE_FLOAT32, 2},
                                           {DISTILE_ROLE_WEIGHTS, DISTILE_FLOAT32, 3},
                                           {DISTILE_ROLE_BIAS, DISTILE_FLOAT32, 3},
                                           {DISTILE_ROLE_OUTPUT, DISTILE_FLOAT32, 3}};
static const distile_variant variants[] = {{"trial", TILE_H, TILE_W, DENSE, "cpu-o16", run}};

extern const distile_polykernel distile_measured;
__attribute__((visibility("default")))
const distile_polykernel distile_measured = {.version = DISTILE_POLYKERNEL_VERSION,
                                             .name = "trial",
                                             .kind = DISTILE_MASKED_CONV2D,
                                             .op = &op,
                                             .num_operands = 4,
                                             .operands = operands,
                                             .device = DISTILE_CPU,
                                             .features = "",
                                             .plan_hash = PLAN_HASH,
                                             .num_variants = 1,
                                             .variants = variants};
