/** \file
 * The speed-ups of masked operators, in a few lines for all devices.
 */
#ifndef DISTILE_BENCH_SPEEDUPS_H
#define DISTILE_BENCH_SPEEDUPS_H

#include <string>
#include <vector>

namespace distile::bench {

/** Fractions of active pixels in masks of blobs. */
constexpr double speedup_densities[] = {.05, .1, .3, 1};

/** A line of the table. */
struct Speedups {
    std::string name;
    std::vector<std::string> cells; /**< For each density. */
};

std::string speedup_table(const std::vector<Speedups> &lines);

}  // namespace distile::bench

#endif
