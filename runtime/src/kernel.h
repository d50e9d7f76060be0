/** \file
 * A PolyKernel in use: its time table and the choice of a variant.
 */
#ifndef DISTILE_KERNEL_H
#define DISTILE_KERNEL_H

#include "mask.h"
#include "time_table.h"
#include <deque>
#include <distile/polykernel.h>
#include <string>
#include <vector>

namespace distile {

/** A variant of a kernel: one of the PolyKernel's, or a dense candidate of the application's. */
struct Variant : distile_variant {
    distile_dense_candidate external; /**< `run` is null for the PolyKernel's own, and on a GPU. */
};

}  // namespace distile

struct distile_kernel {
    /** `threads` are those of the time table: threads, or multiprocessors of a GPU. */
    distile_kernel(distile_context *context, const distile_polykernel *polykernel, int32_t threads);

    /** The fastest variant for a mask by the time table. Without times: the one that computes the fewest
     * pixels, and of several a dense one or else the first. */
    distile_choice choose(distile_mask &mask);
    /** The same, from the tiles that each variant would compute. */
    distile_choice choose(const std::vector<int64_t> &tiles, int64_t active_pixels) const;
    /** The same description for a variant that is given. */
    distile_choice describe(int32_t variant, distile_mask &mask) const;
    /** The mask of a shape with every pixel active: what dense candidates run over. */
    distile_mask &full_mask(const distile::Bitmask &shape);
    /** The index of a variant by name; -1 if there is none. */
    int32_t find(const char *name) const;
    /** Adds a dense variant, whose `external` is still empty. */
    distile::Variant &add_dense(const char *name);
    void set_times(std::vector<distile_time_point> points);
    /** Adds a point for the kernel's number of threads. Before the first one, the variant gets those of the nearest
     * number of threads, scaled so that they agree with it. */
    void add_time(int32_t variant, int64_t tiles, double microseconds);
    /** The description of a variant that computes a number of tiles. */
    distile_choice choice_of(int32_t variant, int64_t active_pixels, int64_t tiles) const;
    int32_t num_variants() const {
        return static_cast<int32_t>(variants.size());
    }

    distile_context *context;
    const distile_polykernel *polykernel;
    std::vector<distile::Variant> variants;

private:
    /** The tiles that a variant would compute of a mask with so many active ones. */
    int64_t tiles_of(int32_t variant, int64_t active_tiles, const distile::Bitmask &bits) const;

    int32_t threads_;
    std::vector<distile_time_point> points_;
    distile::TimeTable times_;
    std::deque<std::string> names_;  // Of the candidates that were added; the variants point into it.
    std::vector<distile::Granularity> granularities_;
    std::vector<int64_t> tiles_;
    distile_mask full_mask_;
};

#endif
