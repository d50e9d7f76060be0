/** \file
 * How blocks share the last items evenly. Lengths of items and of shares are in the same unit.
 */
#ifndef DISTILE_CUDA_TENSOR_CORE_SHARES_H
#define DISTILE_CUDA_TENSOR_CORE_SHARES_H

#include "kernels/tensor_core/arguments.h"

namespace distile::tensor_core {

/** Items of `Steps` each. */
template<uint32_t Steps> struct EvenItems {
    uint32_t count;

    static constexpr uint32_t unit = 1;  ///< The length of a step of the longest items.

    DISTILE_ANYWHERE uint32_t steps() const {
        return Steps;
    }
    DISTILE_ANYWHERE bool are_even() const {
        return true;
    }
    DISTILE_ANYWHERE void make_even() {
    }
    DISTILE_ANYWHERE uint32_t length(uint32_t) const {
        return Steps;
    }
    /** The length of all items before one. */
    DISTILE_ANYWHERE uint32_t begin(uint32_t item) const {
        return item * Steps;
    }
    /** The item in which a place lies. */
    DISTILE_ANYWHERE uint32_t at(uint32_t place) const {
        return place / Steps;
    }
    /** How much shorter the items are than `items` items of the longest kind. */
    DISTILE_ANYWHERE uint32_t missing(uint32_t items) const {
        return (items - count) * Steps;
    }
};

/** Items in rows of `columns`. The last of each row may be shorter than the others. */
struct RaggedItems {
    uint32_t count, columns;
    uint32_t num_steps;        ///< Steps of every item.
    uint32_t unit, last_unit;  ///< The length of a step, and of one of a row's last item.

    DISTILE_ANYWHERE uint32_t steps() const {
        return num_steps;
    }
    DISTILE_ANYWHERE bool are_even() const {
        return unit == last_unit;
    }
    DISTILE_ANYWHERE void make_even() {
        last_unit = unit;
    }
    DISTILE_ANYWHERE uint32_t length(uint32_t item) const {
        return num_steps * (item % columns == columns - 1 ? last_unit : unit);
    }
    DISTILE_ANYWHERE uint32_t begin(uint32_t item) const {
        const uint32_t row = item / columns;
        return row * of_row() + (item - row * columns) * num_steps * unit;
    }
    DISTILE_ANYWHERE uint32_t at(uint32_t place) const {
        const uint32_t row = place / of_row(), column = (place - row * of_row()) / (num_steps * unit);
        return row * columns + (column < columns ? column : columns - 1);
    }
    DISTILE_ANYWHERE uint32_t missing(uint32_t items) const {
        return ((items - count) * unit + count / columns * (unit - last_unit)) * num_steps;
    }

private:
    DISTILE_ANYWHERE uint32_t of_row() const {
        return ((columns - 1) * unit + last_unit) * num_steps;
    }
};

/** The work of blocks: whole items in turn, then shares of the rest, if whole ones would leave many blocks idle. A
 * share may begin and end within an item. Items that differ in length are all shared, if they are few: whole ones would
 * end at different times. Many are taken as if they were even, because blocks that take them in turn read the same
 * inputs at the same time. Sums of shares cost about as much as `SumSteps`; a share has at least about `ShareSteps`. */
template<class Items, uint32_t SumSteps, uint32_t ShareSteps> class Shares {
public:
    /** Unless it is `possible` to share, blocks take whole items. */
    DISTILE_ANYWHERE Shares(const Items &items, uint32_t blocks, bool possible = true)
        : items_(items), whole_(items.count) {
        if (items.count == 0 || !possible) {
            return;
        }
        // As many as if the host had known the number of items, so that results are the same bit for bit.
        const uint32_t used = least(blocks, items.count * most_sharers);
        const uint32_t rounds = items.count / used, rest = items.count - rounds * used;
        constexpr uint32_t few_rounds = 4;
        if (rounds > few_rounds) {
            items_.make_even();
        }
        if (items_.missing((rounds + (rest > 0 ? 1 : 0)) * used) <= SumSteps * items.unit * used) {
            return;
        }
        whole_ = items_.are_even() && rounds > 1 ? (rounds - 1) * used : 0;
        const uint32_t shared = items.count - whole_;
        count_ = least(used, shared * least(most_sharers, (items.steps() + ShareSteps - 1) / ShareSteps));
        each_ = items_.begin(shared) / count_;
        rest_ = items_.begin(shared) % count_;
    }

    /** The items before this one are not shared. */
    DISTILE_ANYWHERE uint32_t whole() const {
        return whole_;
    }
    DISTILE_ANYWHERE uint32_t count() const {
        return count_;
    }
    DISTILE_ANYWHERE uint32_t length(uint32_t item) const {
        return items_.length(item < whole_ ? 0 : item - whole_);
    }
    /** The item in which a share begins, and where in it; a share ends where the next begins. */
    struct Place {
        uint32_t item, at;
    };
    DISTILE_ANYWHERE Place begin(uint32_t share) const {
        return place(first(share));
    }
    /** The last item of a share, and where in it the share ends. */
    DISTILE_ANYWHERE Place end(uint32_t share) const {
        const Place last = place(first(share + 1) - 1);
        return {last.item, last.at + 1};
    }
    /** Whether a share begins at an item's beginning, or before. */
    DISTILE_ANYWHERE bool has_begin(uint32_t share, uint32_t item) const {
        return first(share) <= items_.begin(item - whole_);
    }

private:
    DISTILE_ANYWHERE static uint32_t least(uint32_t a, uint32_t b) {
        return a < b ? a : b;
    }
    /** The length of all shares before one. What is shared is short enough for 32 bits. */
    DISTILE_ANYWHERE uint32_t first(uint32_t share) const {
        return each_ * share + rest_ * share / count_;
    }
    DISTILE_ANYWHERE Place place(uint32_t at) const {
        const uint32_t item = items_.at(at);
        return {whole_ + item, at - items_.begin(item)};
    }

    Items items_;
    uint32_t whole_, count_ = 0, each_ = 0, rest_ = 0;
};

}  // namespace distile::tensor_core

#endif
