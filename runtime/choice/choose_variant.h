/** \file
 * The choice of a variant by its times, bit for bit the same on the host and on a GPU, whose kernels include this file.
 */
#ifndef DISTILE_CHOOSE_VARIANT_H
#define DISTILE_CHOOSE_VARIANT_H

#include <cstdint>

#ifdef __CUDACC__
#define DISTILE_ANYWHERE __host__ __device__
#else
#define DISTILE_ANYWHERE
#endif

namespace distile {

/** A point of a time table. */
struct TimePoint {
    int64_t tiles;
    double microseconds;
};

/** A variant and its times, ordered by tiles; no points if it was never timed. Does not own them. */
struct TimedVariant {
    const TimePoint *points;
    int32_t num_points;
    int32_t tile_h, tile_w, dense;
};

/** A variant in a device's table. The points of all variants follow the variants. */
struct ChoiceVariant {
    int32_t index;        ///< Among the kernel's variants.
    int32_t granularity;  ///< The place of its number of tiles; unused if it is dense.
    int32_t tile_h, tile_w, dense;
    int32_t first_point, num_points;
    uint32_t all_tiles;  ///< The tiles of the whole image.
};

/** What a variant costs: microseconds if it has times, else the pixels that it computes. */
struct Cost {
    double value;
    int32_t known;  ///< 1 if it has times.
    int32_t dense;
};

/** A product that a GPU's compiler does not fuse with a sum, which would round differently. */
inline DISTILE_ANYWHERE double product(double a, double b) {
#ifdef __CUDA_ARCH__
    return __dmul_rn(a, b);
#else
    return a * b;
#endif
}

/** The time in microseconds: constant below the first point, linear between points, and proportional beyond the last.
 * Requires a point. */
inline DISTILE_ANYWHERE double predict_time(const TimePoint *points, int32_t num_points, int64_t tiles) {
    // The first point with at least `tiles` tiles.
    int32_t above = 0;
    for (int32_t end = num_points; above < end;) {
        const int32_t middle = above + (end - above) / 2;
        if (points[middle].tiles < tiles) {
            above = middle + 1;
        } else {
            end = middle;
        }
    }
    if (above == 0) {
        return points[0].microseconds;
    }
    const TimePoint below = points[above - 1];
    if (above == num_points) {
        const int64_t last = below.tiles > 1 ? below.tiles : 1;
        return product(below.microseconds, static_cast<double>(tiles)) / static_cast<double>(last);
    }
    const TimePoint next = points[above];
    const double part = static_cast<double>(tiles - below.tiles) / static_cast<double>(next.tiles - below.tiles);
    return below.microseconds + product(part, next.microseconds - below.microseconds);
}

inline DISTILE_ANYWHERE Cost cost_of(const TimedVariant &variant, int64_t tiles) {
    if (variant.num_points > 0) {
        return {predict_time(variant.points, variant.num_points, tiles), 1, variant.dense};
    }
    return {product(product(static_cast<double>(tiles), variant.tile_h), variant.tile_w), 0, variant.dense};
}

/** Whether a variant is chosen before one that precedes it. Times win over none. For equal pixels a dense variant is
 * cheaper, because it needs no list; other ties go to the first. */
inline DISTILE_ANYWHERE bool is_better(const Cost &one, const Cost &before) {
    if (one.known != before.known) {
        return one.known != 0;
    }
    const bool denser = one.known == 0 && one.dense != 0 && before.dense == 0;
    return one.value < before.value || (denser && one.value == before.value);
}

}  // namespace distile

#endif
