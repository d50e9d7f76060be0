/** \file
 * Convolutions of listed pixels of quantized tensors on a CPU, by the code of dot products that PolyKernels have, too
 * (kernels/dot_products.h).
 */
#ifndef DISTILE_CPU_QUANTIZED_PRODUCTS_H
#define DISTILE_CPU_QUANTIZED_PRODUCTS_H

#include "kernels/dot_products.h"
#include "runtime/cpu/cpu_device.h"
#include "runtime/mask/mask.h"
#include "runtime/stage/stage_target.h"
#include <distile/mask_algebra.h>

namespace distile {

/** The code for some instructions, and the blocks of pixels and channels whose sums it holds in registers. */
struct QuantizedProducts {
    const char *features;
    int (*call)(const distile_dot_product_code *code, const distile_kernel_call *call);
    int32_t block_pixels, block_channels;
};

/** For any CPU. */
inline constexpr QuantizedProducts portable_quantized_products{"", distile_call_portable_int8, 2, 32};

/** Packed weights, and what requantizes their sums, are aligned to as many bytes. */
constexpr size_t quantized_alignment = 64;
int64_t quantized_bytes(const StageFilter &filter);
void pack_quantized(const StageFilter &filter, const FilterSource &source, void *packed);

struct QuantizedConvolution {
    const distile_tensor &input, &output;
    const distile_tensor *residual;  ///< Null: none.
    distile_window window;
    StageFilter filter;
    const void *weights;  ///< As pack_quantized() writes them.
    Activation activation;
};

/** Computes the listed pixels. Pixels outside the input and its border count as its zero point. Throws Failure. */
void run_quantized(CpuDevice &device, const QuantizedConvolution &given, const TileList &pixels);

}  // namespace distile

#endif
