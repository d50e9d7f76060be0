/** \file
 * Calls with one NaN, infinity or number near the end of its type's range among ordinary numbers, and what they
 * compute.
 */
#ifndef DISTILE_TESTS_SPECIAL_VALUES_H
#define DISTILE_TESTS_SPECIAL_VALUES_H

#include "tests/support/test_tensor.h"
#include <array>
#include <distile/polykernel.h>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace distile {

enum class Special { Nan, NegativeNan, Infinity, NegativeInfinity, Huge, NegativeHuge };
constexpr Special all_specials[] = {Special::Nan,  Special::NegativeNan, Special::Infinity, Special::NegativeInfinity,
                                    Special::Huge, Special::NegativeHuge};

/** Where the special value is. */
enum class Place { Input, Filter, Bias, Residual };

/** What a call reads, and what it must store. Whatever it must not read is NaN: input pixels that no active output
 * pixel reads, and the residual at inactive pixels. */
struct SpecialCall {
    std::string name;
    std::vector<float> filter, bias;             /**< The filter in the order HWIO. */
    std::unique_ptr<TestTensor> input, residual; /**< The residual may be null. */
    ReferenceOutput expected;
};

/** How many of the values that calls must compute are of each class. */
struct ValueClasses {
    int64_t nan = 0, infinite = 0, finite = 0;
};

/** The calls of an operator, all with one mask and the same ordinary numbers. */
class SpecialCalls {
public:
    /** Without `zeros`, no weight is 0: code that skips zeros makes no NaN of these. */
    explicit SpecialCalls(const distile_polykernel &polykernel, bool zeros = true);

    /** Checks every special value at every place, of inputs with a border and without one. */
    ValueClasses visit(const std::function<void(const SpecialCall &)> &check) const;
    /** An output to compute, which holds no numbers. */
    TestTensor output() const;

    const std::vector<uint8_t> &mask() const {
        return reference_.mask;
    }
    int32_t height() const {
        return height_;
    }
    int32_t width() const {
        return width_;
    }

private:
    std::vector<Place> places() const;
    /** The input has a zero border that lets all tiles be read in place, or none. */
    SpecialCall call(Special special, Place place, bool bordered) const;
    bool reads(int32_t y, int32_t x) const;
    float value_of(Special special) const;
    /** A call with ordinary numbers only, without what is expected. */
    SpecialCall ordinary_call(bool bordered) const;
    ReferenceOutput expected_of(const SpecialCall &call) const;

    distile_operator_kind kind_;
    distile_conv2d conv_;
    distile_dtype dtype_;
    int32_t in_height_, in_width_, height_, width_;
    std::vector<std::array<int32_t, 2>> read_, active_; /**< Input pixels that are read; active output pixels. */
    std::vector<float> input_, residual_;
    ReferenceArgs reference_; /**< Without tensors. */
    double largest_;          /**< The largest sum of ordinary numbers. */
};

}  // namespace distile

#endif
