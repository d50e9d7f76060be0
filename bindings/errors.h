/** \file
 * Errors of the libraries for other frameworks: exceptions, which each hands to its framework.
 */
#ifndef DISTILE_BINDINGS_ERRORS_H
#define DISTILE_BINDINGS_ERRORS_H

#include <distile/distile.h>
#include <string>

namespace distile::bindings {

/** An argument is wrong: throws std::runtime_error. */
[[noreturn]] void fail(const std::string &message);

/** Throws with the context's message unless the status is DISTILE_OK. A null context: the thread's message. */
void check(distile_status status, const distile_context *context);

}  // namespace distile::bindings

#endif
