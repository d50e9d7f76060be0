/* A trial that does not do what it should, for the tests of the workers: BEHAVIOUR says what it does instead, and PLAN
 * is the text of the plan that it stands for. */
#include <distile/polykernel.h>
#include <stdlib.h>

enum { RIGHT, CRASH, HANG, WRONG, MEMORY, FAIL };

static int run(void **args) {
    distile_hooks *hooks = *(distile_hooks **)args[0];
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
                return -11; /* halide_error_code_out_of_memory */
            }
            for (size_t i = 0; i < bytes; i += 4096) {
                memory[i] = 1;
            }
        }
        break; /* Nobody stopped it. */
    case FAIL:
        hooks->report(hooks, "it does not want to");
        return 1;
    default:
        break;
    }
    return 0;
}

static const distile_variant variants[] = {{"trial", TILE_H, TILE_W, DENSE, run}};

extern const distile_polykernel distile_measured;
__attribute__((visibility("default")))
const distile_polykernel distile_measured = {DISTILE_POLYKERNEL_VERSION,
                                             "trial",
                                             DISTILE_MASKED_CONV2D,
                                             DISTILE_FLOAT32,
                                             "cpu-o16",
                                             {2, 3, 1, 1, 1, 1, 1, 0, 0, 0, 0, 1, 1, DISTILE_EPILOGUE_NONE, 0},
                                             0,
                                             "",
                                             1,
                                             variants,
                                             0,
                                             0};

extern const char distile_measured_plan[];
__attribute__((visibility("default"))) const char distile_measured_plan[] = PLAN;
