/** \file
 * The context: its device, its threads, its scratch memory and its last error.
 */
#ifndef DISTILE_CONTEXT_H
#define DISTILE_CONTEXT_H

#include "kernels/call.h"
#include "runtime/base/device.h"
#include "runtime/base/host_memory.h"
#include "runtime/base/scratch.h"
#include "runtime/base/thread_pool.h"
#include "runtime/base/types.h"
#include <atomic>
#include <distile/polykernel.h>
#include <exception>
#include <functional>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <system_error>

struct distile_context : distile_hooks {
    explicit distile_context(const distile_context_options &given);

    distile_context_options options;
    std::string cpu_features; /**< A copy; options.cpu_features points to it unless null. */
    distile::HostMemory memory;
    distile::ThreadPool pool;
    distile::Scratch scratch;
    char message[512] = "";
    std::atomic<bool> kernel_failed{false}; /**< Set by the first error that generated code reports in a call. */
    std::unique_ptr<distile::Device> device;

    /** Runs task(closure, i) for every i in [0, count) in our own threads or those of the caller's pool. Tasks have no
     * loops of their own. */
    void run_parallel(distile_task task, void *closure, int32_t count);
    /** Rethrows what the caller's pool threw within generated code, which exceptions must not cross. */
    void rethrow_from_code();

private:
    std::mutex exception_mutex_;
    std::exception_ptr exception_;
};

namespace distile {

/** Thrown inside the library after storing a message in a context; guarded() converts it to a status. */
struct Failure {
    distile_status status;
};

/** Ends the body of an API function, which guarded() runs, unless a check succeeded. */
inline void require(distile_status status) {
    if (status != DISTILE_OK) {
        throw Failure{status};
    }
}

/** Stores a printf-style message in the context and returns the status. */
__attribute__((format(printf, 3, 4))) distile_status fail(distile_context *context, distile_status status,
                                                          const char *format, ...);

/** Stores a printf-style message for this thread's distile_context_message(NULL) and returns the status. */
__attribute__((format(printf, 2, 3))) distile_status fail_without_context(distile_status status, const char *format,
                                                                          ...);

/** Stores "CALL: the WHAT is null" and returns NULL_POINTER: in the context, or without one for this thread's
 * distile_context_message(NULL). */
distile_status fail_null(distile_context *context, const char *call, const char *what);
inline distile_status fail_null(const char *call, const char *what) {
    return fail_null(nullptr, call, what);
}

/** An argument that must not be null, and its name in messages. */
struct Required {
    const void *pointer;
    const char *name;
};
/** Fails for the first of the arguments that is null. */
distile_status check_pointers(distile_context *context, const char *call, std::initializer_list<Required> required);

/** An array, which may be null, the bytes that its address is a multiple of, and its name in messages. */
struct Aligned {
    const void *address;
    size_t bytes;
    const char *name;
};
/** Fails for the first of the arrays that is not aligned. */
distile_status check_alignment(distile_context *context, const char *call, std::initializer_list<Aligned> arrays);

/** The kind of device in words, for messages. */
const char *device_name(int32_t device);

/** Makes a context and its device, for the API functions that create contexts. On failure, stores this thread's message
 * for distile_context_message(NULL). */
distile_status create_context(const char *call, const distile_context_options *options,
                              const std::function<std::unique_ptr<Device>(distile_context &)> &make_device,
                              distile_context **context);

/** True if all reserved fields are 0. */
template<size_t count> bool is_reserved_zero(const int64_t (&reserved)[count]) {
    for (int64_t field : reserved) {
        if (field != 0) {
            return false;
        }
    }
    return true;
}

/** Makes the context's device current in this thread. */
class CurrentDevice {
public:
    explicit CurrentDevice(Device &device) : device_(device) {
        device_.enter();
    }
    ~CurrentDevice() {
        device_.leave();
    }
    CurrentDevice(const CurrentDevice &) = delete;
    CurrentDevice &operator=(const CurrentDevice &) = delete;

private:
    Device &device_;
};

/** Runs the body of an API function, which messages name, on the context's device. Never throws. */
template<typename Body> distile_status guarded(distile_context *context, const char *call, const Body &body) {
    try {
        const CurrentDevice current(*context->device);
        return body();
    } catch (const Failure &failure) {
        return failure.status;
    } catch (const std::bad_alloc &) {
        return fail(context, DISTILE_ERROR_OUT_OF_MEMORY, "%s: an allocation failed", call);
    } catch (const std::system_error &error) {
        return fail(context, DISTILE_ERROR_OUT_OF_MEMORY, "%s: the system refused a resource: %s", call, error.what());
    } catch (const std::exception &error) {
        return fail(context, DISTILE_ERROR_INTERNAL, "%s: an unexpected exception: %s", call, error.what());
    } catch (...) {
        return fail(context, DISTILE_ERROR_INTERNAL, "%s: an unexpected exception", call);
    }
}

/** Checks the arguments of an API function, check(context, call, *args), and then runs its body. */
template<typename Args, typename Body>
distile_status call_with(distile_context *context, const char *call, const Args *args,
                         distile_status (*check)(distile_context *, const char *, const Args &), const Body &body) {
    if (!context) {
        return fail_null(call, "context");
    }
    if (!args) {
        return fail_null(context, call, "pointer to the arguments");
    }
    return guarded(context, call, [&] {
        require(check(context, call, *args));
        body();
        return DISTILE_OK;
    });
}

/** Destroys an object of a context, with the device current if possible. */
template<typename Object> void destroy(distile_context &context, Object *object) {
    std::unique_ptr<Object> owned(object);
    bool current = true;
    try {
        context.device->enter();
    } catch (const Failure &) {
        // A lost device has lost its memory too; the object's host memory still goes.
        current = false;
    }
    owned.reset();
    if (current) {
        context.device->leave();
    }
}

}  // namespace distile

#endif
