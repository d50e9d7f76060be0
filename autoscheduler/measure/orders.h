/** \file
 * Measuring in which order a variant had better get its tiles.
 */
#ifndef DISTILE_ORDERS_H
#define DISTILE_ORDERS_H

#include "autoscheduler/measure/profile.h"

namespace distile {

/** The best order of tiles for each variant of a plan for CPUs, on this machine with some threads: with masks of blobs
 * over three and nine tenths of the typical image, medians of calls that take turns. Tiles stay row by row where no
 * other order takes less by a fiftieth. */
std::vector<distile_tile_order> measure_orders(const Plan &plan, const SharedObject &object, int threads,
                                               double seconds_per_variant, const Progress &progress);

}  // namespace distile

#endif
