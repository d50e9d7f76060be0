/** \file
 * The input of a call as a variant's code reads it best.
 */
#ifndef DISTILE_READ_INPUT_H
#define DISTILE_READ_INPUT_H

#include "runtime/dispatch/kernel.h"

namespace distile {

/** The caller's input or, for code that reads another type or would lose much time at the edges of the image, a copy of
 * the pixels that the call reads, with the border that the operator can use. */
class ReadInput {
public:
    ReadInput(distile_kernel &kernel, const distile_variant &variant, distile_mask &mask, const distile_tensor &given,
              const distile_tensor &output);

    const distile_tensor &tensor() const {
        return tensor_;
    }

private:
    distile_tensor tensor_;
    ScratchMemory memory_;
};

}  // namespace distile

#endif
