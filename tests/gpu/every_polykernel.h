/** \file
 * Every PolyKernel for GPUs, those behind others of their chain included.
 */
#ifndef DISTILE_TESTS_EVERY_POLYKERNEL_H
#define DISTILE_TESTS_EVERY_POLYKERNEL_H

#include "gpu_polykernels.h"
#include "tests/gpu/gpu_operator.h"
#include <iterator>
#include <vector>

namespace distile {

using gpu_operator::can_run;
using gpu_operator::math_of;
using gpu_operator::TestedPolykernel;

inline const std::vector<TestedPolykernel> &every_polykernel() {
    static const std::vector<TestedPolykernel> all = [] {
        std::vector<TestedPolykernel> found;
        for (size_t i = 0; i < std::size(gpu_polykernels); i++) {
            for (const distile_polykernel *each = gpu_polykernels[i]; each; each = each->fallback) {
                found.push_back({each, gpu_cpu_polykernels[i]});
            }
        }
        return found;
    }();
    return all;
}

}  // namespace distile

#endif
