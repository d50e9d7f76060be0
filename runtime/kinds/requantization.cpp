#include "runtime/kinds/requantization.h"
#include "kernels/dot_products.h"
#include <cstring>
#include <distile/quantize.h>

namespace distile {

namespace {

constexpr size_t header_words = sizeof(distile_requantization) / sizeof(float),
                 zero_point_words = DISTILE_ZERO_POINT_BYTES / sizeof(float);

/** The real number that is 1 in results before their factor. */
float unit_of(const FilterSource &source) {
    return source.quantized->in_output_units ? source.source.quantization->output.scale : 1;
}

distile_requantization header_of(const FilterSource &source) {
    const distile_quantization &from = *source.source.quantization;
    const bool to_float = source.quantized->output == DISTILE_FLOAT32;
    distile_requantization header{};
    header.input_zero_point = from.input.zero_point;
    header.residual_zero_point = from.residual.zero_point;
    header.output_zero_point = from.output.zero_point;
    header.residual_factor = from.residual.scale / unit_of(source);
    header.output_factor = to_float || source.quantized->in_output_units ? 1 : 1 / from.output.scale;
    return header;
}

std::vector<float> words_of(const FilterSource &source, const WeightSums &weights, size_t padded_channels,
                            const std::function<int32_t(int32_t)> &place) {
    const distile_quantization &from = *source.source.quantization;
    const distile_requantization header = header_of(source);
    const size_t numbers = header_words + (weights.phases + size_t{1}) * padded_channels;
    std::vector<float> words(numbers + (weights.of_dot_products ? 0 : zero_point_words));
    std::memcpy(words.data(), &header, sizeof(header));
    std::memset(words.data() + numbers, static_cast<uint8_t>(from.input.zero_point),
                (words.size() - numbers) * sizeof(float));
    const bool adds_128 = weights.of_dot_products && source.quantized->input == DISTILE_INT8;
    const int64_t zero_point = from.input.zero_point + (adds_128 ? 128 : 0);
    float *const offsets = words.data() + header_words, *const multipliers = offsets + weights.phases * padded_channels;
    const size_t channels = weights.sums.size() / weights.phases;
    for (size_t o = 0; o < channels; o++) {
        const size_t to = place ? place(static_cast<int32_t>(o)) : o;
        for (int32_t phase = 0; phase < weights.phases; phase++) {
            const auto offset = static_cast<uint32_t>((from.bias ? from.bias[o] : 0) -
                                                      zero_point * weights.sums[o * weights.phases + phase]);
            std::memcpy(&offsets[phase * padded_channels + to], &offset, sizeof(offset));
        }
        multipliers[to] = from.input.scale * from.filter_scales[o] / unit_of(source);
    }
    return words;
}

}  // namespace

void add_requantization(const FilterSource &source, const WeightSums &weights, std::vector<PackedArray> &packed,
                        const std::function<int32_t(int32_t)> &place) {
    if (!source.quantized) {
        return;
    }
    PackedArray &bias = packed.back();
    const int32_t blocks = bias.extents.front() / requantized_block;
    const int32_t padding = weights.of_dot_products ? 0 : static_cast<int32_t>(zero_point_words) / requantized_block;
    PackedArray requantization{
        DISTILE_ROLE_REQUANTIZATION, {requantized_block, 1 + (weights.phases + 1) * blocks + padding}, {}};
    if (source.filter) {
        const std::vector<float> words = words_of(source, weights, bias.values.size(), place);
        requantization.values.assign(words.begin(), words.end());
        for (float &value : bias.values) {
            value /= unit_of(source);
        }
    }
    packed.push_back(std::move(requantization));
}

}  // namespace distile
