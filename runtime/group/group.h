/** \file
 * Groups of contexts, and the chains that they run.
 */
#ifndef DISTILE_GROUP_OBJECTS_H
#define DISTILE_GROUP_OBJECTS_H

#include "runtime/group/crew.h"
#include "runtime/group/exchange.h"
#include "runtime/group/rank_rounds.h"
#include "runtime/group/ranks.h"
#include <distile/distile.hpp>
#include <distile/group.h>
#include <mutex>

namespace distile {

/** Ends a call on a group. */
struct GroupFailure {
    distile_status status;
    std::string message;
};

[[noreturn]] __attribute__((format(printf, 2, 3))) void fail_group(distile_status status, const char *format, ...);

/** Ends a call on a group unless a call on one of its contexts succeeded. */
inline void require_of(const distile_context *context, distile_status status) {
    if (status != DISTILE_OK) {
        fail_group(status, "%s", distile_context_message(context));
    }
}

}  // namespace distile

struct distile_group {
    std::vector<distile_context *> contexts; /**< The contexts of this process. */
    std::vector<distile::DeviceTime> times;  /**< One for each device, of all ranks. */
    /** [from][to] */
    std::vector<const distile::Exchange *> exchanges;
    double imbalance;
    std::chrono::milliseconds timeout;
    distile_overlap overlap;
    bool any_order = false; /**< Variants and the order of their sums may follow from the parts. */
    bool is_lost = false;   /**< A device may still be at work. */
    char message[800] = "";
    std::unique_ptr<distile::Crew> crew;
    std::unique_ptr<distile::Ranks> ranks; /**< Null: all devices are of this process. */
    uint64_t chains = 0;                   /**< How many it has made. */
    distile_group *next_kept = nullptr;    /**< The one before among what is never freed. */

    const distile::Exchange &exchange(size_t from, size_t to) const {
        return *exchanges[from * contexts.size() + to];
    }
    /** Whether a context computes while copies to it travel. */
    bool overlaps(size_t context) const;
    size_t num_devices() const {
        return times.size();
    }
    /** The number of the first context's device. */
    size_t first_device() const {
        return ranks ? static_cast<size_t>(ranks->devices().first_of(ranks->rank())) : 0;
    }
    /** Whether a device or messages may still use what the group and its chains have. */
    bool may_be_in_use() const {
        return (is_lost && !crew->is_idle()) || (ranks && ranks->is_lost());
    }
};

namespace distile {

/** A layer on all devices. */
struct ChainLayer {
    PlannedLayer planned;
    std::string variant;  ///< The caller's; "": the first context chooses.
    int32_t in_channels, out_channels;
    distile_dtype dtype;
    std::vector<Kernel> kernels;                            ///< One for each context.
    std::vector<std::shared_ptr<distile_weights>> weights;  ///< One for each context, which those of a memory share.
};

/** What a device has of a layer's output to run it. */
struct DeviceLayer {
    Mask own, rim, interior;
    Mask present;  ///< The pixels of the output that the device computes or fetches.
    BitImage present_bits;
    const char *variant = nullptr;
};

/** What a device keeps of the images between runs. A run reads `kept` and makes `next`, which may be the same. */
struct KeptImages {
    Planner planner;
    Mask shape;  ///< Without pixels.
    BitImage no_pixels;
    PlacedTensor kept, next;
    std::vector<Fetch> fetches;  ///< Where the chain's first tensor comes from.
    int64_t plan = 0;            ///< The number of the plan that they are of.
};

/** A device's part of the runs. */
struct DeviceRun {
    Planner planner;
    KeptImages images;
    std::vector<DeviceLayer> layers;
    Mask input;  ///< The pixels of the chain's input that the device copies.
    BitImage input_bits;
    std::vector<PlacedTensor> tensors;  ///< As far as the run has made them.
    int64_t plan = 0;                   ///< The number of the plan that its masks are of.
};

}  // namespace distile

struct distile_chain {
    explicit distile_chain(distile_group &of) : group(of), progress(of.contexts.size()) {
    }

    distile_group &group;
    std::vector<distile::ChainLayer> layers;
    std::vector<distile::PlannedLayer> planned; /**< What plans know of the layers. */
    std::vector<distile::DeviceRun> devices;    /**< One for each context of this process. */
    distile::Progress progress;
    uint64_t number = 0; /**< Which of the group's chains it is. */

    // The plan of the last run.
    distile::MaskShape input{0, 0, 0};
    std::vector<std::shared_ptr<distile::BitImage>> bits; /**< One for each layer; equal masks are one image. */
    distile::Partition partition;
    distile::ChainPlan plan;
    std::vector<std::string> variants; /**< One for each layer; "" where no device has pixels. */
    distile::Mask of_bits;             /**< A mask of the first context, for pixels that are no mask of the caller's. */
    int64_t plans = 0, partitions = 0, moved_pixels = 0;

    // The images that the devices keep; no extents if they keep none.
    distile::MaskShape kept{0, 0, 0};
    distile::Partition kept_by;
    std::vector<distile::KeptPart> kept_parts;
    uint64_t keeping_runs = 0; /**< How many runs have ended with images kept. */

    std::unique_ptr<distile::RankRounds> rounds; /**< What ranks exchange in a run. */
    int64_t hashed_plan = 0;                     /**< The number of the plan that these are of. */
    uint64_t masks_hash = 0, mask_bytes = 0, partition_hash = 0;
    distile_chain *next_kept = nullptr; /**< The one before among what is never freed. */

    std::vector<const distile::BitImage *> masks() const;
};

namespace distile {

/** The size of a run's input: that of the images that the devices keep, unless one is given. */
inline MaskShape input_shape(const distile_chain &chain, const distile_chain_args &args) {
    return args.input ? MaskShape{args.input->batch, args.input->height, args.input->width} : chain.kept;
}

/** What went wrong in the body of a call; contexts keep the messages of their own failures. Never throws. */
template<typename Body> Outcome outcome_of(const distile_context *context, const Body &body) {
    Outcome outcome;
    try {
        body();
    } catch (const GroupFailure &failure) {
        outcome.set(failure.status, failure.message.c_str());
    } catch (const Failure &failure) {
        outcome.set(failure.status, distile_context_message(context));
    } catch (const Error &error) {
        outcome.set(error.status(), error.what());
    } catch (const std::bad_alloc &) {
        outcome.set(DISTILE_ERROR_OUT_OF_MEMORY, "an allocation failed");
    } catch (const std::system_error &error) {
        outcome.set(DISTILE_ERROR_OUT_OF_MEMORY, error.what());
    } catch (...) {
        outcome.set(DISTILE_ERROR_INTERNAL, "an unexpected exception");
    }
    return outcome;
}

/** The masks of a chain as bits, one for each layer; equal ones are one image. */
using BitImages = std::vector<std::shared_ptr<BitImage>>;
/** Makes the plan for these arguments, which have been checked, unless the last one is it. */
void plan_run(distile_chain &chain, const distile_chain_args &args);
/** Makes the plan for masks as bits, unless the last one is it. */
void plan_masks(distile_chain &chain, BitImages &&bits, const MaskShape &input);
/** Makes the mask of the first context that has these pixels. */
distile_mask *mask_of_bits(const distile_chain &chain, const BitImage &pixels);
/** Lets the first context choose the variants of a new plan that callers leave open. */
void choose_variants(distile_chain &chain, distile_mask *const *masks);
/** Runs the plan. Throws GroupFailure. */
void run_chain(distile_chain &chain, const distile_chain_args &args);
/** Copies the images that the devices keep. */
void collect_images(const distile_chain &chain, const distile_tensor &output);

/** Check the arguments of distile_chain_run and distile_chain_collect. */
void check_run(const distile_chain &chain, const distile_chain_args *given);
void check_collection(const distile_chain &chain, const distile_tensor *output);

/** With ranks: checks, plans and runs. */
void run_on_ranks(distile_chain &chain, const distile_chain_args *given);
/** With ranks: checks and copies the images to those that give an output. */
void collect_on_ranks(distile_chain &chain, const distile_tensor *output);

}  // namespace distile

#endif
