/** \file
 * The functions of layers.h as plain loops in double precision.
 */
#ifndef DISTILE_REFERENCE_PLAIN_LAYERS_H
#define DISTILE_REFERENCE_PLAIN_LAYERS_H

#include "reference/plain_tokens.h"
#include <distile/layers.h>

namespace distile {

/** Appends what every pixel must become: compute(n, y, x) returns the channels of the active ones. */
template<typename Compute> ReferenceOutput plain_pixels(const distile_tensor &output, const std::vector<uint8_t> &mask,
                                                        distile_inactive inactive, const Compute &compute) {
    ReferenceOutput expected;
    const std::vector<double> zeros(output.channels, 0);
    for_each_pixel(output, [&](size_t pixel, int32_t n, int32_t y, int32_t x) {
        const bool active = mask[pixel] != 0;
        append(expected, active ? PixelState::Computed : inactive_state(inactive), active ? compute(n, y, x) : zeros,
               output.dtype);
    });
    return expected;
}

/** The sum, or the maximum, of several pixels. */
struct PlainPool {
    PlainPool(int32_t channels, distile_pooling pooling)
        : largest(pooling == DISTILE_MAX_POOLING), values(channels, 0) {
    }
    void take(const std::vector<float> &pixel) {
        for (size_t c = 0; c < values.size(); c++) {
            const double value = pixel[c];
            const bool replaces = count == 0 || value > values[c] || std::isnan(value);
            values[c] = largest ? (replaces ? value : values[c]) : values[c] + value;
        }
        count++;
    }
    std::vector<double> result(int64_t pixels) const {
        std::vector<double> divided = values;
        for (double &value : divided) {
            value = largest || pixels == 0 ? value : value / static_cast<double>(pixels);
        }
        return divided;
    }

    bool largest;
    std::vector<double> values;
    int64_t count = 0;
};

inline ReferenceOutput plain_pool(const distile_tensor &input, const distile_tensor &output,
                                  const std::vector<uint8_t> &mask, const distile_pool_args &args) {
    const distile_window &window = args.window;
    return plain_pixels(output, mask, args.inactive, [&](int32_t n, int32_t y, int32_t x) {
        PlainPool pool(output.channels, args.pooling);
        for (int32_t i = 0; i < window.kernel_h; i++) {
            for (int32_t j = 0; j < window.kernel_w; j++) {
                const int32_t row = y * window.stride_h - window.pad_top + i * window.dilation_h;
                const int32_t column = x * window.stride_w - window.pad_left + j * window.dilation_w;
                if (row >= 0 && row < input.height && column >= 0 && column < input.width) {
                    pool.take(channels_at(input, n, row, column));
                }
            }
        }
        return pool.result(args.count_padding != 0 ? int64_t{window.kernel_h} * window.kernel_w : pool.count);
    });
}

inline ReferenceOutput plain_global_pool(const distile_tensor &input, const std::vector<uint8_t> &mask,
                                         distile_pooling pooling) {
    std::vector<PlainPool> pools(input.batch, PlainPool(input.channels, pooling));
    for_each_pixel(input, [&](size_t pixel, int32_t n, int32_t y, int32_t x) {
        if (mask[pixel] != 0) {
            pools[n].take(channels_at(input, n, y, x));
        }
    });
    ReferenceOutput expected;
    for (const PlainPool &pool : pools) {
        append(expected, PixelState::Computed, pool.result(pool.count), input.dtype);
    }
    return expected;
}

inline ReferenceOutput plain_combine(const distile_tensor &input, const distile_tensor *other,
                                     const std::vector<uint8_t> &mask, const distile_combine_args &args) {
    return plain_pixels(input, mask, args.inactive, [&](int32_t n, int32_t y, int32_t x) {
        const std::vector<float> first = channels_at(input, n, y, x);
        std::vector<double> values(first.begin(), first.end());
        if (other) {
            const bool all = other->height == input.height && other->width == input.width;
            const std::vector<float> second = channels_at(*other, n, all ? y : 0, all ? x : 0);
            for (size_t c = 0; c < values.size(); c++) {
                const double operand = apply_epilogue(args.other_activation, second[c]);
                values[c] = args.combination == DISTILE_ADD ? values[c] + operand : values[c] * operand;
            }
        }
        for (double &value : values) {
            value = apply_epilogue(args.activation, value);
        }
        return values;
    });
}

/** The mean and the variance of each group of channels of each image. */
struct PlainStatistics {
    PlainStatistics(const distile_tensor &input, const std::vector<uint8_t> &mask, int32_t of_groups)
        : groups(of_groups), mean(static_cast<size_t>(input.batch) * groups, 0), variance(mean) {
        for (int pass = 0; pass < 2; pass++) {
            std::vector<double> sums(mean.size(), 0), counts(mean.size(), 0);
            for_each_pixel(input, [&](size_t pixel, int32_t n, int32_t y, int32_t x) {
                const std::vector<float> values = mask[pixel] != 0 ? channels_at(input, n, y, x) : std::vector<float>();
                for (size_t c = 0; c < values.size(); c++) {
                    const size_t at = n * static_cast<size_t>(groups) + c * groups / values.size();
                    sums[at] += pass == 0 ? values[c] : std::pow(values[c] - mean[at], 2);
                    counts[at]++;
                }
            });
            for (size_t i = 0; i < sums.size(); i++) {
                (pass == 0 ? mean : variance)[i] = counts[i] == 0 ? 0 : sums[i] / counts[i];
            }
        }
    }

    int32_t groups;
    std::vector<double> mean, variance; /**< [image][group] */
};

/** Group norm with statistics of each image; empty gamma or beta are 1 or 0. */
inline ReferenceOutput plain_group_norm(const distile_tensor &input, const std::vector<uint8_t> &mask,
                                        const PlainStatistics &statistics, const std::vector<float> &gamma,
                                        const std::vector<float> &beta, const distile_group_norm_args &args) {
    return plain_pixels(input, mask, args.inactive, [&](int32_t n, int32_t y, int32_t x) {
        const std::vector<float> values = channels_at(input, n, y, x);
        std::vector<double> normalized;
        for (size_t c = 0; c < values.size(); c++) {
            const size_t at = n * static_cast<size_t>(statistics.groups) + c * statistics.groups / values.size();
            const double factor = (gamma.empty() ? 1 : gamma[c]) / std::sqrt(statistics.variance[at] + args.epsilon);
            const double value = (values[c] - statistics.mean[at]) * factor + (beta.empty() ? 0 : beta[c]);
            normalized.push_back(apply_epilogue(args.activation, value));
        }
        return normalized;
    });
}

}  // namespace distile

#endif
