#include "runtime/group/partition.h"
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

namespace distile {

namespace {

/** More cells take longer to cut than they can save. */
constexpr int64_t most_cells = int64_t{1} << 20;

MaskShape cells_of(const MaskShape &finest, int32_t cell_h, int32_t cell_w) {
    return {finest.batch, (finest.height - 1) / cell_h + 1, (finest.width - 1) / cell_w + 1};
}

double time_of(const DeviceTime &device, double work) {
    return work > 0 ? device.fixed + device.per_work * work : 0;
}

/** The work that a device does within a time. */
double work_within(const DeviceTime &device, double time) {
    return std::max(0.0, (time - device.fixed) / device.per_work);
}

std::vector<int32_t> cells_along(const CellCurve &curve, int32_t height, int32_t width) {
    std::vector<int32_t> cells =
        curve.transposed ? order_cells(curve.order, width, height) : order_cells(curve.order, height, width);
    for (int32_t &cell : cells) {
        const int32_t extent = curve.transposed ? height : width;
        int32_t y = cell / extent, x = cell % extent;
        if (curve.transposed) {
            std::swap(y, x);
        }
        cell = (curve.mirrored ? height - 1 - y : y) * width + x;
    }
    return cells;
}

/** The cells of all images along a curve, with sums of their work: sums[i] is that of the first i. */
struct CellWalk {
    std::vector<int64_t> cells;
    std::vector<double> sums;

    CellWalk(const CellCurve &curve, const CellGrid &grid) : sums{0} {
        const std::vector<int32_t> one = cells_along(curve, grid.cells.height, grid.cells.width);
        cells.reserve(one.size() * static_cast<size_t>(grid.cells.batch));
        const auto area = static_cast<int64_t>(one.size());
        for (int32_t n = 0; n < grid.cells.batch; n++) {
            for (const int32_t cell : one) {
                cells.push_back(n * area + cell);
            }
        }
        const bool idle = std::all_of(grid.work.begin(), grid.work.end(), [](double work) { return work == 0; });
        sums.reserve(cells.size() + 1);
        for (const int64_t cell : cells) {
            sums.push_back(sums.back() + (idle ? 1 : grid.work[static_cast<size_t>(cell)]));
        }
    }

    int64_t count() const {
        return static_cast<int64_t>(cells.size());
    }
    /** The most cells from `first` on that a device computes within a time. Rounding may not cost a cell. */
    int64_t reach(int64_t first, const DeviceTime &device, double time) const {
        const double within = work_within(device, time) * (1 + 1e-12);
        const double end = sums[static_cast<size_t>(first)] + within;
        // Also the cells without work behind them.
        return std::upper_bound(sums.begin() + first, sums.end(), end) - sums.begin() - 1;
    }
    /** The first cell from which a device reaches `last` within a time. */
    int64_t reach_back(int64_t last, const DeviceTime &device, double time) const {
        const double within = work_within(device, time) * (1 + 1e-12);
        const double begin = sums[static_cast<size_t>(last)] - within;
        return std::lower_bound(sums.begin(), sums.begin() + last, begin) - sums.begin();
    }
    bool fits(const std::vector<DeviceTime> &devices, double time) const {
        int64_t first = 0;
        for (const DeviceTime &device : devices) {
            first = reach(first, device, time);
        }
        return first == count();
    }
};

/** perimeters[i]: the work at sides between the first i cells of a walk and the others. */
std::vector<double> perimeters_of(const CellWalk &walk, const CellGrid &grid) {
    std::vector<double> perimeters{0};
    perimeters.reserve(walk.cells.size() + 1);
    std::vector<bool> inside(walk.cells.size(), false);
    const int64_t width = grid.cells.width, area = width * grid.cells.height;
    for (const int64_t cell : walk.cells) {
        double perimeter = perimeters.back();
        const double own = grid.work[static_cast<size_t>(cell)];
        const int64_t x = cell % width, y = cell % area / width;
        const auto meet = [&](bool there, int64_t other) {
            const double work = there ? std::min(own, grid.work[static_cast<size_t>(other)]) : 0;
            perimeter += there && inside[static_cast<size_t>(other)] ? -work : work;
        };
        meet(x > 0, cell - 1);
        meet(x + 1 < width, cell + 1);
        meet(y > 0, cell - width);
        meet(y + 1 < grid.cells.height, cell + width);
        inside[static_cast<size_t>(cell)] = true;
        perimeters.push_back(perimeter);
    }
    return perimeters;
}

double total_of(const CellGrid &grid) {
    return std::accumulate(grid.work.begin(), grid.work.end(), 0.0);
}

/** The fastest partition's time in a walk, up to rounding. */
double least_time(const CellWalk &walk, const std::vector<DeviceTime> &devices) {
    double low = ideal_time(walk.sums.back(), devices), high = std::max(low, 1e-300);
    while (!walk.fits(devices, high)) {
        high *= 2;
    }
    for (int step = 0; step < 50 && high - low > 1e-9 * high; step++) {
        const double middle = (low + high) / 2;
        (walk.fits(devices, middle) ? high : low) = middle;
    }
    return high;
}

}  // namespace

CellGrid count_cells(const std::vector<CostedMask> &masks, const MaskShape &finest, int32_t cell_h, int32_t cell_w) {
    CellGrid grid{cell_h, cell_w, cells_of(finest, cell_h, cell_w), {}};
    grid.work.assign(static_cast<size_t>(grid.cells.num_pixels()), 0);
    for (const CostedMask &costed : masks) {
        const BitImage &mask = *costed.mask;
        const int32_t rows = cell_h / costed.scale_h, columns = cell_w / costed.scale_w;
        for (int32_t n = 0; n < mask.shape.batch; n++) {
            for (int32_t y = 0; y < mask.shape.height; y++) {
                // A pixel of an output that is larger than its input's share belongs to the last cell.
                const int32_t row = std::min(y / rows, grid.cells.height - 1);
                double *const work = &grid.work[(static_cast<size_t>(n) * grid.cells.height + row) * grid.cells.width];
                const uint64_t *const bits = mask.row(n, y);
                for (int32_t i = 0, x = 0; x < mask.shape.width; i++, x += columns) {
                    const int32_t last =
                        static_cast<int32_t>(std::min<int64_t>(int64_t{x} + columns, mask.shape.width));
                    const int64_t pixels = count_bits(bits, x, last);
                    work[std::min(i, grid.cells.width - 1)] += costed.work * static_cast<double>(pixels);
                    if (last == mask.shape.width) {
                        break;
                    }
                }
            }
        }
    }
    return grid;
}

double ideal_time(double work, const std::vector<DeviceTime> &devices) {
    if (!(work > 0)) {
        return 0;
    }
    // The least time within which the devices' work adds up: constants in turn, from the least.
    std::vector<DeviceTime> sorted = devices;
    std::sort(sorted.begin(), sorted.end(), [](const DeviceTime &a, const DeviceTime &b) { return a.fixed < b.fixed; });
    double rate = 0, spent = 0, best = std::numeric_limits<double>::infinity();
    for (const DeviceTime &device : sorted) {
        rate += 1 / device.per_work;
        spent += device.fixed / device.per_work;
        const double time = (work + spent) / rate;
        best = time > device.fixed ? std::min(best, time) : best;
    }
    return best;
}

double imbalance_of(const Partition &partition, const CellGrid &grid, const std::vector<DeviceTime> &devices) {
    std::vector<double> work(devices.size());
    for (size_t i = 0; i < grid.work.size(); i++) {
        work[partition.owners[i]] += grid.work[i];
    }
    double longest = 0;
    for (size_t i = 0; i < devices.size(); i++) {
        longest = std::max(longest, time_of(devices[i], work[i]));
    }
    const double ideal = ideal_time(total_of(grid), devices);
    return ideal > 0 ? longest / ideal - 1 : 0;
}

Partition cut_cells(const CellCurve &curve, const CellGrid &grid, const std::vector<DeviceTime> &devices,
                    double slack) {
    const CellWalk walk(curve, grid);
    const double ideal = ideal_time(walk.sums.back(), devices);
    const double time = std::max(least_time(walk, devices), ideal * (1 + slack));
    const std::vector<double> perimeters = perimeters_of(walk, grid);
    // From where the later devices reach the end.
    std::vector<int64_t> earliest(devices.size() + 1, walk.count());
    for (size_t i = devices.size(); i-- > 0;) {
        earliest[i] = walk.reach_back(earliest[i + 1], devices[i], time);
    }
    Partition partition{grid.cell_h, grid.cell_w, grid.cells, std::vector<uint16_t>(walk.cells.size())};
    int64_t first = 0;
    double target = 0;
    for (size_t i = 0; i < devices.size(); i++) {
        const int64_t most = walk.reach(first, devices[i], time),
                      least = std::min(most, std::max(first, earliest[i + 1]));
        target += work_within(devices[i], ideal);
        int64_t last = i + 1 == devices.size() ? walk.count() : least;
        double best_away = std::numeric_limits<double>::infinity();
        for (int64_t cut = least; i + 1 < devices.size() && cut <= most; cut++) {
            const double away = std::abs(walk.sums[static_cast<size_t>(cut)] - target);
            const double before = perimeters[static_cast<size_t>(last)], here = perimeters[static_cast<size_t>(cut)];
            if (here < before || (here == before && away < best_away)) {
                last = cut;
                best_away = away;
            }
        }
        for (int64_t cell = first; cell < last; cell++) {
            partition.owners[static_cast<size_t>(walk.cells[static_cast<size_t>(cell)])] = static_cast<uint16_t>(i);
        }
        first = last;
    }
    return partition;
}

Partition partition_along(const CellCurve &curve, const std::vector<CostedMask> &masks, const MaskShape &finest,
                          const std::vector<DeviceTime> &devices, const PartitionRules &rules) {
    Partition best;
    double least = std::numeric_limits<double>::infinity();
    for (int32_t edge = 64; edge >= 1; edge /= 2) {
        const int32_t cell_h = rules.multiple_h * edge, cell_w = rules.multiple_w * edge;
        const bool is_last = cells_of(finest, cell_h, cell_w).num_pixels() * 4 > most_cells;
        const CellGrid grid = count_cells(masks, finest, cell_h, cell_w);
        Partition partition = cut_cells(curve, grid, devices, rules.goal);
        const double imbalance = imbalance_of(partition, grid, devices);
        if (imbalance < least) {
            best = std::move(partition);
            least = imbalance;
        }
        if (least <= rules.goal * (1 + 1e-9) || is_last) {
            break;
        }
    }
    return best;
}

Partition partition_rows(const std::vector<CostedMask> &masks, const MaskShape &finest,
                         const std::vector<DeviceTime> &devices, int32_t multiple_h) {
    // Cells as wide as the images, by the scales of all masks.
    int32_t width = 1;
    for (const CostedMask &mask : masks) {
        width = std::max(width, mask.scale_w);
    }
    width *= (finest.width - 1) / width + 1;
    return cut_cells({CellOrder::RowMajor, false, false}, count_cells(masks, finest, multiple_h, width), devices, 0);
}

Partition partition_bands(bool columns, const std::vector<CostedMask> &masks, const MaskShape &finest,
                          const std::vector<DeviceTime> &devices, const PartitionRules &rules) {
    // Thin bands, in up to 32 pieces each.
    const auto edge_of = [](int32_t extent, int32_t multiple, int32_t pieces) {
        return multiple * std::max(1, extent / (multiple * pieces));
    };
    const int32_t rows = columns ? 32 : 512, across = columns ? 512 : 32;
    const CellGrid grid = count_cells(masks, finest, edge_of(finest.height, rules.multiple_h, rows),
                                      edge_of(finest.width, rules.multiple_w, across));
    return cut_cells({CellOrder::RowMajor, columns, false}, grid, devices, rules.goal);
}

CellGrid count_cells_of(const Partition &partition, const std::vector<CostedMask> &masks, const MaskShape &finest) {
    return count_cells(masks, finest, partition.cell_h, partition.cell_w);
}

bool fits(const Partition &partition, const MaskShape &finest) {
    return !partition.is_empty() && cells_of(finest, partition.cell_h, partition.cell_w) == partition.cells;
}

int64_t moved_pixels(const Partition &from, const Partition &to, const MaskShape &finest) {
    int64_t moved = 0;
    for (int32_t n = 0; n < finest.batch; n++) {
        for (int32_t y = 0; y < finest.height; y++) {
            for (int32_t x = 0; x < finest.width;) {
                const int32_t last =
                    std::min({finest.width, (x / from.cell_w + 1) * from.cell_w, (x / to.cell_w + 1) * to.cell_w});
                const bool same =
                    from.owner(n, y / from.cell_h, x / from.cell_w) == to.owner(n, y / to.cell_h, x / to.cell_w);
                moved += same ? 0 : last - x;
                x = last;
            }
        }
    }
    return moved;
}

}  // namespace distile
