/** \file
 * The order in which blocks take items.
 */
#ifndef DISTILE_CUDA_TENSOR_CORE_ITEM_ORDER_H
#define DISTILE_CUDA_TENSOR_CORE_ITEM_ORDER_H

#include "runtime/choice/choose_variant.h"

namespace distile::tensor_core {

/** Items row by row, so that blocks that work at the same time share rows and weights. If the weights of all columns
 * are too many for the L2 cache, panels of columns come one after the other. */
template<uint32_t Columns, int64_t ColumnBytes> class ItemOrder {
    static constexpr int64_t panel_bytes = 20 << 20;
    static constexpr auto panels = static_cast<uint32_t>((Columns * ColumnBytes + panel_bytes - 1) / panel_bytes);
    static constexpr uint32_t width = (Columns + panels - 1) / panels;
    /** Columns may leave a narrower panel at the end. */
    static constexpr uint32_t whole_panels = Columns / width, last_width = Columns - whole_panels * width;

public:
    DISTILE_ANYWHERE explicit ItemOrder(uint32_t rows) : rows_(rows) {
    }
    DISTILE_ANYWHERE uint32_t count() const {
        return rows_ * Columns;
    }
    /** The row of an item below count(). */
    DISTILE_ANYWHERE uint32_t row(uint32_t item) const {
        if constexpr (whole_panels == 1 && last_width == 0) {
            return item / Columns;
        }
        return is_in_last(item) ? within_panel(item) / narrow : within_panel(item) / width;
    }
    DISTILE_ANYWHERE uint32_t column(uint32_t item) const {
        if constexpr (whole_panels == 1 && last_width == 0) {
            return item % Columns;
        }
        const uint32_t first = panel(item) * width;
        return first + (is_in_last(item) ? within_panel(item) % narrow : within_panel(item) % width);
    }

private:
    static constexpr uint32_t narrow = last_width == 0 ? width : last_width;

    DISTILE_ANYWHERE uint32_t panel(uint32_t item) const {
        return item / (rows_ * width);
    }
    DISTILE_ANYWHERE uint32_t within_panel(uint32_t item) const {
        return item - panel(item) * (rows_ * width);
    }
    DISTILE_ANYWHERE bool is_in_last(uint32_t item) const {
        return last_width != 0 && panel(item) == whole_panels;
    }

    uint32_t rows_;
};

}  // namespace distile::tensor_core

#endif
