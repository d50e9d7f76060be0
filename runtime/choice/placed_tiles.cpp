#include "runtime/choice/placed_tiles.h"
#include <algorithm>

namespace distile {

namespace {

/** Active pixels beside each other in a row: the columns [begin, end). */
struct Run {
    int32_t y, begin, end;
    size_t component;  ///< An index of a component, or of one that it was united with.
};

/** Components of an image, united as rows show that they touch. */
class Components {
public:
    size_t add(int32_t y, int32_t x) {
        all_.push_back({all_.size(), y, x});
        return all_.size() - 1;
    }
    size_t find(size_t index) {
        while (all_[index].parent != index) {
            index = all_[index].parent = all_[all_[index].parent].parent;
        }
        return index;
    }
    /** The one that was added first stands for both. */
    void unite(size_t a, size_t b) {
        const size_t first = std::min(find(a), find(b)), other = std::max(find(a), find(b));
        all_[other].parent = first;
        all_[first].x = std::min(all_[first].x, all_[other].x);
    }
    /** Adds a pixel of a later row. */
    void widen(size_t index, int32_t x) {
        Component &first = all_[find(index)];
        first.x = std::min(first.x, x);
    }
    /** The first row and column of a component's pixels. */
    int32_t first_row(size_t index) const {
        return all_[index].y;
    }
    int32_t first_column(size_t index) const {
        return all_[index].x;
    }
    size_t count() const {
        return all_.size();
    }
    void clear() {
        all_.clear();
    }

private:
    struct Component {
        size_t parent;
        int32_t y, x;
    };
    std::vector<Component> all_;
};

const uint64_t *row_of(const Bitmask &mask, int32_t image, int32_t y) {
    return mask.words + (int64_t{image} * mask.height + y) * mask.words_per_row();
}

/** The first active pixel of a row from x on; the width if there is none. */
int32_t find_active(const uint64_t *row, int32_t x, int32_t width) {
    for (int32_t i = x / 64; 64 * i < width; i++) {
        const uint64_t bits = i == x / 64 ? row[i] & ~uint64_t{0} << (x % 64) : row[i];
        if (bits != 0) {
            return 64 * i + __builtin_ctzll(bits);
        }
    }
    return width;
}

/** The first inactive pixel of a row from x on. Bits beyond the width are 0. */
int32_t find_inactive(const uint64_t *row, int32_t x, int32_t width) {
    for (int32_t i = x / 64; 64 * i < width; i++) {
        const uint64_t bits = i == x / 64 ? ~row[i] & ~uint64_t{0} << (x % 64) : ~row[i];
        if (bits != 0) {
            return std::min(64 * i + __builtin_ctzll(bits), width);
        }
    }
    return width;
}

/** The bits [x, x + count) of a row, from bit 0 on, for a count of 1 to 64. */
uint64_t bits_of(const uint64_t *row, int32_t words, int32_t x, int32_t count) {
    const int32_t i = x / 64, shift = x % 64;
    uint64_t bits = row[i] >> shift;
    if (shift != 0 && i + 1 < words) {
        bits |= row[i + 1] << (64 - shift);
    }
    return bits & ~uint64_t{0} >> (64 - count);
}

/** The runs of an image, row by row, with their components. */
void find_runs(const Bitmask &mask, int32_t image, std::vector<Run> &runs, Components &components) {
    runs.clear();
    components.clear();
    size_t above = 0, row_begin = 0;
    for (int32_t y = 0; y < mask.height; y++) {
        const uint64_t *const row = row_of(mask, image, y);
        const size_t above_end = runs.size();
        above = row_begin;
        row_begin = above_end;
        for (int32_t x = find_active(row, 0, mask.width); x < mask.width;) {
            const int32_t end = find_inactive(row, x, mask.width);
            // Runs above that end before this one cannot touch the next one either.
            while (above < above_end && runs[above].end < x) {
                above++;
            }
            const bool touches = above < above_end && runs[above].begin <= end;
            const size_t component = touches ? runs[above].component : components.add(y, x);
            for (size_t i = above; i < above_end && runs[i].begin <= end; i++) {
                components.unite(component, runs[i].component);
            }
            components.widen(component, x);
            runs.push_back({y, x, end, component});
            x = find_active(row, end, mask.width);
        }
    }
}

}  // namespace

std::vector<PlacedTile> place_by_component(const Bitmask &mask, const Granularity &tile) {
    std::vector<PlacedTile> tiles;
    std::vector<Run> runs;
    Components components;
    std::vector<size_t> begins, order;
    // At each column of a component's grid, how many tiles there were with the last one at it.
    std::vector<size_t> last(static_cast<size_t>((mask.width - 1) / tile.w + 1));
    for (int32_t image = 0; image < mask.batch; image++) {
        find_runs(mask, image, runs, components);
        // The runs of each component, in the order of rows.
        begins.assign(components.count() + 1, 0);
        for (Run &run : runs) {
            run.component = components.find(run.component);
            begins[run.component + 1]++;
        }
        for (size_t i = 1; i < begins.size(); i++) {
            begins[i] += begins[i - 1];
        }
        order.resize(runs.size());
        for (size_t i = 0; i < runs.size(); i++) {
            order[begins[runs[i].component]++] = i;
        }
        size_t row_begin = tiles.size();
        int32_t before = -1;
        size_t of = components.count();
        for (const size_t index : order) {
            const Run &run = runs[index];
            const int32_t first_x = components.first_column(run.component);
            const int32_t offset = run.y - components.first_row(run.component), row = offset / tile.h;
            if (run.component != of || row != before) {
                of = run.component;
                before = row;
                row_begin = tiles.size();
            }
            for (int32_t x = run.begin; x < run.end;) {
                const int32_t column = (x - first_x) / tile.w, origin = first_x + column * tile.w;
                const int32_t end = std::min(run.end, origin + tile.w);
                size_t &at = last[static_cast<size_t>(column)];
                if (at <= row_begin) {
                    tiles.push_back({image, run.y - offset % tile.h, origin, 0});
                    at = tiles.size();
                }
                const int32_t bit = offset % tile.h * tile.w + x - origin;
                tiles[at - 1].owned |= ~uint64_t{0} >> (64 - (end - x)) << bit;
                x = end;
            }
        }
    }
    return tiles;
}

std::vector<PlacedTile> place_by_row(const Bitmask &mask, const Granularity &tile) {
    std::vector<PlacedTile> tiles;
    const int32_t words = mask.words_per_row();
    std::vector<uint64_t> any(static_cast<size_t>(words));
    for (int32_t image = 0; image < mask.batch; image++) {
        for (int32_t y = 0; y < mask.height;) {
            if (find_active(row_of(mask, image, y), 0, mask.width) == mask.width) {
                y++;
                continue;
            }
            const int32_t end = std::min(y + tile.h, mask.height);
            std::fill(any.begin(), any.end(), uint64_t{0});
            for (int32_t row = y; row < end; row++) {
                const uint64_t *const bits = row_of(mask, image, row);
                for (int32_t i = 0; i < words; i++) {
                    any[static_cast<size_t>(i)] |= bits[i];
                }
            }
            for (int32_t x = find_active(any.data(), 0, mask.width); x < mask.width;) {
                uint64_t owned = 0;
                for (int32_t row = y; row < end; row++) {
                    owned |= bits_of(row_of(mask, image, row), words, x, tile.w) << ((row - y) * tile.w);
                }
                tiles.push_back({image, y, x, owned});
                x += tile.w;
                x = x < mask.width ? find_active(any.data(), x, mask.width) : mask.width;
            }
            y = end;
        }
    }
    return tiles;
}

}  // namespace distile
