/** \file
 * Tensors of any type, and the elements of their memory.
 */
#ifndef DISTILE_BENCH_TYPED_TENSOR_H
#define DISTILE_BENCH_TYPED_TENSOR_H

#include "reference/tensors.h"
#include <cstdint>
#include <string>
#include <vector>

namespace distile::bench {

/** The bytes of a number of elements. */
size_t bytes_of(distile_dtype dtype, size_t elements);
std::vector<float> to_floats(distile_dtype dtype, const void *from, size_t elements);
/** The bytes of numbers rounded to a type. */
std::vector<uint8_t> from_floats(distile_dtype dtype, const std::vector<float> &values);
/** A word of memory of the type in which every element is `value`. */
uint32_t word_of(distile_dtype dtype, float value);
/** The allowed difference between results and the reference, relative to the largest value. */
double tolerance_of(distile_dtype dtype);

/** A float32 tensor, its border included, rounded to a type. */
class TypedTensor {
public:
    TypedTensor(const BorderedTensor &values, distile_dtype dtype);

    const distile_tensor &view() const {
        return view_;
    }
    /** Where the memory begins, the border included. */
    const char *memory() const {
        return reinterpret_cast<const char *>(memory_.data());
    }
    size_t bytes() const {
        return bytes_;
    }
    /** A copy of the memory. */
    std::vector<uint8_t> all_bytes() const {
        return {memory(), memory() + bytes_};
    }

private:
    size_t bytes_;
    AlignedFloats memory_;
    distile_tensor view_;
};

}  // namespace distile::bench

#endif
