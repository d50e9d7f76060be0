#include "runtime/base/context.h"
#include "kernels/call.h"
#include "runtime/base/enumerators.h"
#include <cstdarg>
#include <cstdio>
#include <sched.h>
#include <thread>
#include <utility>

namespace distile {

namespace {

/** The cores that this process may use, which a container or taskset may limit. */
int32_t usable_cores() {
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof(set), &set) == 0 && CPU_COUNT(&set) > 0) {
        return CPU_COUNT(&set);
    }
    const unsigned cores = std::thread::hardware_concurrency();
    return cores > 0 ? static_cast<int32_t>(cores) : 1;
}

/** The message of this thread's last failure in a call without a context. */
thread_local char thread_message[512] = "";

}  // namespace

distile_status fail_without_context(distile_status status, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    // Some versions of clang-tidy do not see that va_start initializes.
    // NOLINTNEXTLINE(clang-analyzer-valist.Uninitialized)
    std::vsnprintf(thread_message, sizeof(thread_message), format, arguments);
    va_end(arguments);
    return status;
}

namespace {

distile_status check_options(const char *call, const distile_context_options &options) {
    constexpr int32_t most_threads = 4096;
    if (options.threads < 0 || options.threads > most_threads) {
        return fail_without_context(DISTILE_ERROR_BAD_VALUE,
                                    "%s: threads is %d; it must be 1 to %d, or 0 for one per core", call,
                                    options.threads, most_threads);
    }
    if ((options.allocate == nullptr) != (options.deallocate == nullptr)) {
        return fail_without_context(DISTILE_ERROR_BAD_VALUE, "%s: set both allocate and deallocate, or neither", call);
    }
    if (!is_enumerator(options.math)) {
        return fail_without_context(DISTILE_ERROR_BAD_VALUE, "%s: math is %d; it must be one of %s", call,
                                    raw(options.math), Enumerators<distile_math>::names);
    }
    if (!is_reserved_zero(options.reserved)) {
        return fail_without_context(DISTILE_ERROR_BAD_VALUE, "%s: a reserved field of the options is not 0", call);
    }
    return DISTILE_OK;
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

distile_status fail_null(distile_context *context, const char *call, const char *what) {
    constexpr const char *format = "%s: the %s is null";
    return context ? fail(context, DISTILE_ERROR_NULL_POINTER, format, call, what)
                   : fail_without_context(DISTILE_ERROR_NULL_POINTER, format, call, what);
}

distile_status check_pointers(distile_context *context, const char *call, std::initializer_list<Required> required) {
    for (const Required &argument : required) {
        if (!argument.pointer) {
            return fail_null(context, call, argument.name);
        }
    }
    return DISTILE_OK;
}

distile_status check_alignment(distile_context *context, const char *call, std::initializer_list<Aligned> arrays) {
    for (const Aligned &array : arrays) {
        if (reinterpret_cast<uintptr_t>(array.address) % array.bytes != 0) {
            return fail(context, DISTILE_ERROR_BAD_ALIGNMENT, "%s: %s is not aligned to %zu bytes", call, array.name,
                        array.bytes);
        }
    }
    return DISTILE_OK;
}

const char *device_name(int32_t device) {
    return device == DISTILE_CPU      ? "a CPU"
           : device == DISTILE_CUDA   ? "an NVIDIA GPU"
           : device == DISTILE_OPENCL ? "an OpenCL device"
                                      : "an unknown device";
}

distile_status create_context(const char *call, const distile_context_options *options,
                              const std::function<std::unique_ptr<Device>(distile_context &)> &make_device,
                              distile_context **context) {
    if (!context) {
        return fail_null(call, "pointer to the context");
    }
    const distile_context_options chosen = options ? *options : distile_context_options{};
    const distile_status status = check_options(call, chosen);
    if (status != DISTILE_OK) {
        return status;
    }
    std::unique_ptr<distile_context> created;
    try {
        created = std::make_unique<distile_context>(chosen);
        created->device = make_device(*created);
        *context = created.release();
        return DISTILE_OK;
    } catch (const Failure &failure) {
        return fail_without_context(failure.status, "%s: %s", call, created->message);
    } catch (const std::exception &error) {
        return fail_without_context(DISTILE_ERROR_OUT_OF_MEMORY, "%s: the system refused a resource: %s", call,
                                    error.what());
    } catch (...) {
        return fail_without_context(DISTILE_ERROR_INTERNAL, "%s: an unexpected exception", call);
    }
}

}  // namespace distile

distile_context::distile_context(const distile_context_options &given)
    : distile_hooks{}, options(distile::with_defaults(given)),
      cpu_features(options.cpu_features ? options.cpu_features : ""), memory(options),
      pool(options.threads, options.parallel_for, options.parallel_for_user), scratch(memory) {
    if (options.cpu_features) {
        options.cpu_features = cpu_features.c_str();
    }
    parallel_for = [](distile_hooks *hooks, distile_task task, void *closure, int32_t count) {
        auto *context = static_cast<distile_context *>(hooks);
        try {
            // Loops of generated code may nest.
            context->pool.parallel_for(task, closure, count, true);
        } catch (...) {
            const std::lock_guard<std::mutex> lock(context->exception_mutex_);
            context->exception_ = std::current_exception();
        }
    };
    allocate = [](distile_hooks *hooks, size_t bytes) -> void * {
        return static_cast<distile_context *>(hooks)->scratch.take(bytes);
    };
    deallocate = [](distile_hooks *hooks, void *memory) {
        static_cast<distile_context *>(hooks)->scratch.give_back(memory);
    };
    report = [](distile_hooks *hooks, const char *text) {
        // Several threads may fail at once; keep the first message.
        auto *context = static_cast<distile_context *>(hooks);
        if (!context->kernel_failed.exchange(true, std::memory_order_relaxed)) {
            distile::fail(context, DISTILE_ERROR_KERNEL, "%s", text);
        }
    };
}

void distile_context::run_parallel(distile_task task, void *closure, int32_t count) {
    pool.parallel_for(task, closure, count);
}

void distile_context::rethrow_from_code() {
    std::exception_ptr thrown;
    {
        const std::lock_guard<std::mutex> lock(exception_mutex_);
        std::swap(thrown, exception_);
    }
    if (thrown) {
        std::rethrow_exception(thrown);
    }
}

extern "C" {

void distile_context_destroy(distile_context *context) {
    std::unique_ptr<distile_context> owned(context);
}

const char *distile_context_message(const distile_context *context) {
    return context ? context->message : distile::thread_message;
}

distile_device distile_context_device(const distile_context *context) {
    return context ? context->device->kind() : static_cast<distile_device>(0);
}

int32_t distile_context_threads(const distile_context *context) {
    return context ? context->device->threads() : 0;
}

}  // extern "C"
