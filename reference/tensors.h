/** \file
 * Tensors that own their memory.
 */
#ifndef DISTILE_REFERENCE_TENSORS_H
#define DISTILE_REFERENCE_TENSORS_H

#include <cstddef>
#include <cstdint>
#include <distile/polykernel.h>
#include <vector>

namespace distile {

/** Zero-initialised floats, aligned to a cache line, so compared kernels get equal alignment (vector<float> does not
 * promise it). */
class AlignedFloats {
public:
    explicit AlignedFloats(size_t count);
    AlignedFloats(const AlignedFloats &) = delete;
    AlignedFloats &operator=(const AlignedFloats &) = delete;
    AlignedFloats(AlignedFloats &&) = default;
    AlignedFloats &operator=(AlignedFloats &&) = default;
    ~AlignedFloats() = default;

    float *data() const {
        return data_;
    }
    size_t size() const {
        return count_;
    }

private:
    size_t count_;
    std::vector<float> memory_;
    float *data_;
};

/** Pixels around an image. */
struct Border {
    int32_t top = 0, bottom = 0, left = 0, right = 0;
};

/** The border that lets an operator read its input in place. */
Border padding_of(const distile_conv2d &conv, distile_operator_kind kind = DISTILE_MASKED_CONV2D);

/** A tensor with its memory, contiguous except for a zero border around every image. */
class BorderedTensor {
public:
    BorderedTensor(int32_t batch, int32_t height, int32_t width, int32_t channels, const Border &border = {});

    const distile_tensor &view() const {
        return view_;
    }
    /** Includes the border. */
    const AlignedFloats &memory() const {
        return memory_;
    }
    /** Copies the pixels of a contiguous tensor. */
    void set(const float *values) const;

private:
    AlignedFloats memory_;
    distile_tensor view_;
};

}  // namespace distile

#endif
