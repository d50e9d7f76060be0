/** \file
 * Tensors for the tests, in memory that shows every access to what does not belong to them.
 */
#ifndef DISTILE_TESTS_TEST_TENSOR_H
#define DISTILE_TESTS_TEST_TENSOR_H

#include "facts/types.h"
#include "tests/support/reference.h"
#include <cstdint>
#include <distile/distile.h>
#include <random>
#include <string>
#include <vector>

namespace distile {

/** The types in which layers compute. */
inline constexpr distile_dtype float_types[] = {
#define DISTILE_ROW(number, name, NAME, ...) DISTILE_##NAME,
    DISTILE_FLOAT_TYPES(DISTILE_ROW)
#undef DISTILE_ROW
};

/** Memory between two pages that nobody may touch. It cannot touch both unless its size is that of whole pages. */
enum class Flush { Front, Back };

class GuardedMemory {
public:
    GuardedMemory(size_t bytes, Flush flush);
    ~GuardedMemory();
    GuardedMemory(const GuardedMemory &) = delete;
    GuardedMemory &operator=(const GuardedMemory &) = delete;

    void *data() const {
        return data_;
    }
    /** All words between the two pages: those of the memory, and those that fill up its pages. */
    uint32_t *words() const {
        return words_;
    }
    size_t num_words() const {
        return num_words_;
    }

private:
    char *pages_;
    size_t page_, num_words_;
    uint32_t *words_;
    void *data_;
};

/** How a view lies in memory: elements between its pixels, rows and images, and its border in pixels. */
struct TensorLayout {
    int32_t pixel_gap = 0, row_gap = 0, image_gap = 0;
    int32_t border_top = 0, border_bottom = 0, border_left = 0, border_right = 0;
    /** The border right of a row is the one left of the next row, and the same between images. */
    bool shared_border = false;
};

/** The view of a tensor in such memory, without its address. */
distile_tensor make_view(int32_t batch, int32_t height, int32_t width, int32_t channels, const TensorLayout &layout,
                         distile_dtype dtype);
/** Elements from the first to the last one of a view, its border included. */
size_t elements_of(const distile_tensor &view);

/** How the elements of a tensor are drawn. */
enum class Values {
    Floats,  /**< From -1 to 1. */
    Integers /**< From -4 to 4: their products and sums are exact in float32. */
};

float draw(Values values, std::mt19937 &random);
std::vector<float> draw(Values values, size_t count, std::mt19937 &random);

/** A view in guarded memory that ends with its own first and last element. Whatever is not a pixel or its border,
 * the gaps included, is filled with NaNs that differ from word to word. So are the pixels at first. */
class TestTensor {
public:
    TestTensor(int32_t batch, int32_t height, int32_t width, int32_t channels, const TensorLayout &layout = {},
               Flush flush = Flush::Back, distile_dtype dtype = DISTILE_FLOAT32);

    const distile_tensor &view() const {
        return view_;
    }
    /** An element of a tensor of float32. */
    float &at(int32_t n, int32_t y, int32_t x, int32_t channel) const {
        return static_cast<float *>(view_.data)[n * view_.stride_n + y * view_.stride_h + x * view_.stride_w + channel];
    }
    // An element of a tensor of any type: a value is rounded to it.
    float get(int32_t n, int32_t y, int32_t x, int32_t channel) const;
    void set(int32_t n, int32_t y, int32_t x, int32_t channel, float value) const;
    /** Draws values, rounded to the type. */
    void draw(Values values, std::mt19937 &random) const;
    /** Where a snapshot begins. */
    const void *memory() const {
        return memory_.words();
    }
    /** Everything that the memory holds. */
    std::vector<uint32_t> snapshot() const;
    /** The words of a float32 view, from its first element to its last one, the border and the gaps included. */
    uint32_t *own_words() const {
        return static_cast<uint32_t *>(memory_.data());
    }
    size_t num_own_words() const;

    /** "" if the memory holds what a call must have made of `before`: at the pixels of this view what the reference
     * says, with absolute errors of at most `tolerance` where it computes, and elsewhere what it held before. Where
     * NaN or an infinity is due, it must be there. */
    std::string difference(const std::vector<uint32_t> &before, const ReferenceOutput &expected, double tolerance);
    /** difference() with the errors that the type and the numerics allow sums of the reference's largest value. */
    std::string difference(const std::vector<uint32_t> &before, const ReferenceOutput &expected,
                           distile_math math = DISTILE_MATH_FLOAT32);

private:
    template<typename Element, typename IsClose>
    std::string compare(const std::vector<uint32_t> &before, const ReferenceOutput &expected, const IsClose &is_close);
    template<typename IsClose> std::string compare_any(const std::vector<uint32_t> &before,
                                                       const ReferenceOutput &expected, const IsClose &is_close);

    GuardedMemory memory_;
    distile_tensor view_;
};

}  // namespace distile

#endif
