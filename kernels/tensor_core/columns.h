/** \file
 * The columns of items: blocks of output channels, and what they read.
 */
#ifndef DISTILE_CUDA_TENSOR_CORE_COLUMNS_H
#define DISTILE_CUDA_TENSOR_CORE_COLUMNS_H

#include "runtime/choice/choose_variant.h"

namespace distile::tensor_core {

/** Up to BlockChannels output channels of a panel of groups, which has PanelChannels and reads ReadChannels of the
 * input. Each panel has weights of its own, whose rows of 128 bytes are [panel][step][output channel]. Without groups
 * there is one panel. */
template<int32_t OutChannels, int32_t PanelChannels, int32_t ReadChannels, int32_t BlockChannels> class Column {
    static constexpr int32_t panels = OutChannels / PanelChannels;
    static constexpr int32_t panel_columns = (PanelChannels + BlockChannels - 1) / BlockChannels;

public:
    static constexpr int32_t count = panels * panel_columns;
    /** The rows of the weights of a step. */
    static constexpr int32_t step_rows = (PanelChannels + 7) / 8 * 8;

    DISTILE_ANYWHERE explicit Column(uint32_t index)
        : panel_(panels == 1 ? 0 : static_cast<int32_t>(index) / panel_columns),
          within_((static_cast<int32_t>(index) - panel_ * panel_columns) * BlockChannels) {
    }
    /** The first output channel. */
    DISTILE_ANYWHERE int32_t channel() const {
        return panel_ * PanelChannels + within_;
    }
    /** Where the output channels of the panel end. */
    DISTILE_ANYWHERE int32_t end() const {
        return panels == 1 ? OutChannels : (panel_ + 1) * PanelChannels;
    }
    /** The first input channel. */
    DISTILE_ANYWHERE int32_t input_channel() const {
        return panel_ * ReadChannels;
    }
    /** The first row of the weights of one of `steps` steps, and how many rows there are. */
    DISTILE_ANYWHERE int64_t weight_row(int32_t steps, int32_t step) const {
        return (int64_t{panel_} * steps + step) * step_rows + within_;
    }
    DISTILE_ANYWHERE int32_t weight_rows() const {
        return step_rows - within_ < BlockChannels ? step_rows - within_ : BlockChannels;
    }

private:
    int32_t panel_, within_;
};

/** The columns of an operator. */
template<class Op, int32_t BlockChannels> using ColumnOf =
    Column<Op::out_channels, Op::panel_channels, Op::read_channels, BlockChannels>;

}  // namespace distile::tensor_core

#endif
