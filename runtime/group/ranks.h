/** \file
 * The ranks of a group whose devices are of several processes: what they tell each other before they work together and
 * afterwards, and their messages.
 *
 * Every rank does alone what may fail there, and then tells the others how it went. So all go on or none does: a rank
 * that fails between two such points goes on exchanging messages, whose bytes nobody uses, until the next one.
 */
#ifndef DISTILE_RANKS_H
#define DISTILE_RANKS_H

#include "runtime/group/crew.h"
#include <array>
#include <atomic>
#include <cstring>
#include <distile/group.h>
#include <initializer_list>
#include <utility>
#include <vector>

namespace distile {

/** How work ended. Keeping it allocates nothing. */
struct Outcome {
    distile_status status = DISTILE_OK;
    char message[700] = "";

    void set(distile_status given, const char *text);
};

/** A call of a group, or a point within it, in which ranks compare what they have. */
enum class Meeting : int32_t {
    MakeGroup,
    CountDevices,
    MakeChain,
    Run,
    SendMasks,
    Prepare,
    EndRun,
    Collect,
    PrepareCollect,
    EndCollect
};

/** Something that is equal on all ranks, or the call fails. */
struct Fact {
    const char *what;  ///< As in "ranks 0 and 1 have different masks".
    uint64_t value;
    bool is_known = true;  ///< What this rank does not know, which is not the first, is not compared.
};

/** What a rank tells the others. */
struct RankRecord {
    static constexpr size_t most_facts = 10, num_words = 3;

    uint64_t format;  ///< The version of this struct, and of what ranks do.
    Meeting meeting;
    int32_t status;
    uint64_t facts[most_facts];
    uint64_t unknown;           ///< A bit for each fact.
    uint64_t words[num_words];  ///< What only the rank itself has.
    char message[240];
};

/** Which devices each rank has: those from first_of(rank) to before first_of(rank + 1), among those of all ranks. */
class RankDevices {
public:
    RankDevices() = default;
    explicit RankDevices(const std::vector<int32_t> &counts);

    int32_t num_ranks() const {
        return static_cast<int32_t>(first_.size()) - 1;
    }
    int32_t first_of(int32_t rank) const {
        return first_[static_cast<size_t>(rank)];
    }
    int32_t count_of(int32_t rank) const {
        return first_of(rank + 1) - first_of(rank);
    }
    int32_t rank_of(int32_t device) const;

private:
    std::vector<int32_t> first_{0};
};

/** Its functions throw GroupFailure. */
class Ranks {
public:
    explicit Ranks(const distile_transport &transport);

    int32_t rank() const {
        return transport_.rank;
    }
    int32_t count() const {
        return transport_.ranks;
    }
    bool is_asynchronous() const {
        return transport_.asynchronous != 0;
    }
    /** Whether messages failed. Others may then still be on their way. */
    bool is_lost() const {
        return is_lost_;
    }
    /** This rank can take part no more, so that others wait for its messages in vain. */
    void lose() {
        is_lost_ = true;
    }
    /** Known from when the group has been made. */
    const RankDevices &devices() const {
        return devices_;
    }
    void set_devices(RankDevices &&devices) {
        devices_ = std::move(devices);
    }
    /** Begins a call, which ends by then. */
    void begin(Deadline deadline) {
        deadline_ = deadline;
    }
    /** Tells all ranks how this one did, and what it has. Fails on all if one failed, or has other facts than the
     * first; else returns what all tell, until the next meeting. */
    const std::vector<RankRecord> &meet(Meeting meeting, const Outcome &own, std::initializer_list<Fact> facts,
                                        const std::array<uint64_t, RankRecord::num_words> &words = {});
    void exchange(const std::vector<distile_message> &sends, const std::vector<distile_message> &receives,
                  bool on_device, void *stream);
    /** Copies the first rank's bytes to all. */
    void broadcast(void *data, size_t bytes);

private:
    distile_transport transport_;
    RankDevices devices_;
    Deadline deadline_;
    std::atomic<bool> is_lost_{false};
    std::vector<RankRecord> records_;
    std::vector<distile_message> sends_, receives_;  // Records.
    std::vector<distile_message> down_;              // What the first rank sends to all.
    std::vector<distile_message> none_;
};

/** A hash, which is no protection against intent. */
class Hash {
public:
    void add(uint64_t word) {
        constexpr uint64_t factor = 0x9E3779B97F4A7C15;
        constexpr int shift = 29;
        value_ = (value_ ^ word) * factor;
        value_ ^= value_ >> shift;
    }
    void add_double(double number) {
        uint64_t word = 0;
        std::memcpy(&word, &number, sizeof(word));
        add(word);
    }
    void add_bytes(const void *data, size_t bytes);
    uint64_t value() const {
        return value_;
    }

private:
    uint64_t value_ = 0x243F6A8885A308D3;
};

}  // namespace distile

#endif
