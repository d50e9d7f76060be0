/** \file
 * What depends on the architecture of the CPU. Each architecture has a file in this folder; the build compiles the one
 * of the CPU that it builds for.
 */
#ifndef DISTILE_CPU_ARCHITECTURE_H
#define DISTILE_CPU_ARCHITECTURE_H

#include "runtime/cpu/cpu_features.h"
#include "runtime/cpu/products/products.h"
#include "runtime/cpu/products/quantized_products.h"
#include "runtime/cpu/simd/simd_level.h"
#include <vector>

namespace distile {

struct CpuFeature {
    const char *name;  /**< As in plans. */
    bool present;      /**< The CPU has it, and the operating system lets programs use it. */
    bool everywhere{}; /**< Every CPU of the architecture has it. */
};

/** Every feature that this library knows. */
std::vector<CpuFeature> known_cpu_features();

/** The SIMD levels, slowest first. Each runs wherever the next one does. */
SimdLevels known_simd_levels();

/** Code for products of listed pixels, fastest first. */
std::vector<const PixelProducts *> known_pixel_products();

/** Code for quantized convolutions, fastest first. */
std::vector<const QuantizedProducts *> known_quantized_products();

/** The first of such code whose instructions a context may use. The last of it runs on any CPU. */
template<class Products>
const Products &choose_products(const std::vector<const Products *> &known, const distile_context &context) {
    for (const Products *products : known) {
        if (missing_cpu_feature(products->features, context.options.cpu_features).empty()) {
            return *products;
        }
    }
    return *known.back();
}

}  // namespace distile

#endif
