/** \file
 * The mask object on an OpenCL device: a bitmask and its requested tile counts and lists.
 */
#ifndef DISTILE_OPENCL_MASK_H
#define DISTILE_OPENCL_MASK_H

#include "runtime/mask/mask.h"
#include "runtime/opencl/opencl_device.h"
#include <array>
#include <memory>
#include <vector>

namespace distile {

class OpenClMask : public distile_mask {
public:
    explicit OpenClMask(OpenClDevice &device);

    distile_status check_shape(const char *call, const MaskShape &wanted) const override;
    void set_bytes(const MaskShape &to, const uint8_t *bytes, int64_t stride_n, int64_t stride_h) override;
    void set_bits(const MaskShape &to, const uint32_t *words, int64_t words_per_row) override;
    void set_indices(const char *call, const MaskShape &to, const int32_t *indices, const int32_t *counts,
                     int64_t stride_n) override;
    void set_all(const MaskShape &to) override;
    void set_window(const MaskShape &to, distile_mask &from, const distile_window &given, Direction direction) override;
    void set_combination(Combination how, distile_mask &a, distile_mask *b) override;
    void set_difference(const distile_tensor &a, const distile_tensor &b, float threshold) override;
    void set_scores(const distile_tensor &tensor, const Scores &scores) override;

    MaskBits bits() override {
        return {words_.as<uint32_t>(), words_per_row_};
    }
    void check_bytes(const MaskShape &of, const MaskBytes &to) const override;
    void get_bytes(const MaskBytes &to) override;
    uint64_t bytes_of_words() const {
        return static_cast<uint64_t>(shape.batch) * static_cast<uint64_t>(shape.height) *
               static_cast<uint64_t>(words_per_row_) * sizeof(uint32_t);
    }
    bool counts_on_host() const override {
        return false;
    }
    void count(const Granularity *granularities, int32_t num_granularities, int64_t *counts) override;
    int64_t active_pixels() override;
    TileList list(Granularity granularity, const TileRect &interior) override;
    const int32_t *cumulative_lengths() override;

private:
    /** The most granularities of a mask: those of a kernel, and single pixels. */
    static constexpr size_t most_levels = 65;

    /** The state of the mask at a granularity. Its index is the place of its count. */
    struct Level {
        Granularity granularity;
        bool counted, read_back, listed;
        std::unique_ptr<GrowingBuffer> groups, list;
    };

    /** Sets the mask to a shape; `write(words)` enqueues what sets the words. If it throws, the mask holds no data. */
    template<typename Write> void set_words(MaskShape to, const Write &write) {
        begin_words(to);
        write(words_.as<uint32_t>());
        shape = to;
    }
    void begin_words(const MaskShape &to);
    void copy_bits(const MaskShape &to, const uint32_t *from, int64_t stride, uint32_t *words) const;
    /** The bits of a row's last word that are pixels. */
    uint32_t last_bits(const MaskShape &of) const {
        return ~0u >> (32 * words_per_row_ - of.width);
    }
    Level &level(Granularity granularity);
    uint32_t *count_of(const Level &level) const;
    void count_on_device(Level &level);

    OpenClDevice &device_;
    int32_t words_per_row_ = 0;
    GrowingBuffer words_, counts_, operand_, lengths_;
    bool has_lengths_ = false;
    std::vector<Level> levels_;
    std::array<uint32_t, most_levels> host_counts_{};
};

}  // namespace distile

#endif
