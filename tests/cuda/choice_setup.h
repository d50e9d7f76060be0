/** \file
 * Contexts whose GPU chooses the variant, and times for its choice.
 */
#ifndef DISTILE_TESTS_CHOICE_SETUP_H
#define DISTILE_TESTS_CHOICE_SETUP_H

#include "tests/cuda/cuda_setup.h"

namespace distile {

inline distile_cuda_options choosing() {
    distile_cuda_options options{};
    options.choose_on_device = 1;
    options.launch_us = -1;
    return options;
}

inline void add_time(const Setup &setup, const char *variant, int64_t tiles, double microseconds) {
    check(setup.context, distile_kernel_add_time(setup.kernel.get(), variant, tiles, microseconds));
}

}  // namespace distile

#endif
