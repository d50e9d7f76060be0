#include "runtime/group/rank_rounds.h"

namespace distile {

namespace {

/** Messages begin at multiples of this, so that GPUs copy in wide units. */
constexpr int64_t message_alignment = 256;

/** Makes a round of what goes from rank to rank. */
class RoundMaker {
public:
    RoundMaker(Round &round, int32_t rank, int64_t pixel_bytes) : round_(round), rank_(rank), bytes_(pixel_bytes) {
        round_ = {};
    }

    /** The lists must outlive the round. */
    void add(int32_t from, int32_t to, const SpanList &spans) {
        int64_t pixels = 0;
        for (const Span &span : spans) {
            pixels += span.last - span.first;
        }
        if (pixels == 0) {
            return;
        }
        if (from == rank_ && to == rank_) {
            round_.own = &spans;
        } else if (from == rank_) {
            append(round_.sends, round_.send_bytes, to, spans, pixels);
        } else if (to == rank_) {
            append(round_.receives, round_.receive_bytes, from, spans, pixels);
        }
    }
    /** Pieces of several ranks. */
    void add(const std::vector<Fetch> &pieces, int32_t to) {
        for (const Fetch &piece : pieces) {
            add(piece.from, to, piece.spans);
        }
    }

private:
    void append(std::vector<RoundMessage> &messages, int64_t &end, int32_t peer, const SpanList &spans,
                int64_t pixels) const {
        messages.push_back({peer, &spans, end, pixels * bytes_});
        end += (pixels * bytes_ + message_alignment - 1) / message_alignment * message_alignment;
    }

    Round &round_;
    int32_t rank_;
    int64_t bytes_;
};

/** Keeps the lists of some pieces that concern a rank. */
void add_kept(RoundMaker &maker, std::deque<SpanList> &lists, std::vector<Fetch> pieces, int32_t to, int32_t rank) {
    for (Fetch &piece : pieces) {
        if (piece.from == rank || to == rank) {
            lists.push_back(std::move(piece.spans));
            maker.add(piece.from, to, lists.back());
        }
    }
}

int32_t count_of(const std::vector<bool> &ranks) {
    return static_cast<int32_t>(ranks.size());
}

/** Brings a rank what it reads of the chain's input: from there if it has one, else from the first rank. */
void add_input(RoundMaker &maker, const SpanList &spans, int32_t to, const RankTensors &tensors) {
    maker.add(tensors.have_input[static_cast<size_t>(to)] ? to : 0, to, spans);
}

}  // namespace

std::vector<Round *> RankRounds::all() {
    std::vector<Round *> rounds{&images, &first, &result};
    for (Round &halo : halos) {
        rounds.push_back(&halo);
    }
    return rounds;
}

void make_rounds(RankRounds &rounds, const RoundsOfRun &run, const RankTensors &tensors, int32_t rank) {
    const int32_t count = count_of(tensors.have_input);
    rounds.lists.clear();
    RoundMaker images(rounds.images, rank, run.input_bytes), first(rounds.first, rank, run.input_bytes),
        result(rounds.result, rank, run.output_bytes);
    std::deque<SpanList> &lists = rounds.lists;
    for (int32_t to = 0; to < count; to++) {
        const Part &part = run.plan.parts[static_cast<size_t>(to)];
        if ((run.takes_kept && run.moves) || (!run.takes_kept && run.keeps)) {
            const SpanList &spans = run.parts[static_cast<size_t>(to)].spans;
            if (run.takes_kept) {
                add_kept(images, lists, by_owner(spans, run.kept_by, run.input, count), to, rank);
            } else if (to == rank || rank == 0) {
                lists.push_back(spans);
                add_input(images, lists.back(), to, tensors);
            }
        }
        if (part.is_empty) {
            continue;
        }
        if (run.takes_kept) {
            add_kept(first, lists, by_owner(part.input, run.partition, run.input, count), to, rank);
        } else {
            add_input(first, part.input, to, tensors);
        }
        for (int32_t wants = 0; wants < count && !run.keeps; wants++) {
            if (tensors.want_output[static_cast<size_t>(wants)]) {
                result.add(to, wants, part.output);
            }
        }
    }
    rounds.halos.resize(run.tensor_bytes.empty() ? 0 : run.tensor_bytes.size() - 1);
    for (size_t i = 0; i < rounds.halos.size(); i++) {
        RoundMaker halo(rounds.halos[i], rank, run.tensor_bytes[i]);
        for (int32_t to = 0; to < count; to++) {
            const Part &part = run.plan.parts[static_cast<size_t>(to)];
            if (!part.is_empty) {
                halo.add(part.fetches[i], to);
            }
        }
    }
}

void make_collection(RankRounds &rounds, const std::vector<KeptPart> &parts, int64_t pixel_bytes,
                     const RankTensors &tensors, int32_t rank) {
    const int32_t count = count_of(tensors.want_output);
    RoundMaker result(rounds.result, rank, pixel_bytes);
    for (int32_t to = 0; to < count; to++) {
        for (int32_t from = 0; from < count && tensors.want_output[static_cast<size_t>(to)]; from++) {
            result.add(from, to, parts[static_cast<size_t>(from)].spans);
        }
    }
}

}  // namespace distile
