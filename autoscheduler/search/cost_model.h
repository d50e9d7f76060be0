/** \file
 * What predicts the time of a schedule: the analytical bound, or a model learned from measurements.
 */
#ifndef DISTILE_COST_MODEL_H
#define DISTILE_COST_MODEL_H

#include "autoscheduler/bound/bound.h"
#include "autoscheduler/search/measurement.h"

namespace distile {

class CostModel {
public:
    virtual ~CostModel() = default;
    /** Learns from all that was measured so far. */
    virtual void fit(const std::vector<Measurement> &measured) = 0;
    /** Microseconds of theta for a number of tiles of its granularity, for every pair. */
    virtual std::vector<double> predict_us(const std::vector<std::pair<Theta, int64_t>> &points) const = 0;
};

/** The bound as a model. Measurements scale it: it is a lower bound, and a search needs times. */
class BoundModel : public CostModel {
public:
    explicit BoundModel(Workload workload);
    void fit(const std::vector<Measurement> &measured) override;
    std::vector<double> predict_us(const std::vector<std::pair<Theta, int64_t>> &points) const override;

private:
    Workload workload_;
    double scale_ = 1;
};

}  // namespace distile

#endif
