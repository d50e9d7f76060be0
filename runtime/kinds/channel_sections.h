/** \file
 * Where a convolution has its output channels in the blocks of the weight layouts for dot products: "cpu-k32",
 * "cpu-k64" and "cuda-k64".
 *
 * All output channels of a *section* read the same input channels. It is a group, or as many whole groups as fit a
 * block; then the weights by which a channel multiplies other groups are 0. A section begins with a block, and zeros
 * fill its last one.
 */
#ifndef DISTILE_CHANNEL_SECTIONS_H
#define DISTILE_CHANNEL_SECTIONS_H

#include <algorithm>
#include <cstdint>

namespace distile {

struct ChannelSections {
    /** Output channels of a block. */
    static constexpr int32_t block = 16;

    int32_t groups, group_inputs, group_outputs;
    /** The elements of 4 bytes, which an instruction multiplies at a time: two of 16 bits, four of 8. */
    int32_t pack;

    /** Whether each output channel reads only the input channel with its own index. Then all are in order, in one
     * section, and `inputs` does not count. */
    bool is_depthwise() const {
        return groups > 1 && group_inputs == 1 && group_outputs == 1;
    }
    /** Groups of a section. A floating-point 0 times infinity is no 0, so such groups share a block only where their
     * inputs are kept apart. */
    int32_t together() const {
        return is_depthwise() ? groups : keeps_apart(fitting()) || is_integer() ? fitting() : 1;
    }
    /** Groups of a section whose inputs vectors can keep apart, because these are whole packs, and those of a section
     * do not straddle what is shuffled: each lane multiplies what its own group reads, and no 0. 1: they cannot. */
    int32_t apart() const {
        return !is_depthwise() && keeps_apart(together()) ? together() : 1;
    }
    /** The channels of a section. The last section has as many as are left. */
    int32_t outputs() const {
        return together() * group_outputs;
    }
    int32_t padded_outputs() const {
        return divide_up(outputs(), block) * block;
    }
    /** The input channels that each section reads. */
    int32_t inputs() const {
        return together() * group_inputs;
    }
    int32_t count() const {
        return divide_up(groups, together());
    }
    int32_t blocks() const {
        return count() * (padded_outputs() / block);
    }
    /** Where an output channel is. */
    int32_t channel(int32_t output) const {
        return output / outputs() * padded_outputs() + output % outputs();
    }
    /** The first input channel that an output channel's section reads. The last section reads the last ones. */
    int32_t first_input(int32_t output) const {
        return std::min(output / outputs() * inputs(), groups * group_inputs - inputs());
    }

private:
    static constexpr int32_t shuffled_packs = 8;

    static int32_t divide_up(int32_t a, int32_t b) {
        return (a + b - 1) / b;
    }
    bool is_integer() const {
        return pack == 4;
    }
    /** The groups that fit a block. */
    int32_t fitting() const {
        return std::clamp(block / group_outputs, 1, groups);
    }
    bool keeps_apart(int32_t sharing) const {
        return sharing > 1 && group_inputs % pack == 0 && shuffled_packs % (sharing * (group_inputs / pack)) == 0;
    }
};

}  // namespace distile

#endif
