/** \file
 * What measures the schedules that a search asks for.
 */
#ifndef DISTILE_MEASURER_H
#define DISTILE_MEASURER_H

#include "measurement.h"
#include <functional>
#include <map>
#include <utility>
#include <vector>

namespace distile {

/** A schedule to measure, and the numbers of tiles to measure it at; every tile of the image if it is dense. */
struct Trial {
    Theta theta;
    bool dense = false;
    std::vector<int64_t> tiles;
};

class Measurer {
public:
    virtual ~Measurer() = default;
    /** Measures a batch and hands over each result as soon as it is known. Returns early where it was stopped; what is
     * missing then was not measured. A trial that fails is a result. */
    virtual void measure(const std::vector<Trial> &batch, const std::function<void(const Measurement &)> &done) = 0;
};

/** Answers from measurements that are there already, so that searches can be compared without measuring again. */
class ReplayMeasurer : public Measurer {
public:
    explicit ReplayMeasurer(const std::vector<Measurement> &pool);
    /** Trials that are not in the pool are results that failed. */
    void measure(const std::vector<Trial> &batch, const std::function<void(const Measurement &)> &done) override;

private:
    std::map<std::pair<Theta, bool>, Measurement> pool_;
    double elapsed_s_ = 0;
};

}  // namespace distile

#endif
