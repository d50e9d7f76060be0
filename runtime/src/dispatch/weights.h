/** \file
 * Packed weights in the memory of a device, in every layout that the variants of a kernel read.
 */
#ifndef DISTILE_WEIGHTS_H
#define DISTILE_WEIGHTS_H

#include <distile/polykernel.h>
#include <memory>
#include <string>
#include <vector>

struct distile_weights {
    /** An operand as the code takes it, and what holds its memory. */
    struct Operand {
        distile_role role;
        distile_array array;
        std::shared_ptr<const void> memory;
    };
    struct Layout {
        std::string name;
        std::vector<Operand> operands;
    };

    /** Null if there is none of that name. */
    const Layout *find(const char *layout) const;

    const void *memory_space; /**< Of the device. */
    distile_operator_kind kind;
    std::string shape; /**< As the kind says it. */
    std::vector<Layout> layouts;
    int64_t bytes = 0;
};

#endif
