/** \file
 * The choice of a variant on the device, for masks whose counts the host does not know.
 */
#ifndef DISTILE_DEVICE_CHOICE_H
#define DISTILE_DEVICE_CHOICE_H

#include "kernels/call.h"
#include "runtime/base/device.h"
#include "runtime/choice/choice.h"
#include "runtime/mask/tiles.h"
#include <array>
#include <memory>
#include <vector>

namespace distile {

/** The maximum number of operands of any kind. */
constexpr size_t most_operands = 8;

using Operands = std::array<distile_array, most_operands>;

/** The variants from which a device chooses for masks of one shape. */
struct ChoiceTable {
    MaskShape shape;
    double stretch = 1;                      ///< By what the times of variants that skip zeros are longer.
    std::vector<int32_t> variants;           ///< The possible ones. If it is only one, nothing else is set.
    std::vector<Granularity> granularities;  ///< The granularities of the variants that are not dense.
    /** The ChoiceVariants and their points, on the device, and their bytes. */
    std::shared_ptr<const void> memory;
    bool captured = false;  ///< A graph reads the memory.
    bool stale = false;     ///< The times changed since.
    uint32_t bytes = 0;
    std::vector<ChoiceRange> ranges;  ///< The choice by the only number of tiles that matters; else empty.
    // Room for a call, so that calls allocate nothing.
    std::vector<Operands> operands;
    std::vector<distile_kernel_call> calls;
    /** The addresses of the mask's numbers of tiles; null where nothing counts them. */
    std::vector<const uint32_t *> counts;

    int32_t place_of(const Granularity &granularity) const;
};

/** The tables of a kernel, by shape and stretch. */
class ChoiceTables {
public:
    /** The table for masks of a shape and weights of a stretch, made on first use. Throws Failure: CAPTURING if it
     * needs memory of the device during capture. */
    ChoiceTable &find(const distile_kernel &kernel, const MaskShape &shape, double stretch);
    /** The times changed. Graphs keep theirs. */
    void forget() noexcept;

private:
    std::vector<ChoiceTable> tables_;  // Oldest first.
};

}  // namespace distile

#endif
