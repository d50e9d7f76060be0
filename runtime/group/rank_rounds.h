/** \file
 * The messages of a run between ranks, each of which has one device. All follow from the plan, so no rank asks another
 * for pixels. A round is what ranks exchange at once: the pixels for each pair of them follow each other in one
 * message.
 */
#ifndef DISTILE_RANK_ROUNDS_H
#define DISTILE_RANK_ROUNDS_H

#include "runtime/group/chain_plan.h"
#include <deque>
#include <distile/group.h>

namespace distile {

/** A message to a rank, or from one. */
struct RoundMessage {
    int32_t peer;
    const SpanList *spans;
    int64_t offset, bytes;  ///< Its place in the memory of the round.
};

/** What a rank sends and receives at once. */
struct Round {
    std::vector<RoundMessage> sends, receives;
    const SpanList *own = nullptr;  ///< What goes from one tensor of the rank to another; null: nothing.
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
    const Partition &kept_by;            ///< The partition of the images that ranks keep.
    const std::vector<KeptPart> &parts;  ///< What they keep after the run.
};

/** The rounds of a run, and the memory of their messages. */
struct RankRounds {
    RankRounds() = default;
    RankRounds(const RankRounds &) = delete;
    RankRounds &operator=(const RankRounds &) = delete;

    std::deque<SpanList> lists;  ///< The lists that are not in the plan.
    Round images;                ///< Makes the images that a rank keeps.
    Round first;                 ///< Makes the chain's first tensor.
    std::vector<Round> halos;    ///< One for each layer but the last.
    Round result;
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
void make_rounds(RankRounds &rounds, const RoundsOfRun &run, const RankTensors &tensors, int32_t rank);
/** The round that brings the images that ranks keep to those that want them. */
void make_collection(RankRounds &rounds, const std::vector<KeptPart> &parts, int64_t pixel_bytes,
                     const RankTensors &tensors, int32_t rank);

}  // namespace distile

#endif
