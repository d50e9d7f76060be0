/** \file
 * The input of a call as a variant's code reads it best.
 */
#ifndef DISTILE_READ_INPUT_H
#define DISTILE_READ_INPUT_H

#include "kernel.h"

namespace distile {

/** The caller's input or, for code that reads another type or would lose much time at the edges of the image, a copy of
 * the pixels that the call reads, with the border that the operator can use. */
class ReadInput {
public:
    ReadInput(distile_kernel &kernel, const distile_variant &variant, distile_mask &mask, const distile_tensor &given,
              int64_t tiles, int64_t tiles_at_edges);

    const distile_tensor &tensor() const {
        return tensor_;
    }
    bool is_copy() const {
        return is_copy_;
    }

private:
    distile_tensor tensor_;
    ScratchMemory memory_;
    bool is_copy_ = false;
};

}  // namespace distile

#endif
