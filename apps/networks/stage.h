/** \file
 * Layers that run together, in one call of distile_run_stage.
 */
#ifndef DISTILE_NETWORKS_STAGE_H
#define DISTILE_NETWORKS_STAGE_H

#include "operator.h"
#include <deque>
#include <distile/distile.hpp>
#include <distile/stage.h>
#include <map>
#include <vector>

namespace distile::networks {

/** A convolution's weights as stages read them. */
struct StageWeights {
    std::vector<char> packed;
    std::vector<float> bias;
};

/** Collects steps, and runs them before anything else may read what they write. */
class Stage {
public:
    explicit Stage(const Context &context) : context_(context) {
    }

    bool is_empty() const {
        return steps_.empty();
    }
    StageWeights pack(const Operator &op, const distile_weights_source &source) const;
    /** A mask of the pixels whose channels times `weights` sum to more than the threshold. The weights stay in place.
     */
    void score(distile_mask *mask, const distile_tensor &input, const std::vector<float> &weights, float threshold);
    /** A mask that only convolutions of this stage need: of the pixels that a window reads for those of `output`. */
    void need(distile_mask *mask, distile_mask *output, const distile_window &window);
    /** A null mask means all pixels. The weights stay in place. */
    void convolve(const Operator &op, const StageWeights &weights, const distile_tensor &input,
                  const distile_tensor &output, distile_mask *mask, const distile_tensor *residual);
    void run();

private:
    struct Needed {
        distile_mask *output;
        distile_window window;
    };
    const distile_tensor *keep(const distile_tensor &tensor);

    const Context &context_;
    std::vector<distile_stage_step> steps_;
    std::deque<distile_tensor> tensors_;
    std::map<const distile_mask *, Needed> needed_;
};

distile_window window_of(const Operator &op);

}  // namespace distile::networks

#endif
