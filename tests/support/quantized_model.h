/** \file
 * Quantized operators as plain loops over integers, for the tests of every device.
 */
#ifndef DISTILE_TESTS_QUANTIZED_MODEL_H
#define DISTILE_TESTS_QUANTIZED_MODEL_H

#include "tests/support/conv2d_cases.h"
#include "tests/support/test_tensor.h"
#include <cstdint>
#include <distile/distile.hpp>
#include <distile/polykernel.h>
#include <distile/quantize.h>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

namespace distile {

struct QuantizedCase {
    const char *name;
    distile_operator_kind kind;
    distile_conv2d conv;
    distile_dtype input, output;
};

/** A tensor in guarded memory, gaps and border included full of random bytes, or of random numbers of float32. */
struct QuantizedTensor {
    QuantizedTensor(distile_dtype dtype, int32_t batch, int32_t height, int32_t width, int32_t channels,
                    const TensorLayout &layout, Flush flush, std::mt19937 &random);
    /** Fills the border with a number. */
    void set_border(int32_t number) const;
    int64_t offset(int32_t n, int32_t y, int32_t x, int32_t c) const {
        return n * view.stride_n + y * view.stride_h + x * view.stride_w + c;
    }
    uint8_t *at(int32_t n, int32_t y, int32_t x, int32_t c) const {
        return static_cast<uint8_t *>(view.data) + offset(n, y, x, c) * size;
    }
    /** A stored number. */
    int32_t get(int32_t n, int32_t y, int32_t x, int32_t c) const {
        return view.dtype == DISTILE_INT8 ? static_cast<int8_t>(*at(n, y, x, c)) : *at(n, y, x, c);
    }

    int64_t size;
    distile_tensor view;
    std::unique_ptr<GuardedMemory> memory;
    uint8_t *bytes;
    int64_t count;
};

/** An operator with its numbers. */
class QuantizedModel {
public:
    /** With `halves`, every other sum lies in the middle between two results, and the input has no zero point. The
     * filter is packed as DISTILE_INT8 or DISTILE_INT4. */
    QuantizedModel(const QuantizedCase &from, bool halves, std::mt19937 &random,
                   distile_dtype filter_type = DISTILE_INT8);
    QuantizedModel(const QuantizedModel &) = delete;
    QuantizedModel &operator=(const QuantizedModel &) = delete;

    Weights pack(const Context &context, const Kernel &kernel) const;
    /** The result as the documents define it, in float32. */
    void result(const QuantizedTensor &input, const QuantizedTensor *residual, int32_t n, int32_t y, int32_t x,
                int32_t o, uint8_t *to) const;
    /** Whether code for all devices gives the same bits. */
    bool is_exact() const {
        const distile_activation epilogue = of.conv.epilogue;
        return epilogue != DISTILE_ACTIVATION_SILU && epilogue != DISTILE_ACTIVATION_GELU &&
               epilogue != DISTILE_ACTIVATION_SIGMOID;
    }

    QuantizedCase of;
    distile_dtype filter_dtype;
    int32_t group_inputs = 0;
    std::vector<int8_t> filter; /**< [kernel row][kernel column][input channel of a group][output channel] */
    std::vector<float> scales, float_bias;
    std::vector<int32_t> bias;
    distile_quantization quantization{};
    float slope = -.3f;

private:
    int32_t sum(const QuantizedTensor &input, int32_t n, int32_t y, int32_t x, int32_t o) const;
    bool reads(int32_t output, int32_t tap, int32_t stride, int32_t pad, int32_t dilation, int32_t extent,
               int32_t &input) const;
};

/** One call: extents of the input, the family of its mask, how its tensors lie in memory, and the options. */
struct QuantizedRun {
    int32_t batch, height, width;
    std::string mask;
    NamedLayout input, output, residual;
    bool in_place; /**< The residual is the output itself. */
    distile_inactive inactive;
    distile_store store;
    Flush flush;

    std::string describe() const;
};

/** The calls of one operator after the other. Any two values of any two of their parameters meet in one of about 120
 * calls in a row, of which each operator gets some. */
class QuantizedRuns {
public:
    QuantizedRuns();
    /** Pixels begin at multiples of `alignment` bytes if their channels fill them. */
    QuantizedRun next(const QuantizedCase &of, int32_t alignment = 1);

private:
    std::vector<std::vector<int>> combinations_;
    size_t next_ = 0;
};

/** A call whose tensors are in the host's memory. */
struct QuantizedCall {
    const QuantizedTensor &input, &output;
    const QuantizedTensor *residual; /**< May be the output. */
    const std::vector<uint8_t> &mask;
    const QuantizedRun &run;
};

/** Makes a call of a variant and compares all of the output's memory. */
void check_quantized_run(const QuantizedModel &model, const QuantizedRun &run, const Kernel &kernel,
                         const distile_variant_info &variant, std::mt19937 &random,
                         const std::function<void(const QuantizedCall &)> &call);

}  // namespace distile

#endif
