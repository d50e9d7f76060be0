/** \file
 * A plan as a shared object: made by the programs that make the shipped libraries, so that what is measured
 * is what ships.
 */
#ifndef DISTILE_SHARED_OBJECT_H
#define DISTILE_SHARED_OBJECT_H

#include "plan.h"
#include "process.h"
#include <functional>
#include <memory>

namespace distile {

/** A compiled and loaded plan. */
class SharedObject {
public:
    /** Compiles the variants of a plan, `jobs` at once. `progress` is called with the number of variants that
     * are done. Throws FileError. */
    SharedObject(const Plan &plan, int jobs, const std::function<void(int)> &progress);

    const distile_polykernel &polykernel() const {
        return *polykernel_;
    }

private:
    struct Close {
        void operator()(void *handle) const;
    };

    TemporaryFolder folder_;
    std::unique_ptr<void, Close> handle_;
    const distile_polykernel *polykernel_ = nullptr;
};

}  // namespace distile

#endif
