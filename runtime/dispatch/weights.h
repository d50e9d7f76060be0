/** \file
 * Packed weights in device memory, in every layout that a kernel's variants read.
 */
#ifndef DISTILE_WEIGHTS_H
#define DISTILE_WEIGHTS_H

#include "kernels/call.h"
#include <distile/polykernel.h>
#include <memory>
#include <string>
#include <vector>

struct distile_weights {
    /** An operand as passed to code, and the owner of its memory. */
    struct Operand {
        distile_role role;
        distile_array array;
        std::shared_ptr<const void> memory;
    };
    struct PackedLayout {
        std::string name;
        std::vector<Operand> operands;
    };

    /** Null if no layout has that name. */
    const PackedLayout *find(const char *layout) const;

    const void *memory_space; /**< The device's. */
    distile_operator_kind kind;
    std::string shape; /**< In the kind's words. */
    std::vector<PackedLayout> layouts;
    int64_t nonzeros = 0; /**< The number of nonzero weights, or quads, if a layout holds these alone. */
    int64_t bytes = 0;
    uint8_t zero_byte = 0; /**< What the bytes of a 0 in the output are. */
    float slope = 0;       /**< The epilogue's, if it has one. */
};

#endif
