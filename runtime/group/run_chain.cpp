#include "runtime/group/run_chain.h"
#include "runtime/tensor/tensor.h"

namespace distile {

Member::Member(distile_chain &of, Fault &fault, size_t own)
    : chain(of), group(of.group), place(own), number(of.group.first_device() + own), context(*of.group.contexts[own]),
      fault_(fault) {
}

void Member::tell(int32_t stage) {
    attempt([&] { own_way().publish(context, stage); });
    chain.progress.advance(place, stage);
}

void Member::wait(size_t other, int32_t stage) {
    if (other == place) {
        return;
    }
    if (!chain.progress.wait(other, stage)) {
        throw Stopped{};
    }
    attempt([&] { group.exchange(other, place).follow(context, *group.contexts[other], stage); });
}

namespace {

std::vector<PackedPixels> packed_pixels(const PlacedTensor &tensor, const std::vector<RoundPiece> &pieces,
                                        const std::shared_ptr<void> &memory) {
    std::vector<PackedPixels> pixels;
    pixels.reserve(pieces.size());
    for (const RoundPiece &piece : pieces) {
        pixels.push_back({&tensor, piece.spans, static_cast<char *>(memory.get()) + piece.offset});
    }
    return pixels;
}

}  // namespace

void Member::pack(const RankRounds &rounds, const Round &round, int32_t packed, int32_t before,
                  const PlacedTensor &from) {
    if (!rounds.talks[place]) {
        return;
    }
    if (place != 0 && !round.packs[place].empty()) {
        wait(0, before);
    }
    // Also where nothing is packed: what is unpacked comes after what the device has been given by now.
    attempt([&] { own_way().pack(context, packed_pixels(from, round.packs[place], rounds.send_memory)); });
    attempt([&] { own_way().publish_messages(context, packed); });
    chain.progress.advance(place, packed);
}

void Member::deliver(const RankRounds &rounds, const Round &round, int32_t packed, const PlacedTensor &to) {
    const int32_t received = packed + 1;
    const bool gets = rounds.talks[place] && !round.unpacks[place].empty();
    if (place == 0) {
        // Devices that pack nothing now have unpacked what came before, whose memory messages use again.
        for (size_t other = 1; other < rounds.talks.size(); other++) {
            if (rounds.talks[other]) {
                wait(other, packed);
            }
        }
        const bool on_device = context.device->kind() != DISTILE_CPU;
        group.ranks->exchange(round.sent, round.received, on_device, own_way().message_stream(context));
        attempt([&] { own_way().publish_messages(context, received); });
        chain.progress.advance(place, received);
    } else if (gets) {
        wait(0, received);
    }
    if (gets) {
        attempt([&] { own_way().unpack(context, packed_pixels(to, round.unpacks[place], rounds.receive_memory)); });
    }
}

namespace {

/** A device's part of a run. */
class PartRun : DeviceWork {
public:
    PartRun(ChainRun &run, size_t of)
        : DeviceWork(run.chain, run.fault, of),
          run_(run), input_{group.contexts[0], run.input}, output_{group.contexts[0], run.output} {
    }

    void compute() {
        if (run_.uses_kept()) {
            make_images();
        }
        if (part.is_empty) {
            pass_messages();
        } else {
            compute_tensors();
        }
        attempt([&] { own_way().finish(context); });
        // Nothing is left that others would have to follow.
        chain.progress.advance(place, stages::all);
    }

private:
    void compute_tensors() {
        attempt([&] {
            prepare();
            make_tensor(0);
        });
        if (run_.takes_kept) {
            fetch_images();
        } else {
            copy_input(device.tensors[0], part.input);
        }
        tell(stages::made(0));
        pack_tensor(0);
        deliver_tensor(0);
        arrive();
        const size_t count = chain.layers.size();
        attempt([&] { make_tensor(1); });
        for (size_t i = 0; i < count; i++) {
            compute_layer(i);
        }
        if (run_.keeps) {
            // Others read the images before they make their first tensor.
            for (size_t other = 0; other < group.contexts.size(); other++) {
                wait(other, stages::made(0));
            }
            attempt([&] { own_way().copy(context, {{&device.tensors[count], &device.images.next, &part.output}}); });
            return;
        }
        pack_tensor(count);
        if (run_.output.data) {
            attempt([&] {
                const Exchange &exchange = group.exchange(place, 0);
                exchange.follow(context, *group.contexts[0], stages::begins);
                exchange.copy(context, {{&device.tensors[count], &output_, &part.output}});
            });
        }
        deliver_tensor(count);
    }

    /** Computes a layer, and brings here what the next one reads of it. */
    void compute_layer(size_t i) {
        const bool last = i + 1 == chain.layers.size(), in_parts = group.overlaps(place) && !last;
        DeviceLayer &layer = device.layers[i];
        attempt([&] { run_layer(i, in_parts ? layer.rim : layer.own); });
        tell(stages::made(i + 1));
        if (last) {
            return;
        }
        attempt([&] { make_tensor(i + 2); });  // While others come to this stage.
        pack_tensor(i + 1);
        fetch(i + 1);
        if (place == 0) {
            deliver_tensor(i + 1);
        }
        attempt([&] {
            if (in_parts && part.layers[i].interior.count() > 0) {
                run_layer(i, layer.interior);
            }
        });
        if (place != 0) {
            deliver_tensor(i + 1);  // The first device exchanges messages while this one computes.
        }
        arrive();
    }

    /** What a device without active pixels does for other ranks, which may read the images that it keeps. The first
     * one exchanges the messages of all. */
    void pass_messages() {
        for (size_t tensor = 0; group.ranks && tensor <= chain.layers.size(); tensor++) {
            tell(stages::made(tensor));
            pack_tensor(tensor);
            deliver_tensor(tensor);
        }
    }

    bool has_messages(size_t tensor) const {
        return group.ranks && !(run_.keeps && tensor == chain.layers.size());
    }
    void pack_tensor(size_t tensor) {
        if (has_messages(tensor)) {
            const RankRounds &rounds = *chain.rounds;
            const PlacedTensor &first = run_.takes_kept ? device.images.next : input_;
            const int32_t before = tensor > 0         ? stages::received(tensor - 1)
                                   : run_.uses_kept() ? stages::images_received
                                                      : stages::begins;
            pack(rounds, rounds.tensors_of[tensor], stages::packed(tensor), before,
                 tensor == 0 ? first : device.tensors[tensor]);
        }
    }
    void deliver_tensor(size_t tensor) {
        if (has_messages(tensor)) {
            const RankRounds &rounds = *chain.rounds;
            deliver(rounds, rounds.tensors_of[tensor], stages::packed(tensor),
                    tensor == chain.layers.size() ? output_ : device.tensors[tensor]);
        }
    }

    /** Copies pixels of the input, unless they come from another rank. */
    void copy_input(const PlacedTensor &to, const SpanList &spans) {
        if (run_.input.data) {
            attempt([&] {
                const Exchange &exchange = group.exchange(0, place);
                exchange.follow(context, *group.contexts[0], stages::begins);
                exchange.copy(context, {{&input_, &to, &spans}});
                exchange.arrive(context);
            });
        }
    }

    /** Copies pixels of the images that devices here keep, its own too, or of those that they kept before. */
    void copy_images(const std::vector<Fetch> &pieces, PlacedTensor KeptImages::*from, const PlacedTensor &to) {
        copy(
            pieces, [&](size_t other) { return &(chain.devices[other].images.*from); }, to);
        for (const Fetch &piece : pieces) {
            if (is_here(piece.from)) {
                group.exchange(place_of(piece.from), place).arrive(context);
            }
        }
    }

    /** Copies what devices here have in a tensor each. A way copies from all that it serves at once. */
    template<typename TensorOf>
    void copy(const std::vector<Fetch> &pieces, const TensorOf &tensor_of, const PlacedTensor &to) {
        std::vector<Transfer> transfers;
        const Exchange *way = nullptr;
        for (const Fetch &piece : pieces) {
            if (!is_here(piece.from)) {
                continue;
            }
            const size_t other = place_of(piece.from);
            const Exchange &exchange = group.exchange(other, place);
            if (way && way != &exchange) {
                way->copy(context, transfers);
                transfers.clear();
            }
            way = &exchange;
            transfers.push_back({tensor_of(other), &to, &piece.spans});
        }
        if (way) {
            way->copy(context, transfers);
        }
    }

    /** Makes the images that this device keeps: those of the input, or those before, some of which others may have. */
    void make_images() {
        KeptImages &images = device.images;
        const KeptPart &kept = run_.parts[number];
        if (run_.takes_kept && !run_.moves) {
            images.next = images.kept;
        } else {
            attempt([&] { images.next = kept.box.is_empty() ? PlacedTensor{} : take_images(kept); });
            if (run_.takes_kept) {
                attempt([&] {
                    const auto num_parts = static_cast<int32_t>(group.num_devices());
                    copy_images(by_owner(kept.spans, chain.kept_by, chain.input, num_parts), &KeptImages::kept,
                                images.next);
                });
            } else if (!kept.box.is_empty()) {
                copy_input(images.next, kept.spans);
            }
        }
        if (group.ranks) {
            const RankRounds &rounds = *chain.rounds;
            pack(rounds, rounds.images, stages::images_packed, stages::begins, run_.takes_kept ? images.kept : input_);
            deliver(rounds, rounds.images, stages::images_packed, images.next);
            attempt([&] { own_way().arrive(context); });
        }
        tell(stages::images_made);
    }

    /** Makes the first tensor from the images that devices keep. */
    void fetch_images() {
        KeptImages &images = device.images;
        attempt([&] {
            if (images.plan != chain.plans) {
                images.fetches =
                    by_owner(part.input, chain.partition, chain.input, static_cast<int32_t>(group.num_devices()));
                images.plan = chain.plans;
            }
        });
        for (const Fetch &piece : images.fetches) {
            if (is_here(piece.from)) {
                wait(place_of(piece.from), stages::images_made);
            }
        }
        attempt([&] { copy_images(images.fetches, &KeptImages::next, device.tensors[0]); });
    }

    /** Calls a function for each device here that this one copies from or that copies from this one. */
    template<typename Use> void for_each_neighbour(const Use &use) {
        for (size_t other = 0; other < group.contexts.size(); other++) {
            if (part.neighbours[group.first_device() + other]) {
                use(other);
            }
        }
    }

    /** Waits until the neighbours have made a tensor, and copies what the next layer reads of it. */
    void fetch(size_t tensor) {
        for_each_neighbour([&](size_t other) { wait(other, stages::made(tensor)); });
        attempt([&] {
            copy(
                part.fetches[tensor - 1], [&](size_t other) { return &chain.devices[other].tensors[tensor]; },
                device.tensors[tensor]);
        });
    }

    /** What the device computes next comes after the copies, and after all that neighbours read of tensors before. */
    void arrive() {
        attempt([&] {
            for_each_neighbour([&](size_t other) { group.exchange(other, place).arrive(context); });
            if (group.ranks) {
                own_way().arrive(context);
            }
        });
    }

    ChainRun &run_;
    const PlacedTensor input_, output_;  ///< The caller's tensors.
};

}  // namespace

Crew::Part make_job(distile_chain &chain, const std::shared_ptr<Fault> &fault,
                    const std::function<void(size_t)> &compute) {
    return std::make_shared<const std::function<void(int32_t)>>([&chain, fault, compute](int32_t member) {
        const auto place = static_cast<size_t>(member);
        const distile_group &group = chain.group;
        distile_context &context = *group.contexts[place];
        bool stopped = false;
        const Outcome outcome = outcome_of(&context, [&] {
            try {
                compute(place);
            } catch (const Stopped &) {
                stopped = true;
            }
        });
        if (outcome.status != DISTILE_OK) {
            // Messages failed, and others may wait for them.
            fault->set(group.first_device() + place, outcome);
            stopped = true;
        }
        if (stopped) {
            chain.progress.stop();
        }
        if (stopped || fault->is_set()) {
            // Once the call has returned, nothing may use the caller's tensors. A device that is lost uses nothing.
            (void)outcome_of(&context, [&] { group.exchange(place, place).finish(context); });
        }
    });
}

Crew::Part make_run_job(const std::shared_ptr<ChainRun> &run) {
    const std::shared_ptr<Fault> fault(run, &run->fault);
    return make_job(run->chain, fault, [run](size_t place) { PartRun(*run, place).compute(); });
}

void run_job(distile_chain &chain, const Crew::Part &job, const Fault &fault, Deadline deadline) {
    distile_group &group = chain.group;
    const std::vector<int32_t> late = group.crew->run(job, deadline, [&] { chain.progress.stop(); });
    const auto limit = static_cast<long long>(group.timeout.count());
    if (!late.empty()) {
        group.is_lost = true;
        fail_group(DISTILE_ERROR_DEVICE_LOST, "device %zu has not ended within %lld ms; the group is unusable",
                   static_cast<size_t>(late[0]) + group.first_device(), limit);
    }
    if (!chain.progress.is_stopped()) {
        return;
    }
    if (group.ranks) {
        group.ranks->lose();
    }
    const Outcome outcome = fault.get();
    if (outcome.status != DISTILE_OK) {
        fail_group(group.ranks ? DISTILE_ERROR_DEVICE_LOST : outcome.status, "%s", outcome.message);
    }
    fail_group(DISTILE_ERROR_DEVICE_LOST, "the devices have not ended within %lld ms", limit);
}

ChainRun::ChainRun(distile_chain &of, const distile_chain_args &args)
    : chain(of), takes_kept(!args.input), keeps(!args.output) {
    if (args.input) {
        input = without_border(*args.input);
    }
    if (args.output) {
        output = *args.output;
    }
    if (uses_kept()) {
        const auto num_parts = static_cast<int32_t>(chain.group.num_devices());
        const bool same =
            chain.kept_by.cells == chain.partition.cells && chain.kept_by.owners == chain.partition.owners;
        moves = takes_kept && !same;
        parts = takes_kept && same ? chain.kept_parts : kept_parts(chain.partition, chain.input, num_parts);
    }
    if (changes_kept()) {
        kept_by = chain.partition;
    }
}

void ChainRun::commit() {
    if (!changes_kept()) {
        return;
    }
    chain.kept_by = std::move(kept_by);
    chain.kept_parts = std::move(parts);
    for (DeviceRun &device : chain.devices) {
        device.images.kept = device.images.next;
    }
    chain.kept = chain.input;
    chain.keeping_runs++;
}

void clear_inactive(const distile_chain &chain, const distile_chain_args &args, distile_mask *mask) {
    if (args.output && args.output->data && args.inactive == DISTILE_ZERO) {
        const distile_context &first = *chain.group.contexts[0];
        const CurrentDevice current(*first.device);
        first.device->update_pixels(mask, *args.output, nullptr, true);
    }
}

void run_chain(distile_chain &chain, const distile_chain_args &args) {
    distile_group &group = chain.group;
    const Deadline deadline = std::chrono::steady_clock::now() + group.timeout;
    chain.progress.reset(deadline);
    clear_inactive(chain, args, args.masks[chain.layers.size() - 1]);
    group.exchange(0, 0).publish(*group.contexts[0], stages::begins);
    const auto run = std::make_shared<ChainRun>(chain, args);
    if (run->changes_kept()) {
        // A run that fails leaves no images.
        chain.kept = {0, 0, 0};
    }
    run_job(chain, make_run_job(run), run->fault, deadline);
    run->fault.raise();
    run->commit();
}

void collect_images(const distile_chain &chain, const distile_tensor &output) {
    const distile_group &group = chain.group;
    group.exchange(0, 0).publish(*group.contexts[0], stages::begins);
    for (size_t i = 0; i < chain.devices.size(); i++) {
        distile_context &context = *group.contexts[i];
        const Exchange &exchange = group.exchange(i, 0);
        exchange.follow(context, *group.contexts[0], stages::begins);
        const PlacedTensor to{group.contexts[0], output};
        exchange.copy(context, {{&chain.devices[i].images.kept, &to, &chain.kept_parts[i].spans}});
        group.exchange(i, i).finish(context);
    }
}

}  // namespace distile
