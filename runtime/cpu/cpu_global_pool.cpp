#include "runtime/cpu/cpu_mask.h"
#include "runtime/cpu/float_rows.h"
#include "runtime/cpu/pixel_sums.h"

namespace distile {

void CpuDevice::pool_globally(const GlobalPooling &pooling) {
    const distile_tensor &output = pooling.output;
    const SimdLevel &level = supported_simd_levels().best();
    const PixelSums sums(*this, pooling.input, pooling.mask, pooling.largest);
    const FloatRows rows(*this, output.channels, 1, 1);
    float *const values = rows.row(0, 0);
    for (int64_t image = 0; image < output.batch; image++) {
        sums.find_means(image, values);
        from_float32(level, output.dtype, values, PixelRow(output, image).at(0), output.channels);
    }
}

}  // namespace distile
