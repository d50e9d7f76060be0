/** \file
 * Operators and devices with round figures, for bounds that are worked by hand.
 */
#ifndef DISTILE_TESTS_BOUND_CASES_H
#define DISTILE_TESTS_BOUND_CASES_H

#include "autoscheduler/bound/device_profile.h"
#include "plans/operator.h"
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace distile {

constexpr const char *hopper = "x86-64-linux-cuda-cuda_capability_90a",
                     *ampere = "x86-64-linux-cuda-cuda_capability_80";

/** What a function throws as a FileError, which must name `words`. */
void refuse(const std::function<void()> &function, const std::vector<std::string> &words);

Operator make_operator(const nlohmann::json &params, int height = 40, int width = 40);
/** Operator 3 of the benchmarks. */
Operator conv3x3_256();
/** The parameters of a 1 x 1 convolution. */
nlohmann::json point_params(int in_channels, int out_channels);

/** A CPU with round figures: 1 GHz, 8 lanes, 1 KB of L1 and 1 MB of L2. */
DeviceProfile simple_cpu();
/** A GPU with round figures: 2 multiprocessors that hold 4 blocks at most. */
DeviceProfile simple_gpu();

}  // namespace distile

#endif
