#include "runtime/mask/cell_order.h"
#include <algorithm>
#include <cstdlib>
#include <numeric>

namespace distile {

namespace {

/** A step or a side of a rectangle; one of both is 0 in a side. */
struct CellStep {
    int32_t y, x;

    CellStep operator+(const CellStep &other) const {
        return {y + other.y, x + other.x};
    }
    CellStep operator-(const CellStep &other) const {
        return {y - other.y, x - other.x};
    }
    CellStep half() const {
        return {y / 2, x / 2};
    }
    int32_t length() const {
        return std::abs(y + x);
    }
    CellStep one() const {
        return {(y > 0) - (y < 0), (x > 0) - (x < 0)};
    }
};

/** Walks through a rectangle from one corner to the other end of its side `along`. A long rectangle is cut across, and
 * another into a strip that is walked sideways, one that is walked along, and a strip that is walked back: the Hilbert
 * curve's four squares, with the middle two as one rectangle. Where they can, cuts leave even extents, of which all
 * steps are to a side. */
class HilbertWalk {
public:
    HilbertWalk(int32_t width, std::vector<int32_t> &cells) : width_(width), cells_(cells) {
    }

    void walk(CellStep at, CellStep along, CellStep across) {
        const int32_t length = along.length(), breadth = across.length();
        if (breadth == 1 || length == 1) {
            const CellStep step = breadth == 1 ? along.one() : across.one();
            for (int32_t i = 0; i < std::max(length, breadth); i++, at = at + step) {
                cells_.push_back(at.y * width_ + at.x);
            }
            return;
        }
        CellStep first = along.half(), strip = across.half();
        if (2 * length > 3 * breadth) {
            if (first.length() % 2 == 1 && length > 2) {
                first = first + along.one();
            }
            walk(at, first, across);
            walk(at + first, along - first, across);
            return;
        }
        if (strip.length() % 2 == 1 && breadth > 2) {
            strip = strip + across.one();
        }
        const CellStep none{0, 0};
        walk(at, strip, first);
        walk(at + strip, along, across - strip);
        walk(at + (along - along.one()) + (strip - across.one()), none - strip, none - (along - first));
    }

private:
    int32_t width_;
    std::vector<int32_t> &cells_;
};

/** Walks through the part of a square that is in the grid, quarter by quarter. */
void walk_quarters(int32_t height, int32_t width, int32_t y, int32_t x, int32_t edge, std::vector<int32_t> &cells) {
    if (y >= height || x >= width) {
        return;
    }
    if (edge == 1) {
        cells.push_back(y * width + x);
        return;
    }
    const int32_t half = edge / 2;
    walk_quarters(height, width, y, x, half, cells);
    walk_quarters(height, width, y, x + half, half, cells);
    walk_quarters(height, width, y + half, x, half, cells);
    walk_quarters(height, width, y + half, x + half, half, cells);
}

}  // namespace

std::vector<int32_t> order_cells(CellOrder order, int32_t height, int32_t width) {
    std::vector<int32_t> cells;
    cells.reserve(static_cast<size_t>(height) * static_cast<size_t>(width));
    switch (order) {
    case CellOrder::RowMajor:
        cells.resize(cells.capacity());
        std::iota(cells.begin(), cells.end(), 0);
        break;
    case CellOrder::Morton: {
        int32_t edge = 1;
        while (edge < std::max(height, width)) {
            edge *= 2;
        }
        walk_quarters(height, width, 0, 0, edge, cells);
        break;
    }
    case CellOrder::Hilbert:
        if (width >= height) {
            HilbertWalk(width, cells).walk({0, 0}, {0, width}, {height, 0});
        } else {
            HilbertWalk(width, cells).walk({0, 0}, {height, 0}, {0, width});
        }
        break;
    }
    return cells;
}

}  // namespace distile
