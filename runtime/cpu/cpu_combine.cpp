#include "runtime/cpu/cpu_mask.h"
#include "runtime/cpu/float_rows.h"
#include "runtime/cpu/mask_parts.h"

namespace distile {

namespace {

/** Combines pixels of a task. */
class Combiner {
public:
    Combiner(const TensorCombination &what, const FloatRows &rows, int64_t task)
        : what_(what), level_(supported_simd_levels().best()), input_(rows.row(task, 0)), other_(rows.row(task, 1)),
          result_(rows.row(task, 2)) {
    }

    void row(int64_t number, int32_t begin, int32_t end) {
        const PixelRow from(what_.input, number), to(what_.output, number);
        if (what_.how == DISTILE_COPY && what_.activation.function == DISTILE_ACTIVATION_NONE) {
            for (int32_t x = begin; x < end && from.first != to.first; x++) {
                std::memcpy(to.at(x), from.at(x), static_cast<size_t>(to.bytes));
            }
            return;
        }
        const PixelRow other(what_.other, number);
        for (int32_t x = begin; x < end; x++) {
            float *const result = result_at(to, x, result_);
            combine(floats_at(level_, from, x, input_), other, x, result);
            level_.channels.activate(what_.activation, to.channels, result);
            store_floats(level_, result, to, x);
        }
    }

private:
    void combine(const float *input, const PixelRow &other, int32_t x, float *result) {
        if (what_.how == DISTILE_COPY) {
            if (input != result) {
                std::memcpy(result, input, static_cast<size_t>(other.channels) * sizeof(float));
            }
            return;
        }
        const float *operand = operand_at(other, x);
        (what_.how == DISTILE_ADD ? level_.channels.add : level_.channels.multiply)(input, operand, other.channels,
                                                                                    result);
    }

    /** The second operand after its activation. One that serves several pixels is not computed again. */
    const float *operand_at(const PixelRow &other, int32_t x) {
        const char *const address = other.at(x);
        if (address == last_) {
            return other_;
        }
        if (what_.other_activation.function == DISTILE_ACTIVATION_NONE) {
            last_ = other.stride == 0 && other.dtype != DISTILE_FLOAT32 ? address : nullptr;
            return floats_at(level_, other, x, other_);
        }
        to_float32(level_, other.dtype, address, other_, other.channels);
        level_.channels.activate(what_.other_activation, other.channels, other_);
        last_ = other.stride == 0 ? address : nullptr;
        return other_;
    }

    const TensorCombination &what_;
    const SimdLevel &level_;
    float *input_, *other_, *result_;
    const char *last_ = nullptr;  // The operand in other_, if it serves a whole image.
};

}  // namespace

void CpuDevice::combine(const TensorCombination &combination) {
    const Bitmask &bits = cpu_mask(combination.mask).bitmask();
    const distile_tensor &output = combination.output;
    const int64_t bytes = output.channels * element_bytes(output.dtype);
    const MaskParts parts(context, bits, combination.mask.active_pixels(), {3 * bytes, combination.zero ? bytes : 0});
    const FloatRows rows(*this, output.channels, parts.count(), 3);
    parts.for_each([&](int64_t task, const MaskPart &part) {
        Combiner combiner(combination, rows, task);
        for_each_run(bits, part, true, [&](int64_t row, int32_t begin, int32_t end) { combiner.row(row, begin, end); });
        if (combination.zero) {
            zero_inactive(bits, part, output);
        }
    });
}

}  // namespace distile
