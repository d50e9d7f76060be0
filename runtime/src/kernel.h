/** \file
 * A PolyKernel in use: its time table and the choice of a variant.
 */
#ifndef DISTILE_KERNEL_H
#define DISTILE_KERNEL_H

#include "mask.h"
#include "time_table.h"
#include <distile/polykernel.h>
#include <vector>

struct distile_kernel {
    distile_kernel(distile_context *context, const distile_polykernel *polykernel);

    /** The fastest variant for a mask by the time table. Without times: the one that computes the fewest
     * pixels, and of several the first. */
    distile_choice choose(distile_mask &mask);
    /** The same description for a variant that is given. */
    distile_choice describe(int32_t variant, distile_mask &mask);
    /** The mask of a shape with every pixel active: what dense candidates run over. */
    distile_mask &full_mask(const distile::Bitmask &shape);

    distile_context *context;
    const distile_polykernel *polykernel;
    distile::TimeTable times;

private:
    /** The tiles that each variant would compute. */
    const std::vector<int64_t> &count_tiles(distile_mask &mask);
    distile_choice choice_of(int32_t variant, const distile_mask &mask, int64_t tiles) const;

    std::vector<distile::Granularity> granularities_;
    std::vector<int64_t> tiles_;
    distile_mask full_mask_;
};

#endif
