/** \file
 * Replacements for functions of Halide's runtime that generated code calls: parallel loops, scratch memory and errors
 * go to the distile_hooks behind the user_context. They override the weak definitions of the Halide runtime that they
 * are linked with; its own error handler would abort the process.
 */
#include "kernels/call.h"
#include <HalideRuntime.h>
#include <atomic>
#include <distile/polykernel.h>

namespace {

distile_hooks *hooks_of(void *user_context) {
    return static_cast<distile_hooks *>(user_context);
}

struct ParallelLoop {
    void *user_context;
    halide_task_t task;
    int min;
    uint8_t *closure;
    std::atomic<int> status{0};

    static void run(void *loop, int32_t index) {
        auto *self = static_cast<ParallelLoop *>(loop);
        const int status = self->task(self->user_context, self->min + index, self->closure);
        if (status != 0) {
            self->status.store(status, std::memory_order_relaxed);
        }
    }
};

}  // namespace

extern "C" {

// Halide's declaration has a non-const closure.

// NOLINTNEXTLINE(readability-non-const-parameter)
int halide_do_par_for(void *user_context, halide_task_t task, int min, int size, uint8_t *closure) {
    if (size <= 0) {
        return 0;
    }
    ParallelLoop loop{user_context, task, min, closure};
    distile_hooks *hooks = hooks_of(user_context);
    hooks->parallel_for(hooks, &ParallelLoop::run, &loop, size);
    return loop.status.load(std::memory_order_relaxed);
}

void *halide_malloc(void *user_context, size_t x) {
    distile_hooks *hooks = hooks_of(user_context);
    return hooks->allocate(hooks, x);
}

void halide_free(void *user_context, void *ptr) {
    if (ptr) {
        distile_hooks *hooks = hooks_of(user_context);
        hooks->deallocate(hooks, ptr);
    }
}

void halide_error(void *user_context, const char *message) {
    distile_hooks *hooks = hooks_of(user_context);
    hooks->report(hooks, message);
}

}  // extern "C"
