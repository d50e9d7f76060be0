/** \file
 * What the terms of a bound are handed to: time(name, us), count(name, value), launches(us).
 */
#ifndef DISTILE_BOUND_SINKS_H
#define DISTILE_BOUND_SINKS_H

#include "bound.h"
#include <algorithm>

namespace distile {

/** Gets the terms of a bound by name. */
class NamedTerms {
public:
    void time(const char *name, double us) {
        result_.terms[std::string("t_") + name] = us;
        result_.us = std::max(result_.us, us);
    }
    void count(const char *name, double value) {
        result_.terms[name] = value;
    }
    void launches(double us) {
        launch_us_ = us;
    }
    Bound finish() {
        result_.terms["launch_us"] = launch_us_;
        result_.us += launch_us_;
        return result_;
    }

private:
    Bound result_;
    double launch_us_ = 0;
};

/** Gets their sum and the largest of them. */
class TimesAlone {
public:
    void time(const char *, double us) {
        largest_ = std::max(largest_, us);
        sum_ += us;
    }
    void count(const char *, double) {
    }
    void launches(double us) {
        launch_us_ = us;
    }
    BoundOfPoints::Times finish() const {
        return {largest_ + launch_us_, sum_};
    }

private:
    double largest_ = 0, sum_ = 0, launch_us_ = 0;
};

}  // namespace distile

#endif
