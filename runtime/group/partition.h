/** \file
 * The parts of images that several devices compute: cells of pixels, in an order, cut where the devices end at once.
 * Pure functions on host memory.
 */
#ifndef DISTILE_PARTITION_H
#define DISTILE_PARTITION_H

#include "runtime/group/bit_image.h"
#include "runtime/mask/cell_order.h"
#include <vector>

namespace distile {

/** A mask whose pixels cost something: the output of a layer. Its pixels are those of the finest tensor, or of blocks
 * of `scale_h` x `scale_w` of them. */
struct CostedMask {
    const BitImage *mask;
    int32_t scale_h = 1, scale_w = 1;
    double work = 1;  ///< What an active pixel takes, in any unit.
};

/** The time of a device: a constant, and a factor of its pixels' work. A device without pixels takes none. */
struct DeviceTime {
    double fixed = 0, per_work = 1;
};

/** A grid of cells over the finest tensor, with their costs [image][row][column]. Cells at the end may be smaller. */
struct CellGrid {
    int32_t cell_h, cell_w;
    MaskShape cells;  ///< Its extents are numbers of cells.
    std::vector<double> work;
};

/** Which device has which cell. */
struct Partition {
    int32_t cell_h = 0, cell_w = 0;
    MaskShape cells{0, 0, 0};
    std::vector<uint16_t> owners;  ///< [image][row][column]

    bool is_empty() const {
        return owners.empty();
    }
    uint16_t owner(int32_t image, int32_t row, int32_t column) const {
        return owners[(static_cast<size_t>(image) * cells.height + row) * cells.width + column];
    }
};

constexpr int32_t most_parts = 65535;

/** A walk through a grid: an order, of the grid as it is or transposed, and from its first or its last row. */
struct CellCurve {
    CellOrder order = CellOrder::Hilbert;
    bool transposed = false, mirrored = false;
};

/** Counts the work of cells of an extent, which the masks' scales divide. */
CellGrid count_cells(const std::vector<CostedMask> &masks, const MaskShape &finest, int32_t cell_h, int32_t cell_w);

/** The time that all devices would take if work had no cells: no partition is faster. 0 without work. */
double ideal_time(double work, const std::vector<DeviceTime> &devices);

/** The longest time of a device above the ideal time, as a part of it: 0 is best. */
double imbalance_of(const Partition &partition, const CellGrid &grid, const std::vector<DeviceTime> &devices);

/** Cuts the cells along a curve into a piece for each device, in the order of devices. No cut of this curve has a
 * longest time that is shorter by more than `slack`, a part of the ideal time; within it, cuts go where fewest active
 * cells meet. Cells without work count equally where there is no work at all. */
Partition cut_cells(const CellCurve &curve, const CellGrid &grid, const std::vector<DeviceTime> &devices, double slack);

/** What a partition may be. */
struct PartitionRules {
    /** The imbalance that smaller cells are tried for. */
    double goal = .015;
    /** Cells are multiples of these extents of pixels: the strides of a chain. */
    int32_t multiple_h = 1, multiple_w = 1;
};

/** Cuts images along a curve, with the largest square cells that balance. */
Partition partition_along(const CellCurve &curve, const std::vector<CostedMask> &masks, const MaskShape &finest,
                          const std::vector<DeviceTime> &devices, const PartitionRules &rules);

/** Cuts images into bands of whole rows, with which curves are compared. */
Partition partition_rows(const std::vector<CostedMask> &masks, const MaskShape &finest,
                         const std::vector<DeviceTime> &devices, int32_t multiple_h);

/** Cuts images into bands of rows that balance, or of columns: a band may end within a row. */
Partition partition_bands(bool columns, const std::vector<CostedMask> &masks, const MaskShape &finest,
                          const std::vector<DeviceTime> &devices, const PartitionRules &rules);

/** Counts the work in a partition's cells. */
CellGrid count_cells_of(const Partition &partition, const std::vector<CostedMask> &masks, const MaskShape &finest);

/** Whether a partition is one of images of this shape. */
bool fits(const Partition &partition, const MaskShape &finest);

/** The pixels of the finest tensor whose device differs. */
int64_t moved_pixels(const Partition &from, const Partition &to, const MaskShape &finest);

}  // namespace distile

#endif
