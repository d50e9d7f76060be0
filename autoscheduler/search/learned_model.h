/** \file
 * The learned cost model: gradient-boosted trees (XGBoost) on the features of a schedule. They correct the analytical
 * bound: what they predict is the logarithm of the measured time over it. The library is loaded when a model is made,
 * so that a program which only measures does not need it.
 */
#ifndef DISTILE_LEARNED_MODEL_H
#define DISTILE_LEARNED_MODEL_H

#include "autoscheduler/search/cost_model.h"
#include "autoscheduler/search/schedule_features.h"
#include <memory>
#include <string>
#include <vector>

namespace distile {

struct LearnedModelOptions {
    bool dense = false;     /**< Predicts dense candidates, not sparse ones. */
    bool with_bound = true; /**< Without, the model knows nothing of the bound. */
    uint64_t seed = 0;
    int threads = 1; /**< One makes the result the same on every machine. */
};

class LearnedModel : public CostModel {
public:
    /** `space` must outlive it. Throws FileError where XGBoost cannot be loaded. */
    LearnedModel(const Space &space, Workload workload, LearnedModelOptions options);
    ~LearnedModel() override;
    LearnedModel(const LearnedModel &) = delete;
    LearnedModel &operator=(const LearnedModel &) = delete;

    /** Adds measurements of another operator, or of another device of the same backend, to all that it learns from. */
    void warm(const Workload &workload, const std::vector<Measurement> &measured);

    void fit(const std::vector<Measurement> &measured) override;
    std::vector<double> predict_us(const std::vector<std::pair<Theta, int64_t>> &points) const override;

    /** Writes the trees as XGBoost does: JSON, or its binary form for a name that ends in .ubj. Nothing where there are
     * none yet. Throws FileError. */
    void save(const std::string &path) const;

private:
    /** What trees are made from. */
    struct Rows {
        std::vector<float> features, labels, margins, weights;
    };
    struct Trees;

    void append(Rows &rows, const Workload &workload, const std::vector<Measurement> &measured, float weight);
    /** Where the trees begin: the logarithm of the bound. */
    float margin(const Bound &bound) const;

    Workload workload_;
    LearnedModelOptions options_;
    mutable Features features_;
    Rows warm_;
    std::unique_ptr<Trees> trees_;
    float offset_ = 0;  ///< Mean of what the margins lack.
};

}  // namespace distile

#endif
