/** \file
 * Where a convolution with groups has its output channels in the blocks of the weight layout "cpu-o16".
 *
 * A vector of output channels multiplies one input value after the other, so it must not span groups, which read
 * different inputs. Hence there are three forms.
 */
#ifndef DISTILE_GROUP_BLOCKS_H
#define DISTILE_GROUP_BLOCKS_H

#include <cstdint>

namespace distile {

enum class GroupForm {
    Whole,  /**< Channels in order: there is one group, or groups are whole blocks. */
    Padded, /**< Every group begins with a block, and zeros fill its last one. */
    /** Groups read as many channels as they write, and a block holds several. Channels are in order, and so is what a
     * vector reads: lane c multiplies input channel c, and its sums belong to the group's channels in turn. Weight
     * [diagonal d][lane c] is that of input channel c and of the channel that stands d behind it in its group,
     * cyclically: a cyclic diagonal of the group's matrix. */
    Diagonals
};

/** The blocks of a convolution's packed weights. */
struct GroupBlocks {
    int32_t groups, group_inputs, group_outputs, block;

    /** An element of a tap's packed weights: an output channel of the blocks, and which of the weights that it has. */
    struct Place {
        int32_t channel, row;
    };

    GroupForm form() const {
        if (groups == 1 || group_outputs % block == 0) {
            return GroupForm::Whole;
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

}  // namespace distile

#endif
