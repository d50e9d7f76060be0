/** \file
 * Every PolyKernel for GPUs, those behind others of their chain included; with DISTILE_TESTS_PART=i/n in the
 * environment, those of part i of n, from 0, which run_in_parts.sh runs beside each other.
 */
#ifndef DISTILE_TESTS_EVERY_POLYKERNEL_H
#define DISTILE_TESTS_EVERY_POLYKERNEL_H

#include "gpu_polykernels.h"
#include "tests/gpu/gpu_operator.h"
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <stdexcept>
#include <vector>

namespace distile {

using gpu_operator::can_run;
using gpu_operator::math_of;
using gpu_operator::TestedPolykernel;

inline const std::vector<TestedPolykernel> &every_polykernel() {
    static const std::vector<TestedPolykernel> all = [] {
        size_t part = 0, parts = 1, number = 0;
        const char *const wanted = std::getenv("DISTILE_TESTS_PART");
        if (wanted && (std::sscanf(wanted, "%zu/%zu", &part, &parts) != 2 || part >= parts)) {
            throw std::runtime_error("DISTILE_TESTS_PART must be i/n with i below n");
        }
        std::vector<TestedPolykernel> found;
        for (size_t i = 0; i < std::size(gpu_polykernels); i++) {
            for (const distile_polykernel *each = gpu_polykernels[i]; each; each = each->fallback) {
                if (number++ % parts == part) {
                    found.push_back({each, gpu_cpu_polykernels[i]});
                }
            }
        }
        return found;
    }();
    return all;
}

}  // namespace distile

#endif
