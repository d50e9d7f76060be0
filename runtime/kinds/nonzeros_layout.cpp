#include "runtime/kinds/nonzeros_layout.h"
#include "kernels/bitmap.h"
#include "kernels/dot_products.h"
#include "runtime/kinds/channel_sections.h"
#include "runtime/kinds/requantization.h"
#include <algorithm>
#include <bitset>
#include <cstring>
#include <limits>
#include <numeric>

namespace distile {

namespace {

constexpr int32_t block_channels = DISTILE_NONZERO_BLOCK, vector_channels = 16;

/** A weight, or a quad of them, of an output channel in a chunk. */
struct Nonzero {
    uint16_t column;
    uint32_t word;
};

int32_t divide_up(int32_t a, int32_t b) {
    return (a + b - 1) / b;
}

/** Output channels, and the columns that all of them have. */
struct SharedColumns {
    std::vector<uint32_t> channels;
    std::vector<uint16_t> columns;
};

/** Finds output channels whose nonzeros share most of their columns, so that what is loaded of a column multiplies the
 * weights of all. */
class ColumnSharing {
public:
    explicit ColumnSharing(const std::vector<std::vector<Nonzero>> &rows) : rows_(rows), sets_(rows.size()) {
        for (size_t i = 0; i < rows.size(); i++) {
            // Columns are in order.
            sets_[i].resize(rows[i].empty() ? 0 : rows[i].back().column / bits + 1);
            for (const Nonzero &nonzero : rows[i]) {
                sets_[i][nonzero.column / bits] |= uint64_t{1} << nonzero.column % bits;
            }
        }
    }

    /** Groups of 4 and then of 2, each channel in one at most. */
    std::vector<SharedColumns> find() const {
        std::vector<SharedColumns> found;
        std::vector<bool> taken(rows_.size());
        for (const size_t most : {size_t{4}, size_t{2}}) {
            for (size_t first = 0; first < rows_.size(); first++) {
                const std::vector<uint32_t> channels =
                    taken[first] ? std::vector<uint32_t>() : like(first, most, taken);
                if (!channels.empty()) {
                    found.push_back({channels, columns_of(common_of(channels))});
                    for (const uint32_t channel : channels) {
                        taken[channel] = true;
                    }
                }
            }
        }
        return found;
    }

private:
    using Set = std::vector<uint64_t>;
    static constexpr int bits = 64;

    /** As many channels that share most columns with this one; none if there are fewer. */
    std::vector<uint32_t> like(size_t first, size_t most, const std::vector<bool> &taken) const {
        std::vector<uint32_t> channels = {static_cast<uint32_t>(first)};
        Set common = sets_[first];
        size_t nonzeros = rows_[first].size();
        while (channels.size() < most) {
            size_t best = rows_.size(), shared = 0;
            for (size_t other = first + 1; other < rows_.size(); other++) {
                if (taken[other] || std::find(channels.begin(), channels.end(), other) != channels.end()) {
                    continue;
                }
                const size_t count = size_of_both(common, sets_[other]);
                // Among equals, the one with fewest columns of its own.
                if (count > shared || (count > 0 && count == shared && rows_[other].size() < rows_[best].size())) {
                    best = other;
                    shared = count;
                }
            }
            if (best == rows_.size()) {
                return {};
            }
            channels.push_back(static_cast<uint32_t>(best));
            nonzeros += rows_[best].size();
            // What is left of each channel becomes another row.
            if (4 * channels.size() * shared < 3 * nonzeros) {
                return {};
            }
            common = intersect(common, sets_[best]);
        }
        return channels;
    }
    Set common_of(const std::vector<uint32_t> &channels) const {
        Set common = sets_[channels.front()];
        for (const uint32_t channel : channels) {
            common = intersect(common, sets_[channel]);
        }
        return common;
    }
    static Set intersect(const Set &a, const Set &b) {
        Set both(std::min(a.size(), b.size()));
        for (size_t i = 0; i < both.size(); i++) {
            both[i] = a[i] & b[i];
        }
        return both;
    }
    static size_t size_of_both(const Set &a, const Set &b) {
        size_t size = 0;
        for (size_t i = 0; i < std::min(a.size(), b.size()); i++) {
            size += std::bitset<bits>(a[i] & b[i]).count();
        }
        return size;
    }
    static std::vector<uint16_t> columns_of(const Set &set) {
        std::vector<uint16_t> columns;
        for (size_t column = 0; column < set.size() * bits; column++) {
            if ((set[column / bits] >> column % bits & 1) != 0) {
                columns.push_back(static_cast<uint16_t>(column));
            }
        }
        return columns;
    }

    const std::vector<std::vector<Nonzero>> &rows_;
    std::vector<Set> sets_;
};

/** The arrays of the layout, as they are made. */
class Parts {
public:
    /** Adds a part of the first chunk, which has all channels, or of another. Behind channels that share columns come
     * the other rows, those with most nonzeros last, because branches that end as before are predicted. */
    void add(std::vector<std::vector<Nonzero>> rows, bool is_first) {
        begin();
        std::vector<bool> adds(rows.size(), !is_first);
        for (const SharedColumns &shared : ColumnSharing(rows).find()) {
            add(shared, rows, adds);
        }
        std::vector<uint32_t> order(rows.size());
        std::iota(order.begin(), order.end(), 0);
        std::stable_sort(order.begin(), order.end(),
                         [&](uint32_t a, uint32_t b) { return rows[a].size() < rows[b].size(); });
        for (const uint32_t row : order) {
            if (!adds[row] || !rows[row].empty()) {
                add_row(row, 1, adds[row], rows[row].size());
                for (const Nonzero &nonzero : rows[row]) {
                    columns_.push_back(nonzero.column);
                    words_.push_back(nonzero.word);
                }
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
        header.values = append(words, words_);
        std::memcpy(words.data(), &header, sizeof(header));
        return words;
    }

private:
    /** Moves what channels share from their rows to the arrays. */
    void add(const SharedColumns &shared, std::vector<std::vector<Nonzero>> &rows, std::vector<bool> &adds) {
        add_row(shared.channels.front(), shared.channels.size(), adds[shared.channels.front()], shared.columns.size());
        rows_.insert(rows_.end(), shared.channels.begin() + 1, shared.channels.end());
        columns_.insert(columns_.end(), shared.columns.begin(), shared.columns.end());
        const size_t first = words_.size();
        words_.resize(first + shared.channels.size() * shared.columns.size());
        for (size_t i = 0; i < shared.channels.size(); i++) {
            std::vector<Nonzero> &row = rows[shared.channels[i]], left;
            size_t column = 0;
            for (const Nonzero &nonzero : row) {
                if (column < shared.columns.size() && nonzero.column == shared.columns[column]) {
                    words_[first + column++ * shared.channels.size() + i] = nonzero.word;
                } else {
                    left.push_back(nonzero);
                }
            }
            row = std::move(left);
            adds[shared.channels[i]] = true;
        }
    }
    void add_row(uint32_t channel, size_t channels, bool adds, size_t columns) {
        rows_.push_back(channel | static_cast<uint32_t>(channels) << 8 | (adds ? 0x8000U : 0U) |
                        static_cast<uint32_t>(columns) << 16);
    }
    void begin() {
        for (const size_t size : {rows_.size(), columns_.size(), words_.size()}) {
            parts_.push_back(static_cast<int32_t>(size));
        }
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
    std::vector<uint32_t> words_;
};

uint32_t bits_of(float value) {
    uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof(bits));
    return bits;
}

/** The weights of up to four channels, the first of which is channel `place` of the quad. */
uint32_t quad_of(const float *values, int32_t place, int32_t count) {
    uint32_t word = 0;
    for (int32_t i = 0; i < count; i++) {
        word |= static_cast<uint32_t>(static_cast<uint8_t>(static_cast<int8_t>(values[i]))) << (8 * (place + i));
    }
    return word;
}

/** The layout of weights that multiply `width` channels each. word(values, place, count) makes a weight of those of
 * `count` channels, the first of which is channel `place` of the weight. */
template<typename Word> std::vector<PackedArray>
pack_words(const FilterExtents &extents, int32_t groups, const FilterSource &source, const Word &word, int32_t width) {
    const int32_t channels = nonzero_channels(extents.kernel_h, extents.kernel_w),
                  chunks = divide_up(divide_up(extents.in_channels * groups, width), channels),
                  blocks = divide_up(extents.out_channels, block_channels), taps = extents.kernel_h * extents.kernel_w,
                  padded = divide_up(extents.out_channels, vector_channels) * vector_channels;
    PackedArray weights{DISTILE_ROLE_WEIGHTS, {0}, {}};  // How many weights there are, nobody knows yet.
    PackedArray bias{DISTILE_ROLE_BIAS, {padded}, {}};
    WeightSums sums(extents, source, 1, true);
    if (source.filter) {
        bias.values.assign(padded, 0);
        // The nonzeros by chunk and output channel.
        std::vector<std::vector<std::vector<Nonzero>>> all(chunks, std::vector<std::vector<Nonzero>>(padded));
        std::vector<float> folded;
        for (int32_t o = 0; o < extents.out_channels; o++) {
            bias.values[o] =
                fold_channel(extents, single_taps(extents.kernel_h), single_taps(extents.kernel_w), source, o, folded);
            const int32_t first = o / (extents.out_channels / groups) * extents.in_channels;
            for (int32_t tap = 0; tap < taps; tap++) {
                const float *const values = folded.data() + static_cast<size_t>(tap) * extents.in_channels;
                for (int32_t i = 0, count = 0; i < extents.in_channels; i += count) {
                    const int32_t place = (first + i) % width, column = (first + i) / width;
                    count = std::min(width - place, extents.in_channels - i);
                    if (std::any_of(values + i, values + i + count, [](float value) { return value != 0; })) {
                        all[column / channels][o].push_back({static_cast<uint16_t>(tap * channels + column % channels),
                                                             word(values + i, place, count)});
                    }
                    std::for_each(values + i, values + i + count, [&](float value) { sums.add(o, 0, value); });
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
        const std::vector<float> words = parts.words(header);
        weights.values.assign(words.begin(), words.end());
        weights.extents = {static_cast<int32_t>(weights.values.size())};
    }
    std::vector<PackedArray> packed;
    packed.push_back(std::move(weights));
    packed.push_back(std::move(bias));
    add_requantization(source, sums, packed);
    return packed;
}

constexpr int32_t chunk_columns = DISTILE_CUDA_CHUNK_COLUMNS, chunk_stride = DISTILE_CUDA_CHUNK_STRIDE,
                  paired_block = DISTILE_CUDA_NONZERO_BLOCK;

/** Where rows and columns are in the layout "cuda-nonzeros". */
class PairedLayout {
public:
    /** The most that code divides by multiplying. */
    static constexpr int64_t most_quads = 65535;

    PairedLayout(const FilterExtents &extents, int32_t groups)
        : sections_{groups, extents.in_channels, extents.out_channels / groups, 1},
          taps_(int64_t{extents.kernel_h} * extents.kernel_w) {
    }
    int64_t quads() const {
        return taps_ * tap_quads();
    }
    int32_t chunks() const {
        return divide_up(static_cast<int32_t>(quads()) * quad, chunk_columns);
    }
    int32_t rows() const {
        return sections_.count() * section_rows();
    }
    int32_t row(int32_t output) const {
        return output / sections_.outputs() * section_rows() + output % sections_.outputs();
    }
    /** The column by which an output channel multiplies an input channel of its group. */
    int32_t column(int32_t output, int32_t tap, int32_t input) const {
        const int32_t all = output / sections_.group_outputs * sections_.group_inputs + input;
        return tap * tap_quads() * quad + all - sections_.first_input(output);
    }
    static uint32_t place(int32_t column) {
        constexpr int32_t column_bytes = 128, swizzled_quads = 8, swizzle_bytes = 16;
        return static_cast<uint32_t>((column / chunk_columns * chunk_stride + column % chunk_columns) * column_bytes +
                                     column / quad % swizzled_quads * swizzle_bytes);
    }
    /** The column of zeros behind a chunk. */
    static uint32_t place_of_zeros(int32_t chunk) {
        return static_cast<uint32_t>((chunk * chunk_stride + chunk_columns) * 128);
    }

private:
    static constexpr int32_t quad = 4;

    int32_t tap_quads() const {
        return divide_up(sections_.inputs(), quad);
    }
    int32_t section_rows() const {
        return divide_up(sections_.outputs(), paired_block) * paired_block;
    }

    ChannelSections sections_;
    int64_t taps_;
};

/** A nonzero of a row, in the order of their columns. */
struct PairedNonzero {
    int32_t chunk;
    uint32_t place;
    float value;
};
using PairedRow = std::vector<PairedNonzero>;

/** The words of the layout, of its rows. */
std::vector<float> paired_words(const PairedLayout &layout, const std::vector<PairedRow> &rows) {
    constexpr size_t pair_words = 4, pairs_at_once = 32;
    std::vector<uint32_t> order, starts, pairs;
    distile_cuda_nonzero_weights header{};
    for (size_t block = 0; block < rows.size(); block += paired_block) {
        std::vector<uint32_t> channels(paired_block);
        std::iota(channels.begin(), channels.end(), 0);
        std::stable_sort(channels.begin(), channels.end(),
                         [&](uint32_t a, uint32_t b) { return rows[block + a].size() > rows[block + b].size(); });
        for (const uint32_t channel : channels) {
            const PairedRow &row = rows[block + channel];
            order.push_back(channel);
            header.nonzeros += static_cast<int64_t>(row.size());
            auto nonzero = row.begin();
            for (int32_t chunk = 0; chunk < layout.chunks(); chunk++) {
                starts.push_back(static_cast<uint32_t>(pairs.size() / pair_words));
                for (; nonzero != row.end() && nonzero->chunk == chunk; ++nonzero) {
                    uint32_t bits = 0;
                    std::memcpy(&bits, &nonzero->value, sizeof(bits));
                    pairs.insert(pairs.end(), {nonzero->place, bits});
                }
                if (pairs.size() % pair_words != 0) {
                    pairs.insert(pairs.end(), {PairedLayout::place_of_zeros(chunk), 0});
                }
            }
        }
    }
    starts.push_back(static_cast<uint32_t>(pairs.size() / pair_words));
    pairs.resize(pairs.size() + pairs_at_once * pair_words);
    std::vector<float> words(sizeof(header) / sizeof(float));
    const auto append = [&](const std::vector<uint32_t> &numbers) {
        words.resize((words.size() + pair_words - 1) / pair_words * pair_words);
        const size_t first = words.size();
        words.resize(first + numbers.size());
        std::memcpy(words.data() + first, numbers.data(), numbers.size() * sizeof(float));
        return static_cast<int32_t>(first);
    };
    header.order = append(order);
    header.starts = append(starts);
    header.pairs = append(pairs);
    std::memcpy(words.data(), &header, sizeof(header));
    return words;
}

}  // namespace

int32_t nonzero_channels(int32_t kernel_h, int32_t kernel_w) {
    constexpr int32_t staged_columns = 128;
    return std::max(vector_channels, staged_columns / (kernel_h * kernel_w) / vector_channels * vector_channels);
}

bool packs_nonzeros(const FilterExtents &extents) {
    return int64_t{extents.kernel_h} * extents.kernel_w * nonzero_channels(extents.kernel_h, extents.kernel_w) <=
           std::numeric_limits<uint16_t>::max();
}

int64_t count_quads(const FilterExtents &extents, int32_t groups) {
    int64_t quads = 0;
    for (int32_t group = 0; group < groups; group++) {
        const int64_t first = int64_t{group} * extents.in_channels, last = first + extents.in_channels - 1;
        quads += last / quad_channels - first / quad_channels + 1;
    }
    return quads * (extents.out_channels / groups) * extents.kernel_h * extents.kernel_w;
}

std::vector<PackedArray> pack_nonzeros(const FilterExtents &extents, int32_t groups, const FilterSource &source) {
    return pack_words(
        extents, groups, source, [](const float *values, int32_t, int32_t) { return bits_of(*values); }, 1);
}

std::vector<PackedArray> pack_nonzero_quads(const FilterExtents &extents, int32_t groups, const FilterSource &source) {
    return pack_words(extents, groups, source, quad_of, quad_channels);
}

bool packs_paired_nonzeros(const FilterExtents &extents, int32_t groups) {
    return PairedLayout(extents, groups).quads() <= PairedLayout::most_quads;
}

std::vector<PackedArray> pack_paired_nonzeros(const FilterExtents &extents, int32_t groups,
                                              const FilterSource &source) {
    PackedArray weights{DISTILE_ROLE_WEIGHTS, {}, {}};
    PackedArray bias{DISTILE_ROLE_BIAS, {extents.out_channels}, {}};
    if (!source.filter) {
        // How many weights there are, nobody knows yet.
        weights.extents = {0};
        return {weights, bias};
    }
    const PairedLayout layout(extents, groups);
    std::vector<PairedRow> rows(layout.rows());
    std::vector<float> folded;
    for (int32_t o = 0; o < extents.out_channels; o++) {
        bias.values.push_back(
            fold_channel(extents, single_taps(extents.kernel_h), single_taps(extents.kernel_w), source, o, folded));
        PairedRow &row = rows[layout.row(o)];
        for (int32_t i = 0; i < static_cast<int32_t>(folded.size()); i++) {
            if (folded[i] != 0) {
                const int32_t column = layout.column(o, i / extents.in_channels, i % extents.in_channels);
                row.push_back({column / chunk_columns, PairedLayout::place(column), folded[i]});
            }
        }
    }
    const std::vector<float> words = paired_words(layout, rows);
    weights.values.assign(words.begin(), words.end());
    weights.extents = {static_cast<int32_t>(weights.values.size())};
    std::vector<PackedArray> packed;
    packed.push_back(std::move(weights));
    packed.push_back(std::move(bias));
    return packed;
}

int64_t nonzeros_of(const PackedArray &weights, WeightOrder order) {
    if (order == WeightOrder::PairedNonzeros) {
        distile_cuda_nonzero_weights header{};
        std::memcpy(&header, weights.values.data(), sizeof(header));
        return header.nonzeros;
    }
    if (order == WeightOrder::NonzeroBitmap) {
        distile_cuda_bitmap_weights header{};
        std::memcpy(&header, weights.values.data(), sizeof(header));
        return header.nonzeros;
    }
    distile_nonzero_weights header{};
    std::memcpy(&header, weights.values.data(), sizeof(header));
    return static_cast<int64_t>(weights.values.size()) - header.values;
}

}  // namespace distile
