// Runs of chains whose devices are of several processes.
#include "runtime/dispatch/kernel.h"
#include "runtime/group/run_chain.h"
#include "runtime/tensor/tensor.h"
#include <algorithm>

namespace distile {

namespace {

/** What a rank tells in a word of its record. */
constexpr uint64_t has_input = 1, wants_output = 2, needs_rounds = 4;

uint64_t hash_of(const MaskShape &shape) {
    Hash hash;
    for (const int32_t extent : {shape.batch, shape.height, shape.width}) {
        hash.add(static_cast<uint64_t>(extent));
    }
    return hash.value();
}

uint64_t hash_of(const std::vector<std::shared_ptr<BitImage>> &masks) {
    Hash hash;
    const BitImage *before = nullptr;
    for (const std::shared_ptr<BitImage> &mask : masks) {
        // Layers that share a mask share its image.
        hash.add(mask.get() == before ? 1 : 0);
        if (mask.get() != before) {
            hash.add(hash_of(mask->shape));
            hash.add_bytes(mask->words.data(), mask->words.size() * sizeof(uint64_t));
        }
        before = mask.get();
    }
    return hash.value();
}

uint64_t hash_of(const Partition &partition) {
    Hash hash;
    hash.add(static_cast<uint64_t>(partition.cell_h));
    hash.add(static_cast<uint64_t>(partition.cell_w));
    hash.add(hash_of(partition.cells));
    hash.add_bytes(partition.owners.data(), partition.owners.size() * sizeof(uint16_t));
    return hash.value();
}

uint64_t hash_of(const std::string &name) {
    if (name.empty()) {
        return 0;
    }
    Hash hash;
    hash.add_bytes(name.data(), name.size());
    return hash.value();
}

/** Lets the next run begin as the first one, because ranks may have come to different points. */
void forget_plan(distile_chain &chain) {
    chain.input = {0, 0, 0};
    chain.partition = {};
    chain.rounds->plan = -1;
}

/** Memory for the messages of rounds, and their places in it. */
void place_messages(RankRounds &rounds, distile_context &context, const Exchange &way) {
    size_t send_bytes = 0, receive_bytes = 0;
    std::vector<const SpanList *> lists, own;
    for (const Round *round : rounds.all()) {
        if (round->own) {
            own.push_back(round->own);
        }
        send_bytes = std::max(send_bytes, static_cast<size_t>(round->send_bytes));
        receive_bytes = std::max(receive_bytes, static_cast<size_t>(round->receive_bytes));
        for (const std::vector<RoundMessage> *messages : {&round->sends, &round->receives}) {
            for (const RoundMessage &message : *messages) {
                lists.push_back(message.spans);
            }
        }
    }
    const auto provide = [&](std::shared_ptr<void> &memory, size_t &has, size_t bytes) {
        if (bytes > has) {
            memory.reset();
            has = 0;
            memory = way.message_memory(context, bytes);
            has = bytes;
        }
    };
    provide(rounds.send_memory, rounds.send_bytes, send_bytes);
    provide(rounds.receive_memory, rounds.receive_bytes, receive_bytes);
    const auto place = [](const std::vector<RoundMessage> &messages, const std::shared_ptr<void> &memory) {
        std::vector<distile_message> placed;
        for (const RoundMessage &message : messages) {
            placed.push_back({message.peer, 0, static_cast<char *>(memory.get()) + message.offset, message.bytes});
        }
        return placed;
    };
    for (Round *round : rounds.all()) {
        round->sent = place(round->sends, rounds.send_memory);
        round->received = place(round->receives, rounds.receive_memory);
    }
    way.prepare(context, {}, own);
    way.prepare_packed(context, lists);
}

/** Keeps what went wrong on this rank, if anything did. Returns whether nothing did. */
bool keep_fault(const distile_group &group, Fault &fault, const Outcome &outcome) {
    if (outcome.status != DISTILE_OK) {
        fault.set(group.first_device(), outcome);
    }
    return outcome.status == DISTILE_OK;
}

/** A rank's part of an exchange with others: what fails on this rank is kept, and its messages travel all the same. */
class RankWork {
public:
    RankWork(distile_chain &chain, Fault &fault)
        : group_(chain.group), context_(*group_.contexts[0]), way_(group_.exchange(0, 0)), fault_(fault),
          is_well_(fault.get().status == DISTILE_OK) {
    }

    template<typename Body> void attempt(const Body &body) {
        if (is_well_) {
            is_well_ = keep_fault(group_, fault_, outcome_of(&context_, body));
        }
    }

    /** Takes a round's pixels from one tensor to another. Later work comes after arrive(). */
    void exchange(const Round &round, const PlacedTensor &from, const PlacedTensor &to) {
        if (round.own) {
            attempt([&] { way_.copy(context_, {{&from, &to, round.own}}); });
        }
        if (round.sent.empty() && round.received.empty()) {
            return;
        }
        attempt([&] { way_.pack(context_, packed(from, round.sends, round.sent)); });
        const bool on_device = context_.device->kind() != DISTILE_CPU;
        group_.ranks->exchange(round.sent, round.received, on_device, way_.message_stream(context_));
        attempt([&] { way_.unpack(context_, packed(to, round.receives, round.received)); });
    }
    void arrive() {
        attempt([&] { way_.arrive(context_); });
    }
    void finish() {
        attempt([&] { way_.finish(context_); });
    }

private:
    static std::vector<PackedPixels> packed(const PlacedTensor &tensor, const std::vector<RoundMessage> &messages,
                                            const std::vector<distile_message> &places) {
        std::vector<PackedPixels> pixels;
        for (size_t i = 0; i < messages.size(); i++) {
            pixels.push_back({&tensor, messages[i].spans, places[i].data});
        }
        return pixels;
    }

    distile_group &group_;
    distile_context &context_;
    const Exchange &way_;
    Fault &fault_;
    bool is_well_;
};

/** A job for a rank's thread. Messages that fail end it. */
template<typename Body>
Crew::Part make_part(distile_group &group, const std::shared_ptr<Fault> &fault, const Body &body) {
    return std::make_shared<const std::function<void(int32_t)>>([fault, body, &group](int32_t) {
        distile_context &context = *group.contexts[0];
        if (!keep_fault(group, *fault, outcome_of(&context, body))) {
            // Once the call has returned, nothing may use the caller's tensors.
            (void)outcome_of(&context, [&] { group.exchange(0, 0).finish(context); });
        }
    });
}

/** Runs a job. Fails if messages did. */
void run_job(distile_group &group, const Crew::Part &part, const Fault &fault, Deadline deadline) {
    run_parts(group, part, deadline, [] {});
    if (group.ranks->is_lost()) {
        const Outcome outcome = fault.get();
        fail_group(outcome.status, "%s", outcome.message);
    }
}

/** A rank's part of a run. */
class RankRun {
public:
    explicit RankRun(ChainRun &run) : run_(run), work_(run.chain, run.fault) {
    }

    void compute() {
        distile_chain &chain = run_.chain;
        DeviceWork device(chain, 0);
        DeviceRun &own = device.device;
        const RankRounds &rounds = *chain.rounds;
        const PlacedTensor input{&device.context, run_.input}, output{&device.context, run_.output};
        if (run_.uses_kept()) {
            const KeptPart &part = run_.parts[device.number];
            KeptImages &images = own.images;
            const bool stay = run_.takes_kept && !run_.moves;
            work_.attempt([&] {
                images.next = stay ? images.kept : part.box.is_empty() ? PlacedTensor{} : device.take_images(part);
            });
            work_.exchange(rounds.images, run_.takes_kept ? images.kept : input, images.next);
            work_.arrive();
        }
        if (!device.part.is_empty) {
            work_.attempt([&] {
                device.prepare();
                device.make_tensor(0);
            });
        }
        work_.exchange(rounds.first, run_.takes_kept ? own.images.next : input, own.tensors[0]);
        work_.arrive();
        if (!device.part.is_empty) {
            compute_layers(device);
        }
        const PlacedTensor &last = own.tensors[chain.layers.size()];
        if (!run_.keeps) {
            work_.exchange(rounds.result, last, output);
        } else if (!device.part.is_empty) {
            work_.attempt([&] {
                device.own_way().copy(device.context, {{&last, &own.images.next, &device.part.output}});
            });
        }
        work_.finish();
    }

private:
    void compute_layers(DeviceWork &device) {
        const RankRounds &rounds = *run_.chain.rounds;
        const size_t count = run_.chain.layers.size();
        const bool overlaps = device.group.overlaps(0);
        work_.attempt([&] { device.make_tensor(1); });
        for (size_t i = 0; i < count; i++) {
            const bool last = i + 1 == count, in_parts = overlaps && !last;
            DeviceLayer &layer = device.device.layers[i];
            work_.attempt([&] {
                device.run_layer(i, in_parts ? layer.rim : layer.own);
                if (!last) {
                    device.make_tensor(i + 2);
                }
            });
            if (last) {
                break;
            }
            const PlacedTensor &tensor = device.device.tensors[i + 1];
            work_.exchange(rounds.halos[i], tensor, tensor);
            work_.attempt([&] {
                if (in_parts && device.part.layers[i].interior.count() > 0) {
                    device.run_layer(i, layer.interior);
                }
            });
            work_.arrive();
        }
    }

    ChainRun &run_;
    RankWork work_;
};

/** What each rank has, by its record. Allocates nothing, as all that ranks do between two meetings. */
void read_tensors(const std::vector<RankRecord> &records, RankTensors &tensors) {
    for (size_t i = 0; i < records.size(); i++) {
        tensors.have_input[i] = (records[i].words[0] & has_input) != 0;
        tensors.want_output[i] = (records[i].words[0] & wants_output) != 0;
    }
}

bool is_output_wanted(const RankTensors &tensors) {
    return std::find(tensors.want_output.begin(), tensors.want_output.end(), true) != tensors.want_output.end();
}

bool any_needs_rounds(const std::vector<RankRecord> &records) {
    return std::any_of(records.begin(), records.end(),
                       [](const RankRecord &record) { return (record.words[0] & needs_rounds) != 0; });
}

/** Makes the rounds of a run, and lets the first rank choose the variants of a new plan. */
void prepare_run(ChainRun &run, const distile_chain_args &args) {
    distile_chain &chain = run.chain;
    distile_group &group = chain.group;
    Ranks &ranks = *group.ranks;
    RankRounds &rounds = *chain.rounds;
    std::vector<uint64_t> names;
    const Outcome outcome = outcome_of(group.contexts[0], [&] {
        const bool is_new = rounds.plan != chain.plans;
        rounds.plan = -1;
        if (is_new && ranks.rank() == 0) {
            choose_variants(chain, args.masks);
        }
        for (const std::string &variant : chain.variants) {
            names.push_back(hash_of(variant));
        }
        const auto element_bytes = static_cast<int64_t>(distile_dtype_size(chain.layers[0].dtype));
        std::vector<int64_t> tensor_bytes;
        for (const ChainLayer &layer : chain.layers) {
            tensor_bytes.push_back(layer.planned.pixel_bytes);
        }
        make_rounds(rounds,
                    {chain.plan, chain.partition, chain.input, chain.layers[0].in_channels * element_bytes,
                     tensor_bytes.back(), tensor_bytes, run.takes_kept, run.keeps, run.moves, chain.kept_by, run.parts},
                    rounds.given, ranks.rank());
        place_messages(rounds, *group.contexts[0], group.exchange(0, 0));
        rounds.tensors = rounds.given;
        rounds.takes_kept = run.takes_kept;
        rounds.keeps = run.keeps;
        // Where images move, the rounds are those of this run alone.
        rounds.plan = run.moves ? -1 : chain.plans;
    });
    ranks.meet(Meeting::Prepare, outcome, {});
    ranks.broadcast(names.data(), names.size() * sizeof(uint64_t));
    if (ranks.rank() == 0) {
        return;
    }
    const Outcome named = outcome_of(group.contexts[0], [&] {
        for (size_t i = 0; i < names.size(); i++) {
            const distile_polykernel &code = chain.layers[i].kernels[0]->polykernel;
            chain.variants[i].clear();
            for (int32_t v = 0; v < code.num_variants; v++) {
                if (hash_of(std::string(code.variants[v].name)) == names[i]) {
                    chain.variants[i] = code.variants[v].name;
                }
            }
        }
    });
    keep_fault(group, run.fault, named);
}

}  // namespace

void run_on_ranks(distile_chain &chain, const distile_chain_args *given) {
    const distile_chain_args args = given ? *given : distile_chain_args{};
    distile_group &group = chain.group;
    Ranks &ranks = *group.ranks;
    const Deadline deadline = std::chrono::steady_clock::now() + group.timeout;
    ranks.begin(deadline);
    std::shared_ptr<ChainRun> run;
    Crew::Part part;
    const Outcome outcome = outcome_of(group.contexts[0], [&] {
        check_run(chain, given);
        plan_run(chain, args);
        if (chain.hashed_plan != chain.plans) {
            chain.masks_hash = hash_of(chain.bits);
            chain.partition_hash = hash_of(chain.partition);
            chain.hashed_plan = chain.plans;
        }
        run = std::make_shared<ChainRun>(chain, args);
        const std::shared_ptr<Fault> fault(run, &run->fault);
        part = make_part(group, fault, [run] { RankRun(*run).compute(); });
        group.crew->start();
    });
    const bool takes_kept = !args.input, keeps = !args.output;
    RankRounds &rounds = *chain.rounds;
    const bool needs =
        run && (run->moves || rounds.plan != chain.plans || rounds.takes_kept != takes_kept || rounds.keeps != keeps);
    const uint64_t word = (args.input && args.input->data ? has_input : 0) |
                          (args.output && args.output->data ? wants_output : 0) | (needs ? needs_rounds : 0);
    try {
        const std::vector<RankRecord> &records = ranks.meet(
            Meeting::Run, outcome,
            {{"chains", chain.number},
             {"arguments", (takes_kept ? 1U : 0U) | (keeps ? 2U : 0U) | (args.inactive == DISTILE_ZERO ? 4U : 0U)},
             {"sizes of the input", hash_of(chain.input)},
             {"masks", chain.masks_hash},
             {"parts", chain.partition_hash},
             {"images that they keep", takes_kept ? chain.keeping_runs : 0}},
            {word});
        read_tensors(records, rounds.given);
        if (!keeps && !is_output_wanted(rounds.given)) {
            fail_group(DISTILE_ERROR_BAD_VALUE, "no rank wants the output: the data of each is null");
        }
        if (any_needs_rounds(records) || !(rounds.given == rounds.tensors)) {
            prepare_run(*run, args);
        }
        if (run->changes_kept()) {
            // A run that fails leaves no images.
            chain.kept = {0, 0, 0};
        }
        if (run->output.data) {
            keep_fault(group, run->fault, outcome_of(group.contexts[0], [&] { clear_inactive(chain, args); }));
        }
        run_job(group, part, run->fault, deadline);
        ranks.meet(Meeting::EndRun, run->fault.get(), {});
    } catch (...) {
        forget_plan(chain);
        throw;
    }
    run->commit();
}

void collect_on_ranks(distile_chain &chain, const distile_tensor *output) {
    distile_group &group = chain.group;
    Ranks &ranks = *group.ranks;
    const Deadline deadline = std::chrono::steady_clock::now() + group.timeout;
    ranks.begin(deadline);
    /** What the thread keeps. */
    struct Collection {
        Fault fault;
        RankRounds rounds;
    };
    std::shared_ptr<Collection> collection;
    Crew::Part part;
    Outcome outcome = outcome_of(group.contexts[0], [&] {
        check_collection(chain, output);
        collection = std::make_shared<Collection>();
        collection->rounds.given = chain.rounds->given;
        const PlacedTensor to{group.contexts[0], output ? *output : distile_tensor{}};
        const std::shared_ptr<Fault> fault(collection, &collection->fault);
        part = make_part(group, fault, [&chain, collection, to] {
            RankWork work(chain, collection->fault);
            work.exchange(collection->rounds.result, chain.devices[0].images.kept, to);
            work.finish();
        });
        group.crew->start();
    });
    const std::vector<RankRecord> &records = ranks.meet(
        Meeting::Collect, outcome,
        {{"chains", chain.number}, {"images that they keep", chain.keeping_runs}, {"sizes", hash_of(chain.kept)}},
        {output && output->data ? wants_output : 0});
    RankTensors &tensors = collection->rounds.given;
    read_tensors(records, tensors);
    outcome = outcome_of(group.contexts[0], [&] {
        if (!is_output_wanted(tensors)) {
            fail_group(DISTILE_ERROR_BAD_VALUE, "no rank wants the images: the tensor of each is null");
        }
        const auto pixel_bytes =
            chain.layers[0].in_channels * static_cast<int64_t>(distile_dtype_size(chain.layers[0].dtype));
        make_collection(collection->rounds, chain.kept_parts, pixel_bytes, tensors, ranks.rank());
        place_messages(collection->rounds, *group.contexts[0], group.exchange(0, 0));
    });
    ranks.meet(Meeting::PrepareCollect, outcome, {});
    run_job(group, part, collection->fault, deadline);
    ranks.meet(Meeting::EndCollect, collection->fault.get(), {});
}

}  // namespace distile
