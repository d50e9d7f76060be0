#include "runtime/group/run_chain.h"
#include "runtime/tensor/tensor.h"

namespace distile {

namespace {

/** What ends a part without a fault of its own: others stopped it. */
struct Stopped {};

/** What a device tells others: that the run begins, that its images are there, and then tensor after tensor. */
constexpr int32_t begins = 0, images_ready = 1, all_ready = INT32_MAX;
int32_t ready(size_t tensor) {
    return static_cast<int32_t>(tensor) + images_ready + 1;
}

/** A device's part of a run, in a process that has them all. */
class PartRun : DeviceWork {
public:
    PartRun(ChainRun &run, size_t of) : DeviceWork(run.chain, of), run_(run) {
    }

    void compute() {
        if (run_.uses_kept()) {
            make_images();
        }
        if (part.is_empty) {
            group.exchange(number, number).finish(context);
            // Nothing is left that others would have to follow.
            chain.progress.advance(number, all_ready);
            return;
        }
        prepare();
        make_tensor(0);
        if (run_.takes_kept) {
            fetch_images();
        } else {
            copy_input(device.tensors[0], part.input);
        }
        tell(ready(0));
        const bool overlaps = group.overlaps(number);
        const size_t count = chain.layers.size();
        make_tensor(1);
        for (size_t i = 0; i < count; i++) {
            const PartOutput &output = part.layers[i];
            DeviceLayer &layer = device.layers[i];
            const bool in_parts = overlaps && i + 1 < count;
            run_layer(i, in_parts ? layer.rim : layer.own);
            tell(ready(i + 1));
            if (i + 1 < count) {
                // While others come to this stage.
                make_tensor(i + 2);
                fetch(i + 1);
            }
            if (in_parts && output.interior.count() > 0) {
                run_layer(i, layer.interior);
            }
            if (i + 1 < count) {
                arrive();
            }
        }
        if (run_.keeps) {
            // Others read the images before they make their first tensor.
            for (size_t other = 0; other < group.contexts.size(); other++) {
                wait(other, ready(0));
            }
            group.exchange(number, number).copy(context, {{&device.tensors[count], &device.images.next, &part.output}});
        } else {
            const Exchange &exchange = group.exchange(number, 0);
            exchange.follow(context, *group.contexts[0], begins);
            const PlacedTensor output{group.contexts[0], run_.output};
            exchange.copy(context, {{&device.tensors[count], &output, &part.output}});
        }
        group.exchange(number, number).finish(context);
    }

private:
    void tell(int32_t stage) {
        group.exchange(number, number).publish(context, stage);
        chain.progress.advance(number, stage);
    }

    /** Waits until another device has told. */
    void wait(size_t other, int32_t stage) {
        if (other == number) {
            return;
        }
        if (!chain.progress.wait(other, stage)) {
            throw Stopped{};
        }
        group.exchange(other, number).follow(context, *group.contexts[other], stage);
    }

    void copy_input(const PlacedTensor &to, const SpanList &spans) {
        const Exchange &exchange = group.exchange(0, number);
        exchange.follow(context, *group.contexts[0], begins);
        const PlacedTensor input{group.contexts[0], run_.input};
        exchange.copy(context, {{&input, &to, &spans}});
        exchange.arrive(context);
    }

    /** Copies pixels of the images that devices keep, its own too, or of those that they kept before. */
    void copy_images(const std::vector<Fetch> &pieces, PlacedTensor KeptImages::*from, const PlacedTensor &to) {
        copy(
            pieces, [&](size_t other) { return &(chain.devices[other].images.*from); }, to);
        for (const Fetch &piece : pieces) {
            group.exchange(static_cast<size_t>(piece.from), number).arrive(context);
        }
    }

    /** Copies what devices have in a tensor each. A way copies from all that it serves at once. */
    template<typename TensorOf>
    void copy(const std::vector<Fetch> &pieces, const TensorOf &tensor_of, const PlacedTensor &to) {
        std::vector<Transfer> transfers;
        const Exchange *way = nullptr;
        for (const Fetch &piece : pieces) {
            const auto other = static_cast<size_t>(piece.from);
            const Exchange &exchange = group.exchange(other, number);
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
        const auto num_parts = static_cast<int32_t>(group.contexts.size());
        if (run_.takes_kept && !run_.moves) {
            images.next = images.kept;
        } else if (kept.box.is_empty()) {
            images.next = {};
        } else {
            images.next = take_images(kept);
            if (run_.takes_kept) {
                copy_images(by_owner(kept.spans, chain.kept_by, chain.input, num_parts), &KeptImages::kept,
                            images.next);
            } else {
                copy_input(images.next, kept.spans);
            }
        }
        tell(images_ready);
    }

    /** Makes the first tensor from the images that devices keep. */
    void fetch_images() {
        KeptImages &images = device.images;
        if (images.plan != chain.plans) {
            images.fetches =
                by_owner(part.input, chain.partition, chain.input, static_cast<int32_t>(group.contexts.size()));
            images.plan = chain.plans;
        }
        for (const Fetch &piece : images.fetches) {
            wait(static_cast<size_t>(piece.from), images_ready);
        }
        copy_images(images.fetches, &KeptImages::next, device.tensors[0]);
    }

    /** Waits until the neighbours have made a tensor, and copies what the next layer reads of it. */
    void fetch(size_t tensor) {
        for (size_t other = 0; other < part.neighbours.size(); other++) {
            if (part.neighbours[other]) {
                wait(other, ready(tensor));
            }
        }
        copy(
            part.fetches[tensor - 1], [&](size_t other) { return &chain.devices[other].tensors[tensor]; },
            device.tensors[tensor]);
    }

    /** What the device computes next comes after the copies, and after all that neighbours read of tensors before. */
    void arrive() {
        for (size_t other = 0; other < part.neighbours.size(); other++) {
            if (part.neighbours[other]) {
                group.exchange(other, number).arrive(context);
            }
        }
    }

    ChainRun &run_;
};

/** Computes a part. A fault of its own stops the others. */
void compute_part(ChainRun &run, int32_t number) {
    const auto member = static_cast<size_t>(number);
    const distile_group &group = run.chain.group;
    bool stopped = false;
    const Outcome outcome = outcome_of(group.contexts[member], [&] {
        try {
            PartRun(run, member).compute();
        } catch (const Stopped &) {
            stopped = true;
        }
    });
    if (!stopped && outcome.status == DISTILE_OK) {
        return;
    }
    if (!stopped) {
        run.fault.set(member, outcome);
    }
    run.chain.progress.stop();
    // Once the call has returned, nothing may use the caller's tensors.
    try {
        group.exchange(member, member).finish(*group.contexts[member]);
    } catch (const Failure &) {
        // A device that is lost uses nothing.
    }
}

}  // namespace

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

void run_parts(distile_group &group, const Crew::Part &part, Deadline deadline, const std::function<void()> &stop) {
    const std::vector<int32_t> late = group.crew->run(part, deadline, stop);
    if (!late.empty()) {
        group.is_lost = true;
        fail_group(DISTILE_ERROR_DEVICE_LOST, "device %zu has not ended within %lld ms; the group is unusable",
                   static_cast<size_t>(late[0]) + group.first_device(), static_cast<long long>(group.timeout.count()));
    }
}

void clear_inactive(const distile_chain &chain, const distile_chain_args &args) {
    if (args.output && args.inactive == DISTILE_ZERO) {
        const distile_context &first = *chain.group.contexts[0];
        const CurrentDevice current(*first.device);
        first.device->update_pixels(args.masks[chain.layers.size() - 1], *args.output, nullptr, true);
    }
}

void run_chain(distile_chain &chain, const distile_chain_args &args) {
    distile_group &group = chain.group;
    const Deadline deadline = std::chrono::steady_clock::now() + group.timeout;
    chain.progress.reset(deadline);
    clear_inactive(chain, args);
    group.exchange(0, 0).publish(*group.contexts[0], begins);
    const auto run = std::make_shared<ChainRun>(chain, args);
    if (run->changes_kept()) {
        // A run that fails leaves no images.
        chain.kept = {0, 0, 0};
    }
    const auto part =
        std::make_shared<const std::function<void(int32_t)>>([run](int32_t number) { compute_part(*run, number); });
    run_parts(group, part, deadline, [&] { chain.progress.stop(); });
    run->fault.raise();
    if (chain.progress.is_stopped()) {
        fail_group(DISTILE_ERROR_DEVICE_LOST, "the devices have not ended within %lld ms",
                   static_cast<long long>(group.timeout.count()));
    }
    run->commit();
}

void collect_images(const distile_chain &chain, const distile_tensor &output) {
    const distile_group &group = chain.group;
    group.exchange(0, 0).publish(*group.contexts[0], begins);
    for (size_t i = 0; i < chain.devices.size(); i++) {
        distile_context &context = *group.contexts[i];
        const Exchange &exchange = group.exchange(i, 0);
        exchange.follow(context, *group.contexts[0], begins);
        const PlacedTensor to{group.contexts[0], output};
        exchange.copy(context, {{&chain.devices[i].images.kept, &to, &chain.kept_parts[i].spans}});
        group.exchange(i, i).finish(context);
    }
}

}  // namespace distile
