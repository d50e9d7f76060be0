/** \file
 * Depthwise convolutions of listed pixels, and those with groups of 2, 4 or 8 channels, whose weights lie by diagonals.
 * Pixels side by side share what they read.
 */
#ifndef DISTILE_CPU_LISTED_DEPTHWISE_H
#define DISTILE_CPU_LISTED_DEPTHWISE_H

#include "runtime/cpu/products/listed_pixels.h"

namespace distile {

class ListedDepthwise {
public:
    /** Both outlive this. */
    ListedDepthwise(const PixelProducts &products, const ListedConvolution &convolution);

    /** Computes some channels, whole panels as far as there are, of some pixels. Reads `taken` and writes `passed`
     * instead of the convolution's memory, if they are there. */
    void run(const ListRange &pixels, const ListRange &channels, const PassedPixels &passed,
             const PassedPixels &taken) const;

private:
    struct Group;
    struct Part;

    Group group_at(int64_t index, int64_t end) const;
    void run(const Group &group, const ListRange &channels, const PassedPixels &passed,
             const PassedPixels &taken) const;
    void multiply(const Group &group, const Part &part, int64_t channel, int32_t diagonal, const float *const *inputs,
                  float *sums, const GroupResults &results, bool at_once) const;
    template<class Act> void for_each_part(const Group &group, const Act &act) const;
    void find_inputs(const Group &group, const Part &part, int64_t channel, const PassedPixels &taken,
                     const float **inputs) const;
    void find_window(const ListedPixel &pixel, const Part &part, int64_t channel, const PassedPixels &taken,
                     const float **inputs) const;
    void find_row(const ListedPixel &first, const Part &part, int64_t channel, const PassedPixels &taken,
                  const float **inputs) const;

    const PixelProducts &products_;
    const ListedConvolution &given_;
    const ActivationLimits limits_;
    const int64_t row_inputs_;  ///< What pixels side by side read of a row.
    static constexpr int32_t most_offsets = 64;
    int64_t offsets_[most_offsets];  ///< From a window's first input to those of the taps.
};

}  // namespace distile

#endif
