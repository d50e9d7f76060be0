/** \file
 * Convolutions that enlarge their input, split into phases along each axis.
 *
 * With a stride (or scale) s, the output pixels s * i + p of phase p, 0 <= p < s, form an image of the input's
 * resolution and are a stride-1 convolution of the input. The packed weights hold the taps of one phase after the
 * other, as a filter with num_taps() rows or columns.
 */
#ifndef DISTILE_POLYPHASE_H
#define DISTILE_POLYPHASE_H

#include "runtime/kinds/filter.h"
#include <algorithm>
#include <cstdint>
#include <numeric>
#include <optional>
#include <vector>

namespace distile {

/** Output pixel s * i + p of phase p reads the input pixels i + first + t * step, 0 <= t < taps. */
struct Phase {
    int first = 0, step = 1, taps = 0;
    int begin = 0; /**< Index of its first tap among those of all phases. */
};

/** One axis of an operator. */
struct PolyphaseAxis {
    int kernel, stride, pad_before, pad_after, dilation;
    /** False: a transposed convolution; kernel position j adds input pixel i to output pixel i * stride - pad_before +
     * j * dilation. True: a stride-1 convolution after nearest upsampling; kernel position j adds input pixel floor((o
     * - pad_before + j * dilation) / stride) to output pixel o. */
    bool nearest;

    /** True if the taps are the same, in the same order. */
    bool operator==(const PolyphaseAxis &other) const {
        return kernel == other.kernel && stride == other.stride && pad_before == other.pad_before &&
               dilation == other.dilation && nearest == other.nearest;
    }
    /** The number of output pixels; 0 or less if the output is empty. */
    int64_t output_extent(int64_t input) const {
        return nearest ? input * stride + pad_before + pad_after - reach()
                       : (input - 1) * stride + reach() + 1 - pad_before - pad_after;
    }
    /** The first and last input pixels, relative to i, that any phase reads for the output pixels s * i + p. */
    int first_read() const {
        return nearest ? floor_divide(-pad_before) : ceil_divide(pad_before - reach());
    }
    int last_read() const {
        return nearest ? floor_divide(stride - 1 - pad_before + reach()) : ceil_divide(pad_before);
    }
    /** The zero border before and after the input that lets all reads happen in place. */
    int border_before() const {
        return std::max(-first_read(), 0);
    }
    int border_after() const {
        // The last output pixel, relative to the first one of input pixel `input - 1`.
        const auto last = static_cast<int>(output_extent(1) - 1);
        return std::max(floor_divide(last) + last_read(), 0);
    }
    /** The number of taps of all phases. */
    int num_taps() const {
        return nearest ? reach() + stride : kernel;
    }
    /** The maximum number of taps of a phase. */
    int most_taps() const {
        // Taps of the same phase are stride / gcd(stride, dilation) positions apart.
        const int64_t taps = (kernel - int64_t{1}) * std::gcd(stride, dilation) / stride + 1;
        return nearest ? ceil_divide(reach()) + 1 : static_cast<int>(taps);
    }
    /** The distance in input pixels between taps of a phase. */
    int step() const {
        return nearest ? 1 : dilation / std::gcd(stride, dilation);
    }
    std::vector<Phase> phases() const {
        std::vector<Phase> result(stride);
        for (int p = 0, begin = 0; p < stride; p++) {
            Phase &phase = result[p];
            phase.begin = begin;
            phase.step = step();
            if (nearest) {
                phase.first = read_at(p, 0);
                phase.taps = read_at(p, kernel - 1) - phase.first + 1;
            } else {
                const int last = last_position(p);
                if (last >= 0) {
                    phase.first = read_at(p, last);
                    phase.taps = last / every() + 1;
                }
            }
            begin += phase.taps;
        }
        return result;
    }
    /** The kernel positions behind the taps of all phases. */
    std::vector<MergedTap> taps() const {
        std::vector<MergedTap> result;
        for (int p = 0; p < stride; p++) {
            if (!nearest) {
                // In input-pixel order, the reverse of the kernel's.
                for (int j = last_position(p); j >= 0; j -= every()) {
                    result.push_back({j, j + 1});
                }
                continue;
            }
            // A dilation above the stride skips pixels; their taps are empty sums.
            int j = 0;
            for (int pixel = read_at(p, 0); pixel <= read_at(p, kernel - 1); pixel++) {
                const int begin = j;
                while (j < kernel && read_at(p, j) == pixel) {
                    j++;
                }
                result.push_back({begin, j});
            }
        }
        return result;
    }

private:
    int reach() const {
        return dilation * (kernel - 1);
    }
    int floor_divide(int a) const {
        return a >= 0 ? a / stride : -((stride - 1 - a) / stride);
    }
    int ceil_divide(int a) const {
        return -floor_divide(-a);
    }
    /** The input pixel that kernel position j reads for output pixel p, if any. */
    int read_at(int p, int j) const {
        return nearest ? floor_divide(p - pad_before + j * dilation) : floor_divide(p + pad_before - j * dilation);
    }
    /** In a transposed convolution, the distance between the kernel positions of a phase. */
    int every() const {
        return stride / std::gcd(stride, dilation);
    }
    /** The last kernel position of a phase; negative if it has none. */
    int last_position(int p) const {
        for (int j = kernel - 1; j >= 0 && j >= kernel - every(); j--) {
            if ((p + pad_before - j * dilation) % stride == 0) {
                return j;
            }
        }
        return -1;
    }
};

/** The axes of an operator with phases. */
struct Polyphase {
    PolyphaseAxis rows, columns;

    bool operator==(const Polyphase &other) const {
        return rows == other.rows && columns == other.columns;
    }
};

/** The axes of a transposed convolution, or of a convolution after nearest upsampling. */
inline Polyphase polyphase_of(const distile_conv2d &conv, bool nearest) {
    return {{conv.kernel_h, conv.stride_h, conv.pad_top, conv.pad_bottom, conv.dilation_h, nearest},
            {conv.kernel_w, conv.stride_w, conv.pad_left, conv.pad_right, conv.dilation_w, nearest}};
}

/** Nothing for a kind without phases. */
inline std::optional<Polyphase> polyphase_of(distile_operator_kind kind, const distile_conv2d &conv) {
    const bool nearest = kind == DISTILE_MASKED_UPSAMPLE_CONV2D;
    return nearest || kind == DISTILE_MASKED_CONV_TRANSPOSE2D ? std::optional(polyphase_of(conv, nearest))
                                                              : std::nullopt;
}

}  // namespace distile

#endif
