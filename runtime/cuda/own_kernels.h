/** \file
 * The kernels of the library itself, of the files in kernels/.
 */
#ifndef DISTILE_CUDA_OWN_KERNELS_H
#define DISTILE_CUDA_OWN_KERNELS_H

#include "kernels/difference.h"
#include <array>
#include <cuda.h>
#include <distile/distile.h>
#include <vector>

namespace distile {

struct Driver;
class ModuleLoader;

/** Loaded as long as this lives. */
class OwnKernels {
public:
    /** The oldest driver and GPU that read the PTX: CUDA 13.0 is 13000, and compute capability 7.5 is 75. */
    static const int32_t oldest_cuda, oldest_capability;

    /** Throws Failure. */
    OwnKernels(const Driver &driver, const ModuleLoader &loader);
    ~OwnKernels();
    OwnKernels(const OwnKernels &) = delete;
    OwnKernels &operator=(const OwnKernels &) = delete;

    /** Those that compare tensors of a type. */
    struct Compare {
        CUfunction elements, vectors;
        std::array<CUfunction, most_channels> pixels;  ///< By the number of channels, from 1.
    };
    const Compare &compare(distile_dtype dtype) const;
    /** Of a unit of 2, 4 or 16 bytes. */
    CUfunction update_pixels(int32_t unit) const;
    /** Of elements of 2 or 4 bytes. */
    CUfunction convert_layout(int64_t element_bytes, bool to_planes) const;

    CUfunction pack_bytes = nullptr, copy_bits = nullptr, set_indices = nullptr;
    CUfunction list_tiles = nullptr;
    CUfunction transfer_bits = nullptr, combine_bits = nullptr;
    CUfunction hand_out = nullptr;

private:
    void unload();

    const Driver &driver_;
    std::vector<CUmodule> modules_;
    std::array<Compare, 3> compare_{};  // By type.
    CUfunction update_pixels_2_ = nullptr, update_pixels_4_ = nullptr, update_pixels_16_ = nullptr;
    CUfunction to_planes_2_ = nullptr, to_planes_4_ = nullptr, to_pixels_2_ = nullptr, to_pixels_4_ = nullptr;
};

}  // namespace distile

#endif
