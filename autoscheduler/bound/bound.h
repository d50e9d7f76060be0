/** \file
 * The analytical bound: a lower bound of a schedule's time from its footprints and a device profile. Equations (8) to
 * (12) of DynaSpa (SenSys 2024), a corrected form of them, and the same for a CPU. Pure functions.
 */
#ifndef DISTILE_BOUND_H
#define DISTILE_BOUND_H

#include "autoscheduler/bound/candidates.h"
#include "autoscheduler/bound/device_profile.h"
#include "schedules/space.h"
#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace distile {

/** An operator at a size on a device: what the time of a theta depends on besides the tiles. */
struct Workload {
    Problem problem;
    int batch = 1, height = 1, width = 1; /**< The mask's shape. */
    int keys = 1;                         /**< Active keys of an image, if the operator reads any. */
    int threads = 1;                      /**< The call's threads; on a GPU, multiprocessors. */
    DeviceProfile device;
};

/** An operator at its typical size, on all cores of a device. */
Workload workload_of(const Operator &op, const DeviceProfile &device);

/** The terms of a bound by name, which a learned model gets as features. Names of times, in microseconds, begin with
 * "t_"; the others are the counts behind them. */
struct Bound {
    double us = 0; /**< The largest time plus that of a launch. */
    std::map<std::string, double> terms;
    double sum() const; /**< The sum of the times, which breaks ties. */
};

enum class BoundForm {
    Paper,    /**< As printed, with the multiprocessors that (9) leaves out. On a CPU it equals Corrected. */
    Corrected /**< Unique bytes from DRAM and re-reads from L2, occupancy by the blocks there are, real sectors. */
};

/** The bound of a legal theta for a number of tiles of its granularity. */
Bound bound(const Workload &workload, const Theta &theta, int64_t tiles, BoundForm form = BoundForm::Corrected);

/** What a warp loads from shared memory for one staged channel, in instructions and in passes over the banks, and the
 * passes of one store of what it stages. */
struct WarpAccesses {
    int input_loads = 0, input_passes = 0, weight_loads = 0, weight_passes = 0, store_passes = 0;
};

/** What a GPU's block needs, as the functions of its space say. */
struct BlockNeeds {
    int64_t shared_bytes = 0;
    int staged_pixels = 0;
    int prefetch_registers = 0; /**< Registers of a thread, if it prefetches. */
    WarpAccesses warp;
};

/** What the bound knows of a theta: the values of its knobs, in the bound's order, and the needs of a GPU's block. */
struct BoundKnobs {
    std::array<int, 16> values{};
    BlockNeeds block;
};

struct BoundTerms;

/** The bound of many points of a space: a point is read once, and then judged for many numbers of tiles. Threads may
 * share it. */
class BoundOfPoints {
public:
    struct Times {
        double us, sum;
    };

    /** The workload and the space must outlive it. */
    BoundOfPoints(const Workload &workload, const Space &space, BoundForm form = BoundForm::Corrected);
    BoundKnobs read(const PackedTheta &point) const;
    Times operator()(const BoundKnobs &knobs, int64_t tiles) const;

private:
    const Workload &workload_;
    const BoundTerms &model_;
    const Space &space_;
    BoundForm form_;
    std::vector<int> positions_; /**< The index in the space of each knob that the bound knows; -1 for a knob that the
                                    space lacks. */
    struct PackedNeeds {
        std::atomic<uint64_t> block{0}; /**< 0 where the needs are not yet known. */
        std::atomic<uint64_t> warp{0};  /**< Stored before `block`. */
    };
    /** Points that differ in splits and prefetch alone share them. */
    mutable std::vector<PackedNeeds> blocks_;
    std::vector<size_t> strides_; /**< The strides in blocks_ of a point's choices. */

    BlockNeeds block(const PackedTheta &point, const BoundKnobs &knobs) const;
};

// The counts behind the terms, for tests and for the curious.

/** Memory transactions of `transaction` elements for a tile of rows x columns elements in a row-major matrix with rows
 * of `row_elements`, the tile aligned to its own columns. */
int64_t memory_transactions(int64_t rows, int64_t columns, int64_t row_elements, int64_t transaction);

/** Blocks that a multiprocessor can hold at once: (9). */
int occupancy(const DeviceProfile &device, int threads, int registers_per_thread, int64_t shared_bytes);

/** Passes over the banks of shared memory, at most 64, that a warp's access takes: its threads touch `words`
 * consecutive words from `count` addresses (in words, multiples of `words`), and a bank serves one word in a pass, to
 * whoever asks for it. */
int shared_passes(const int *addresses, int count, int words, int banks);

/** Bytes of input that `pixels` consecutive virtual pixels read, in one phase, if their tiles (of tile_h x tile_w
 * virtual pixels) lie side by side in rows of the image: every byte counted once. */
double input_footprint(const Workload &workload, int tile_h, int tile_w, double pixels);

}  // namespace distile

#endif
