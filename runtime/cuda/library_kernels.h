/** \file
 * The library's own kernels, from the files in kernels/.
 */
#ifndef DISTILE_CUDA_LIBRARY_KERNELS_H
#define DISTILE_CUDA_LIBRARY_KERNELS_H

#include "facts/types.h"
#include "runtime/cuda/kernels/difference.h"
#include <array>
#include <cuda.h>
#include <distile/distile.h>
#include <vector>

namespace distile {

struct Driver;
class ModuleLoader;

/** Keeps the kernels loaded for its lifetime. */
class LibraryKernels {
public:
    /** The oldest driver and GPU that accept the PTX: 13000 means CUDA 13.0, and 75 compute capability 7.5. */
    static const int32_t oldest_cuda, oldest_capability;

    /** Throws Failure. */
    LibraryKernels(const Driver &driver, const ModuleLoader &loader, int32_t capability);
    ~LibraryKernels();
    LibraryKernels(const LibraryKernels &) = delete;
    LibraryKernels &operator=(const LibraryKernels &) = delete;

    /** The kernels that compare tensors of one type. */
    struct Compare {
        CUfunction elements, vectors;
        std::array<CUfunction, most_channels> pixels;  ///< By the number of channels, from 1.
    };
    const Compare &compare(distile_dtype dtype) const;
    /** For units of 1, 2, 4 or 16 bytes. */
    CUfunction update_pixels(int32_t unit) const;
    /** The kernels that pack or unpack in units of 1, 2, 4 or 16 bytes. */
    CUfunction pack(int32_t unit, bool to_packed) const;
    /** Kernels for pixels of one type, in vectors and element by element. */
    struct PixelKernels {
        CUfunction vectors, elements;
    };
    const PixelKernels &normalize(distile_dtype dtype) const;
    const PixelKernels &pool(distile_dtype dtype) const;
    const PixelKernels &combine(distile_dtype dtype) const;
    const PixelKernels &normalize_groups(distile_dtype dtype) const;
    const PixelKernels &score_pixels(distile_dtype dtype) const;
    CUfunction sum_pixels(distile_dtype dtype) const;
    CUfunction merge_pixels(distile_dtype dtype) const;
    /** For elements of 1, 2 or 4 bytes. */
    CUfunction convert_layout(int64_t element_bytes, bool to_planes) const;
    /** For units of 1, 2, 4 or 16 bytes. */
    CUfunction copy_spans(int32_t unit) const;

    CUfunction pack_bytes = nullptr, unpack_bytes = nullptr, copy_bits = nullptr, set_indices = nullptr;
    CUfunction list_tiles = nullptr;
    CUfunction choose = nullptr;
    CUfunction transfer_bits = nullptr, combine_bits = nullptr;
    /** Whether those above and those of PixelKernels wait for earlier work themselves, so that they may start early. */
    bool masks_wait = false;
    CUfunction hand_out = nullptr;
    CUfunction merge_groups = nullptr;

private:
    void unload();

    const Driver &driver_;
    std::vector<CUmodule> modules_;
    template<typename Kernels> using ByType = std::array<Kernels, DISTILE_NUM_FLOAT_TYPES>;
    ByType<Compare> compare_{};
    ByType<PixelKernels> normalize_{}, pool_{}, combine_{}, normalize_groups_{}, score_pixels_{};
    ByType<CUfunction> sum_pixels_{}, merge_pixels_{};
    std::array<CUfunction, 4> pack_{}, unpack_{}, copy_spans_{};  // By unit.
    std::array<CUfunction, 3> to_planes_{}, to_pixels_{};         // By the bytes of an element.
    CUfunction update_pixels_1_ = nullptr, update_pixels_2_ = nullptr, update_pixels_4_ = nullptr,
               update_pixels_16_ = nullptr;
};

}  // namespace distile

#endif
