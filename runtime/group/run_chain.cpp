#include "runtime/dispatch/kernel.h"
#include "runtime/group/group.h"
#include "runtime/tensor/tensor.h"
#include <cstdio>

namespace distile {

namespace {

/** What ends a part without a fault of its own: others stopped it. */
struct Stopped {};

/** The first fault of a run. Keeping it allocates nothing. */
class Fault {
public:
    void set(int32_t device, distile_status status, const char *message) {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (status_ == DISTILE_OK) {
            status_ = status;
            device_ = device;
            std::snprintf(message_, sizeof(message_), "%s", message);
        }
    }
    /** Throws it, if there is one. */
    void raise() const {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (status_ != DISTILE_OK) {
            fail_group(status_, "device %d: %s", device_, message_);
        }
    }

private:
    mutable std::mutex mutex_;
    distile_status status_ = DISTILE_OK;
    int32_t device_ = 0;
    char message_[512] = "";
};

/** A run of a chain, which the threads keep while one of them may need it. */
struct ChainRun {
    distile_chain &chain;
    bool takes_kept, keeps;  ///< The input is what devices keep, or the output.
    bool moves = false;      ///< Other devices shall keep some of the images.
    distile_tensor input{}, output{};
    std::vector<KeptPart> parts;  ///< What devices keep after the run.
    Fault fault;

    ChainRun(distile_chain &of, const distile_chain_args &args)
        : chain(of), takes_kept(!args.input), keeps(!args.output) {
        if (args.input) {
            input = without_border(*args.input);
        }
        if (args.output) {
            output = *args.output;
        }
        if (uses_kept()) {
            const auto num_parts = static_cast<int32_t>(chain.devices.size());
            const bool same =
                chain.kept_by.cells == chain.partition.cells && chain.kept_by.owners == chain.partition.owners;
            moves = takes_kept && !same;
            parts = takes_kept && same ? chain.kept_parts : kept_parts(chain.partition, chain.input, num_parts);
        }
    }
    bool uses_kept() const {
        return takes_kept || keeps;
    }
};

/** What a device tells others: that the run begins, that its images are there, and then tensor after tensor. */
constexpr int32_t begins = 0, images_ready = 1, all_ready = INT32_MAX;
int32_t ready(size_t tensor) {
    return static_cast<int32_t>(tensor) + images_ready + 1;
}

/** A device's part of a run. */
class PartRun {
public:
    PartRun(ChainRun &run, size_t number)
        : run_(run), chain_(run.chain), group_(chain_.group), number_(number), context_(*group_.contexts[number]),
          part_(chain_.plan.parts[number]), device_(chain_.devices[number]) {
    }

    void compute() {
        if (run_.uses_kept()) {
            make_images();
        }
        if (part_.is_empty) {
            group_.exchange(number_, number_).finish(context_);
            // Nothing is left that others would have to follow.
            chain_.progress.advance(number_, all_ready);
            return;
        }
        prepare();
        make_tensor(0);
        if (run_.takes_kept) {
            fetch_images();
        } else {
            copy_input(device_.tensors[0], part_.input);
        }
        tell(ready(0));
        const bool overlaps = group_.overlaps(number_);
        const size_t count = chain_.layers.size();
        make_tensor(1);
        for (size_t i = 0; i < count; i++) {
            const PartOutput &output = part_.layers[i];
            DeviceLayer &layer = device_.layers[i];
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
            for (size_t other = 0; other < group_.contexts.size(); other++) {
                wait(other, ready(0));
            }
            group_.exchange(number_, number_)
                .copy(context_, {{&device_.tensors[count], &device_.images.next, &part_.output}});
        } else {
            const Exchange &exchange = group_.exchange(number_, 0);
            exchange.follow(context_, *group_.contexts[0], begins);
            const PlacedTensor output{group_.contexts[0], run_.output};
            exchange.copy(context_, {{&device_.tensors[count], &output, &part_.output}});
        }
        group_.exchange(number_, number_).finish(context_);
    }

private:
    void tell(int32_t stage) {
        group_.exchange(number_, number_).publish(context_, stage);
        chain_.progress.advance(number_, stage);
    }

    /** Waits until another device has told. */
    void wait(size_t other, int32_t stage) {
        if (other == number_) {
            return;
        }
        if (!chain_.progress.wait(other, stage)) {
            throw Stopped{};
        }
        group_.exchange(other, number_).follow(context_, *group_.contexts[other], stage);
    }

    void copy_input(const PlacedTensor &to, const SpanList &spans) {
        const Exchange &exchange = group_.exchange(0, number_);
        exchange.follow(context_, *group_.contexts[0], begins);
        const PlacedTensor input{group_.contexts[0], run_.input};
        exchange.copy(context_, {{&input, &to, &spans}});
        exchange.arrive(context_);
    }

    /** Copies pixels of the images that devices keep, its own too, or of those that they kept before. */
    void copy_images(const std::vector<Fetch> &pieces, PlacedTensor KeptImages::*from, const PlacedTensor &to) {
        copy(
            pieces, [&](size_t other) { return &(chain_.devices[other].images.*from); }, to);
        for (const Fetch &piece : pieces) {
            group_.exchange(static_cast<size_t>(piece.from), number_).arrive(context_);
        }
    }

    /** Copies what devices have in a tensor each. A way copies from all that it serves at once. */
    template<typename TensorOf>
    void copy(const std::vector<Fetch> &pieces, const TensorOf &tensor_of, const PlacedTensor &to) {
        std::vector<Transfer> transfers;
        const Exchange *way = nullptr;
        for (const Fetch &piece : pieces) {
            const auto other = static_cast<size_t>(piece.from);
            const Exchange &exchange = group_.exchange(other, number_);
            if (way && way != &exchange) {
                way->copy(context_, transfers);
                transfers.clear();
            }
            way = &exchange;
            transfers.push_back({tensor_of(other), &to, &piece.spans});
        }
        if (way) {
            way->copy(context_, transfers);
        }
    }

    /** Makes the images that this device keeps: those of the input, or those before, some of which others may have. */
    void make_images() {
        KeptImages &images = device_.images;
        const KeptPart &part = run_.parts[number_];
        const auto num_parts = static_cast<int32_t>(group_.contexts.size());
        if (run_.takes_kept && !run_.moves) {
            images.next = images.kept;
        } else if (part.box.is_empty()) {
            images.next = {};
        } else {
            images.no_pixels = BitImage(part.box.shape);
            group_.exchange(number_, number_)
                .prepare(context_, {{images.shape.get(), &images.no_pixels}}, {&part.spans});
            distile_output_spec spec{};
            spec.batch = part.box.shape.batch;
            spec.height = part.box.shape.height;
            spec.width = part.box.shape.width;
            spec.channels = chain_.layers[0].in_channels;
            spec.dtype = chain_.layers[0].dtype;
            // With this mode the whole tensor is zero, and the mask only has its shape.
            images.next = take(images.planner, spec, images.shape, DISTILE_STORE_TILES, part.box);
            if (run_.takes_kept) {
                copy_images(by_owner(part.spans, chain_.kept_by, chain_.input, num_parts), &KeptImages::kept,
                            images.next);
            } else {
                copy_input(images.next, part.spans);
            }
        }
        tell(images_ready);
    }

    /** Makes the first tensor from the images that devices keep. */
    void fetch_images() {
        KeptImages &images = device_.images;
        if (images.plan != chain_.plans) {
            images.fetches =
                by_owner(part_.input, chain_.partition, chain_.input, static_cast<int32_t>(group_.contexts.size()));
            images.plan = chain_.plans;
        }
        for (const Fetch &piece : images.fetches) {
            wait(static_cast<size_t>(piece.from), images_ready);
        }
        copy_images(images.fetches, &KeptImages::next, device_.tensors[0]);
    }

    /** Takes memory for a box of a tensor, which is zero except where something shall be written. */
    PlacedTensor take(const Planner &planner, const distile_output_spec &spec, const Mask &mask, distile_store store,
                      const PixelBox &box) {
        distile_tensor made{};
        require_of(&context_, distile_planner_next(planner.get(), &spec, mask.get(), store, &made));
        return {&context_, made, box.image, box.y, box.x};
    }

    static void add_spans(const SpanList &spans, const PixelBox &box, BitImage &bits) {
        for (const Span &span : spans) {
            bits.set(span.image - box.image, span.y - box.y, span.first - box.x, span.last - box.x);
        }
    }

    /** Gives the device a new plan. */
    void prepare() {
        if (device_.plan == chain_.plans) {
            return;
        }
        device_.input_bits = BitImage(part_.boxes[0].shape);
        add_spans(part_.input, part_.boxes[0], device_.input_bits);
        std::vector<MaskOfPlan> masks{{device_.input.get(), &device_.input_bits}};
        std::vector<const SpanList *> lists{&part_.input, &part_.output};
        for (const std::vector<Fetch> &fetches : part_.fetches) {
            for (const Fetch &piece : fetches) {
                lists.push_back(&piece.spans);
            }
        }
        for (size_t i = 0; i < chain_.layers.size(); i++) {
            DeviceLayer &layer = device_.layers[i];
            const PartOutput &output = part_.layers[i];
            layer.present_bits = output.own;
            if (i + 1 < chain_.layers.size()) {
                for (const Fetch &piece : part_.fetches[i]) {
                    add_spans(piece.spans, part_.boxes[i + 1], layer.present_bits);
                }
            }
            masks.push_back({layer.own.get(), &output.own});
            masks.push_back({layer.present.get(), &layer.present_bits});
            if (group_.overlaps(number_)) {
                masks.push_back({layer.rim.get(), &output.rim});
                masks.push_back({layer.interior.get(), &output.interior});
            }
            // Where code has other variants, the device chooses.
            const char *const name = chain_.variants[i].c_str();
            layer.variant = chain_.layers[i].kernels[number_]->find(name) >= 0 ? name : nullptr;
        }
        group_.exchange(number_, number_).prepare(context_, masks, lists);
        device_.plan = chain_.plans;
    }

    /** Takes memory for a tensor. The planner gives the memory of a tensor that neither this device nor another needs:
     * the others have told that they have the tensor two before this one, and the work of this device follows that, so
     * they have fetched what they read of those before it. */
    void make_tensor(size_t tensor) {
        const PixelBox &box = part_.boxes[tensor];
        const bool is_last = tensor == chain_.layers.size();
        const ChainLayer &layer = chain_.layers[is_last ? tensor - 1 : tensor];
        distile_output_spec spec{};
        spec.batch = box.shape.batch;
        spec.height = box.shape.height;
        spec.width = box.shape.width;
        spec.channels = is_last ? layer.out_channels : layer.in_channels;
        spec.dtype = layer.dtype;
        if (!is_last) {
            const distile_border border = distile_kernel_border(layer.kernels[number_].get());
            spec.border_top = border.top;
            spec.border_bottom = border.bottom;
            spec.border_left = border.left;
            spec.border_right = border.right;
        }
        const Mask &mask = tensor == 0 ? device_.input : device_.layers[tensor - 1].present;
        device_.tensors[tensor] = take(device_.planner, spec, mask, DISTILE_STORE_EXACT, box);
    }

    void run_layer(size_t i, const Mask &mask) {
        const ChainLayer &layer = chain_.layers[i];
        distile_run_args args{};
        args.input = &device_.tensors[i].tensor;
        args.output = &device_.tensors[i + 1].tensor;
        args.weights = layer.weights[number_].get();
        args.mask = mask.get();
        args.variant = device_.layers[i].variant;
        // Parts of a mask shall have the bits of the whole.
        args.fixed_order = group_.any_order ? 0 : 1;
        if (layer.planned.residual >= 0) {
            args.residual = &device_.tensors[static_cast<size_t>(layer.planned.residual)].tensor;
        }
        require_of(&context_, distile_run(layer.kernels[number_].get(), &args));
    }

    /** Waits until the neighbours have made a tensor, and copies what the next layer reads of it. */
    void fetch(size_t tensor) {
        for (size_t other = 0; other < part_.neighbours.size(); other++) {
            if (part_.neighbours[other]) {
                wait(other, ready(tensor));
            }
        }
        copy(
            part_.fetches[tensor - 1], [&](size_t other) { return &chain_.devices[other].tensors[tensor]; },
            device_.tensors[tensor]);
    }

    /** What the device computes next comes after the copies, and after all that neighbours read of tensors before. */
    void arrive() {
        for (size_t other = 0; other < part_.neighbours.size(); other++) {
            if (part_.neighbours[other]) {
                group_.exchange(other, number_).arrive(context_);
            }
        }
    }

    ChainRun &run_;
    distile_chain &chain_;
    distile_group &group_;
    size_t number_;
    distile_context &context_;
    const Part &part_;
    DeviceRun &device_;
};

/** Computes a part. A fault of its own stops the others. */
void compute_part(ChainRun &run, int32_t number) {
    Progress &progress = run.chain.progress;
    try {
        PartRun(run, static_cast<size_t>(number)).compute();
        return;
    } catch (const Stopped &) {
    } catch (const GroupFailure &failure) {
        run.fault.set(number, failure.status, failure.message.c_str());
    } catch (const Failure &failure) {
        run.fault.set(number, failure.status,
                      distile_context_message(run.chain.group.contexts[static_cast<size_t>(number)]));
    } catch (const std::bad_alloc &) {
        run.fault.set(number, DISTILE_ERROR_OUT_OF_MEMORY, "an allocation failed");
    } catch (...) {
        run.fault.set(number, DISTILE_ERROR_INTERNAL, "an unexpected exception");
    }
    progress.stop();
    // Once the call has returned, nothing may use the caller's tensors.
    const auto member = static_cast<size_t>(number);
    const distile_group &group = run.chain.group;
    try {
        group.exchange(member, member).finish(*group.contexts[member]);
    } catch (const Failure &) {
        // A device that is lost uses nothing.
    }
}

}  // namespace

void run_chain(distile_chain &chain, const distile_chain_args &args) {
    distile_group &group = chain.group;
    const Deadline deadline = std::chrono::steady_clock::now() + group.timeout;
    chain.progress.reset(deadline);
    distile_context &first = *group.contexts[0];
    if (args.output && args.inactive == DISTILE_ZERO) {
        const CurrentDevice current(*first.device);
        first.device->update_pixels(args.masks[chain.layers.size() - 1], *args.output, nullptr, true);
    }
    group.exchange(0, 0).publish(first, begins);
    const auto run = std::make_shared<ChainRun>(chain, args);
    const bool changes = run->keeps || run->moves;
    if (changes) {
        // A run that fails leaves no images.
        chain.kept = {0, 0, 0};
    }
    const std::vector<int32_t> late = group.crew->run([run](int32_t number) { compute_part(*run, number); }, deadline,
                                                      [&] { chain.progress.stop(); });
    if (!late.empty()) {
        group.is_lost = true;
        fail_group(DISTILE_ERROR_DEVICE_LOST, "device %d has not ended within %lld ms; the group is unusable", late[0],
                   static_cast<long long>(group.timeout.count()));
    }
    run->fault.raise();
    if (chain.progress.is_stopped()) {
        fail_group(DISTILE_ERROR_DEVICE_LOST, "the devices have not ended within %lld ms",
                   static_cast<long long>(group.timeout.count()));
    }
    if (changes) {
        chain.kept_by = chain.partition;
        chain.kept_parts = std::move(run->parts);
        for (DeviceRun &device : chain.devices) {
            device.images.kept = device.images.next;
        }
        chain.kept = chain.input;
    }
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
