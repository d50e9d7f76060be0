// Runs of chains whose devices are of several processes.
#include "runtime/dispatch/kernel.h"
#include "runtime/group/run_chain.h"
#include "runtime/tensor/tensor.h"
#include <algorithm>
#include <set>

namespace distile {

namespace {

/** What a rank tells in the first word of its record. */
constexpr uint64_t has_input = 1, wants_output = 2, needs_rounds = 4, lacks_masks = 8;
/** The other words: a hash of the masks of its plan, 0 without one, and what they take in a message. */
constexpr size_t masks_word = 1, mask_bytes_word = 2;

uint64_t hash_of(const MaskShape &shape) {
    Hash hash;
    for (const int32_t extent : {shape.batch, shape.height, shape.width}) {
        hash.add(static_cast<uint64_t>(extent));
    }
    return hash.value();
}

uint64_t hash_of(const BitImages &masks) {
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
void place_messages(RankRounds &rounds, const distile_group &group) {
    size_t send_bytes = 0, receive_bytes = 0;
    std::vector<std::vector<const SpanList *>> lists(group.contexts.size());
    for (const Round *round : rounds.all()) {
        send_bytes = std::max(send_bytes, static_cast<size_t>(round->send_bytes));
        receive_bytes = std::max(receive_bytes, static_cast<size_t>(round->receive_bytes));
        for (const auto *parts : {&round->packs, &round->unpacks}) {
            for (size_t i = 0; i < parts->size(); i++) {
                for (const RoundPiece &piece : (*parts)[i]) {
                    lists[i].push_back(piece.spans);
                }
            }
        }
    }
    const auto provide = [&](std::shared_ptr<void> &memory, size_t &has, size_t bytes) {
        if (bytes > has) {
            memory.reset();
            has = 0;
            memory = group.exchange(0, 0).message_memory(*group.contexts[0], bytes);
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
    for (size_t i = 0; i < lists.size(); i++) {
        distile_context &context = *group.contexts[i];
        try {
            group.exchange(i, i).prepare_packed(context, lists[i]);
        } catch (const Failure &failure) {
            fail_group(failure.status, "%s", distile_context_message(&context));
        }
    }
}

/** Keeps what went wrong on this rank outside its devices' work, if anything did. */
void keep_fault(const distile_group &group, Fault &fault, const Outcome &outcome) {
    if (outcome.status != DISTILE_OK) {
        fault.set(group.first_device(), outcome);
    }
}

/** The masks of a plan as a message: the number of each layer's image, and then the words of the images. */
std::vector<uint64_t> message_of(const BitImages &masks) {
    std::vector<uint64_t> message;
    std::vector<const BitImage *> images;
    for (const std::shared_ptr<BitImage> &mask : masks) {
        const auto found = std::find(images.begin(), images.end(), mask.get());
        message.push_back(static_cast<uint64_t>(found - images.begin()));
        if (found == images.end()) {
            images.push_back(mask.get());
        }
    }
    for (const BitImage *image : images) {
        message.insert(message.end(), image->words.begin(), image->words.end());
    }
    return message;
}

uint64_t message_bytes_of(const BitImages &masks) {
    std::set<const BitImage *> images;
    size_t words = masks.size();
    for (const std::shared_ptr<BitImage> &mask : masks) {
        words += images.insert(mask.get()).second ? mask->words.size() : 0;
    }
    return words * sizeof(uint64_t);
}

/** What message_of() was made of, with the shapes of the layers' outputs. */
BitImages masks_of(const std::vector<uint64_t> &message, const std::vector<MaskShape> &shapes) {
    BitImages masks, images;
    size_t at = shapes.size();
    for (size_t i = 0; i < shapes.size(); i++) {
        if (message[i] >= images.size()) {
            images.push_back(std::make_shared<BitImage>(shapes[i]));
            std::vector<uint64_t> &words = images.back()->words;
            if (message[i] >= images.size() || words.size() > message.size() - at) {
                fail_group(DISTILE_ERROR_INTERNAL, "the first rank's masks are not those of this chain");
            }
            std::copy_n(message.begin() + static_cast<std::ptrdiff_t>(at), words.size(), words.begin());
            at += words.size();
        }
        masks.push_back(images[message[i]]);
    }
    return masks;
}

/** Whether a rank shall get the first one's masks. */
bool gets_masks(const RankRecord &record, const RankRecord &first) {
    return (record.words[0] & lacks_masks) != 0 && record.words[masks_word] != first.words[masks_word];
}

/** Sends the first rank's masks to those that lack them. Returns their message on those. */
std::vector<uint64_t> share_masks(distile_chain &chain, const std::vector<RankRecord> &records) {
    Ranks &ranks = *chain.group.ranks;
    const RankRecord &first = records[0];
    std::vector<uint64_t> message;
    std::vector<distile_message> sends, receives;
    const Outcome outcome = outcome_of(chain.group.contexts[0], [&] {
        const auto bytes = static_cast<int64_t>(first.words[mask_bytes_word]);
        if (ranks.rank() == 0) {
            message = message_of(chain.bits);
            for (size_t i = 0; i < records.size(); i++) {
                if (gets_masks(records[i], first)) {
                    sends.push_back({static_cast<int32_t>(i), 0, message.data(), bytes});
                }
            }
        } else if (gets_masks(records[static_cast<size_t>(ranks.rank())], first)) {
            message.resize(first.words[mask_bytes_word] / sizeof(uint64_t));
            receives.push_back({0, 0, message.data(), bytes});
        }
    });
    ranks.meet(Meeting::SendMasks, outcome, {});
    ranks.exchange(sends, receives, false, nullptr);
    return receives.empty() ? std::vector<uint64_t>() : std::move(message);
}

void hash_plan(distile_chain &chain) {
    if (chain.hashed_plan != chain.plans) {
        chain.masks_hash = hash_of(chain.bits);
        chain.mask_bytes = message_bytes_of(chain.bits);
        chain.partition_hash = hash_of(chain.partition);
        chain.hashed_plan = chain.plans;
    }
}

/** A run, and the job of it. */
struct RankRun {
    std::shared_ptr<ChainRun> run;
    Crew::Part job;

    void make(distile_chain &chain, const distile_chain_args &args) {
        run = std::make_shared<ChainRun>(chain, args);
        job = make_run_job(run);
    }
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

bool any_gets_masks(const std::vector<RankRecord> &records) {
    return std::any_of(records.begin(), records.end(),
                       [&](const RankRecord &record) { return gets_masks(record, records[0]); });
}

/** Plans for masks that the first rank has sent, if any, makes the rounds of a run, and lets the first rank choose the
 * variants of a new plan. */
void prepare_run(RankRun &made, distile_chain &chain, const distile_chain_args &args,
                 const std::vector<uint64_t> &mask_message) {
    distile_group &group = chain.group;
    Ranks &ranks = *group.ranks;
    RankRounds &rounds = *chain.rounds;
    std::vector<uint64_t> names;
    const Outcome outcome = outcome_of(group.contexts[0], [&] {
        if (!mask_message.empty()) {
            const MaskShape input = input_shape(chain, args);
            std::vector<MaskShape> shapes = shapes_of(chain.planned, input);
            shapes.erase(shapes.begin());
            plan_masks(chain, masks_of(mask_message, shapes), input);
            hash_plan(chain);
            made.make(chain, args);
        }
        const ChainRun &run = *made.run;
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
                    rounds.given, ranks.devices(), ranks.rank());
        place_messages(rounds, group);
        rounds.tensors = rounds.given;
        rounds.takes_kept = run.takes_kept;
        rounds.keeps = run.keeps;
        // Where images move, the rounds are those of this run alone.
        rounds.plan = run.moves ? -1 : chain.plans;
    });
    ranks.meet(Meeting::Prepare, outcome, {{"masks", chain.masks_hash}, {"parts", chain.partition_hash}});
    ranks.broadcast(names.data(), names.size() * sizeof(uint64_t));
    if (ranks.rank() == 0) {
        return;
    }
    const Outcome named = outcome_of(group.contexts[0], [&] {
        for (size_t i = 0; i < names.size(); i++) {
            chain.variants[i].clear();
            // Devices of a rank may have unequal code.
            for (const Kernel &kernel : chain.layers[i].kernels) {
                const distile_polykernel &code = kernel->polykernel;
                for (int32_t v = 0; v < code.num_variants; v++) {
                    if (hash_of(std::string(code.variants[v].name)) == names[i]) {
                        chain.variants[i] = code.variants[v].name;
                    }
                }
            }
        }
    });
    keep_fault(group, made.run->fault, named);
}

/** The devices' part in bringing images to ranks that want them. */
void collect_part(distile_chain &chain, const RankRounds &rounds, Fault &fault, size_t place,
                  const distile_tensor &output) {
    Member member(chain, fault, place);
    const Round &round = rounds.tensors_of[0];
    const PlacedTensor &kept = chain.devices[place].images.kept;
    const PlacedTensor to{chain.group.contexts[0], output};
    member.pack(rounds, round, stages::packed(0), stages::begins, kept);
    if (output.data) {
        member.attempt([&] {
            const Exchange &exchange = chain.group.exchange(place, 0);
            exchange.follow(member.context, *chain.group.contexts[0], stages::begins);
            exchange.copy(member.context, {{&kept, &to, &chain.kept_parts[member.number].spans}});
        });
    }
    member.deliver(rounds, round, stages::packed(0), to);
    member.attempt([&] { member.own_way().finish(member.context); });
}

}  // namespace

void run_on_ranks(distile_chain &chain, const distile_chain_args *given) {
    const distile_chain_args args = given ? *given : distile_chain_args{};
    distile_group &group = chain.group;
    Ranks &ranks = *group.ranks;
    const Deadline deadline = std::chrono::steady_clock::now() + group.timeout;
    ranks.begin(deadline);
    const MaskShape input = input_shape(chain, args);
    const bool has_masks = args.masks != nullptr;
    RankRun made;
    const Outcome outcome = outcome_of(group.contexts[0], [&] {
        check_run(chain, given);
        if (has_masks) {
            plan_run(chain, args);
        }
        // Without masks, the plan may be that of the first rank's.
        if (chain.input == input) {
            hash_plan(chain);
            made.make(chain, args);
        }
        group.crew->start();
    });
    const bool takes_kept = !args.input, keeps = !args.output, has_plan = made.run != nullptr;
    RankRounds &rounds = *chain.rounds;
    const bool needs = has_plan && (made.run->moves || rounds.plan != chain.plans || rounds.takes_kept != takes_kept ||
                                    rounds.keeps != keeps);
    const uint64_t word = (args.input && args.input->data ? has_input : 0) |
                          (args.output && args.output->data ? wants_output : 0) | (needs ? needs_rounds : 0) |
                          (has_masks ? 0 : lacks_masks);
    try {
        const std::vector<RankRecord> &records = ranks.meet(
            Meeting::Run, outcome,
            {{"chains", chain.number},
             {"arguments", (takes_kept ? 1U : 0U) | (keeps ? 2U : 0U) | (args.inactive == DISTILE_ZERO ? 4U : 0U)},
             {"sizes of the input", hash_of(input)},
             {"masks", chain.masks_hash, has_masks},
             {"parts", chain.partition_hash, has_masks},
             {"images that they keep", takes_kept ? chain.keeping_runs : 0}},
            {word, has_plan ? chain.masks_hash : 0, chain.mask_bytes});
        read_tensors(records, rounds.given);
        if (!keeps && !is_output_wanted(rounds.given)) {
            fail_group(DISTILE_ERROR_BAD_VALUE, "no rank wants the output: the data of each is null");
        }
        const bool sends_masks = any_gets_masks(records);
        if (sends_masks || any_needs_rounds(records) || !(rounds.given == rounds.tensors)) {
            prepare_run(made, chain, args, sends_masks ? share_masks(chain, records) : std::vector<uint64_t>());
        }
        const ChainRun &run = *made.run;
        if (run.changes_kept()) {
            // A run that fails leaves no images.
            chain.kept = {0, 0, 0};
        }
        keep_fault(group, made.run->fault, outcome_of(group.contexts[0], [&] {
                       if (run.output.data && args.inactive == DISTILE_ZERO) {
                           clear_inactive(chain, args,
                                          has_masks ? args.masks[chain.layers.size() - 1]
                                                    : mask_of_bits(chain, *chain.bits.back()));
                       }
                       group.exchange(0, 0).publish(*group.contexts[0], stages::begins);
                   }));
        chain.progress.reset(deadline);
        run_job(chain, made.job, run.fault, deadline);
        ranks.meet(Meeting::EndRun, run.fault.get(), {});
    } catch (...) {
        forget_plan(chain);
        throw;
    }
    made.run->commit();
}

void collect_on_ranks(distile_chain &chain, const distile_tensor *output) {
    distile_group &group = chain.group;
    Ranks &ranks = *group.ranks;
    const Deadline deadline = std::chrono::steady_clock::now() + group.timeout;
    ranks.begin(deadline);
    /** What the threads keep. */
    struct Collection {
        Fault fault;
        RankRounds rounds;
    };
    std::shared_ptr<Collection> collection;
    Crew::Part job;
    Outcome outcome = outcome_of(group.contexts[0], [&] {
        check_collection(chain, output);
        collection = std::make_shared<Collection>();
        collection->rounds.given = chain.rounds->given;
        const distile_tensor to = output ? *output : distile_tensor{};
        const std::shared_ptr<Fault> fault(collection, &collection->fault);
        job = make_job(chain, fault, [&chain, collection, to](size_t place) {
            collect_part(chain, collection->rounds, collection->fault, place, to);
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
        make_collection(collection->rounds, chain.kept_parts, pixel_bytes, tensors, ranks.devices(), ranks.rank());
        place_messages(collection->rounds, group);
        group.exchange(0, 0).publish(*group.contexts[0], stages::begins);
    });
    ranks.meet(Meeting::PrepareCollect, outcome, {});
    chain.progress.reset(deadline);
    run_job(chain, job, collection->fault, deadline);
    ranks.meet(Meeting::EndCollect, collection->fault.get(), {});
}

}  // namespace distile
