/** \file
 * The choice of a variant on a GPU.
 */
#ifndef DISTILE_CUDA_CHOOSER_H
#define DISTILE_CUDA_CHOOSER_H

#include "kernels/call.h"
#include "runtime/base/device.h"
#include "runtime/choice/choice.h"
#include "runtime/cuda/device_memory.h"

namespace distile {

class CudaChooser : public DeviceChooser {
public:
    CudaChooser(CudaDevice &device, int32_t num_variants);

    const distile_gpu_choice &describe(const ChoiceTable &table) override;
    void choose(const ChoiceTable &table) override;
    const uint32_t *tile_count(int32_t variant) const override;

    /** A variant, -1 if none was chosen yet, and its number of tiles. */
    struct Chosen {
        int32_t variant;
        int64_t tiles;
    };
    /** The last choice on the stream. Waits for it. */
    Chosen last() const;

private:
    CudaDevice &device_;
    int32_t num_variants_;
    DeviceMemory result_;
    distile_gpu_choice choice_{};
};

}  // namespace distile

#endif
