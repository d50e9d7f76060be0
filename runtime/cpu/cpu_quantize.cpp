#include "runtime/base/types.h"
#include "runtime/cpu/cpu_mask.h"
#include "runtime/cpu/float_rows.h"
#include "runtime/mask/mask_checks.h"
#include "runtime/tensor/tensor.h"
#include <algorithm>
#include <cmath>
#include <distile/quantize.h>
#include <limits>

using namespace distile;

namespace {

distile_status check_cpu(distile_context *context, const char *call) {
    return context->device->kind() == DISTILE_CPU
               ? DISTILE_OK
               : fail(context, DISTILE_ERROR_OTHER_DEVICE, "%s: the context is for %s; quantized tensors are for CPUs",
                      call, device_name(context->device->kind()));
}

/** Checks that a tensor is quantized. */
distile_status check_quantized(distile_context *context, const char *call, const distile_tensor *tensor,
                               const char *name) {
    if (!tensor) {
        return fail_null(context, call, name);
    }
    if (!is_quantized(raw(tensor->dtype))) {
        return fail(context, DISTILE_ERROR_BAD_TYPE, "%s: the %s has data type %s; the types are uint8 and int8", call,
                    name, TypeText(raw(tensor->dtype)).text);
    }
    return tensor->channels < 1
               ? fail(context, DISTILE_ERROR_BAD_CHANNELS, "%s: the %s has %d channels", call, name, tensor->channels)
               : check_tensor(context, tensor->dtype, call, tensor, name, tensor->channels, false);
}

/** Checks the arguments of a conversion; `quantizes` tells its direction. */
distile_status check_conversion(distile_context *context, const char *call, const distile_tensor *input,
                                const distile_mask *mask, const distile_scale &scale, const distile_tensor *output,
                                bool quantizes) {
    if (!input || !output) {
        return fail_null(context, call, input ? "output" : "input");
    }
    require(check_cpu(context, call));
    require(quantizes ? check_any_tensor(context, call, input, "input")
                      : check_quantized(context, call, input, "input"));
    require(quantizes ? check_quantized(context, call, output, "output")
                      : check_any_tensor(context, call, output, "output"));
    require(check_quantized_scale(context, call, scale, quantizes ? "output" : "input",
                                  quantizes ? output->dtype : input->dtype));
    if (output->channels != input->channels) {
        return fail(context, DISTILE_ERROR_BAD_CHANNELS, "%s: the output has %d channels; it must have %d", call,
                    output->channels, input->channels);
    }
    require(check_same_extents(context, call, *input, *output));
    if (overlap(without_border(*input), without_border(*output))) {
        return fail(context, DISTILE_ERROR_ALIASING, "%s: the input overlaps the output", call);
    }
    return mask ? check_output_mask(context, call, mask, *output) : DISTILE_OK;
}

/** Calls visit(pixel) for the pixels of a row that are active. */
template<typename Visit> void for_each_pixel(const Bitmask *bits, int32_t width, int64_t row, const Visit &visit) {
    const auto run = [&](int32_t begin, int32_t end) {
        for (int32_t x = begin; x < end; x++) {
            visit(x);
        }
    };
    if (bits) {
        for_each_run(bits->words + row * bits->words_per_row(), width, true, run);
    } else {
        run(0, width);
    }
}

template<typename Stored> void quantize(const float *from, void *to, int64_t count, const distile_scale &scale) {
    using Limits = std::numeric_limits<Stored>;
    // Near this number, float32 has integers only.
    constexpr float to_integer = 0x1.8p23f;
    const auto least = static_cast<float>(Limits::min() - scale.zero_point),
               most = static_cast<float>(Limits::max() - scale.zero_point);
    for (int64_t i = 0; i < count; i++) {
        const float scaled = from[i] / scale.scale, number = std::isnan(scaled) ? 0 : scaled;
        const float rounded = (std::clamp(number, least, most) + to_integer) - to_integer;
        static_cast<Stored *>(to)[i] = static_cast<Stored>(static_cast<int32_t>(rounded) + scale.zero_point);
    }
}

template<typename Stored> void dequantize(const void *from, float *to, int64_t count, const distile_scale &scale) {
    for (int64_t i = 0; i < count; i++) {
        to[i] = static_cast<float>(static_cast<const Stored *>(from)[i] - scale.zero_point) * scale.scale;
    }
}

/** Converts the active pixels of a row after the other: convert(from, to, x, memory for a pixel's floats). */
template<typename Convert> void convert_pixels(distile_context &context, const distile_tensor &input,
                                               distile_mask *mask, const distile_tensor &output,
                                               const Convert &convert) {
    auto &device = static_cast<CpuDevice &>(*context.device);
    const Bitmask *bits = mask ? &cpu_mask(*mask).bitmask() : nullptr;
    const int64_t rows = int64_t{output.batch} * output.height;
    const int64_t bytes = rows * output.width * output.channels * 5;
    const FloatRows memory(device, output.channels, rows, 1);
    for_each_row(context, output, bytes, [&](int64_t row) {
        const PixelRow from(input, row), to(output, row);
        for_each_pixel(bits, output.width, row, [&](int32_t x) { convert(from, to, x, memory.row(row, 0)); });
    });
}

/** Collects values: the least and the largest, or all. */
struct Collected {
    explicit Collected(const distile_context &context) : values(HostAllocator<float>(context.memory)) {
    }
    float least = std::numeric_limits<float>::infinity(), most = -std::numeric_limits<float>::infinity();
    bool finite = true;
    HostVector<float> values;

    void add(const float *added, int64_t count, bool keeps) {
        for (int64_t i = 0; i < count; i++) {
            finite = finite && std::isfinite(added[i]);
            least = std::min(least, added[i]);
            most = std::max(most, added[i]);
        }
        if (keeps) {
            values.insert(values.end(), added, added + count);
        }
    }
    /** Leaves a share of the values out at each end. */
    void cut(double share) {
        const auto left_out = static_cast<std::ptrdiff_t>(static_cast<double>(values.size()) * share);
        if (left_out > 0) {
            std::nth_element(values.begin(), values.begin() + left_out, values.end());
            least = values[left_out];
            std::nth_element(values.begin(), values.end() - 1 - left_out, values.end());
            most = *(values.end() - 1 - left_out);
        }
    }
};

distile_scale scale_of(const Collected &collected, distile_dtype dtype, bool symmetric) {
    const double least = std::min<double>(collected.least, 0), most = std::max<double>(collected.most, 0);
    const int32_t first = facts_of_type(dtype).least;
    const double range = symmetric ? 2 * std::max(-least, most) : most - least;
    const int32_t middle = first + 128;
    if (!(range > 0)) {
        return {1, symmetric ? middle : first == 0 ? 0 : middle};
    }
    const float scale =
        std::max(static_cast<float>(range / (symmetric ? 254 : 255)), std::numeric_limits<float>::min());
    const auto zero_point = static_cast<float>(std::clamp<double>(first - least / scale, first, first + 255));
    return {scale, symmetric ? middle : static_cast<int32_t>(round_to_integer(zero_point))};
}

distile_status check_calibration(distile_context *context, const char *call, const distile_tensor *tensors,
                                 distile_mask *const *masks, int32_t count, distile_dtype dtype,
                                 const distile_calibration *calibration, const distile_scale *scale) {
    require(check_cpu(context, call));
    require(check_pointers(context, call,
                           {{tensors, "tensors"}, {calibration, "calibration"}, {scale, "pointer to the scale"}}));
    if (count < 1) {
        return fail(context, DISTILE_ERROR_BAD_VALUE, "%s: there are %d tensors", call, count);
    }
    if (!is_quantized(raw(dtype))) {
        return fail(context, DISTILE_ERROR_BAD_TYPE, "%s: the data type is %s; the types are uint8 and int8", call,
                    TypeText(raw(dtype)).text);
    }
    if (!(calibration->percentile > 50 && calibration->percentile <= 100) || calibration->symmetric < 0 ||
        calibration->symmetric > 1 || !is_reserved_zero(calibration->reserved)) {
        return fail(context, DISTILE_ERROR_BAD_VALUE,
                    "%s: the percentile is %g, symmetric is %d; they must be above 50 and up to 100, and 0 or 1, and "
                    "reserved fields 0",
                    call, calibration->percentile, calibration->symmetric);
    }
    for (int32_t i = 0; i < count; i++) {
        require(check_any_tensor(context, call, &tensors[i], "tensor"));
        if (masks && masks[i]) {
            require(check_output_mask(context, call, masks[i], tensors[i]));
        }
    }
    return DISTILE_OK;
}

}  // namespace

extern "C" {

distile_status distile_calibrate(distile_context *context, const distile_tensor *tensors, distile_mask *const *masks,
                                 int32_t count, distile_dtype dtype, const distile_calibration *calibration,
                                 distile_scale *scale) {
    constexpr const char *call = "distile_calibrate";
    if (!context) {
        return fail_null(call, "context");
    }
    return guarded(context, call, [&] {
        require(check_calibration(context, call, tensors, masks, count, dtype, calibration, scale));
        const SimdLevel &level = supported_simd_levels().best();
        const bool keeps = calibration->percentile < 100;
        Collected collected(*context);
        for (int32_t i = 0; i < count; i++) {
            const distile_tensor &tensor = tensors[i];
            const FloatRows memory(static_cast<CpuDevice &>(*context->device), tensor.channels, 1, 1);
            const Bitmask *bits = masks && masks[i] ? &cpu_mask(*masks[i]).bitmask() : nullptr;
            for (int64_t row = 0; row < int64_t{tensor.batch} * tensor.height; row++) {
                const PixelRow from(tensor, row);
                for_each_pixel(bits, tensor.width, row, [&](int32_t x) {
                    collected.add(floats_at(level, from, x, memory.row(0, 0)), tensor.channels, keeps);
                });
            }
        }
        if (!collected.finite) {
            return fail(context, DISTILE_ERROR_BAD_VALUE, "%s: a value is not finite", call);
        }
        collected.cut((100 - calibration->percentile) / 200);
        *scale = scale_of(collected, dtype, calibration->symmetric != 0);
        return DISTILE_OK;
    });
}

distile_status distile_quantize(distile_context *context, const distile_tensor *input, distile_mask *mask,
                                distile_scale scale, const distile_tensor *output) {
    constexpr const char *call = "distile_quantize";
    if (!context) {
        return fail_null(call, "context");
    }
    return guarded(context, call, [&] {
        require(check_conversion(context, call, input, mask, scale, output, true));
        const SimdLevel &level = supported_simd_levels().best();
        convert_pixels(*context, *input, mask, *output,
                       [&](const PixelRow &from, const PixelRow &to, int32_t x, float *memory) {
                           const float *floats = floats_at(level, from, x, memory);
                           to.dtype == DISTILE_INT8 ? quantize<int8_t>(floats, to.at(x), to.channels, scale)
                                                    : quantize<uint8_t>(floats, to.at(x), to.channels, scale);
                       });
        return DISTILE_OK;
    });
}

distile_status distile_dequantize(distile_context *context, const distile_tensor *input, distile_mask *mask,
                                  distile_scale scale, const distile_tensor *output) {
    constexpr const char *call = "distile_dequantize";
    if (!context) {
        return fail_null(call, "context");
    }
    return guarded(context, call, [&] {
        require(check_conversion(context, call, input, mask, scale, output, false));
        const SimdLevel &level = supported_simd_levels().best();
        convert_pixels(*context, *input, mask, *output,
                       [&](const PixelRow &from, const PixelRow &to, int32_t x, float *memory) {
                           float *floats = result_at(to, x, memory);
                           from.dtype == DISTILE_INT8 ? dequantize<int8_t>(from.at(x), floats, to.channels, scale)
                                                      : dequantize<uint8_t>(from.at(x), floats, to.channels, scale);
                           store_floats(level, floats, to, x);
                       });
        return DISTILE_OK;
    });
}

}  // extern "C"
