#include "context.h"
#include "cpu_features.h"
#include <cstdarg>
#include <cstdio>
#include <memory>
#include <sched.h>
#include <thread>

namespace distile {

namespace {

/** The cores that this process may use: a container or taskset may allow fewer than the machine has. */
int32_t usable_cores() {
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof(set), &set) == 0 && CPU_COUNT(&set) > 0) {
        return CPU_COUNT(&set);
    }
    const unsigned cores = std::thread::hardware_concurrency();
    return cores > 0 ? static_cast<int32_t>(cores) : 1;
}

distile_context_options with_defaults(distile_context_options options) {
    if (options.threads == 0) {
        options.threads = usable_cores();
    }
    return options;
}

}  // namespace

distile_status fail(distile_context *context, distile_status status, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    // Some versions of clang-tidy do not see that va_start initializes.
    // NOLINTNEXTLINE(clang-analyzer-valist.Uninitialized)
    std::vsnprintf(context->message, sizeof(context->message), format, arguments);
    va_end(arguments);
    return status;
}

}  // namespace distile

distile_context::distile_context(const distile_context_options &given)
    : distile_hooks{}, options(distile::with_defaults(given)),
      cpu_features(options.cpu_features ? options.cpu_features : ""), pool(options.parallel_for ? 1 : options.threads),
      scratch(options.allocate, options.deallocate, options.allocator_user) {
    if (options.cpu_features) {
        options.cpu_features = cpu_features.c_str();
    }
    parallel_for = [](distile_hooks *hooks, distile_task task, void *closure, int32_t count) {
        static_cast<distile_context *>(hooks)->run_parallel(task, closure, count);
    };
    allocate = [](distile_hooks *hooks, size_t bytes) -> void * {
        return static_cast<distile_context *>(hooks)->scratch.take(bytes);
    };
    deallocate = [](distile_hooks *hooks, void *memory) {
        static_cast<distile_context *>(hooks)->scratch.give_back(memory);
    };
    report = [](distile_hooks *hooks, const char *text) {
        // Several threads may fail at once: the first one's message is kept.
        auto *context = static_cast<distile_context *>(hooks);
        if (!context->kernel_failed.exchange(true, std::memory_order_relaxed)) {
            distile::fail(context, DISTILE_ERROR_KERNEL, "%s", text);
        }
    };
}

void distile_context::run_parallel(distile_task task, void *closure, int32_t count) {
    if (options.parallel_for) {
        options.parallel_for(options.parallel_for_user, task, closure, count);
    } else {
        pool.parallel_for(task, closure, count);
    }
}

extern "C" {

const char *distile_status_name(distile_status status) {
    switch (status) {
    case DISTILE_OK:
        return "DISTILE_OK";
    case DISTILE_ERROR_NULL_POINTER:
        return "DISTILE_ERROR_NULL_POINTER";
    case DISTILE_ERROR_BAD_VALUE:
        return "DISTILE_ERROR_BAD_VALUE";
    case DISTILE_ERROR_BAD_SHAPE:
        return "DISTILE_ERROR_BAD_SHAPE";
    case DISTILE_ERROR_BAD_STRIDE:
        return "DISTILE_ERROR_BAD_STRIDE";
    case DISTILE_ERROR_BAD_TYPE:
        return "DISTILE_ERROR_BAD_TYPE";
    case DISTILE_ERROR_BAD_CHANNELS:
        return "DISTILE_ERROR_BAD_CHANNELS";
    case DISTILE_ERROR_BAD_MASK:
        return "DISTILE_ERROR_BAD_MASK";
    case DISTILE_ERROR_BAD_WEIGHTS:
        return "DISTILE_ERROR_BAD_WEIGHTS";
    case DISTILE_ERROR_ALIASING:
        return "DISTILE_ERROR_ALIASING";
    case DISTILE_ERROR_BAD_FILE:
        return "DISTILE_ERROR_BAD_FILE";
    case DISTILE_ERROR_VERSION:
        return "DISTILE_ERROR_VERSION";
    case DISTILE_ERROR_OTHER_OPERATOR:
        return "DISTILE_ERROR_OTHER_OPERATOR";
    case DISTILE_ERROR_UNSUPPORTED_CPU:
        return "DISTILE_ERROR_UNSUPPORTED_CPU";
    case DISTILE_ERROR_OUT_OF_MEMORY:
        return "DISTILE_ERROR_OUT_OF_MEMORY";
    case DISTILE_ERROR_KERNEL:
        return "DISTILE_ERROR_KERNEL";
    case DISTILE_ERROR_NO_DRIVER:
        return "DISTILE_ERROR_NO_DRIVER";
    case DISTILE_ERROR_OLD_DRIVER:
        return "DISTILE_ERROR_OLD_DRIVER";
    case DISTILE_ERROR_NO_GPU:
        return "DISTILE_ERROR_NO_GPU";
    case DISTILE_ERROR_UNSUPPORTED_GPU:
        return "DISTILE_ERROR_UNSUPPORTED_GPU";
    case DISTILE_ERROR_OUT_OF_DEVICE_MEMORY:
        return "DISTILE_ERROR_OUT_OF_DEVICE_MEMORY";
    case DISTILE_ERROR_NOT_DEVICE_MEMORY:
        return "DISTILE_ERROR_NOT_DEVICE_MEMORY";
    case DISTILE_ERROR_DEVICE_LOST:
        return "DISTILE_ERROR_DEVICE_LOST";
    }
    return "unknown status";
}

distile_status distile_context_create(const distile_context_options *options, distile_context **context) {
    if (!context) {
        return DISTILE_ERROR_NULL_POINTER;
    }
    distile_context_options chosen{};
    if (options) {
        chosen = *options;
    }
    constexpr int32_t most_threads = 4096;
    if (chosen.threads < 0 || chosen.threads > most_threads ||
        (chosen.allocate == nullptr) != (chosen.deallocate == nullptr)) {
        return DISTILE_ERROR_BAD_VALUE;
    }
    try {
        if (chosen.cpu_features && !distile::are_cpu_features(chosen.cpu_features)) {
            return DISTILE_ERROR_BAD_VALUE;
        }
        *context = std::make_unique<distile_context>(chosen).release();
    } catch (...) {
        return DISTILE_ERROR_OUT_OF_MEMORY;
    }
    return DISTILE_OK;
}

void distile_context_destroy(distile_context *context) {
    std::unique_ptr<distile_context> owned(context);
}

const char *distile_context_message(const distile_context *context) {
    return context ? context->message : "the context is null";
}

int32_t distile_context_threads(const distile_context *context) {
    return context ? context->options.threads : 0;
}

}  // extern "C"
