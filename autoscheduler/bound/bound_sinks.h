/** \file
 * What the terms of a bound are handed to: time(name, us), count(name, value), launches(us), and overlap_in_part() if
 * no time hides behind another altogether.
 */
#ifndef DISTILE_BOUND_SINKS_H
#define DISTILE_BOUND_SINKS_H

#include "autoscheduler/bound/bound.h"
#include <algorithm>
#include <cmath>

namespace distile {

/** The time of terms that hide behind each other: the largest, or, if they hide only in part, between that and their
 * sum: their norm of order 4, as fits measurements on a CPU whose log is not kept. Costs in bound_tensor_core.h were
 * fitted with it. */
class Overlap {
public:
    bool in_part = false;

    void add(double us) {
        largest_ = std::max(largest_, us);
        fourth_powers_ += us * us * (us * us);
    }
    double us() const {
        return in_part ? std::sqrt(std::sqrt(fourth_powers_)) : largest_;
    }

private:
    double largest_ = 0, fourth_powers_ = 0;
};

/** Gets the terms of a bound by name. */
class NamedTerms {
public:
    void time(const char *name, double us) {
        result_.terms[std::string("t_") + name] = us;
        overlap_.add(us);
    }
    void overlap_in_part() {
        overlap_.in_part = true;
    }
    void count(const char *name, double value) {
        result_.terms[name] = value;
    }
    void launches(double us) {
        launch_us_ = us;
    }
    Bound finish() {
        result_.terms["launch_us"] = launch_us_;
        result_.us = overlap_.us() + launch_us_;
        return result_;
    }

private:
    Bound result_;
    Overlap overlap_;
    double launch_us_ = 0;
};

/** Gets their sum and the largest of them. */
class TimesAlone {
public:
    void time(const char *, double us) {
        overlap_.add(us);
        sum_ += us;
    }
    void overlap_in_part() {
        overlap_.in_part = true;
    }
    void count(const char *, double) {
    }
    void launches(double us) {
        launch_us_ = us;
    }
    BoundOfPoints::Times finish() const {
        return {overlap_.us() + launch_us_, sum_};
    }

private:
    Overlap overlap_;
    double sum_ = 0, launch_us_ = 0;
};

}  // namespace distile

#endif
