#include "runtime/cpu/bit_rows.h"
#include "runtime/cpu/bit_words.h"
#include <algorithm>

namespace distile {

namespace {

int32_t words_for(int64_t bits) {
    return static_cast<int32_t>((bits + 63) / 64);
}

// Words shift in two steps where the distance may be 64 bits, because a single shift by 64 is undefined.

// Both walk a short row word by word, because vector loads would stall on the words just written.

/** row[x] |= row[x + bits] for all x with x + bits inside the row. */
void or_from_above(uint64_t *row, int32_t num_words, int64_t bits) {
    const auto words = static_cast<int32_t>(bits / 64);
    const int64_t shift = bits % 64;
    const int32_t last = num_words - 1 - words;
    for (int32_t i = 0; i < last; i++) {
        row[i] |= row[i + words] >> shift | row[i + words + 1] << 1 << (63 - shift);
    }
    row[last] |= row[num_words - 1] >> shift;
}

/** row[x + bits] |= row[x] for all x. */
void or_from_below(uint64_t *row, int32_t num_words, int64_t bits) {
    const auto words = static_cast<int32_t>(bits / 64);
    const int64_t shift = bits % 64;
    for (int32_t i = num_words - 1; i > words; i--) {
        row[i] |= row[i - words] << shift | row[i - words - 1] >> 1 >> (63 - shift);
    }
    row[words] |= row[0] << shift;
}

}  // namespace

// Only the taps and outputs that meet an input count, so rows stay short whatever the window.
RowWindow::RowWindow(const WindowAxis &axis, int32_t in_width, int32_t out_width, RowMemory &memory,
                     const SimdLevel &level)
    : axis_(clip(axis, in_width)), in_width_(in_width), out_words_(words_for(out_width)), level_(level),
      padded_(memory.take(0)), places_(memory.take(0)) {
    const int32_t last = axis.pad + in_width - 1;
    const int32_t outputs = std::min(out_width, last / axis.stride + 1);
    const int64_t last_place = int64_t{outputs - 1} * axis.stride;
    padded_.resize(words_for(std::max(last_place + int64_t{axis_.kernel - 1} * axis.dilation, int64_t{last}) + 1));
    places_.resize(words_for(last_place + 1));
    for (int32_t o = 0; o < outputs; o++) {
        const int64_t bit = int64_t{o} * axis.stride;
        places_[bit / 64] |= uint64_t{1} << (bit % 64);
    }
}

void RowWindow::gather(const uint64_t *in, uint64_t *out) {
    const auto num_words = static_cast<int32_t>(padded_.size()), num_places = static_cast<int32_t>(places_.size());
    const int32_t first = axis_.pad / 64, shift = axis_.pad % 64, in_words = words_for(in_width_);
    std::fill_n(padded_.begin(), first, uint64_t{0});
    uint64_t carried = 0;
    for (int32_t i = 0; i < in_words; i++) {
        padded_[first + i] = in[i] << shift | carried;
        carried = in[i] >> 1 >> (63 - shift);
    }
    for (int32_t i = first + in_words; i < num_words; i++, carried = 0) {
        padded_[i] = carried;
    }
    for_each_distance(axis_, [&](int64_t distance) { or_from_above(padded_.data(), num_words, distance); });
    if (axis_.stride == 1) {
        std::copy_n(padded_.begin(), num_places, out);
        out[num_places - 1] &= places_.back();
        std::fill(out + num_places, out + out_words_, 0);
    } else {
        std::fill_n(out, out_words_, uint64_t{0});
        level_.extract(padded_.data(), places_.data(), num_places, out);
    }
}

void RowWindow::scatter(const uint64_t *out, uint64_t *in) {
    const auto num_words = static_cast<int32_t>(padded_.size()), num_places = static_cast<int32_t>(places_.size());
    if (axis_.stride == 1) {
        std::copy_n(out, num_places, padded_.begin());
        padded_[num_places - 1] &= places_.back();
    } else {
        level_.deposit(out, out_words_, places_.data(), num_places, padded_.data());
    }
    std::fill(padded_.begin() + num_places, padded_.end(), 0);
    for_each_distance(axis_, [&](int64_t distance) { or_from_below(padded_.data(), num_words, distance); });
    const int32_t in_words = words_for(in_width_);
    for (int32_t i = 0; i < in_words; i++) {
        in[i] = word_at(padded_.data(), num_words, axis_.pad + int64_t{64} * i);
    }
    in[in_words - 1] &= ~uint64_t{0} >> (64 * in_words - in_width_);
}

// ---- Images ----------------------------------------------------------------------------------

namespace {

/** The input rows that an output row reads: `count` rows, axis.dilation apart. */
struct RowsRead {
    int64_t first;
    int32_t count;

    RowsRead(const WindowAxis &axis, int32_t o, int32_t in_height) {
        first = int64_t{o} * axis.stride - axis.pad;
        const int64_t outside = first < 0 ? (-first + axis.dilation - 1) / axis.dilation : 0;
        first += outside * axis.dilation;
        const int64_t inside = first < in_height ? (in_height - 1 - first) / axis.dilation + 1 : 0;
        count = static_cast<int32_t>(std::clamp<int64_t>(axis.kernel - outside, 0, inside));
    }
};

/** Calls read(y) for each input row that output row o reads. */
template<typename Read> void for_each_row(const WindowAxis &axis, int32_t o, int32_t in_height, Read read) {
    const RowsRead rows(axis, o, in_height);
    for (int32_t i = 0; i < rows.count; i++) {
        read(rows.first + int64_t{i} * axis.dilation);
    }
}

void or_row(const uint64_t *from, int32_t num_words, uint64_t *to) {
    for (int32_t i = 0; i < num_words; i++) {
        to[i] |= from[i];
    }
}

/** Nearest upsampling by the stride, in reverse: an input pixel reads all its copies. */
WindowAxis repetition(const WindowAxis &axis) {
    return {axis.stride, axis.stride, 0, 1};
}

/** The stride-1 window after the upsampling. */
WindowAxis after(const WindowAxis &axis) {
    return {axis.kernel, 1, axis.pad, axis.dilation};
}

}  // namespace

void gather_bits(const Bitmask &in, const Window &window, int32_t out_height, int32_t out_width, uint64_t *out,
                 RowMemory &memory) {
    const SimdLevel &level = supported_simd_levels().best();
    RowWindow columns(window.x, in.width, out_width, memory, level);
    const int32_t in_words = in.words_per_row(), out_words = words_for(out_width);
    HostVector<uint64_t> &any = memory.take(in_words);
    for (int32_t n = 0; n < in.batch; n++) {
        const uint64_t *image = in.words + int64_t{n} * in.height * in_words;
        for (int32_t o = 0; o < out_height; o++, out += out_words) {
            const RowsRead rows(window.y, o, in.height);
            level.unite_rows(rows.count > 0 ? image + rows.first * in_words : image,
                             int64_t{window.y.dilation} * in_words, rows.count, in_words, any.data());
            columns.gather(any.data(), out);
        }
    }
}

void scatter_bits(const Bitmask &out, const Window &window, int32_t in_height, int32_t in_width, uint64_t *in,
                  RowMemory &memory) {
    RowWindow columns(window.x, in_width, out.width, memory);
    const int32_t in_words = words_for(in_width), out_words = out.words_per_row();
    HostVector<uint64_t> &reached = memory.take(in_words);
    std::fill_n(in, int64_t{out.batch} * in_height * in_words, uint64_t{0});
    const uint64_t *row = out.words;
    for (int32_t n = 0; n < out.batch; n++) {
        uint64_t *image = in + int64_t{n} * in_height * in_words;
        for (int32_t o = 0; o < out.height; o++, row += out_words) {
            columns.scatter(row, reached.data());
            for_each_row(window.y, o, in_height,
                         [&](int64_t y) { or_row(reached.data(), in_words, image + y * in_words); });
        }
    }
}

void gather_upsampled_bits(const Bitmask &in, const Window &window, int32_t out_height, int32_t out_width,
                           uint64_t *out, RowMemory &memory) {
    const int32_t large_height = in.height * window.y.stride, large_width = in.width * window.x.stride;
    RowWindow repeat(repetition(window.x), large_width, in.width, memory);
    RowWindow columns(after(window.x), large_width, out_width, memory);
    const int32_t in_words = in.words_per_row(), out_words = words_for(out_width);
    HostVector<uint64_t> &any = memory.take(in_words), &large = memory.take(words_for(large_width));
    for (int32_t n = 0; n < in.batch; n++) {
        const uint64_t *image = in.words + int64_t{n} * in.height * in_words;
        for (int32_t o = 0; o < out_height; o++, out += out_words) {
            std::fill(any.begin(), any.end(), 0);
            for_each_row(after(window.y), o, large_height,
                         [&](int64_t y) { or_row(image + y / window.y.stride * in_words, in_words, any.data()); });
            repeat.scatter(any.data(), large.data());
            columns.gather(large.data(), out);
        }
    }
}

void scatter_upsampled_bits(const Bitmask &out, const Window &window, int32_t in_height, int32_t in_width, uint64_t *in,
                            RowMemory &memory) {
    const int32_t large_height = in_height * window.y.stride, large_width = in_width * window.x.stride;
    RowWindow repeat(repetition(window.x), large_width, in_width, memory);
    RowWindow columns(after(window.x), large_width, out.width, memory);
    const int32_t in_words = words_for(in_width), out_words = out.words_per_row();
    HostVector<uint64_t> &reached = memory.take(in_words), &large = memory.take(words_for(large_width));
    std::fill_n(in, int64_t{out.batch} * in_height * in_words, uint64_t{0});
    const uint64_t *row = out.words;
    for (int32_t n = 0; n < out.batch; n++) {
        uint64_t *image = in + int64_t{n} * in_height * in_words;
        for (int32_t o = 0; o < out.height; o++, row += out_words) {
            columns.scatter(row, large.data());
            repeat.gather(large.data(), reached.data());
            for_each_row(after(window.y), o, large_height,
                         [&](int64_t y) { or_row(reached.data(), in_words, image + y / window.y.stride * in_words); });
        }
    }
}

}  // namespace distile
