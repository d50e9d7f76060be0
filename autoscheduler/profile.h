/** \file
 * Measuring the time table of a plan on this machine.
 */
#ifndef DISTILE_PROFILE_H
#define DISTILE_PROFILE_H

#include "plan.h"
#include <functional>

namespace distile {

struct ProfileOptions {
    std::vector<int> threads;         /**< Numbers of threads to measure with. */
    double seconds_per_variant = 0.5; /**< Time to spend on each variant and number of threads. */
};

/** What is being done, and how much of it is done, from 0 to 1. */
using Progress = std::function<void(const std::string &what, double part)>;

/** The CPU's name as the system tells it. */
std::string device_name();

/** The time of every variant at several tile counts, medians of calls that alternate between the variants.
 * Throws FileError, also where this machine cannot run the plan. */
std::vector<PlanTime> profile(const Plan &plan, const ProfileOptions &options, const Progress &progress);

}  // namespace distile

#endif
