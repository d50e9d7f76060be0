/** \file
 * Convolutions whose output is larger than their input, cut into phases along each axis.
 *
 * With a stride (or scale) s, the output pixels s * i + p of one phase p, 0 <= p < s, form an image of the input's
 * resolution, and are a convolution of the input with stride 1. The taps of all phases stand one phase after the other
 * in the layout of the weights: the canonical one with num_taps() rows or columns.
 */
#ifndef DISTILE_POLYPHASE_H
#define DISTILE_POLYPHASE_H

#include "filter.h"
#include <algorithm>
#include <cstdint>
#include <numeric>
#include <optional>
#include <vector>

namespace distile {

/** Output pixel s * i + p of a phase p reads the input pixels i + first + t * step, 0 <= t < taps. */
struct Phase {
    int first = 0, step = 1, taps = 0;
    int begin = 0; /**< Of its taps among those of all phases. */
};

/** One axis of an operator. */
struct PolyphaseAxis {
    int kernel, stride, pad_before, pad_after, dilation;
    /** False: a transposed convolution, where position j of the kernel adds input pixel i to the output pixel
     * i * stride - pad_before + j * dilation. True: a convolution with stride 1 over the input after nearest
     * upsampling, where it adds input pixel floor((o - pad_before + j * dilation) / stride) to output pixel o. */
    bool nearest;

    /** True if the taps are the same, in the same order. */
    bool operator==(const PolyphaseAxis &other) const {
        return kernel == other.kernel && stride == other.stride && pad_before == other.pad_before &&
               dilation == other.dilation && nearest == other.nearest;
    }
    /** Output pixels for some input pixels; at most 0 if there are none. */
    int64_t output_extent(int64_t input) const {
        return nearest ? input * stride + pad_before + pad_after - reach()
                       : (input - 1) * stride + reach() + 1 - pad_before - pad_after;
    }
    /** The first and the last input pixel that any phase reads for the output pixels s * i + p, relative to i. */
    int first_read() const {
        return nearest ? floor_divide(-pad_before) : ceil_divide(pad_before - reach());
    }
    int last_read() const {
        return nearest ? floor_divide(stride - 1 - pad_before + reach()) : ceil_divide(pad_before);
    }
    /** The zero border before and after the input with which all reads are in place. */
    int border_before() const {
        return std::max(-first_read(), 0);
    }
    int border_after() const {
        // The last output pixel, from the first one that input pixel `input - 1` stands for.
        const auto last = static_cast<int>(output_extent(1) - 1);
        return std::max(floor_divide(last) + last_read(), 0);
    }
    /** The taps of all phases. */
    int num_taps() const {
        return nearest ? reach() + stride : kernel;
    }
    /** The most taps that a phase has. */
    int most_taps() const {
        // One of every stride / gcd taps is of the same phase.
        const int64_t taps = (kernel - int64_t{1}) * std::gcd(stride, dilation) / stride + 1;
        return nearest ? ceil_divide(reach()) + 1 : static_cast<int>(taps);
    }
    /** Input pixels from one tap of a phase to the next. */
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
    /** What the taps of all phases are made of. */
    std::vector<MergedTap> taps() const {
        std::vector<MergedTap> result;
        for (int p = 0; p < stride; p++) {
            if (!nearest) {
                // In the order of the input pixels, which is the reverse of the kernel's.
                for (int j = last_position(p); j >= 0; j -= every()) {
                    result.push_back({j, j + 1});
                }
                continue;
            }
            // A dilation that exceeds the stride leaves pixels between, whose taps are sums of nothing.
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
    /** The input pixel that a position of the kernel reads for the output pixel p, if it reads any. */
    int read_at(int p, int j) const {
        return nearest ? floor_divide(p - pad_before + j * dilation) : floor_divide(p + pad_before - j * dilation);
    }
    /** In a transposed convolution, the distance between the positions of the kernel that a phase has. */
    int every() const {
        return stride / std::gcd(stride, dilation);
    }
    /** The last position of the kernel that a phase has; negative if it has none. */
    int last_position(int p) const {
        for (int j = kernel - 1; j >= 0 && j >= kernel - every(); j--) {
            if ((p + pad_before - j * dilation) % stride == 0) {
                return j;
            }
        }
        return -1;
    }
};

/** The axes of an operator that has phases. */
struct Polyphase {
    PolyphaseAxis rows, columns;

    bool operator==(const Polyphase &other) const {
        return rows == other.rows && columns == other.columns;
    }
};

/** Those of a transposed convolution, or of one after nearest upsampling. */
inline Polyphase polyphase_of(const distile_conv2d &conv, bool nearest) {
    return {{conv.kernel_h, conv.stride_h, conv.pad_top, conv.pad_bottom, conv.dilation_h, nearest},
            {conv.kernel_w, conv.stride_w, conv.pad_left, conv.pad_right, conv.dilation_w, nearest}};
}

/** None for a kind that has no phases. */
inline std::optional<Polyphase> polyphase_of(distile_operator_kind kind, const distile_conv2d &conv) {
    const bool nearest = kind == DISTILE_MASKED_UPSAMPLE_CONV2D;
    return nearest || kind == DISTILE_MASKED_CONV_TRANSPOSE2D ? std::optional(polyphase_of(conv, nearest))
                                                              : std::nullopt;
}

}  // namespace distile

#endif
