/** \file
 * Operators that were not built into this program: a folder of shared objects of `distile compile`, a few for each
 * operator, one for each way to a plan.
 */
#ifndef DISTILE_BENCH_OWN_OBJECTS_H
#define DISTILE_BENCH_OWN_OBJECTS_H

#include "autoscheduler/compile/process.h"
#include "autoscheduler/measure/shared_object.h"
#include "bench/harness/rows.h"
#include "plans/backend.h"
#include "plans/plan.h"
#include <map>
#include <string>
#include <vector>

namespace distile::bench {

/** A PolyKernel of one plan. */
struct OwnKernel {
    std::string way; /**< How the plan was made, for instance "tune". */
    Plan plan;
    SharedObject object;
    std::string times;                     /**< A file with the plan's times; "" if it has none. */
    std::map<std::string, double> seconds; /**< What making it took, by step. */
};

class OwnObjects {
public:
    /** Loads every OPERATOR.WAY.so of a folder, with its plan OPERATOR.WAY.json and, if there is one, the seconds that
     * making it took, OPERATOR.WAY.seconds.json. All plans are for one backend. Throws FileError. */
    OwnObjects(const std::string &folder, const Backend &backend);

    /** For the reader of rows. */
    std::vector<OwnOperator> operators() const;
    /** The ways of an operator, by name; at least one. */
    const std::vector<OwnKernel> &kernels(const std::string &op) const {
        return kernels_.at(op);
    }
    /** The one with this name, OPERATOR.WAY; null if there is none. */
    const OwnKernel *find(const std::string &name) const;

private:
    TemporaryFolder times_;
    std::map<std::string, std::vector<OwnKernel>> kernels_;
};

}  // namespace distile::bench

#endif
