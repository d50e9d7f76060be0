/** \file
 * What a kind of device asks of stages, and how it keeps their weights.
 */
#ifndef DISTILE_STAGE_STAGE_TARGET_H
#define DISTILE_STAGE_STAGE_TARGET_H

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <distile/distile.h>

namespace distile {

struct FilterSource;

/** The shape of a convolution's weights. */
struct StageFilter {
    int32_t out_channels, in_channels, kernel_h, kernel_w, groups;

    int64_t taps() const {
        return int64_t{kernel_h} * kernel_w;
    }
    bool is_depthwise() const {
        return groups > 1 && groups == in_channels && groups == out_channels;
    }
};

struct StageTarget {
    const char *types, *weight_types;  ///< In words, for messages.
    bool (*takes)(distile_dtype tensors);
    bool (*packs)(distile_dtype weights);
    /** Whether products of tensors of a type are of TF32, which the context must allow. */
    bool (*multiplies_tf32)(distile_dtype tensors);
    bool mixes_types;         ///< Weights may have another type than tensors.
    size_t vector_bytes;      ///< The alignment of tensors, of their pixels and of factors of scores.
    int64_t most_span_bytes;  ///< The most bytes from a tensor's first element to its last.
    size_t weight_alignment;
    bool reads_outside;            ///< Windows may read outside a tensor's border.
    bool takes_groups;             ///< Convolutions may have several groups; without, they may be depthwise.
    int32_t most_normalized;       ///< The most channels of a norm.
    int32_t head_channels;         ///< Heads of attention have multiples of these.
    int64_t most_head_bytes;       ///< The most bytes of the channels of a head.
    int64_t most_attention_words;  ///< The most words of 32 pixels that a mask of attention may have.
    /** Numbers of an output for each worker up to which computing all takes no longer than waiting for a mask. */
    int64_t spread_numbers;
    int64_t most_words;  ///< The most words of 32 pixels that a mask may have.
    /** The bytes of packed weights of a possible filter. */
    int64_t (*weight_bytes)(const StageFilter &filter, distile_dtype dtype);
    void (*pack)(const StageFilter &filter, distile_dtype dtype, const float *weights, void *packed);
    // Alignment, bytes and packing of quantized weights, and of what requantizes their sums.
    size_t quantized_alignment;
    int64_t (*quantized_bytes)(const StageFilter &filter);
    void (*pack_quantized)(const StageFilter &filter, const FilterSource &source, void *packed);

    /** Tensors of a type have multiples of these channels. */
    int32_t channels_at_once(distile_dtype dtype) const {
        return static_cast<int32_t>(std::max<size_t>(vector_bytes / distile_dtype_size(dtype), 1));
    }
    int32_t most_head_channels(distile_dtype dtype) const {
        return static_cast<int32_t>(most_head_bytes / static_cast<int64_t>(distile_dtype_size(dtype)));
    }
    bool is_possible(const StageFilter &filter, distile_dtype dtype) const {
        return filter.out_channels > 0 && filter.in_channels > 0 && filter.kernel_h > 0 && filter.kernel_w > 0 &&
               filter.in_channels % channels_at_once(dtype) == 0 &&
               filter.out_channels % channels_at_once(dtype) == 0 && has_groups(filter);
    }
    bool has_groups(const StageFilter &filter) const {
        return filter.groups == 1 || filter.is_depthwise() ||
               (takes_groups && filter.groups > 1 && filter.in_channels % filter.groups == 0 &&
                filter.out_channels % filter.groups == 0);
    }
    const char *group_text() const {
        return takes_groups ? "groups that divide both" : "one group, or one for each channel";
    }
};

/** NVIDIA GPUs of compute capability 8.0 and later. */
extern const StageTarget gpu_stage_target;

/** Where the weights of a team (team_layout.h) begin in packed weights of such a GPU; 0: nowhere. In bytes. */
int64_t team_weights_offset(const StageFilter &filter, distile_dtype dtype);
/** Where in packed quantized weights of such a GPU a distile_requantization begins. Offsets, multipliers and biases of
 * all output channels are behind it. In bytes. */
int64_t requantization_offset(const StageFilter &filter);

}  // namespace distile

#endif
