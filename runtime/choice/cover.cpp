#include "runtime/choice/cover.h"
#include <algorithm>
#include <limits>

namespace distile {

namespace {

constexpr double never = std::numeric_limits<double>::infinity();

/** The time of a variant for some tiles; none take none. */
double time_of_tiles(const TimedVariant &variant, int64_t tiles) {
    return tiles > 0 ? predict_time(variant.points, variant.num_points, tiles) : 0;
}

/** A size of tiles: its variants, and what one of many tiles takes. */
struct CoverSize {
    std::vector<int32_t> variants;
    int32_t level;  ///< Its extents are those of the smallest size, doubled so often.
    double tile_us;

    /** The fastest variant for some tiles. */
    int32_t fastest(const std::vector<TimedVariant> &all, int64_t tiles) const {
        return *std::min_element(variants.begin(), variants.end(), [&](int32_t a, int32_t b) {
            return time_of_tiles(all[a], tiles) < time_of_tiles(all[b], tiles);
        });
    }
};

/** What a tile takes beside others: the slope of a variant's times. */
double slope_of(const TimedVariant &variant) {
    const TimePoint &low = variant.points[0], &high = variant.points[variant.num_points - 1];
    return high.tiles > low.tiles && high.microseconds > low.microseconds
               ? (high.microseconds - low.microseconds) / static_cast<double>(high.tiles - low.tiles)
               : high.microseconds / static_cast<double>(std::max<int64_t>(high.tiles, 1));
}

/** How often the smallest extents are doubled to give others; -1 if they are not. */
int32_t level_of(const TimedVariant &smallest, const TimedVariant &variant) {
    for (int32_t level = 0; level < 16; level++) {
        if (int64_t{smallest.tile_h} << level == variant.tile_h &&
            int64_t{smallest.tile_w} << level == variant.tile_w) {
            return level;
        }
    }
    return -1;
}

/** A level of the quadtree: nodes of all images, [image][row][column]. */
struct CoverLevel {
    int32_t rows, columns;
    std::vector<float> us;         ///< What the active pixels of a node take.
    std::vector<uint8_t> is_tile;  ///< Whether the node is a tile; else it is empty or split.
};

/** The quadtree over a mask. */
class CoverTree {
public:
    CoverTree(const Bitmask &mask, const TimedVariant &smallest, int32_t num_levels)
        : batch_(mask.batch), tile_h_(smallest.tile_h), tile_w_(smallest.tile_w) {
        for (int32_t i = 0; i < num_levels; i++) {
            const int64_t h = int64_t{tile_h_} << i, w = int64_t{tile_w_} << i;
            levels_.push_back({static_cast<int32_t>((mask.height - 1) / h + 1),
                               static_cast<int32_t>((mask.width - 1) / w + 1),
                               {},
                               {}});
            const size_t nodes = static_cast<size_t>(batch_) * levels_[i].rows * levels_[i].columns;
            levels_[i].us.resize(nodes);
            levels_[i].is_tile.resize(nodes);
        }
        find_active(mask);
    }

    /** Decides with some sizes, given by their levels, and counts the tiles of each level. */
    std::vector<int64_t> decide(const std::vector<double> &tile_us) {
        std::vector<int64_t> counts(levels_.size());
        for (size_t i = 0; i < active_.size(); i++) {
            levels_[0].us[i] = active_[i] != 0 ? static_cast<float>(tile_us[0]) : 0;
        }
        levels_[0].is_tile = active_;
        for (size_t level = 1; level < levels_.size(); level++) {
            decide_level(level, static_cast<float>(tile_us[level]));
        }
        for (int32_t image = 0; image < batch_; image++) {
            const CoverLevel &top = levels_.back();
            for (int32_t y = 0; y < top.rows; y++) {
                for (int32_t x = 0; x < top.columns; x++) {
                    visit(image, levels_.size() - 1, y, x, [&](size_t level, int32_t, int32_t) { counts[level]++; });
                }
            }
        }
        return counts;
    }

    /** The tiles of the last decision at a level, in an order. */
    void list(size_t wanted, CellOrder order, CoverTiles &tiles) const {
        const CoverLevel &at = levels_[wanted];
        // Whether a node is a tile of the cover, and not part of a larger one.
        std::vector<uint8_t> marked(static_cast<size_t>(at.rows) * at.columns);
        const std::vector<int32_t> cells = order_cells(order, at.rows, at.columns);
        for (int32_t image = 0; image < batch_; image++) {
            std::fill(marked.begin(), marked.end(), uint8_t{0});
            const CoverLevel &top = levels_.back();
            for (int32_t y = 0; y < top.rows; y++) {
                for (int32_t x = 0; x < top.columns; x++) {
                    visit(image, levels_.size() - 1, y, x, [&](size_t level, int32_t row, int32_t column) {
                        if (level == wanted) {
                            marked[static_cast<size_t>(row) * at.columns + column] = 1;
                        }
                    });
                }
            }
            for (const int32_t cell : cells) {
                if (marked[static_cast<size_t>(cell)] != 0) {
                    const auto x =
                        static_cast<uint32_t>(cell % at.columns) * (static_cast<uint32_t>(tile_w_) << wanted);
                    const auto y =
                        static_cast<uint32_t>(cell / at.columns) * (static_cast<uint32_t>(tile_h_) << wanted);
                    tiles.xy.push_back(x | y << 16);
                    tiles.image.push_back(static_cast<uint32_t>(image));
                }
            }
        }
    }

private:
    /** Which nodes of the smallest size have an active pixel. */
    void find_active(const Bitmask &mask) {
        active_.assign(levels_[0].us.size(), 0);
        const int32_t words = mask.words_per_row();
        for (int32_t n = 0; n < batch_; n++) {
            for (int32_t y = 0; y < mask.height; y++) {
                const uint64_t *const row = mask.words + (int64_t{n} * mask.height + y) * words;
                uint8_t *const nodes =
                    &active_[(static_cast<size_t>(n) * levels_[0].rows + y / tile_h_) * levels_[0].columns];
                for (int32_t i = 0; i < words; i++) {
                    for (uint64_t bits = row[i]; bits != 0; bits &= bits - 1) {
                        nodes[(64 * i + __builtin_ctzll(bits)) / tile_w_] = 1;
                    }
                }
            }
        }
    }

    void decide_level(size_t level, float tile_us) {
        const CoverLevel &below = levels_[level - 1];
        CoverLevel &at = levels_[level];
        size_t node = 0;
        for (int32_t image = 0; image < batch_; image++) {
            const float *const us = &below.us[static_cast<size_t>(image) * below.rows * below.columns];
            for (int32_t y = 0; y < at.rows; y++) {
                const int32_t rows = std::min(2, below.rows - 2 * y);
                for (int32_t x = 0; x < at.columns; x++, node++) {
                    const int32_t columns = std::min(2, below.columns - 2 * x);
                    float parts = 0;
                    for (int32_t i = 0; i < rows; i++) {
                        for (int32_t j = 0; j < columns; j++) {
                            parts += us[(int64_t{2} * y + i) * below.columns + int64_t{2} * x + j];
                        }
                    }
                    at.is_tile[node] = parts > tile_us ? 1 : 0;
                    at.us[node] = std::min(parts, tile_us);
                }
            }
        }
    }

    /** Calls call(level, row, column) for the tiles in a node. */
    template<typename Call> void visit(int32_t image, size_t level, int32_t y, int32_t x, const Call &call) const {
        const CoverLevel &at = levels_[level];
        const size_t node = (static_cast<size_t>(image) * at.rows + y) * at.columns + x;
        if (at.is_tile[node] != 0) {
            call(level, y, x);
            return;
        }
        if (level == 0 || !(at.us[node] > 0)) {
            return;
        }
        const CoverLevel &below = levels_[level - 1];
        for (int32_t i = 2 * y; i < std::min(2 * y + 2, below.rows); i++) {
            for (int32_t j = 2 * x; j < std::min(2 * x + 2, below.columns); j++) {
                visit(image, level - 1, i, j, call);
            }
        }
    }

    int32_t batch_, tile_h_, tile_w_;
    std::vector<CoverLevel> levels_;
    std::vector<uint8_t> active_;
};

/** The times of tiles by level, with those of the sizes that are used. */
std::vector<double> level_times(const std::vector<CoverSize> &sizes, const std::vector<bool> &used) {
    std::vector<double> times(static_cast<size_t>(sizes.back().level) + 1, never);
    for (size_t i = 0; i < sizes.size(); i++) {
        if (used[i]) {
            times[static_cast<size_t>(sizes[i].level)] = sizes[i].tile_us;
        }
    }
    return times;
}

}  // namespace

std::vector<std::vector<int32_t>> cover_sizes(const std::vector<TimedVariant> &variants) {
    std::vector<int32_t> found;
    for (size_t i = 0; i < variants.size(); i++) {
        if (variants[i].dense == 0 && variants[i].num_points > 0) {
            found.push_back(static_cast<int32_t>(i));
        }
    }
    const auto area = [&](int32_t index) { return int64_t{variants[index].tile_h} * variants[index].tile_w; };
    std::stable_sort(found.begin(), found.end(), [&](int32_t a, int32_t b) { return area(a) < area(b); });
    std::vector<std::vector<int32_t>> sizes;
    for (const int32_t index : found) {
        if (level_of(variants[found[0]], variants[index]) < 0) {
            continue;
        }
        if (sizes.empty() || area(sizes.back()[0]) < area(index)) {
            sizes.emplace_back();
        }
        sizes.back().push_back(index);
    }
    return sizes;
}

Cover plan_cover(const Bitmask &mask, const std::vector<TimedVariant> &variants, CellOrder order) {
    Cover best;
    best.us = never;
    const MaskShape shape{mask.batch, mask.height, mask.width};
    for (size_t i = 0; i < variants.size(); i++) {
        if (variants[i].dense != 0 && variants[i].num_points > 0) {
            const double us = time_of_tiles(variants[i], num_tiles(shape, {variants[i].tile_h, variants[i].tile_w}));
            if (us < best.us) {
                best = {{{static_cast<int32_t>(i), {}, {}}}, us};
            }
        }
    }
    std::vector<CoverSize> sizes;
    for (const std::vector<int32_t> &indices : cover_sizes(variants)) {
        const TimedVariant &smallest = variants[sizes.empty() ? indices[0] : sizes[0].variants[0]];
        double tile_us = never;
        for (const int32_t index : indices) {
            tile_us = std::min(tile_us, slope_of(variants[index]));
        }
        sizes.push_back({indices, level_of(smallest, variants[indices[0]]), tile_us});
    }
    if (sizes.empty()) {
        return best;
    }
    CoverTree tree(mask, variants[sizes[0].variants[0]], sizes.back().level + 1);
    std::vector<bool> used(sizes.size(), true), best_used;
    const auto evaluate = [&](const std::vector<bool> &some) {
        const std::vector<int64_t> counts = tree.decide(level_times(sizes, some));
        double us = 0;
        for (const CoverSize &size : sizes) {
            const int64_t tiles = counts[static_cast<size_t>(size.level)];
            us += time_of_tiles(variants[size.fastest(variants, tiles)], tiles);
        }
        if (us < best.us) {
            best.us = us;
            best_used = some;
        }
        return us;
    };
    // All sizes, and then one after the other without the one that is worth least. The last ones are single sizes.
    double before = evaluate(used);
    for (size_t left = sizes.size(); left > 1; left--) {
        size_t worst = 0;
        double least = never;
        for (size_t i = 0; i < sizes.size(); i++) {
            if (used[i]) {
                std::vector<bool> without = used;
                without[i] = false;
                const double us = evaluate(without);
                if (us < least) {
                    least = us;
                    worst = i;
                }
            }
        }
        if (least > before) {
            break;
        }
        used[worst] = false;
        before = least;
    }
    for (size_t i = 0; i < sizes.size(); i++) {
        std::vector<bool> alone(sizes.size(), false);
        alone[i] = true;
        evaluate(alone);
    }
    if (!best_used.empty()) {
        tree.decide(level_times(sizes, best_used));
        best.sizes.clear();
        for (size_t i = sizes.size(); i-- > 0;) {
            CoverTiles tiles{};
            tree.list(static_cast<size_t>(sizes[i].level), order, tiles);
            tiles.variant = sizes[i].fastest(variants, static_cast<int64_t>(tiles.xy.size()));
            if (!tiles.xy.empty()) {
                best.sizes.push_back(std::move(tiles));
            }
        }
    }
    return best;
}

}  // namespace distile
