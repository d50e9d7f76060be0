/** \file
 * Packing of what makes results of a quantized operator's sums, for code of every device.
 */
#ifndef DISTILE_REQUANTIZATION_H
#define DISTILE_REQUANTIZATION_H

#include "runtime/kinds/filter.h"
#include <functional>

namespace distile {

/** Output channels of which it has whole blocks, and so has the bias. */
constexpr int32_t requantized_block = 16;

/** The sums of weights that read the input, [output channel][phase]. */
struct WeightSums {
    int32_t phases;
    /** Code for dot products adds 128 to inputs of int8, and needs no zero points in memory, as tensor cores do. */
    bool of_dot_products;
    std::vector<int64_t> sums;

    WeightSums(const FilterExtents &extents, const FilterSource &source, int32_t num_phases, bool for_dot_products)
        : phases(num_phases), of_dot_products(for_dot_products),
          sums(source.quantized ? static_cast<size_t>(extents.out_channels) * num_phases : 0) {
    }
    /** Only sources of quantized operators have sums. */
    void add(int32_t out_channel, int32_t phase, float weight) {
        if (!sums.empty()) {
            sums[static_cast<size_t>(out_channel) * phases + phase] += static_cast<int64_t>(weight);
        }
    }
};

/** Adds a distile_requantization and what follows it to the packed weights and bias of a quantized operator, whose bias
 * gets the unit of results. `place` tells where an output channel is; nothing: where its index is. Does nothing for
 * other operators. */
void add_requantization(const FilterSource &source, const WeightSums &weights, std::vector<PackedArray> &packed,
                        const std::function<int32_t(int32_t)> &place = nullptr);

}  // namespace distile

#endif
