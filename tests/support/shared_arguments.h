/** \file
 * Every function of the C API with every argument wrong in turn, on any device.
 */
#ifndef DISTILE_TESTS_SHARED_ARGUMENTS_H
#define DISTILE_TESTS_SHARED_ARGUMENTS_H

#include "tests/support/wrong_arguments.h"
#include <climits>
#include <cstddef>
#include <distile/distile.hpp>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace distile {

/** A device whose functions are called. */
struct TestedDevice {
    std::function<Context()> make_context;
    /** Memory of the device that holds a copy of some bytes. */
    std::function<std::shared_ptr<void>(const void *bytes, size_t count)> copy;
    bool host_memory; /**< Its memory is the host's, whose values functions check when they are called. */
    /** 48 -> 16 channels, 3 x 3, padding 1, with a residual; and an operator of other weights. */
    const distile_polykernel &polykernel, &other;
    std::vector<const char *> lacking; /**< Features that it lacks. */
    distile_device another;            /**< A device that it is not. */
};

/** Options that are wrong on every device, as argument 0 of a function that makes contexts. */
template<typename Function> void refuse_context_options(Function &function) {
    function.template any<0>({nullptr}).template wrong<0>(DISTILE_ERROR_BAD_VALUE, &distile_context_options::threads,
                                                          {-1, 4097, INT_MIN, INT_MAX});
    const auto allocate = [](void *, size_t, size_t) -> void * { return nullptr; };
    const auto deallocate = [](void *, void *) {};
    function.template wrong<0>(DISTILE_ERROR_BAD_VALUE, &distile_context_options::allocate, {+allocate})
        .template wrong<0>(DISTILE_ERROR_BAD_VALUE, &distile_context_options::deallocate, {+deallocate})
        .template wrong_number<0>(DISTILE_ERROR_BAD_VALUE, &distile_context_options::math, {-1, 3, INT_MIN, INT_MAX})
        .template reserved<0>(&distile_context_options::reserved);
}

/** Checks every function that all devices share. `include_folder` holds the headers, whose comments must name every
 * error. */
void refuse_wrong_arguments(const TestedDevice &device, const std::string &include_folder);

}  // namespace distile

#endif
