/** \file
 * A run of a chain: what its threads share, and what a device does whichever way pixels come to it.
 */
#ifndef DISTILE_RUN_CHAIN_H
#define DISTILE_RUN_CHAIN_H

#include "runtime/group/group.h"

namespace distile {

/** The first fault of a run. Keeping it allocates nothing. */
class Fault {
public:
    void set(size_t device, const Outcome &outcome) {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (outcome_.status == DISTILE_OK) {
            outcome_ = outcome;
            device_ = device;
        }
    }
    Outcome get() const {
        const std::lock_guard<std::mutex> lock(mutex_);
        return outcome_;
    }
    /** Throws it, if there is one. */
    void raise() const {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (outcome_.status != DISTILE_OK) {
            fail_group(outcome_.status, "device %zu: %s", device_, outcome_.message);
        }
    }

private:
    mutable std::mutex mutex_;
    Outcome outcome_;
    size_t device_ = 0;
};

/** A run of a chain, which the threads keep while one of them may need it. */
struct ChainRun {
    distile_chain &chain;
    bool takes_kept, keeps;  ///< The input is what devices keep, or the output.
    bool moves = false;      ///< Other devices shall keep some of the images.
    distile_tensor input{}, output{};
    std::vector<KeptPart> parts;  ///< What devices keep after the run.
    Partition kept_by;            ///< What these follow from, if devices then keep other images.
    Fault fault;

    ChainRun(distile_chain &of, const distile_chain_args &args);
    bool uses_kept() const {
        return takes_kept || keeps;
    }
    /** Whether devices keep other images afterwards. */
    bool changes_kept() const {
        return keeps || moves;
    }
    /** Makes the chain keep what the devices now have. Allocates nothing. */
    void commit();
};

/** What a device does of a run. Its functions throw GroupFailure and Failure. */
class DeviceWork {
public:
    /** `own` is the place of its context among those of this process. */
    DeviceWork(distile_chain &of, size_t own);

    /** Gives the device a new plan. */
    void prepare();
    /** Takes memory for a tensor. */
    void make_tensor(size_t tensor);
    /** Takes memory for images that a device keeps, and gives it what they are copied by. */
    PlacedTensor take_images(const KeptPart &kept);
    void run_layer(size_t i, const Mask &mask);
    /** The way from the device to itself. */
    const Exchange &own_way() const {
        return group.exchange(place, place);
    }

    distile_chain &chain;
    distile_group &group;
    size_t place;   ///< The place of its context.
    size_t number;  ///< Among the devices of all ranks.
    distile_context &context;
    const Part &part;
    DeviceRun &device;

private:
    PlacedTensor take(const Planner &planner, const distile_output_spec &spec, const Mask &mask, distile_store store,
                      const PixelBox &box);
};

/** Runs the parts of this process, which may not throw, and waits until they end. */
void run_parts(distile_group &group, const Crew::Part &part, Deadline deadline, const std::function<void()> &stop);

/** Clears the inactive pixels of an output, if that is asked for. */
void clear_inactive(const distile_chain &chain, const distile_chain_args &args);

}  // namespace distile

#endif
