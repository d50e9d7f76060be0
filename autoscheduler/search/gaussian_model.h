/** \file
 * Bayesian optimisation: a Gaussian process over the features of a schedule, which knows how sure it is. It corrects
 * the analytical bound, as the learned model does, and promises the times that a schedule may well reach, so that a
 * search also looks where little is known.
 */
#ifndef DISTILE_GAUSSIAN_MODEL_H
#define DISTILE_GAUSSIAN_MODEL_H

#include "autoscheduler/search/cost_model.h"
#include "autoscheduler/search/schedule_features.h"
#include <memory>

namespace distile {

class GaussianModel : public CostModel {
public:
    /** `space` must outlive it. `dense`: predicts dense candidates, not sparse ones. Without `with_bound`, it knows
     * nothing of the bound. */
    GaussianModel(const Space &space, Workload workload, bool dense, bool with_bound);
    ~GaussianModel() override;
    GaussianModel(const GaussianModel &) = delete;
    GaussianModel &operator=(const GaussianModel &) = delete;

    void fit(const std::vector<Measurement> &measured) override;
    /** The mean of the logarithm less its standard deviation. */
    std::vector<double> predict_us(const std::vector<std::pair<Theta, int64_t>> &points) const override;

private:
    struct Process;

    Bound bound_of(const Theta &theta, int64_t tiles) const;
    std::vector<float> features_of(const Theta &theta, int64_t tiles, bool dense, const Bound &bounded) const;

    Workload workload_;
    bool dense_, with_bound_;
    mutable Features features_;
    std::unique_ptr<Process> process_;
    double offset_ = 0;  ///< Mean logarithm of measured times over the bound.
};

}  // namespace distile

#endif
