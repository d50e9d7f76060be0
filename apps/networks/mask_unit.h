/** \file
 * A mask unit, as in DynConv: a 1x1 convolution to one channel, and a threshold.
 */
#ifndef DISTILE_NETWORKS_MASK_UNIT_H
#define DISTILE_NETWORKS_MASK_UNIT_H

#include "engine.h"
#include <optional>

namespace distile::networks {

class MaskUnit {
public:
    MaskUnit() = default;
    MaskUnit(Engine &engine, int32_t channels);

    /** The next masked run trains the unit: its weights to find smooth regions, since trained units do, and random
     * weights scatter pixels; and its threshold to this share of active pixels. */
    void start(double density) {
        wanted_ = density;
    }
    /** The mask of an input, for the engine's mode. */
    distile_mask *run(const Tensor &input);
    /** The share of active pixels of the last masked run. */
    double density() const;

private:
    void train(const Tensor &input, double density);

    Engine *engine_ = nullptr;
    std::vector<float> weights_;
    float threshold_ = 0;
    std::optional<double> wanted_;
    Mask mask_;
    int64_t pixels_ = 0;
};

}  // namespace distile::networks

#endif
