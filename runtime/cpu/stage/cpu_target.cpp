#include "runtime/cpu/stage/cpu_target.h"
#include "runtime/base/types.h"
#include "runtime/cpu/products/listed_convolution.h"
#include "runtime/cpu/products/quantized_products.h"
#include <algorithm>
#include <cmath>
#include <limits>

namespace distile {

namespace {

constexpr float largest_int8 = 127;

bool takes(distile_dtype tensors) {
    return tensors == DISTILE_FLOAT32 || is_quantized(tensors);
}

bool packs(distile_dtype weights) {
    return weights == DISTILE_FLOAT32 || weights == DISTILE_BFLOAT16 || weights == DISTILE_INT8;
}

int64_t part_bytes(const StageFilter &filter, distile_dtype dtype) {
    const int64_t channels = num_panels(filter.out_channels) * panel_channels;
    const int64_t numbers = channels * filter.in_channels * filter.taps() * find_type(dtype)->bytes;
    return numbers + (dtype == DISTILE_INT8 ? channels * static_cast<int64_t>(sizeof(float)) : 0);
}

/** The factors of output channels in int8, behind the numbers. */
float *factors_of(const StageFilter &filter, void *packed) {
    const int64_t numbers = num_panels(filter.out_channels) * panel_channels * filter.in_channels * filter.taps();
    return reinterpret_cast<float *>(static_cast<int8_t *>(packed) + numbers);
}

void pack_part(const StageFilter &filter, distile_dtype dtype, const float *weights, void *packed) {
    const Type &type = *find_type(dtype);
    const int64_t taps = filter.taps(), of_channel = taps * filter.in_channels;
    float factors[panel_channels], numbers[panel_channels];
    std::fill_n(factors, panel_channels, 1.0f);
    auto *to = static_cast<char *>(packed);
    for (int64_t first = 0; first < filter.out_channels; first += panel_channels) {
        const int64_t channels = std::min(panel_channels, filter.out_channels - first);
        if (dtype == DISTILE_INT8) {
            for (int64_t channel = 0; channel < panel_channels; channel++) {
                float largest = 0;
                for (int64_t i = 0; channel < channels && i < of_channel; i++) {
                    largest = std::max(largest, std::fabs(weights[(first + channel) * of_channel + i]));
                }
                factors[channel] = largest > 0 ? largest / largest_int8 : 1;
            }
            std::copy_n(factors, panel_channels, factors_of(filter, packed) + first);
        }
        for (int64_t tap = 0; tap < taps; tap++) {
            for (int64_t in = 0; in < filter.in_channels; in++) {
                std::fill_n(numbers, panel_channels, 0.0f);
                for (int64_t channel = 0; channel < channels; channel++) {
                    const float weight = weights[((first + channel) * filter.in_channels + in) * taps + tap];
                    numbers[channel] = weight / factors[channel];
                }
                type.from_float(numbers, to, panel_channels);
                to += panel_channels * type.bytes;
            }
        }
    }
}

int64_t weight_bytes(const StageFilter &filter, distile_dtype dtype) {
    const StageParts parts = stage_parts(filter, dtype);
    return parts.count * parts.bytes;
}

void pack(const StageFilter &filter, distile_dtype dtype, const float *weights, void *packed) {
    const StageParts parts = stage_parts(filter, dtype);
    const int64_t numbers = parts.filter.out_channels * parts.filter.taps() * parts.filter.in_channels;
    for (int64_t part = 0; part < parts.count; part++) {
        pack_part(parts.filter, dtype, weights + part * numbers, static_cast<char *>(packed) + part * parts.bytes);
    }
}

}  // namespace

StageParts stage_parts(const StageFilter &filter, distile_dtype dtype) {
    StageFilter part = filter;
    part.groups = 1;
    part.in_channels /= filter.groups;
    const int32_t count = filter.is_depthwise() ? 1 : filter.groups;
    part.out_channels /= count;
    return {part, count, part_bytes(part, dtype)};
}

const float *stage_factors(const StageFilter &filter, distile_dtype dtype, const void *packed) {
    return dtype == DISTILE_INT8 ? factors_of(filter, const_cast<void *>(packed)) : nullptr;
}

const StageTarget cpu_stage_target{"float32, uint8 and int8",
                                   "float32, bfloat16 or int8",
                                   takes,
                                   packs,
                                   [](distile_dtype) { return false; },
                                   true,
                                   1,
                                   std::numeric_limits<int64_t>::max(),
                                   sizeof(float),
                                   true,
                                   true,
                                   std::numeric_limits<int32_t>::max(),
                                   1,
                                   std::numeric_limits<int32_t>::max() * static_cast<int64_t>(sizeof(float)),
                                   std::numeric_limits<int64_t>::max(),
                                   0,
                                   std::numeric_limits<int64_t>::max(),
                                   weight_bytes,
                                   pack,
                                   quantized_alignment,
                                   quantized_bytes,
                                   pack_quantized};

}  // namespace distile
