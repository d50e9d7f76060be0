/** \file
 * Measuring the schedules that a search proposes.
 */
#ifndef DISTILE_MEASURER_H
#define DISTILE_MEASURER_H

#include "autoscheduler/search/disturbance.h"
#include "autoscheduler/search/measurement.h"
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
    /** Measures a batch and hands over each result as soon as it is known. A failed trial is a result. Returns early if
     * it is stopped. */
    virtual void measure(const std::vector<Trial> &batch, const std::function<void(const Measurement &)> &done) = 0;
};

/** The result of one trial, as a worker reports it. */
struct WorkerResult {
    Measurement measurement;
    double drift = 0; /**< The reference's drift during the trial: 0.05 if its first and second half differ by 5 %. */
    Disturbance disturbance;
};

/** How unsteady the device was, as a multiple of what is tolerated: the largest of the reference's drift during the
 * trial, its difference from `expected_us`, its time before (0: not known), and the disturbance of the repeats. */
double unsteadiness(const WorkerResult &result, double expected_us);
/** Whether a result need not be measured again. */
bool is_steady(const WorkerResult &result, double expected_us);
/** Why the times of a result are doubtful; "" if they are not. A small drift is none, as it is taken out of them. */
std::string doubt_of(const WorkerResult &result, double expected_us);

/** Answers from earlier measurements, to compare searches without measuring again. */
class ReplayMeasurer : public Measurer {
public:
    explicit ReplayMeasurer(const std::vector<Measurement> &pool);
    /** Trials that are not in the pool fail. */
    void measure(const std::vector<Trial> &batch, const std::function<void(const Measurement &)> &done) override;

private:
    std::map<std::pair<Theta, bool>, Measurement> pool_;
    double elapsed_s_ = 0;
};

}  // namespace distile

#endif
