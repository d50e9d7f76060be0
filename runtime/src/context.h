/** \file
 * The context: its threads, its scratch memory and its last error.
 */
#ifndef DISTILE_CONTEXT_H
#define DISTILE_CONTEXT_H

#include "scratch.h"
#include "thread_pool.h"
#include <atomic>
#include <cstring>
#include <distile/polykernel.h>
#include <new>
#include <string>

struct distile_context : distile_hooks {
    explicit distile_context(const distile_context_options &given);

    distile_context_options options;
    std::string cpu_features; /**< The caller's, to which options.cpu_features points unless it is null. */
    distile::ThreadPool pool;
    distile::Scratch scratch;
    char message[512] = "";
    std::atomic<bool> kernel_failed{false}; /**< Set by the first error that generated code reports in a call. */

    /** Runs task(closure, i) for every i in [0, count) on the caller's pool or our own. */
    void run_parallel(distile_task task, void *closure, int32_t count);
};

namespace distile {

/** Stores the message (printf's format) in the context and returns the status. */
__attribute__((format(printf, 3, 4))) distile_status fail(distile_context *context, distile_status status,
                                                          const char *format, ...);

/** The number that an enumeration of the caller's holds. In C it may be any, which a C++ enumeration must not be. */
template<typename Enum> int32_t raw(const Enum &value) {
    int32_t number = 0;
    static_assert(sizeof(value) == sizeof(number), "the enumerations of the C API are int");
    std::memcpy(&number, &value, sizeof(number));
    return number;
}

/** Runs the body of an API function, of which no exception may leave. */
template<typename Body> distile_status guarded(distile_context *context, const Body &body) {
    try {
        return body();
    } catch (const std::bad_alloc &) {
        return fail(context, DISTILE_ERROR_OUT_OF_MEMORY, "an allocation failed");
    } catch (...) {
        return fail(context, DISTILE_ERROR_OUT_OF_MEMORY, "the system refused a resource");
    }
}

}  // namespace distile

#endif
