#include "runtime/cpu/tile_walk.h"

namespace distile {

TileWalk::TileWalk(const HostMemory &memory, CellOrder order, int32_t height, int32_t width)
    : order_(order), height_(height), width_(width), cells_(memory), steps_(memory), is_there_(memory) {
    const std::vector<int32_t> cells = order_cells(order, height, width);
    cells_.reserve(cells.size());
    steps_.resize(cells.size());
    is_there_.resize((cells.size() + 63) / 64);
    for (const int32_t cell : cells) {
        steps_[static_cast<size_t>(cell)] = static_cast<uint32_t>(cells_.size());
        cells_.push_back(static_cast<uint32_t>(cell % width) | static_cast<uint32_t>(cell / width) << 16);
    }
}

void TileWalk::sort(uint32_t *xy, int64_t count, Granularity tile) {
    const auto tile_w = static_cast<uint32_t>(tile.w), tile_h = static_cast<uint32_t>(tile.h);
    for (int64_t i = 0; i < count; i++) {
        const uint32_t row = (xy[i] >> 16) / tile_h, column = (xy[i] & 0xffff) / tile_w;
        const uint32_t step = steps_[static_cast<size_t>(row) * static_cast<size_t>(width_) + column];
        is_there_[step / 64] |= uint64_t{1} << (step % 64);
    }
    uint32_t *end = xy;
    for (size_t word = 0; word < is_there_.size(); word++) {
        for (uint64_t bits = is_there_[word]; bits != 0; bits &= bits - 1) {
            const uint32_t cell = cells_[word * 64 + static_cast<size_t>(__builtin_ctzll(bits))];
            *end++ = (cell & 0xffff) * tile_w | (cell >> 16) * tile_h << 16;
        }
        is_there_[word] = 0;
    }
}

}  // namespace distile
