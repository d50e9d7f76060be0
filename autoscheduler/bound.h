/** \file
 * The analytical bound: a lower bound of a schedule's time from its footprints and a device profile. Equations (8) to
 * (12) of DynaSpa (SenSys 2024), a corrected form of them, and the same for a CPU. Pure functions.
 */
#ifndef DISTILE_BOUND_H
#define DISTILE_BOUND_H

#include "device_profile.h"
#include "space.h"
#include <map>

namespace distile {

/** An operator at a size on a device: what the time of a theta depends on beside the tiles. */
struct Workload {
    Problem problem;
    int batch = 1, height = 1, width = 1; /**< Of the output. */
    int threads = 1;                      /**< Of the call, on a CPU. */
    DeviceProfile device;
};

/** The terms of a bound, in microseconds, and the counts behind them by name: what a learned model gets as features. */
struct Bound {
    double us = 0; /**< The largest term. */
    std::map<std::string, double> terms;
    double sum() const; /**< Of the terms that are times: breaks ties. */
};

enum class BoundForm {
    Paper,    /**< As printed. */
    Corrected /**< Unique bytes from DRAM and re-reads from L2, occupancy by the blocks there are, real sectors. */
};

Bound bound(const Workload &workload, const Theta &theta, int64_t tiles, BoundForm form = BoundForm::Corrected);

}  // namespace distile

#endif
