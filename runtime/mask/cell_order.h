/** \file
 * Orders of the cells of a grid. Pure functions.
 */
#ifndef DISTILE_CELL_ORDER_H
#define DISTILE_CELL_ORDER_H

#include <cstdint>
#include <vector>

namespace distile {

/** An order in which to walk through a grid. Along a Hilbert curve each cell is beside the one before, so a piece of
 * the walk is a compact area; in the order of Morton the walk jumps, but a power of two of cells is a square. */
enum class CellOrder : uint8_t { RowMajor, Morton, Hilbert };

/** The cells y * width + x of a grid of any extents in an order. On a grid with an odd extent, steps of a Hilbert curve
 * may be diagonal. */
std::vector<int32_t> order_cells(CellOrder order, int32_t height, int32_t width);

}  // namespace distile

#endif
