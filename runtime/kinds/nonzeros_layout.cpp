#include "runtime/kinds/nonzeros_layout.h"
#include "kernels/dot_products.h"
#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>

namespace distile {

namespace {

constexpr int32_t block_channels = DISTILE_NONZERO_BLOCK, vector_channels = 16;

/** A weight of an output channel in a chunk. */
struct Nonzero {
    uint16_t column;
    float value;
};

int32_t divide_up(int32_t a, int32_t b) {
    return (a + b - 1) / b;
}

/** The arrays of the layout, as they are made. */
class Parts {
public:
    /** Adds a part's rows: those with most nonzeros last, because branches that end as before are predicted. */
    void add(const std::vector<std::vector<Nonzero>> &rows, bool all) {
        begin();
        std::vector<uint32_t> order(rows.size());
        std::iota(order.begin(), order.end(), 0);
        std::stable_sort(order.begin(), order.end(),
                         [&](uint32_t a, uint32_t b) { return rows[a].size() < rows[b].size(); });
        for (const uint32_t row : order) {
            if (!all && rows[row].empty()) {
                continue;
            }
            rows_.push_back(row | static_cast<uint32_t>(rows[row].size()) << 16);
            for (const Nonzero &nonzero : rows[row]) {
                columns_.push_back(nonzero.column);
                values_.push_back(nonzero.value);
            }
        }
    }

    /** All words, behind a header. */
    std::vector<float> words(distile_nonzero_weights header) {
        begin();
        std::vector<float> words(sizeof(header) / sizeof(float));
        header.parts = append(words, parts_);
        header.rows = append(words, rows_);
        header.columns = append(words, columns_);
        header.values = append(words, values_);
        std::memcpy(words.data(), &header, sizeof(header));
        return words;
    }

private:
    void begin() {
        parts_.push_back(static_cast<int32_t>(rows_.size()));
        parts_.push_back(static_cast<int32_t>(values_.size()));
    }
    template<typename Number> static int32_t append(std::vector<float> &words, const std::vector<Number> &numbers) {
        const size_t first = words.size(), bytes = numbers.size() * sizeof(Number);
        words.resize(first + (bytes + sizeof(float) - 1) / sizeof(float));
        if (bytes > 0) {
            std::memcpy(words.data() + first, numbers.data(), bytes);
        }
        return static_cast<int32_t>(first);
    }

    std::vector<int32_t> parts_;
    std::vector<uint32_t> rows_;
    std::vector<uint16_t> columns_;
    std::vector<float> values_;
};

}  // namespace

int32_t nonzero_channels(int32_t kernel_w) {
    constexpr int32_t staged_columns = 128;
    return std::max(vector_channels, staged_columns / kernel_w / vector_channels * vector_channels);
}

bool packs_nonzeros(const FilterExtents &extents) {
    return int64_t{extents.kernel_h} * extents.kernel_w * nonzero_channels(extents.kernel_w) <=
           std::numeric_limits<uint16_t>::max();
}

std::vector<PackedArray> pack_nonzeros(const FilterExtents &extents, int32_t groups, const FilterSource &source) {
    const int32_t channels = nonzero_channels(extents.kernel_w),
                  chunks = divide_up(extents.in_channels * groups, channels),
                  blocks = divide_up(extents.out_channels, block_channels), taps = extents.kernel_h * extents.kernel_w,
                  padded = divide_up(extents.out_channels, vector_channels) * vector_channels;
    PackedArray weights{DISTILE_ROLE_WEIGHTS, {}, {}};
    PackedArray bias{DISTILE_ROLE_BIAS, {padded}, {}};
    if (!source.filter) {
        // How many weights there are, nobody knows yet.
        weights.extents = {0};
        return {weights, bias};
    }
    bias.values.resize(padded);
    // The nonzeros by chunk and output channel.
    std::vector<std::vector<std::vector<Nonzero>>> all(chunks, std::vector<std::vector<Nonzero>>(padded));
    std::vector<float> folded;
    for (int32_t o = 0; o < extents.out_channels; o++) {
        bias.values[o] =
            fold_channel(extents, single_taps(extents.kernel_h), single_taps(extents.kernel_w), source, o, folded);
        const int32_t first = o / (extents.out_channels / groups) * extents.in_channels;
        for (int32_t tap = 0; tap < taps; tap++) {
            for (int32_t i = 0; i < extents.in_channels; i++) {
                const float value = folded[static_cast<size_t>(tap) * extents.in_channels + i];
                if (value != 0) {
                    const int32_t chunk = (first + i) / channels;
                    all[chunk][o].push_back({static_cast<uint16_t>(tap * channels + (first + i) % channels), value});
                }
            }
        }
    }
    Parts parts;
    for (const std::vector<std::vector<Nonzero>> &chunk : all) {
        for (int32_t block = 0; block < blocks; block++) {
            const auto begin = chunk.begin() + static_cast<std::ptrdiff_t>(block) * block_channels;
            const auto end = chunk.begin() + std::min((block + 1) * block_channels, padded);
            parts.add({begin, end}, &chunk == all.data());
        }
    }
    distile_nonzero_weights header{};
    header.channels = channels;
    header.chunks = chunks;
    header.blocks = blocks;
    weights.values = parts.words(header);
    weights.extents = {static_cast<int32_t>(weights.values.size())};
    std::vector<PackedArray> packed;
    packed.push_back(std::move(weights));
    packed.push_back(std::move(bias));
    return packed;
}

int64_t nonzeros_of(const PackedArray &weights) {
    distile_nonzero_weights header{};
    std::memcpy(&header, weights.values.data(), sizeof(header));
    return static_cast<int64_t>(weights.values.size()) - header.values;
}

}  // namespace distile
