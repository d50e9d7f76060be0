#include "bench/harness/list_orders.h"
#include "runtime/mask/cell_order.h"
#include <algorithm>
#include <stdexcept>

namespace distile::bench {

namespace {

struct GivenList {
    distile_kernel_function run;
    const uint32_t *list;
    int32_t count;
};
GivenList given{};

int run_on_list(const distile_kernel_call *call) {
    // All lists have the tiles of the mask, so a GPU's own count of them is right. On a CPU, tiles must read in place.
    if (call->tile_count == nullptr && (call->num_tiles != given.count || call->num_interior != given.count)) {
        return 1;
    }
    distile_kernel_call other = *call;
    other.tile_xy = given.list;
    other.tile_capacity = given.count;
    return given.run(&other);
}

/** The cells of a grid in blocks of cells along a Hilbert curve. */
std::vector<int32_t> cells_by_blocks(int32_t height, int32_t width) {
    constexpr int32_t edge = 16;
    const int32_t columns = (width + edge - 1) / edge;
    std::vector<int32_t> cells;
    for (const int32_t block : order_cells(CellOrder::Hilbert, (height + edge - 1) / edge, columns)) {
        const int32_t top = block / columns * edge, left = block % columns * edge;
        for (int32_t y = top; y < std::min(top + edge, height); y++) {
            for (int32_t x = left; x < std::min(left + edge, width); x++) {
                cells.push_back(y * width + x);
            }
        }
    }
    return cells;
}

}  // namespace

std::vector<OrderedList> ordered_lists(const ByteMask &mask, int32_t tile_h, int32_t tile_w) {
    const int32_t rows = (mask.height + tile_h - 1) / tile_h, columns = (mask.width + tile_w - 1) / tile_w;
    const size_t cells = static_cast<size_t>(rows) * columns;
    std::vector<uint8_t> active(cells * mask.batch);
    for (size_t i = 0; i < mask.bytes.size(); i++) {
        const size_t x = i % mask.width, y = i / mask.width % mask.height, n = i / mask.width / mask.height;
        if (mask.bytes[i] != 0) {
            active[n * cells + y / tile_h * columns + x / tile_w] = 1;
        }
    }
    const std::vector<std::pair<const char *, std::vector<int32_t>>> orders = {
        {"rows", order_cells(CellOrder::RowMajor, rows, columns)},
        {"morton", order_cells(CellOrder::Morton, rows, columns)},
        {"hilbert", order_cells(CellOrder::Hilbert, rows, columns)},
        {"blocks", cells_by_blocks(rows, columns)}};
    std::vector<OrderedList> lists;
    for (const auto &[name, walk] : orders) {
        std::vector<uint32_t> xy, image;
        for (int32_t n = 0; n < mask.batch; n++) {
            for (const int32_t cell : walk) {
                if (active[n * cells + static_cast<size_t>(cell)] != 0) {
                    xy.push_back(static_cast<uint32_t>(cell % columns * tile_w) |
                                 static_cast<uint32_t>(cell / columns * tile_h) << 16);
                    image.push_back(static_cast<uint32_t>(n));
                }
            }
        }
        xy.insert(xy.end(), image.begin(), image.end());
        lists.push_back({name, std::move(xy)});
    }
    return lists;
}

ListedVariant::ListedVariant(const distile_polykernel &polykernel, const std::string &name) : polykernel_(polykernel) {
    const auto *const end = polykernel.variants + polykernel.num_variants;
    const auto *const found = std::find_if(polykernel.variants, end, [&](const distile_variant &variant) {
        return variant.dense == 0 && name == variant.name;
    });
    if (found == end) {
        throw std::runtime_error("there is no masked variant '" + name + "'");
    }
    variant_ = *found;
    given.run = variant_.run;
    variant_.run = run_on_list;
    variant_.listless_pixels = 0;
    polykernel_.variants = &variant_;
    polykernel_.num_variants = 1;
    polykernel_.num_times = 0;
    polykernel_.fallback = nullptr;
}

void ListedVariant::set_list(const uint32_t *list, int32_t count) {
    given.list = list;
    given.count = count;
}

}  // namespace distile::bench
