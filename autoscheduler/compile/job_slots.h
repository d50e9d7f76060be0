/** \file
 * Slots for compilers that several programs share, so that together they run no more than the machine has cores.
 */
#ifndef DISTILE_JOB_SLOTS_H
#define DISTILE_JOB_SLOTS_H

#include <memory>
#include <string>

namespace distile {

/** A slot, until the last copy is gone. */
using JobSlot = std::shared_ptr<const void>;

class JobSlots {
public:
    /** Programs that name the same folder, which is made where it is missing, share `count` slots. No folder: there is
     * no limit. Throws FileError. */
    JobSlots(std::string folder, int count);

    /** Null if all are taken. */
    JobSlot try_take() const;

private:
    std::string folder_;
    int count_;
};

}  // namespace distile

#endif
