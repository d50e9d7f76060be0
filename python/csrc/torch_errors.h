/** \file
 * Failures of PyTorch's functions, in as few words as ours. Comes before PyTorch's headers for the stable ABI, whose
 * own macro prints the stacks of C++ and Python to standard error and puts them into the message.
 */
#ifndef DISTILE_PYTHON_TORCH_ERRORS_H
#define DISTILE_PYTHON_TORCH_ERRORS_H

#include <cstdint>
#include <string>
#if __has_include(<torch/csrc/stable/macros.h>)
#include <torch/csrc/stable/macros.h>
#endif

namespace distile::python {

/** Throws what PyTorch says about a call that returned an error. */
void check_torch(int32_t error, const char *call);

/** The sentence of an exception: without the name of its type, and without the stacks that follow. */
std::string sentence_of(const std::string &what);

}  // namespace distile::python

#undef STABLE_TORCH_ERROR_CODE_CHECK
// PyTorch's headers do not always write a semicolon behind it.
#define STABLE_TORCH_ERROR_CODE_CHECK(call)                                                                            \
    { ::distile::python::check_torch((call), #call); }

#endif
