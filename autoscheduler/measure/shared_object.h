/** \file
 * A plan as a shared object: made by the programs that make the shipped libraries, so that what is measured
 * is what ships.
 */
#ifndef DISTILE_SHARED_OBJECT_H
#define DISTILE_SHARED_OBJECT_H

#include "plans/plan.h"
#include <functional>
#include <memory>
#include <string>

namespace distile {

/** A compiled and loaded plan. */
class SharedObject {
public:
    /** Compiles a plan, as compile_plan() does, and loads it. */
    SharedObject(const Plan &plan, int jobs, const std::function<void(int)> &progress);
    /** Loads what compile_plan() wrote, maybe on another machine, from this very plan, whatever its times. Throws
     * FileError. */
    SharedObject(const Plan &plan, const std::string &path);

    const distile_polykernel &polykernel() const {
        return *polykernel_;
    }

private:
    struct Close {
        void operator()(void *handle) const;
    };

    void load(const std::string &path);

    std::unique_ptr<void, Close> handle_;
    const distile_polykernel *polykernel_ = nullptr;
};

}  // namespace distile

#endif
