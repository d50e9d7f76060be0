/** \file
 * A run of a chain: what its threads share, what a device does, and what it tells the others.
 */
#ifndef DISTILE_RUN_CHAIN_H
#define DISTILE_RUN_CHAIN_H

#include "runtime/group/group.h"
#include <atomic>
#include <cstdio>

namespace distile {

/** The first fault of a run. Keeping it allocates nothing. */
class Fault {
public:
    /** `device` counts those of all ranks. */
    void set(size_t device, const Outcome &outcome) {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (outcome_.status == DISTILE_OK) {
            outcome_ = outcome;
            device_ = device;
            is_set_ = true;
        }
    }
    bool is_set() const {
        return is_set_;
    }
    /** With its device; without one if there is no fault. */
    Outcome get() const {
        const std::lock_guard<std::mutex> lock(mutex_);
        Outcome named;
        if (outcome_.status != DISTILE_OK) {
            char text[sizeof(named.message)];
            std::snprintf(text, sizeof(text), "device %zu: %.*s", device_, static_cast<int>(sizeof(text)) - 32,
                          outcome_.message);
            named.set(outcome_.status, text);
        }
        return named;
    }
    /** Throws it, if there is one. */
    void raise() const {
        const Outcome named = get();
        if (named.status != DISTILE_OK) {
            fail_group(named.status, "%s", named.message);
        }
    }

private:
    mutable std::mutex mutex_;
    std::atomic<bool> is_set_{false};
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

/** What devices of a process tell each other in a run, in this order: that images are there, and then tensor after
 * tensor, each with what goes to other ranks of it. A stage before all others is that the run begins. */
namespace stages {
constexpr int32_t begins = 0, images_packed = 1, images_received = 2, images_made = 3;
constexpr int32_t for_tensor = 3;
constexpr int32_t made(size_t tensor) {
    return images_made + 1 + for_tensor * static_cast<int32_t>(tensor);
}
constexpr int32_t packed(size_t tensor) {
    return made(tensor) + 1;
}
constexpr int32_t received(size_t tensor) {
    return made(tensor) + 2;
}
constexpr int32_t all = INT32_MAX;
}  // namespace stages

/** What ends a part without a fault of its own: the time is over, or messages failed. */
struct Stopped {};

/** A device among those of its process. What fails on it is kept and ends the work of all of them; but they go on
 * telling each other how far they are, and their rank's messages travel, so that nobody waits in vain. */
class Member {
public:
    /** `own` is the place of its context among those of this process. */
    Member(distile_chain &of, Fault &fault, size_t own);

    /** Works, unless something has failed. */
    template<typename Body> void attempt(const Body &body) {
        if (!fault_.is_set()) {
            const Outcome outcome = outcome_of(&context, body);
            if (outcome.status != DISTILE_OK) {
                fault_.set(number, outcome);
            }
        }
    }
    void tell(int32_t stage);
    /** Waits until another device has told, and lets copies come after what it has been given by then. */
    void wait(size_t other, int32_t stage);
    /** Whether a device is one of this process. */
    bool is_here(int32_t device) const {
        return device >= static_cast<int32_t>(group.first_device()) &&
               device < static_cast<int32_t>(group.first_device() + group.contexts.size());
    }
    /** The place of a device of this process. */
    size_t place_of(int32_t device) const {
        return static_cast<size_t>(device) - group.first_device();
    }
    /** The way from the device to itself. */
    const Exchange &own_way() const {
        return group.exchange(place, place);
    }

    /** Packs what goes to other ranks, after what the device has been given. `before`: the stage by which messages that
     * used this memory have travelled. */
    void pack(const RankRounds &rounds, const Round &round, int32_t packed, int32_t before, const PlacedTensor &from);
    /** Exchanges messages, on the first device's thread, and unpacks what comes. */
    void deliver(const RankRounds &rounds, const Round &round, int32_t packed, const PlacedTensor &to);

    distile_chain &chain;
    distile_group &group;
    size_t place;   ///< The place of its context.
    size_t number;  ///< Among the devices of all ranks.
    distile_context &context;

private:
    Fault &fault_;
};

/** What a device does of a run. Its functions throw GroupFailure and Failure. */
class DeviceWork : public Member {
public:
    DeviceWork(distile_chain &of, Fault &fault, size_t own);

    /** Gives the device a new plan. */
    void prepare();
    /** Takes memory for a tensor. */
    void make_tensor(size_t tensor);
    /** Takes memory for images that a device keeps, and gives it what they are copied by. */
    PlacedTensor take_images(const KeptPart &kept);
    void run_layer(size_t i, const Mask &mask);

    const Part &part;
    DeviceRun &device;

private:
    PlacedTensor take(const Planner &planner, const distile_output_spec &spec, const Mask &mask, distile_store store,
                      const PixelBox &box);
};

/** A job for the threads of a group, each with the place of its device. `fault` lives as long as its parts. */
Crew::Part make_job(distile_chain &chain, const std::shared_ptr<Fault> &fault,
                    const std::function<void(size_t)> &compute);
/** The job of a run. */
Crew::Part make_run_job(const std::shared_ptr<ChainRun> &run);
/** Runs a job to its end. Fails if devices do not end in time, or messages are lost; other faults stay in `fault`. */
void run_job(distile_chain &chain, const Crew::Part &job, const Fault &fault, Deadline deadline);

/** Clears the inactive pixels of an output, if that is asked for. `mask` is the last layer's. */
void clear_inactive(const distile_chain &chain, const distile_chain_args &args, distile_mask *mask);

}  // namespace distile

#endif
