/** \file
 * Tensors of an operator's type in the host's memory, which are filled with float32 and read as float32.
 */
#ifndef DISTILE_HOST_TENSOR_H
#define DISTILE_HOST_TENSOR_H

#include "plans/operator.h"
#include <cstdint>
#include <distile/distile.h>
#include <vector>

namespace distile {

/** Values as they are stored in a type. */
std::vector<char> store_as(const DataType &type, const std::vector<float> &values);
/** The reverse. */
std::vector<float> read_as(const DataType &type, const void *stored, size_t count);
/** Every value becomes one that a type can hold. */
void round_to(const DataType &type, std::vector<float> &values);

/** A contiguous tensor of a type, over memory of somebody else's. */
distile_tensor make_tensor(const DataType &type, void *data, int batch, const Extents &extents, int channels);

/** A tensor with its memory, zero at first: contiguous except for a zero border around every image. */
class HostTensor {
public:
    HostTensor(const DataType &type, int batch, const Extents &extents, int channels,
               const distile_border &border = {});
    HostTensor(const HostTensor &) = delete;
    HostTensor &operator=(const HostTensor &) = delete;

    const distile_tensor &view() const {
        return view_;
    }
    /** The pixels of a contiguous tensor; the border stays zero. */
    void set(const std::vector<float> &values);
    /** All that it holds, where there is no border. */
    std::vector<float> get() const;

private:
    const DataType &type_;
    std::vector<char> memory_;
    distile_tensor view_;
};

}  // namespace distile

#endif
