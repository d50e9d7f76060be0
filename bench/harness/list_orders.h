/** \file
 * Lists of tiles in several orders, and PolyKernels that run on them: what an order is worth.
 */
#ifndef DISTILE_BENCH_LIST_ORDERS_H
#define DISTILE_BENCH_LIST_ORDERS_H

#include "kernels/call.h"
#include "masks/mask_families.h"
#include <distile/polykernel.h>
#include <vector>

namespace distile::bench {

/** The active tiles of a mask in an order: their origins and then their images, as code takes them. */
struct OrderedList {
    const char *order;
    std::vector<uint32_t> entries;
};

/** The tiles of a mask row by row, along a curve of Morton, along a Hilbert curve, and in blocks of 16 x 16 tiles along
 * a Hilbert curve, row by row within a block. */
std::vector<OrderedList> ordered_lists(const ByteMask &mask, int32_t tile_h, int32_t tile_w);

/** The masked variant of a PolyKernel that has a name, alone, on a list that set_list() gives. One at a time, because
 * code gets no pointer of ours. */
class ListedVariant {
public:
    /** Throws std::runtime_error if there is no such variant. */
    ListedVariant(const distile_polykernel &polykernel, const std::string &name);
    ListedVariant(const ListedVariant &) = delete;
    ListedVariant &operator=(const ListedVariant &) = delete;

    const distile_polykernel &polykernel() const {
        return polykernel_;
    }
    const distile_variant &variant() const {
        return variant_;
    }
    /** The list of later calls: `count` origins and as many images, in the device's memory. */
    static void set_list(const uint32_t *list, int32_t count);

private:
    distile_polykernel polykernel_;
    distile_variant variant_;
};

}  // namespace distile::bench

#endif
