#include "runtime/group/bit_image.h"
#include <algorithm>

namespace distile {

namespace {

/** The bits [first, last) of a word. */
uint64_t bits_between(int32_t first, int32_t last) {
    return (~uint64_t{0} >> (64 - (last - first))) << first;
}

}  // namespace

void BitImage::set(int32_t image, int32_t y, int32_t first, int32_t last) {
    uint64_t *const line = row(image, y);
    while (first < last) {
        const int32_t word = first / 64, end = std::min(last, 64 * (word + 1));
        line[word] |= bits_between(first - 64 * word, end - 64 * word);
        first = end;
    }
}

int64_t BitImage::count() const {
    int64_t sum = 0;
    for (const uint64_t word : words) {
        sum += __builtin_popcountll(word);
    }
    return sum;
}

PixelBox BitImage::bounds() const {
    int32_t image0 = shape.batch, image1 = 0, y0 = shape.height, y1 = 0, x0 = shape.width, x1 = 0;
    for (int32_t n = 0; n < shape.batch; n++) {
        for (int32_t y = 0; y < shape.height; y++) {
            const uint64_t *const line = row(n, y);
            const int32_t low = first_bit(line, 0, shape.width), high = last_bit(line, 0, shape.width) + 1;
            if (low < high) {
                image0 = std::min(image0, n);
                image1 = n + 1;
                y0 = std::min(y0, y);
                y1 = std::max(y1, y + 1);
                x0 = std::min(x0, low);
                x1 = std::max(x1, high);
            }
        }
    }
    return image1 == 0 ? PixelBox{} : PixelBox{image0, y0, x0, {image1 - image0, y1 - y0, x1 - x0}};
}

int64_t count_bits(const uint64_t *row, int32_t first, int32_t last) {
    int64_t sum = 0;
    while (first < last) {
        const int32_t word = first / 64, end = std::min(last, 64 * (word + 1));
        sum += __builtin_popcountll(row[word] & bits_between(first - 64 * word, end - 64 * word));
        first = end;
    }
    return sum;
}

namespace {

/** The first bit of words word_of(i) in [first, last), or `last`. */
template<typename WordOf> int32_t first_set(int32_t first, int32_t last, const WordOf &word_of) {
    while (first < last) {
        const uint64_t word = word_of(first / 64) >> (first % 64);
        if (word != 0) {
            return std::min(last, first + __builtin_ctzll(word));
        }
        first = (first / 64 + 1) * 64;
    }
    return last;
}

}  // namespace

int32_t first_bit(const uint64_t *row, int32_t first, int32_t last) {
    return first_set(first, last, [&](int32_t word) { return row[word]; });
}

int32_t first_gap(const uint64_t *row, int32_t first, int32_t last) {
    return first_set(first, last, [&](int32_t word) { return ~row[word]; });
}

int32_t last_bit(const uint64_t *row, int32_t first, int32_t last) {
    for (int32_t end = last; first < end;) {
        const int32_t word = (end - 1) / 64, begin = std::max(first, 64 * word);
        const uint64_t bits = row[word] & bits_between(begin - 64 * word, end - 64 * word);
        if (bits != 0) {
            return 64 * word + 63 - __builtin_clzll(bits);
        }
        end = begin;
    }
    return first - 1;
}

BitImage crop(const BitImage &image, const PixelBox &box) {
    BitImage part(box.shape);
    if (box.is_empty()) {
        return part;
    }
    const int32_t shift = box.x % 64, skipped = box.x / 64, have = image.words_per_row();
    const uint64_t last = ~uint64_t{0} >> (64 * part.words_per_row() - box.shape.width);
    for (int32_t n = 0; n < box.shape.batch; n++) {
        for (int32_t y = 0; y < box.shape.height; y++) {
            const uint64_t *const from = image.row(box.image + n, box.y + y);
            uint64_t *const to = part.row(n, y);
            for (int32_t i = 0; i < part.words_per_row(); i++) {
                const int32_t word = skipped + i;
                const uint64_t low = from[word] >> shift;
                to[i] = shift != 0 && word + 1 < have ? low | from[word + 1] << (64 - shift) : low;
            }
            to[part.words_per_row() - 1] &= last;
        }
    }
    return part;
}

}  // namespace distile
