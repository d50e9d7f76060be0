/** \file
 * Measuring the time table of a plan on this machine.
 */
#ifndef DISTILE_PROFILE_H
#define DISTILE_PROFILE_H

#include "plan.h"
#include "shared_object.h"
#include "tensors.h"
#include <functional>

namespace distile {

struct ProfileOptions {
    /** Numbers of threads to measure with, on a GPU numbers of multiprocessors. Empty: one thread and all, or all
     * multiprocessors. */
    std::vector<int> threads;
    double seconds_per_variant = 0.5; /**< Time to spend on each variant and number of threads. */
};

/** Where a plan was measured, and its time table. */
struct Profile {
    std::string device;
    std::vector<PlanTime> times;
};

/** What is being done, and how much of it is done, from 0 to 1. */
using Progress = std::function<void(const std::string &what, double part)>;

/** The time of every variant at several tile counts, medians of calls that alternate between the variants. */
Profile profile(const Plan &plan, const SharedObject &object, const ProfileOptions &options, const Progress &progress);

/** Throws std::runtime_error where this machine has no GPU that can run plans. */
void check_gpu();
/** The same as profile() for a plan of a GPU, by replays of graphs. */
Profile profile_cuda(const Plan &plan, const SharedObject &object, const ProfileOptions &options,
                     const Progress &progress);

/** Byte masks with the tiles that lie nearest to the image's centre: one compact region, as masks of objects are. */
class TileDisc {
public:
    TileDisc(int height, int width, int tile_h, int tile_w);

    std::vector<uint8_t> mask(int64_t num_tiles) const;

private:
    struct Tile {
        double distance;
        int y, x;
    };

    int height_, width_, tile_h_, tile_w_;
    std::vector<Tile> tiles_;
};

/** Sizes of inputs for which to measure a dense candidate: about an eighth, a fourth and a half of the typical one,
 * and all of it. Images of one row are cut along it, others across their rows. */
std::vector<Extents> parts_of_input(const Operator &op);

/** The elements of an operator's filter. */
size_t filter_elements(const Operator &op);
/** The border with which its input is read in place. */
Border border_of(const Operator &op);

double median(std::vector<double> values);

}  // namespace distile

#endif
