/** \file
 * The CPU features that PolyKernels need, on any architecture.
 */
#ifndef DISTILE_TESTS_CPU_FEATURES_OF_H
#define DISTILE_TESTS_CPU_FEATURES_OF_H

#include "runtime/cpu/cpu_features.h"
#include <distile/polykernel.h>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

namespace distile {

inline std::vector<std::string> features_of(const distile_polykernel &polykernel) {
    std::istringstream words(polykernel.features);
    return {std::istream_iterator<std::string>(words), {}};
}

/** The features as an option of contexts has them. */
inline std::string joined(const std::vector<std::string> &features) {
    std::string text;
    for (const std::string &feature : features) {
        text += (text.empty() ? "" : " ") + feature;
    }
    return text;
}

/** Whether this CPU can run it. */
inline bool can_run(const distile_polykernel &polykernel) {
    return missing_cpu_feature(polykernel.features).empty();
}

}  // namespace distile

#endif
