/** \file
 * The messages of a run between ranks, each of which has some devices. All follow from the plan, so no rank asks
 * another for pixels. A round is what ranks exchange at once: the pixels for each pair of them follow each other in one
 * message, by the devices that have them and then by those that get them. Devices of one rank copy from each other.
 */
#ifndef DISTILE_RANK_ROUNDS_H
#define DISTILE_RANK_ROUNDS_H

#include "runtime/group/chain_plan.h"
#include "runtime/group/ranks.h"
#include <deque>
#include <distile/group.h>

namespace distile {

/** A message to a rank, or from one. */
struct RoundMessage {
    int32_t peer;
    int64_t offset, bytes;  ///< Its place in the memory of the round.
};

/** Pixels that a device packs into a message, or unpacks from one. */
struct RoundPiece {
    const SpanList *spans;
    int64_t offset;  ///< Their place in the memory of the round.
};

/** What a rank sends and receives at once. */
struct Round {
    std::vector<RoundMessage> sends, receives;
    std::vector<std::vector<RoundPiece>> packs, unpacks;  ///< One list for each device of the rank.
    int64_t send_bytes = 0, receive_bytes = 0;
    std::vector<distile_message> sent, received;  ///< With their places in memory.
};

/** Ranks that have an input for a run, and that want its output. */
struct RankTensors {
    std::vector<bool> have_input, want_output;  ///< One for each rank.

    bool operator==(const RankTensors &other) const {
        return have_input == other.have_input && want_output == other.want_output;
    }
};

/** What a run's rounds follow from. */
struct RoundsOfRun {
    const ChainPlan &plan;
    const Partition &partition;
    MaskShape input;
    int64_t input_bytes, output_bytes;   ///< What a pixel takes.
    std::vector<int64_t> tensor_bytes;   ///< What a pixel of each layer's output takes.
    bool takes_kept, keeps, moves;       ///< As ChainRun has them.
    const Partition &kept_by;            ///< The partition of the images that devices keep.
    const std::vector<KeptPart> &parts;  ///< What they keep after the run.
};

/** The rounds of a run, and the memory of their messages, which is the rank's first device's. */
struct RankRounds {
    RankRounds() = default;
    RankRounds(const RankRounds &) = delete;
    RankRounds &operator=(const RankRounds &) = delete;

    std::deque<SpanList> lists;  ///< The lists that are not in the plan.
    Round images;                ///< Makes the images that devices keep.
    /** One for each tensor of the chain: what makes the first one, what is exchanged of the others, and of the last one
     * what brings the result to the ranks that want it. */
    std::vector<Round> tensors_of;
    std::vector<bool> talks;  ///< Devices of this rank that pack or unpack anything.
    std::shared_ptr<void> send_memory, receive_memory;
    size_t send_bytes = 0, receive_bytes = 0;  ///< The sizes of the memory.
    // What they were made for.
    int64_t plan = -1;
    RankTensors tensors, given;  ///< `given` are those of a run, for which there is memory.
    bool takes_kept = false, keeps = false;

    /** Every round. */
    std::vector<Round *> all();
};

/** Fills in the rounds of a rank. */
void make_rounds(RankRounds &rounds, const RoundsOfRun &run, const RankTensors &tensors, const RankDevices &devices,
                 int32_t rank);
/** The one round that brings the images that devices keep to the ranks that want them. */
void make_collection(RankRounds &rounds, const std::vector<KeptPart> &parts, int64_t pixel_bytes,
                     const RankTensors &tensors, const RankDevices &devices, int32_t rank);

}  // namespace distile

#endif
