#include "runtime/group/rank_rounds.h"
#include <map>

namespace distile {

namespace {

/** Pixels of a device begin at multiples of this in messages, so that GPUs copy in wide units. */
constexpr int64_t message_alignment = 256;

int64_t aligned(int64_t bytes) {
    return (bytes + message_alignment - 1) / message_alignment * message_alignment;
}

/** Makes a round of what goes from device to device. Every rank adds the same pieces in the same order. */
class RoundMaker {
public:
    RoundMaker(Round &round, const RankDevices &devices, int32_t rank, int64_t pixel_bytes)
        : round_(round), devices_(devices), rank_(rank), bytes_(pixel_bytes) {
    }

    /** Whether a piece is in a message of this rank. */
    bool concerns(int32_t from, int32_t to) const {
        const int32_t sender = devices_.rank_of(from), receiver = devices_.rank_of(to);
        return sender != receiver && (sender == rank_ || receiver == rank_);
    }
    /** The list must outlive the round. */
    void add(int32_t from, int32_t to, const SpanList &spans) {
        if (!concerns(from, to)) {
            return;
        }
        int64_t pixels = 0;
        for (const Span &span : spans) {
            pixels += span.last - span.first;
        }
        if (pixels == 0) {
            return;
        }
        const int32_t sender = devices_.rank_of(from), receiver = devices_.rank_of(to);
        const int32_t first = devices_.first_of(rank_);
        if (sender == rank_) {
            sends_[receiver].push_back({from - first, &spans, pixels * bytes_});
        } else {
            receives_[sender].push_back({to - first, &spans, pixels * bytes_});
        }
    }
    void add(const std::vector<Fetch> &pieces, int32_t to) {
        for (const Fetch &piece : pieces) {
            add(piece.from, to, piece.spans);
        }
    }
    /** Gives all their places. */
    void finish() {
        round_ = {};
        place(sends_, round_.sends, round_.packs, round_.send_bytes);
        place(receives_, round_.receives, round_.unpacks, round_.receive_bytes);
    }

private:
    struct Piece {
        int32_t place;
        const SpanList *spans;
        int64_t bytes;
    };
    using Pieces = std::map<int32_t, std::vector<Piece>>;

    void place(const Pieces &of_peers, std::vector<RoundMessage> &messages, std::vector<std::vector<RoundPiece>> &parts,
               int64_t &end) const {
        parts.resize(static_cast<size_t>(devices_.count_of(rank_)));
        for (const auto &[peer, pieces] : of_peers) {
            end = aligned(end);
            RoundMessage message{peer, end, 0};
            for (const Piece &piece : pieces) {
                end = aligned(end);
                parts[static_cast<size_t>(piece.place)].push_back({piece.spans, end});
                end += piece.bytes;
            }
            message.bytes = end - message.offset;
            messages.push_back(message);
        }
    }

    Round &round_;
    const RankDevices &devices_;
    int32_t rank_;
    int64_t bytes_;
    Pieces sends_, receives_;
};

/** Keeps the lists of some pieces that a rank sends or receives. */
void add_kept(RoundMaker &maker, std::deque<SpanList> &lists, std::vector<Fetch> pieces, int32_t to) {
    for (Fetch &piece : pieces) {
        if (maker.concerns(piece.from, to)) {
            lists.push_back(std::move(piece.spans));
            maker.add(piece.from, to, lists.back());
        }
    }
}

void find_talkers(RankRounds &rounds, int32_t count) {
    rounds.talks.assign(static_cast<size_t>(count), false);
    for (const Round *round : rounds.all()) {
        for (size_t i = 0; i < round->packs.size(); i++) {
            rounds.talks[i] = rounds.talks[i] || !round->packs[i].empty() || !round->unpacks[i].empty();
        }
    }
}

}  // namespace

std::vector<Round *> RankRounds::all() {
    std::vector<Round *> rounds{&images};
    for (Round &round : tensors_of) {
        rounds.push_back(&round);
    }
    return rounds;
}

void make_rounds(RankRounds &rounds, const RoundsOfRun &run, const RankTensors &tensors, const RankDevices &devices,
                 int32_t rank) {
    const size_t num_layers = run.tensor_bytes.size();
    const auto count = static_cast<int32_t>(run.plan.parts.size());
    rounds.lists.clear();
    rounds.tensors_of.resize(num_layers + 1);
    RoundMaker images(rounds.images, devices, rank, run.input_bytes),
        first(rounds.tensors_of.front(), devices, rank, run.input_bytes),
        result(rounds.tensors_of.back(), devices, rank, run.output_bytes);
    for (int32_t to = 0; to < count; to++) {
        const Part &part = run.plan.parts[static_cast<size_t>(to)];
        const int32_t receiver = devices.rank_of(to);
        // A device reads the input of its rank, or else the first rank's, which the first device has.
        const int32_t has_input = tensors.have_input[static_cast<size_t>(receiver)] ? devices.first_of(receiver) : 0;
        if (run.takes_kept && run.moves) {
            const SpanList &spans = run.parts[static_cast<size_t>(to)].spans;
            add_kept(images, rounds.lists, by_owner(spans, run.kept_by, run.input, count), to);
        } else if (!run.takes_kept && run.keeps && images.concerns(has_input, to)) {
            rounds.lists.push_back(run.parts[static_cast<size_t>(to)].spans);
            images.add(has_input, to, rounds.lists.back());
        }
        if (part.is_empty) {
            continue;
        }
        if (run.takes_kept) {
            add_kept(first, rounds.lists, by_owner(part.input, run.partition, run.input, count), to);
        } else {
            first.add(has_input, to, part.input);
        }
        for (int32_t wants = 0; wants < devices.num_ranks() && !run.keeps; wants++) {
            if (tensors.want_output[static_cast<size_t>(wants)]) {
                result.add(to, devices.first_of(wants), part.output);
            }
        }
    }
    images.finish();
    first.finish();
    result.finish();
    for (size_t i = 0; i + 1 < num_layers; i++) {
        RoundMaker halo(rounds.tensors_of[i + 1], devices, rank, run.tensor_bytes[i]);
        for (int32_t to = 0; to < count; to++) {
            const Part &part = run.plan.parts[static_cast<size_t>(to)];
            if (!part.is_empty) {
                halo.add(part.fetches[i], to);
            }
        }
        halo.finish();
    }
    find_talkers(rounds, devices.count_of(rank));
}

void make_collection(RankRounds &rounds, const std::vector<KeptPart> &parts, int64_t pixel_bytes,
                     const RankTensors &tensors, const RankDevices &devices, int32_t rank) {
    rounds.tensors_of.resize(1);
    RoundMaker result(rounds.tensors_of[0], devices, rank, pixel_bytes);
    for (int32_t to = 0; to < devices.num_ranks(); to++) {
        for (size_t from = 0; from < parts.size() && tensors.want_output[static_cast<size_t>(to)]; from++) {
            result.add(static_cast<int32_t>(from), devices.first_of(to), parts[from].spans);
        }
    }
    result.finish();
    find_talkers(rounds, devices.count_of(rank));
}

}  // namespace distile
