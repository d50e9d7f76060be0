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

/** What a worker tells about one trial. */
struct WorkerResult {
    Measurement measurement;
    double drift = 0; /**< Of the reference in the meantime: 0.05 if its first and second half differ by 5 %. */
};

/** How far a result is from what it should be: by how much the reference drifted while it was measured, or differs from
 * `expected_us`, what it took before (0: not known). */
double unsteadiness(const WorkerResult &result, double expected_us);
/** True if a result may stand. */
bool is_steady(const WorkerResult &result, double expected_us);

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
