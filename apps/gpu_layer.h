/** \file
 * The convolution of a layer on an NVIDIA GPU, for the demonstration.
 */
#ifndef DISTILE_GPU_LAYER_H
#define DISTILE_GPU_LAYER_H

#include "layer.h"

namespace distile {

/** One mask on the GPU. Times in microseconds, medians of replayed graphs. */
struct GpuTimes {
    std::string variant;
    double masked = 0; /**< From the byte mask on the device to the result. */
    double dense = 0;  /**< Our dense candidate, with every pixel active. */
    double error = 0;  /**< See Layer::error_of(). */
};

class GpuLayer {
public:
    /** Takes the weights and the input of a layer with a computed reference. Throws std::runtime_error with the reason
     * if there is no GPU or no matching PolyKernel. */
    explicit GpuLayer(const Layer &layer);
    ~GpuLayer();

    /** The GPU's name and the used part of it. */
    std::string device() const;
    GpuTimes measure(const ByteMask &bytes);

private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace distile

#endif
