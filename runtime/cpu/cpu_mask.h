/** \file
 * The mask object on a CPU.
 */
#ifndef DISTILE_CPU_MASK_H
#define DISTILE_CPU_MASK_H

#include "runtime/cpu/bit_rows.h"
#include "runtime/cpu/tile_walk.h"
#include "runtime/mask/mask.h"

namespace distile {

class CpuMask : public distile_mask {
public:
    explicit CpuMask(distile_context &given);

    distile_status check_shape(const char *call, const MaskShape &wanted) const override;
    void set_bytes(const MaskShape &to, const uint8_t *bytes, int64_t stride_n, int64_t stride_h) override;
    void set_bits(const MaskShape &to, const uint32_t *words, int64_t words_per_row) override;
    void set_indices(const char *call, const MaskShape &to, const int32_t *indices, const int32_t *counts,
                     int64_t stride_n) override;
    void set_all(const MaskShape &to) override;
    void set_window(const MaskShape &to, distile_mask &from, const distile_window &window,
                    Direction direction) override;
    void set_combination(Combination how, distile_mask &a, distile_mask *b) override;
    void set_difference(const distile_tensor &a, const distile_tensor &b, float threshold) override;
    void set_scores(const distile_tensor &tensor, const Scores &scores) override;
    MaskBits bits() override;
    void get_bytes(const MaskBytes &bytes) override;
    bool counts_on_host() const override {
        return true;
    }
    void count(const Granularity *granularities, int32_t num_granularities, int64_t *counts) override;
    int64_t active_pixels() override {
        return active_pixels_;
    }
    TileList list(Granularity granularity, const TileRect &interior) override {
        return list_in(CellOrder::RowMajor, granularity, interior);
    }
    TileList list_in(CellOrder order, Granularity granularity, const TileRect &interior) override;
    const int32_t *cumulative_lengths() override;

    /** The bits, in 64-bit words. */
    const Bitmask &bitmask() const {
        return bits_;
    }

private:
    struct Count {
        Granularity granularity;
        int64_t tiles;
    };
    struct List {
        explicit List(const HostMemory &memory) : entries(memory) {
        }
        CellOrder order = CellOrder::RowMajor;
        Granularity granularity{};
        TileRect interior{};
        TileList tiles{};
        HostVector<uint32_t> entries;
    };

    static size_t num_words(const MaskShape &shape) {
        return static_cast<size_t>(shape.batch) * shape.height * ((shape.width + 63) / 64);
    }
    /** Sets the mask to a shape. `write(words)` fills the words and may read the old mask. */
    template<typename Write> void set_words(const MaskShape &to, const Write &write);
    /** Allocates the words for a shape, to be written in place. Forgets counts and lists. */
    uint64_t *begin_words(const MaskShape &to);
    void forget(const MaskShape &to);
    uint64_t *scratch(size_t words);
    /** Puts a list into an order, image by image. */
    void sort(CellOrder order, Granularity granularity, uint32_t *xy, const uint32_t *image, int64_t count);
    std::vector<RowMemory> &memory_of_tasks(size_t num_tasks);

    Bitmask bits_{};
    int64_t active_pixels_ = 0;
    HostVector<uint64_t> words_, next_words_, scratch_;
    std::vector<Count> counts_;
    // Workspace of count(), kept so that the steady state allocates nothing.
    std::vector<Granularity> missing_;
    std::vector<int64_t> missing_counts_;
    // The lists of the current mask, then those of earlier masks, kept for their memory.
    std::vector<List> lists_;
    std::vector<TileWalk> walks_;
    size_t num_lists_ = 0;
    HostVector<int32_t> lengths_;
    bool has_lengths_ = false;
    std::vector<RowMemory> row_memory_;  // For calls that set this mask, one per task.
};

/** Casts a mask of a CPU context. */
inline const CpuMask &cpu_mask(const distile_mask &mask) {
    return static_cast<const CpuMask &>(mask);
}

}  // namespace distile

#endif
