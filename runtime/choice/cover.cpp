#include "runtime/choice/cover.h"
#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

namespace distile {

namespace {

constexpr double never = std::numeric_limits<double>::infinity();

/** The time of a variant for some tiles; none take none. */
double time_of_tiles(const TimedVariant &variant, int64_t tiles) {
    return tiles > 0 ? predict_time(variant.points, variant.num_points, tiles) : 0;
}

}  // namespace

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

/** A level of the tree below a node: [row][column]. */
struct CoverLevel {
    int32_t rows, columns;
    std::vector<float> us;         ///< What the active pixels of a node take.
    std::vector<uint8_t> is_tile;  ///< Whether the node is a tile; else it is empty or split.
};

/** The tree below one of the largest nodes, as far as that lies in the image. */
class CoverTree {
public:
    CoverTree(const Granularity &smallest, size_t num_levels) : smallest_(smallest), levels_(num_levels) {
    }

    /** Takes the node whose first pixel is given, and counts its active pixels. */
    void read(const Bitmask &mask, int32_t image, int32_t top, int32_t left) {
        mask_ = {mask.words + int64_t{image} * mask.height * mask.words_per_row(), 1, mask.height, mask.width};
        top_ = top;
        left_ = left;
        const int64_t edge = int64_t{1} << (levels_.size() - 1);
        end_y_ = static_cast<int32_t>(std::min<int64_t>(mask.height, top + edge * smallest_.h));
        end_x_ = static_cast<int32_t>(std::min<int64_t>(mask.width, left + edge * smallest_.w));
        active_ = 0;
        for_words([&](int32_t, int32_t, uint64_t bits) { active_ += __builtin_popcountll(bits); });
        const int64_t pixels = int64_t{end_y_ - top} * (end_x_ - left);
        is_whole_ = active_ == pixels && pixels == edge * edge * smallest_.h * smallest_.w;
    }
    bool is_empty() const {
        return active_ == 0;
    }
    /** Whether it lies in the image and all of its pixels are active: all such nodes have equal tiles. */
    bool is_whole() const {
        return is_whole_;
    }

    /** Decides with the times of tiles by level. */
    void decide(const std::vector<float> &tile_us) {
        for (size_t i = 0; i < levels_.size(); i++) {
            CoverLevel &level = levels_[i];
            level.rows = static_cast<int32_t>((end_y_ - top_ - 1) / (int64_t{smallest_.h} << i) + 1);
            level.columns = static_cast<int32_t>((end_x_ - left_ - 1) / (int64_t{smallest_.w} << i) + 1);
            level.us.resize(static_cast<size_t>(level.rows) * level.columns);
            level.is_tile.resize(level.us.size());
        }
        CoverLevel &smallest = levels_[0];
        std::fill(smallest.is_tile.begin(), smallest.is_tile.end(), uint8_t{0});
        for_words([&](int32_t y, int32_t x, uint64_t bits) {
            uint8_t *const nodes = &smallest.is_tile[static_cast<size_t>((y - top_) / smallest_.h) * smallest.columns];
            for (; bits != 0; bits &= bits - 1) {
                nodes[(x + __builtin_ctzll(bits) - left_) / smallest_.w] = 1;
            }
        });
        for (size_t i = 0; i < smallest.us.size(); i++) {
            smallest.us[i] = smallest.is_tile[i] != 0 ? tile_us[0] : 0;
        }
        for (size_t level = 1; level < levels_.size(); level++) {
            decide_level(level, tile_us[level]);
        }
    }

    /** Calls call(level, row, column) for the tiles of the last decision. */
    template<typename Call> void visit(const Call &call) const {
        visit(levels_.size() - 1, 0, 0, call);
    }

private:
    /** Calls call(y, x, bits) for the words of the node, whose bit 0 is the pixel (y, x), without other nodes' bits. */
    template<typename Call> void for_words(const Call &call) const {
        for (int32_t y = top_; y < end_y_; y++) {
            const uint64_t *const row = mask_.words + int64_t{y} * mask_.words_per_row();
            for (int32_t x = left_ / 64 * 64; x < end_x_; x += 64) {
                uint64_t bits = row[x / 64];
                bits &= x < left_ ? ~uint64_t{0} << (left_ - x) : ~uint64_t{0};
                bits &= end_x_ - x < 64 ? ~uint64_t{0} >> (64 - (end_x_ - x)) : ~uint64_t{0};
                call(y, x, bits);
            }
        }
    }

    void decide_level(size_t level, float tile_us) {
        const CoverLevel &below = levels_[level - 1];
        CoverLevel &at = levels_[level];
        size_t node = 0;
        for (int32_t y = 0; y < at.rows; y++) {
            const int32_t rows = std::min(2, below.rows - 2 * y);
            for (int32_t x = 0; x < at.columns; x++, node++) {
                const int32_t columns = std::min(2, below.columns - 2 * x);
                float parts = 0;
                for (int32_t i = 0; i < rows; i++) {
                    for (int32_t j = 0; j < columns; j++) {
                        parts += below.us[(int64_t{2} * y + i) * below.columns + int64_t{2} * x + j];
                    }
                }
                at.is_tile[node] = parts > tile_us ? 1 : 0;
                at.us[node] = std::min(parts, tile_us);
            }
        }
    }

    template<typename Call> void visit(size_t level, int32_t y, int32_t x, const Call &call) const {
        const CoverLevel &at = levels_[level];
        const size_t node = static_cast<size_t>(y) * at.columns + x;
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
                visit(level - 1, i, j, call);
            }
        }
    }

    Granularity smallest_;
    std::vector<CoverLevel> levels_;
    Bitmask mask_{};  // The node's image.
    int32_t top_ = 0, left_ = 0, end_y_ = 0, end_x_ = 0;
    int64_t active_ = 0;
    bool is_whole_ = false;
};

namespace {

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

std::vector<CoverSize> sizes_of(const std::vector<TimedVariant> &variants) {
    std::vector<CoverSize> sizes;
    for (const std::vector<int32_t> &indices : cover_sizes(variants)) {
        const TimedVariant &smallest = variants[sizes.empty() ? indices[0] : sizes[0].variants[0]];
        double tile_us = never;
        for (const int32_t index : indices) {
            tile_us = std::min(tile_us, slope_of(variants[index]));
        }
        sizes.push_back({indices, level_of(smallest, variants[indices[0]]), tile_us});
    }
    return sizes;
}

Granularity smallest_of(const std::vector<TimedVariant> &variants, const std::vector<CoverSize> &sizes) {
    if (sizes.empty()) {
        return {1, 1};
    }
    const TimedVariant &variant = variants[static_cast<size_t>(sizes[0].variants[0])];
    return {variant.tile_h, variant.tile_w};
}

/** The dense variant that is fastest for a whole image, as a cover. */
Cover dense_cover(const std::vector<TimedVariant> &variants, const MaskShape &shape) {
    Cover best;
    best.us = never;
    for (size_t i = 0; i < variants.size(); i++) {
        if (variants[i].dense != 0 && variants[i].num_points > 0) {
            const double us = time_of_tiles(variants[i], num_tiles(shape, {variants[i].tile_h, variants[i].tile_w}));
            if (us < best.us) {
                best = {{{static_cast<int32_t>(i), {}, {}}}, us};
            }
        }
    }
    return best;
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

/** The largest nodes of all images, [image][row][column], and what was decided about them. */
class CoverPlanner::Nodes {
public:
    Nodes(const std::vector<TimedVariant> &variants, CellOrder order)
        : variants_(variants), order_(order), sizes_(sizes_of(variants)),
          num_levels_(sizes_.empty() ? 1 : static_cast<size_t>(sizes_.back().level) + 1),
          smallest_(smallest_of(variants, sizes_)), tree_(smallest_, num_levels_) {
    }

    size_t num_sizes() const {
        return sizes_.size();
    }

    /** Takes another mask, and finds the nodes whose pixels changed. */
    void set(const Bitmask &mask) {
        const MaskShape shape{mask.batch, mask.height, mask.width};
        step_++;
        if (!(shape == shape_)) {
            begin(mask, shape);
            return;
        }
        const int32_t words = mask.words_per_row();
        const int64_t edge_w = edge(smallest_.w);
        changed_ = 0;
        for (int64_t row = 0; row < int64_t{mask.batch} * mask.height; row++) {
            int64_t *const changes = &changed_at_[static_cast<size_t>(row_of_nodes(row) * columns_)];
            for (int32_t i = 0; i < words; i++) {
                uint64_t &old = words_[static_cast<size_t>(row * words + i)];
                const uint64_t now = mask.words[row * words + i];
                for (uint64_t other = old ^ now; other != 0;) {
                    const int64_t column = (64 * i + __builtin_ctzll(other)) / edge_w;
                    changed_ += changes[column] != step_ ? 1 : 0;
                    changes[column] = step_;
                    const int64_t next = (column + 1) * edge_w - 64 * int64_t{i};
                    other &= next < 64 ? ~uint64_t{0} << next : 0;
                }
                old = now;
            }
        }
    }

    int64_t changed() const {
        return changed_;
    }

    /** The time of the cover with some sizes, a bit for each. */
    double us_of(uint32_t used) {
        Combination &some = update(used);
        double us = 0;
        for (size_t i = 0; i < sizes_.size(); i++) {
            const int64_t tiles = some.totals[i];
            us += time_of_tiles(variants_[sizes_[i].fastest(variants_, tiles)], tiles);
        }
        return us;
    }

    /** Lists the tiles of that cover, largest first. */
    void list(uint32_t used, std::vector<CoverTiles> &listed) {
        mark(used);
        listed.clear();
        for (size_t i = sizes_.size(); i-- > 0;) {
            CoverTiles tiles{};
            list_size(sizes_[i], marks_[i], tiles);
            tiles.variant = sizes_[i].fastest(variants_, static_cast<int64_t>(tiles.xy.size()));
            if (!tiles.xy.empty()) {
                listed.push_back(std::move(tiles));
            }
        }
    }

private:
    /** What the nodes have with some of the sizes, as it was at a step. */
    struct Combination {
        uint32_t used;
        int64_t step;
        std::vector<float> tile_us;     ///< By level.
        std::vector<int32_t> counts;    ///< The tiles of a node: [node][size].
        std::vector<int64_t> totals;    ///< All nodes together.
        std::vector<int32_t> of_whole;  ///< The counts of a node that is_whole(); empty before the first.
    };
    /** Which nodes of a size are tiles: [image][row][column]. */
    struct Marks {
        int32_t rows, columns;
        std::vector<uint8_t> is_tile;
        std::vector<int32_t> cells;  ///< The order of an image's nodes; empty: row by row.
    };

    /** The extent of a largest node. */
    int64_t edge(int32_t extent) const {
        return int64_t{extent} << (num_levels_ - 1);
    }
    int64_t row_of_nodes(int64_t row) const {
        return row / shape_.height * rows_ + row % shape_.height / edge(smallest_.h);
    }

    void begin(const Bitmask &mask, const MaskShape &shape) {
        shape_ = shape;
        words_.assign(mask.words, mask.words + int64_t{mask.batch} * mask.height * mask.words_per_row());
        rows_ = (mask.height - 1) / edge(smallest_.h) + 1;
        columns_ = (mask.width - 1) / edge(smallest_.w) + 1;
        changed_ = mask.batch * rows_ * columns_;
        changed_at_.assign(static_cast<size_t>(changed_), step_);
        combinations_.clear();
        marked_ = 0;
        marks_.clear();
        for (const CoverSize &size : sizes_) {
            const auto extent = [&](int32_t pixels, int32_t tile) {
                return static_cast<int32_t>((pixels - 1) / (int64_t{tile} << size.level) + 1);
            };
            Marks marks{extent(mask.height, smallest_.h), extent(mask.width, smallest_.w), {}, {}};
            marks.is_tile.resize(static_cast<size_t>(mask.batch) * marks.rows * marks.columns);
            if (order_ != CellOrder::RowMajor) {
                marks.cells = order_cells(order_, marks.rows, marks.columns);
            }
            marks_.push_back(std::move(marks));
        }
    }

    /** Calls call(node, image, row, column), in a tree that has read the node, for those that changed after a step. */
    template<typename Call> void for_changed(int64_t step, const Call &call) {
        const Bitmask mask{words_.data(), shape_.batch, shape_.height, shape_.width};
        size_t node = 0;
        for (int32_t image = 0; image < shape_.batch; image++) {
            for (int64_t y = 0; y < rows_; y++) {
                for (int64_t x = 0; x < columns_; x++, node++) {
                    if (changed_at_[node] > step) {
                        tree_.read(mask, image, static_cast<int32_t>(y * edge(smallest_.h)),
                                   static_cast<int32_t>(x * edge(smallest_.w)));
                        call(node, image, y, x);
                    }
                }
            }
        }
    }

    /** The place of a level among the sizes; only tiles of sizes are asked for. */
    size_t size_of(size_t level) const {
        size_t i = 0;
        while (static_cast<size_t>(sizes_[i].level) != level) {
            i++;
        }
        return i;
    }

    Combination &update(uint32_t used) {
        auto found = std::find_if(combinations_.begin(), combinations_.end(),
                                  [&](const Combination &one) { return one.used == used; });
        if (found == combinations_.end()) {
            Combination made{used,
                             0,
                             std::vector<float>(num_levels_, std::numeric_limits<float>::infinity()),
                             std::vector<int32_t>(changed_at_.size() * sizes_.size()),
                             std::vector<int64_t>(sizes_.size()),
                             {}};
            for (size_t i = 0; i < sizes_.size(); i++) {
                if ((used >> i & 1) != 0) {
                    made.tile_us[static_cast<size_t>(sizes_[i].level)] = static_cast<float>(sizes_[i].tile_us);
                }
            }
            found = combinations_.insert(combinations_.end(), std::move(made));
        }
        Combination &one = *found;
        for_changed(one.step, [&](size_t node, int32_t, int64_t, int64_t) {
            int32_t *const counts = &one.counts[node * sizes_.size()];
            for (size_t i = 0; i < sizes_.size(); i++) {
                one.totals[i] -= counts[i];
                counts[i] = 0;
            }
            if (tree_.is_whole() && !one.of_whole.empty()) {
                std::copy(one.of_whole.begin(), one.of_whole.end(), counts);
            } else if (!tree_.is_empty()) {
                tree_.decide(one.tile_us);
                tree_.visit([&](size_t level, int32_t, int32_t) { counts[size_of(level)]++; });
            }
            if (tree_.is_whole()) {
                one.of_whole.assign(counts, counts + sizes_.size());
            }
            for (size_t i = 0; i < sizes_.size(); i++) {
                one.totals[i] += counts[i];
            }
        });
        one.step = step_;
        return one;
    }

    /** Marks the tiles of a combination, in those nodes where the marks are not theirs already. */
    void mark(uint32_t used) {
        const Combination &one = update(used);
        for_changed(marked_ == used ? marked_at_ : 0, [&](size_t, int32_t image, int64_t y, int64_t x) {
            const auto row_of = [&](size_t size, int64_t row) {
                const Marks &marks = marks_[size];
                return marks_[size].is_tile.begin() + (int64_t{image} * marks.rows + row) * marks.columns;
            };
            for (size_t i = 0; i < sizes_.size(); i++) {
                const int64_t edge = int64_t{1} << (num_levels_ - 1 - static_cast<size_t>(sizes_[i].level));
                const int64_t end = std::min<int64_t>((x + 1) * edge, marks_[i].columns);
                for (int64_t row = y * edge; row < std::min<int64_t>((y + 1) * edge, marks_[i].rows); row++) {
                    std::fill(row_of(i, row) + x * edge, row_of(i, row) + end, uint8_t{0});
                }
            }
            if (tree_.is_empty()) {
                return;
            }
            tree_.decide(one.tile_us);
            tree_.visit([&](size_t level, int32_t row, int32_t column) {
                const size_t size = size_of(level), shift = num_levels_ - 1 - level;
                *(row_of(size, (y << shift) + row) + (x << shift) + column) = 1;
            });
        });
        marked_ = used;
        marked_at_ = step_;
    }

    void list_size(const CoverSize &size, const Marks &marks, CoverTiles &tiles) const {
        const uint32_t tile_h = static_cast<uint32_t>(smallest_.h) << size.level,
                       tile_w = static_cast<uint32_t>(smallest_.w) << size.level;
        const size_t cells = static_cast<size_t>(marks.rows) * static_cast<size_t>(marks.columns);
        for (int32_t image = 0; image < shape_.batch; image++) {
            const uint8_t *const is_tile = &marks.is_tile[static_cast<size_t>(image) * cells];
            const auto add = [&](size_t cell) {
                const auto column = static_cast<uint32_t>(cell % static_cast<size_t>(marks.columns)),
                           row = static_cast<uint32_t>(cell / static_cast<size_t>(marks.columns));
                tiles.xy.push_back(column * tile_w | row * tile_h << 16);
                tiles.image.push_back(static_cast<uint32_t>(image));
            };
            for (const int32_t cell : marks.cells) {
                if (is_tile[cell] != 0) {
                    add(static_cast<size_t>(cell));
                }
            }
            const uint8_t *at = is_tile, *const end = is_tile + cells;
            while (marks.cells.empty() &&
                   (at = static_cast<const uint8_t *>(std::memchr(at, 1, static_cast<size_t>(end - at)))) != nullptr) {
                add(static_cast<size_t>(at++ - is_tile));
            }
        }
    }

    const std::vector<TimedVariant> &variants_;
    CellOrder order_;
    std::vector<CoverSize> sizes_;  ///< Smallest first.
    size_t num_levels_;
    Granularity smallest_;
    CoverTree tree_;
    MaskShape shape_{0, 0, 0};
    std::vector<uint64_t> words_;
    int64_t rows_ = 0, columns_ = 0, step_ = 0, changed_ = 0;
    std::vector<int64_t> changed_at_;  ///< The step at which a node's pixels changed last, from 1 on.
    std::vector<Combination> combinations_;
    uint32_t marked_ = 0;  ///< The combination of the marks, and their step.
    int64_t marked_at_ = 0;
    std::vector<Marks> marks_;
};

CoverPlanner::CoverPlanner(std::vector<TimedVariant> variants, CellOrder order)
    : variants_(std::make_unique<const std::vector<TimedVariant>>(std::move(variants))),
      nodes_(std::make_unique<Nodes>(*variants_, order)) {
}

CoverPlanner::CoverPlanner(CoverPlanner &&) noexcept = default;
CoverPlanner &CoverPlanner::operator=(CoverPlanner &&) noexcept = default;
CoverPlanner::~CoverPlanner() = default;

int64_t CoverPlanner::changed_nodes() const {
    return nodes_->changed();
}

const Cover &CoverPlanner::plan(const Bitmask &mask) {
    cover_ = dense_cover(*variants_, {mask.batch, mask.height, mask.width});
    const size_t num_sizes = nodes_->num_sizes();
    if (num_sizes == 0) {
        return cover_;
    }
    nodes_->set(mask);
    uint32_t best = 0;
    const auto evaluate = [&](uint32_t used) {
        const double us = nodes_->us_of(used);
        if (us < cover_.us) {
            cover_.us = us;
            best = used;
        }
        return us;
    };
    // All sizes, and then one after the other without the one that is worth least. The last ones are single sizes.
    uint32_t used = (uint32_t{1} << num_sizes) - 1;
    double before = evaluate(used);
    for (size_t left = num_sizes; left > 1; left--) {
        uint32_t next = used;
        double least = never;
        for (size_t i = 0; i < num_sizes; i++) {
            const uint32_t without = used & ~(uint32_t{1} << i);
            if (without != used) {
                const double us = evaluate(without);
                if (us < least) {
                    least = us;
                    next = without;
                }
            }
        }
        if (least > before) {
            break;
        }
        used = next;
        before = least;
    }
    for (size_t i = 0; i < num_sizes; i++) {
        evaluate(uint32_t{1} << i);
    }
    if (best != 0) {
        nodes_->list(best, cover_.sizes);
    }
    return cover_;
}

Cover plan_cover(const Bitmask &mask, const std::vector<TimedVariant> &variants, CellOrder order) {
    return CoverPlanner(variants, order).plan(mask);
}

}  // namespace distile
