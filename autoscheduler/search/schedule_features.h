/** \file
 * The features of a schedule for a learned model: its knobs, its tiles, and the terms of the analytical bound.
 */
#ifndef DISTILE_FEATURES_H
#define DISTILE_FEATURES_H

#include "autoscheduler/bound/bound.h"
#include <string>
#include <vector>

namespace distile {

/** The features of the points of one backend's space. They are logarithms and ratios, so that what a model
 * learns from one operator helps with another. */
class Features {
public:
    /** With `with_bound` false, nothing comes from the bound. */
    Features(const Space &space, bool with_bound) : space_(space), with_bound_(with_bound) {
    }

    /** One row; a term that this workload's bound lacks is NaN. All rows have size() values. */
    void append(std::vector<float> &rows, const Workload &workload, const Theta &theta, int64_t tiles, bool dense,
                const Bound &bound);
    size_t size() const;

private:
    const Space &space_;
    bool with_bound_;
    std::vector<std::string> terms_;  ///< Names of the bound's terms, from the first row on.
};

}  // namespace distile

#endif
