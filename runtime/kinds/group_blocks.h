/** \file
 * Where a convolution with groups has its output channels in the blocks of the weight layouts "cpu-o16", "cuda-o32" and
 * "opencl-o32", and in the panels of those for tensor cores.
 *
 * A vector of output channels multiplies one input value after the other, so it must not span groups, which read
 * different inputs. A block of a GPU's threads that stages inputs for all of its output channels must not either. Hence
 * there are three forms.
 */
#ifndef DISTILE_GROUP_BLOCKS_H
#define DISTILE_GROUP_BLOCKS_H

#include <cstdint>

namespace distile {

enum class GroupForm {
    Whole,  /**< Channels in order: there is one group, or groups are whole blocks, or threads find their groups. */
    Padded, /**< Every group begins with a block, and zeros fill its last one. */
    /** Groups read as many channels as they write, and a block holds several. Channels are in order, and so is what a
     * vector reads: lane c multiplies input channel c, and its sums belong to the group's channels in turn. Weight
     * [diagonal d][lane c] is that of input channel c and of the channel that stands d behind it in its group,
     * cyclically: a cyclic diagonal of the group's matrix. */
    Diagonals
};

/** What computes the output channels of a block. A GPU's threads can also find their groups and read in place; then
 * channels are in order. That is faster for groups that fill at most half of a block. */
enum class GroupReaders { Vectors, Threads };

/** The blocks of a convolution's packed weights. */
struct GroupBlocks {
    int32_t groups, group_inputs, group_outputs, block;
    GroupReaders readers = GroupReaders::Vectors;

    /** An element of a tap's packed weights: an output channel of the blocks, and which of the weights that it has. */
    struct Place {
        int32_t channel, row;
    };

    GroupForm form() const {
        if (groups == 1 || group_outputs % block == 0) {
            return GroupForm::Whole;
        }
        if (readers == GroupReaders::Threads) {
            return 2 * group_outputs > block ? GroupForm::Padded : GroupForm::Whole;
        }
        return group_inputs == group_outputs && block % group_outputs == 0 ? GroupForm::Diagonals : GroupForm::Padded;
    }
    /** The output channels of a group, rounded up to whole blocks. */
    int32_t padded_outputs() const {
        return blocks_of(group_outputs) * block;
    }
    int32_t count() const {
        return form() == GroupForm::Padded ? groups * blocks_of(group_outputs) : blocks_of(groups * group_outputs);
    }
    /** Where an output channel and its bias are. */
    int32_t channel(int32_t output) const {
        return form() == GroupForm::Padded ? output / group_outputs * padded_outputs() + output % group_outputs
                                           : output;
    }
    /** Where the weight is by which an output channel multiplies the input channel `input` of its group. */
    Place place(int32_t output, int32_t input) const {
        if (form() != GroupForm::Diagonals) {
            return {channel(output), input};
        }
        const int32_t in_group = output % group_outputs;
        return {output - in_group + input, (in_group - input + group_outputs) % group_outputs};
    }

private:
    int32_t blocks_of(int32_t channels) const {
        return (channels + block - 1) / block;
    }
};

/** The panels of output channels in which tensor cores compute a convolution: whole groups, which together read and
 * write channels in the units in which code copies them. Zeros are the weights between the groups of a panel. Times an
 * infinite input they would be NaN, so only quantized operators may have panels of several groups; they do, up to 32
 * output channels, since a block multiplies no fewer. */
struct GroupPanels {
    int32_t groups;          /**< The groups of a panel. */
    int32_t inputs, outputs; /**< Channels of a panel. */
    int32_t count;
    bool fit; /**< Whether tensor cores can compute them. */

    GroupPanels(int32_t all_groups, int32_t group_inputs, int32_t group_outputs, bool quantized) {
        const int32_t unit = quantized ? 16 : 8;
        const auto is_whole = [&](int32_t joined) {
            return joined * group_inputs % unit == 0 && joined * group_outputs % unit == 0;
        };
        groups = 1;
        while (quantized && groups < all_groups &&
               (all_groups % groups != 0 || !is_whole(groups) || groups * group_outputs < 32)) {
            groups++;
        }
        inputs = groups * group_inputs;
        outputs = groups * group_outputs;
        count = all_groups / groups;
        // Depthwise convolutions have code of their own.
        fit = is_whole(groups) && (group_inputs > 1 || group_outputs > 1);
    }
};

}  // namespace distile

#endif
