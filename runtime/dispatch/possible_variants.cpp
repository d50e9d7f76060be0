#include "runtime/dispatch/possible_variants.h"
#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <utility>

namespace distile {

namespace {

/** Numbers of tiles, both ends included. */
struct Range {
    int64_t first, last;
};

/** Costs at both ends of a range; linear in between. */
struct Costs {
    double first, last;
};

Granularity granularity_of(const TimedVariant &variant) {
    return {variant.tile_h, variant.tile_w};
}

Costs costs_of(const TimedVariant &variant, const Range &tiles) {
    return {cost_of(variant, tiles.first).value, cost_of(variant, tiles.last).value};
}

/** Ranges that cover all numbers of tiles at a granularity, in each of which the costs of the variants of this
 * granularity are linear. */
std::vector<Range> ranges_of(const std::vector<TimedVariant> &variants, const Granularity &granularity,
                             const MaskShape &shape) {
    const int64_t most = num_tiles(shape, granularity);
    std::vector<int64_t> ends = {0, most};
    // Other granularities are bounded better in short ranges.
    for (int64_t power = 1; power < most; power *= 2) {
        ends.push_back(power);
    }
    for (const TimedVariant &variant : variants) {
        for (int32_t i = 0; variant.dense == 0 && granularity_of(variant) == granularity && i < variant.num_points;
             i++) {
            // Two points may have equal tiles, so the costs may jump after them.
            const int64_t bend = std::min(variant.points[i].tiles, most);
            ends.push_back(bend);
            ends.push_back(std::min(bend + 1, most));
        }
    }
    std::sort(ends.begin(), ends.end());
    ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
    std::vector<Range> ranges;
    for (size_t i = 1; i < ends.size(); i++) {
        ranges.push_back({ends[i - 1], ends[i]});
    }
    return ranges;
}

/** The largest cost of a variant in a range. */
double highest_cost(const TimedVariant &variant, const Range &tiles) {
    const Costs ends = costs_of(variant, tiles);
    double highest = std::max(ends.first, ends.last);
    for (int32_t i = 0; i < variant.num_points; i++) {
        const int64_t bend = variant.points[i].tiles;
        if (tiles.first <= bend && bend < tiles.last) {
            const Costs beside = costs_of(variant, {bend, bend + 1});
            highest = std::max({highest, beside.first, beside.last});
        }
    }
    return highest;
}

/** The most that a variant can cost for masks with a range of tiles at a granularity; exact if it is dense or has this
 * granularity. */
Costs bounds_of(const TimedVariant &variant, const Granularity &granularity, const Range &tiles,
                const MaskShape &shape) {
    const int64_t most = num_tiles(shape, granularity_of(variant));
    if (variant.dense != 0) {
        return costs_of(variant, {most, most});
    }
    if (granularity_of(variant) == granularity) {
        return costs_of(variant, tiles);
    }
    // Every tile has one to all of its pixels.
    const int64_t tile_pixels = int64_t{granularity.h} * granularity.w,
                  variant_pixels = int64_t{variant.tile_h} * variant.tile_w;
    const int64_t most_pixels = std::min(tiles.last * tile_pixels, shape.num_pixels());
    const int64_t least = (tiles.first + variant_pixels - 1) / variant_pixels;
    const double highest = highest_cost(variant, {least, std::max(least, std::min(most_pixels, most))});
    return {highest, highest};
}

/** Whether a variant may be chosen for a mask with a range of tiles at a granularity. */
bool can_win(const std::vector<TimedVariant> &variants, size_t index, const Granularity &granularity,
             const Range &tiles, const MaskShape &shape) {
    const Costs own = bounds_of(variants[index], granularity, tiles, shape);
    // The part of the range in which nothing costs less, from 0 to 1.
    double begin = 0, end = 1;
    // Hides rounding, so ties count as possible.
    constexpr double slack = 1e-9;
    for (size_t i = 0; i < variants.size(); i++) {
        if (i == index) {
            continue;
        }
        const Costs other = bounds_of(variants[i], granularity, tiles, shape);
        const double first = own.first - other.first * (1 + slack), last = own.last - other.last * (1 + slack);
        if (first > 0 && last > 0) {
            return false;
        }
        if (first > 0) {
            begin = std::max(begin, first / (first - last));
        } else if (last > 0) {
            end = std::min(end, first / (first - last));
        }
    }
    // A number of tiles must lie in it.
    const auto count = static_cast<double>(tiles.last - tiles.first);
    const double give = slack * count + 1e-6;
    return std::ceil(begin * count - give) <= std::floor(end * count + give);
}

bool has_same_times(const TimedVariant &one, const TimedVariant &other) {
    return one.num_points == other.num_points && std::equal(one.points, one.points + one.num_points, other.points,
                                                            [](const TimePoint &a, const TimePoint &b) {
                                                                return a.tiles == b.tiles &&
                                                                       a.microseconds == b.microseconds;
                                                            });
}

/** The average over all densities of the cost of the variant that costs least, as if active pixels filled tiles. */
double average_cost(const std::vector<TimedVariant> &variants, const std::vector<int32_t> &some,
                    const MaskShape &shape) {
    constexpr int steps = 32;
    double sum = 0;
    for (int step = 1; step <= steps; step++) {
        double least = std::numeric_limits<double>::infinity();
        for (const int32_t index : some) {
            const TimedVariant &variant = variants[index];
            const int64_t all = num_tiles(shape, granularity_of(variant));
            const int64_t tiles = variant.dense != 0 ? all : (all * step + steps - 1) / steps;
            least = std::min(least, cost_of(variant, tiles).value);
        }
        sum += least;
    }
    return sum / steps;
}

/** Whether a variant never costs less than one before it. */
bool is_shadowed(const TimedVariant &one, const TimedVariant &before) {
    if (one.dense != before.dense) {
        return false;
    }
    if (granularity_of(one) == granularity_of(before)) {
        return has_same_times(one, before);
    }
    // Without times, tiles that divide others compute no more pixels.
    return one.dense == 0 && one.num_points == 0 && before.num_points == 0 && one.tile_h % before.tile_h == 0 &&
           one.tile_w % before.tile_w == 0;
}

}  // namespace

std::vector<int32_t> possible_variants(const std::vector<TimedVariant> &variants, const MaskShape &shape) {
    const bool any_known = std::any_of(variants.begin(), variants.end(),
                                       [](const TimedVariant &variant) { return variant.num_points > 0; });
    std::vector<TimedVariant> left;
    std::vector<int32_t> indices;
    for (size_t i = 0; i < variants.size(); i++) {
        const bool known = variants[i].num_points > 0 || !any_known;
        if (known && std::none_of(left.begin(), left.end(),
                                  [&](const TimedVariant &before) { return is_shadowed(variants[i], before); })) {
            left.push_back(variants[i]);
            indices.push_back(static_cast<int32_t>(i));
        }
    }
    // A mask has a number of tiles at every granularity, so a dense variant must be able to win by each.
    std::vector<bool> possible(left.size(), true);
    bool any_sparse = false;
    for (const TimedVariant &view : left) {
        if (view.dense != 0) {
            continue;
        }
        any_sparse = true;
        const std::vector<Range> ranges = ranges_of(left, granularity_of(view), shape);
        for (size_t i = 0; i < left.size(); i++) {
            const bool seen = left[i].dense != 0 || granularity_of(left[i]) == granularity_of(view);
            possible[i] = possible[i] && (!seen || std::any_of(ranges.begin(), ranges.end(), [&](const Range &tiles) {
                              return can_win(left, i, granularity_of(view), tiles, shape);
                          }));
        }
    }
    std::vector<int32_t> found;
    for (size_t i = 0; i < left.size(); i++) {
        const bool wins = any_sparse ? possible[i] : can_win(left, i, {1, 1}, {0, 0}, shape);
        if (wins) {
            found.push_back(indices[i]);
        }
    }
    return found;
}

std::vector<int32_t> worth_launching(const std::vector<TimedVariant> &variants, std::vector<int32_t> possible,
                                     const MaskShape &shape, const Launches &launches) {
    if (std::any_of(possible.begin(), possible.end(), [&](int32_t index) { return variants[index].num_points == 0; })) {
        return possible;
    }
    const auto launch_of = [&](int32_t index) {
        const int32_t launch = launches.of_variants[index];
        return launch > 0 ? launch : -1 - index;
    };
    const auto without = [&](int32_t launch) {
        std::vector<int32_t> others;
        std::copy_if(possible.begin(), possible.end(), std::back_inserter(others),
                     [&](int32_t index) { return launch_of(index) != launch; });
        return others;
    };
    // Drops the launch without which calls are fastest, as long as there is one.
    for (;;) {
        const double cost = average_cost(variants, possible, shape);
        double best = 0;
        std::vector<int32_t> left;
        for (const int32_t index : possible) {
            std::vector<int32_t> others = without(launch_of(index));
            if (others.empty()) {
                return possible;
            }
            const double saved = launches.launch_us + (others.size() == 1 ? launches.choice_us : 0);
            const double change = average_cost(variants, others, shape) - cost - saved;
            if (change < best) {
                best = change;
                left = std::move(others);
            }
        }
        if (left.empty()) {
            return possible;
        }
        possible = std::move(left);
    }
}

std::vector<ChoiceRange> choice_by_count(const std::vector<TimedVariant> &variants,
                                         const std::vector<int32_t> &possible, const MaskShape &shape) {
    std::vector<TimedVariant> considered;
    const TimedVariant *sparse = nullptr;
    for (const int32_t index : possible) {
        const TimedVariant &variant = variants[index];
        considered.push_back(variant);
        if (variant.dense != 0) {
            continue;
        }
        if (sparse && !(granularity_of(*sparse) == granularity_of(variant))) {
            return {};
        }
        sparse = &variant;
    }
    if (!sparse) {
        return {};
    }
    const auto chosen_at = [&](int64_t tiles) {
        size_t best = 0;
        Cost best_cost{};
        for (size_t i = 0; i < considered.size(); i++) {
            const TimedVariant &variant = considered[i];
            const Cost cost = cost_of(variant, variant.dense != 0 ? num_tiles(shape, granularity_of(variant)) : tiles);
            if (i == 0 || is_better(cost, best_cost)) {
                best = i;
                best_cost = cost;
            }
        }
        return best;
    };
    std::vector<ChoiceRange> found;
    const auto add = [&](int64_t most, size_t chosen) {
        const TimedVariant &variant = considered[chosen];
        if (found.empty() || found.back().variant != possible[chosen]) {
            const int64_t all_tiles = variant.dense != 0 ? num_tiles(shape, granularity_of(variant)) : 0;
            found.push_back({0, possible[chosen], static_cast<uint32_t>(all_tiles)});
        }
        found.back().most = static_cast<uint32_t>(most);
    };
    for (const Range &linear : ranges_of(considered, granularity_of(*sparse), shape)) {
        // Costs are linear, so a variant that is chosen at both ends is chosen in between.
        for (int64_t first = linear.first; first <= linear.last;) {
            const size_t chosen = chosen_at(first);
            int64_t last = first, beyond = linear.last + 1;
            while (beyond - last > 1) {
                const int64_t middle = last + (beyond - last) / 2;
                (chosen_at(middle) == chosen ? last : beyond) = middle;
            }
            add(last, chosen);
            first = last + 1;
        }
    }
    return found;
}

}  // namespace distile
