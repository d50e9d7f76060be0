#include "python/csrc/parallel.h"
#include "bindings/activation.h"
#include "bindings/cuda_session.h"
#include "python/csrc/numbered.h"
#include "python/csrc/run.h"
#include <algorithm>
#include <array>
#include <atomic>
#include <distile/group.h>
#include <memory>
#include <mutex>
#include <unistd.h>

namespace distile::python {

namespace {

/** A group with its contexts. */
struct DeviceGroup {
    std::vector<Context> contexts;
    Group group;
    int32_t device_index = -1;        /**< The first context's; below 0 for CPUs. */
    bool has_ranks = false;           /**< Other processes have the other devices. */
    std::mutex mutex;                 /**< One thread at a time may use the group, its chains and its contexts. */
    std::atomic<bool> is_lost{false}; /**< A device may still be at work. */
    pid_t process = getpid();

    DeviceGroup() = default;
    DeviceGroup(const DeviceGroup &) = delete;
    DeviceGroup &operator=(const DeviceGroup &) = delete;
    ~DeviceGroup() {
        if (!may_free()) {
            (void)group.release();
            for (Context &context : contexts) {
                (void)context.release();
            }
        }
    }

    /** A child of fork() has none of the threads. */
    bool may_free() const {
        return !is_lost && process == getpid();
    }
    distile_context *first() const {
        return contexts[0].get();
    }
    bool on_cpu() const {
        return device_index < 0;
    }
    /** Before calls on tensors: the first context's work comes after what PyTorch's current stream has. */
    void follow_current_stream() const {
        if (!on_cpu()) {
            bindings::follow_stream(first(), current_stream(device_index));
        }
    }
    void check(distile_status status) {
        if (status != DISTILE_OK) {
            is_lost = is_lost || status == DISTILE_ERROR_DEVICE_LOST;
            fail(std::string(distile_group_message(group.get())) + " (" + distile_status_name(status) + ")");
        }
    }
    void check_device(const Tensor &tensor, const char *what) const {
        if ((tensor.is_cpu() ? -1 : tensor.get_device_index()) != device_index) {
            fail(std::string(what) + " is not on the first device of the group: move it there");
        }
    }
};

/** A layer by its numbers, as python/distile/parallel.py writes them. -1 stands for none. */
struct ChainLayer {
    static constexpr size_t integers = 13;

    bool linear = false;
    distile_conv2d conv{};  ///< A linear layer has its channels, its epilogue and its residual alone.
    int64_t residual = -1;  ///< A tensor: 0 is the chain's input, i the output of layer i - 1.
    Tensor weight;
    OptionalTensor bias;
    float slope = 0;
    const distile_polykernel *polykernel = nullptr;

    distile_weights_order order() const {
        return linear ? DISTILE_OI : DISTILE_OIHW;
    }
    HostWeights host_weights() const {
        return {weight, bias, order(), slope};
    }
    WeightState state() const {
        return {weight, bias};
    }
};

int32_t narrow_int(int64_t value) {
    if (value < 0 || value > INT32_MAX) {
        fail("a number of a layer, " + std::to_string(value) + ", is out of range");
    }
    return static_cast<int32_t>(value);
}

bindings::OperatorKey key_of(const ChainLayer &layer, const DeviceGroup &group, ScalarType type) {
    const std::optional<bindings::OperatorTypes> types = types_of(type, layer.weight.scalar_type(), group.on_cpu());
    if (!types) {
        fail("a chain computes in " + float_type_names("or"));
    }
    const distile_device device = distile_context_device(group.first());
    if (!layer.linear) {
        return {device, *types, DISTILE_MASKED_CONV2D, layer.conv};
    }
    distile_linear linear{};
    linear.in_channels = layer.conv.in_channels;
    linear.out_channels = layer.conv.out_channels;
    linear.epilogue = layer.conv.epilogue;
    linear.residual = layer.conv.residual;
    return {device, *types, linear};
}

/** The weights of all layers, in their order. */
void take_weights(std::vector<ChainLayer> &layers, const Ints &numbers, const std::vector<Tensor> &parameters) {
    for (size_t i = 0; i < layers.size(); i++) {
        const int64_t *const at = &numbers[(i + 1) * ChainLayer::integers - 2];
        const auto count = static_cast<int64_t>(parameters.size());
        if (at[0] < 0 || at[0] >= count || at[1] < -1 || at[1] >= count) {
            fail("a chain has fewer parameters than its layers");
        }
        layers[i].weight = parameters[static_cast<size_t>(at[0])];
        layers[i].bias.reset();
        if (at[1] >= 0) {
            layers[i].bias = parameters[static_cast<size_t>(at[1])];
        }
    }
}

std::vector<ChainLayer> read_layers(const Ints &numbers, const std::string &activations,
                                    const std::vector<Tensor> &parameters) {
    const size_t count = numbers.size() / ChainLayer::integers;
    if (numbers.size() != count * ChainLayer::integers) {
        fail("the numbers of a chain are not those of its layers");
    }
    std::vector<ChainLayer> layers(count);
    take_weights(layers, numbers, parameters);
    size_t begin = 0;
    for (size_t i = 0; i < count; i++) {
        ChainLayer &layer = layers[i];
        const int64_t *at = &numbers[i * ChainLayer::integers];
        layer.linear = *at++ != 0;
        distile_conv2d &conv = layer.conv;
        for (int32_t *const number : {&conv.stride_h, &conv.stride_w, &conv.pad_top, &conv.pad_bottom, &conv.pad_left,
                                      &conv.pad_right, &conv.dilation_h, &conv.dilation_w, &conv.groups}) {
            *number = narrow_int(*at++);
        }
        layer.residual = *at++;
        const Tensor &weight = layer.weight;
        if (weight.dim() != (layer.linear ? 2 : 4)) {
            fail("a weight is [out, in] or [out, in / groups, rows, columns]");
        }
        conv.out_channels = narrow_int(weight.size(0));
        conv.in_channels = narrow_int(weight.size(1) * (layer.linear ? 1 : conv.groups));
        conv.kernel_h = layer.linear ? 1 : narrow_int(weight.size(2));
        conv.kernel_w = layer.linear ? 1 : narrow_int(weight.size(3));
        conv.residual = layer.residual >= 0 ? 1 : 0;
        const size_t end = std::min(activations.find(',', begin), activations.size());
        const bindings::Activation activation = bindings::activation_of(activations.substr(begin, end - begin));
        begin = std::min(end + 1, activations.size());
        conv.epilogue = activation.function;
        layer.slope = activation.slope;
    }
    return layers;
}

/** Whether two tensors are the same pixels. */
bool are_same(const Tensor &a, const Tensor &b) {
    return a.const_data_ptr() == b.const_data_ptr() && a.sizes().equals(b.sizes()) && a.strides().equals(b.strides());
}

/** Extents as the library counts them. */
struct Extents {
    int64_t batch = 0, height = 0, width = 0;
};

/** The masks of a run: each tensor once, and which each layer has. One tensor [0] says that
 * they are the first rank's. */
struct GivenMasks {
    std::vector<Tensor> plain;
    std::vector<Extents> extents;
    std::vector<size_t> of_layers;
    bool elsewhere;

    GivenMasks(const DeviceGroup &group, const std::vector<Tensor> &tensors, size_t num_layers)
        : elsewhere(group.has_ranks && tensors.size() == 1 && tensors[0].dim() == 1) {
        if (elsewhere) {
            return;
        }
        if (tensors.size() != num_layers) {
            fail("a chain of " + std::to_string(num_layers) + " layers takes a mask for each, not " +
                 std::to_string(tensors.size()));
        }
        std::vector<const Tensor *> given;
        for (const Tensor &tensor : tensors) {
            const auto same =
                std::find_if(given.begin(), given.end(), [&](const Tensor *other) { return are_same(*other, tensor); });
            of_layers.push_back(static_cast<size_t>(same - given.begin()));
            if (same == given.end()) {
                given.push_back(&tensor);
                add(group, tensor);
            }
        }
    }

private:
    void add(const DeviceGroup &group, const Tensor &tensor) {
        group.check_device(tensor, "the mask");
        const ScalarType type = tensor.scalar_type();
        const auto sizes = tensor.sizes();
        if ((type != ScalarType::Bool && type != ScalarType::Byte) || (sizes.size() != 3 && sizes.size() != 2)) {
            fail("a mask is a tensor of type bool or uint8 with the dimensions [N, H, W], or [N, T] for tokens");
        }
        plain.push_back(tensor.is_contiguous() ? tensor : torch::stable::contiguous(tensor));
        const int64_t rows = sizes.size() == 2 ? rows_of_tokens(sizes[1]) : sizes[1];
        extents.push_back({sizes[0], rows, sizes.size() == 2 ? sizes[1] / rows : sizes[2]});
        const Extents &last = extents.back();
        if (std::max({last.batch, last.height, last.width}) > largest_extent) {
            fail("a mask has an extent above " + std::to_string(largest_extent));
        }
    }
};

/** A chain, and what it was made from. */
struct DeviceChain {
    std::shared_ptr<DeviceGroup> group;
    ScalarType type{};
    Ints numbers;
    std::vector<ChainLayer> layers;  ///< Without their weights, which `states` holds.

    // Under the group's mutex.
    Chain chain;
    std::vector<WeightState> states;  ///< The weights that it was made with.
    std::vector<Mask> masks;
    Ints kept;                 ///< Batch, height, width and channels of the images that the devices keep.
    std::vector<Tensor> held;  ///< What the devices may use after a run that failed.

    DeviceChain() = default;
    DeviceChain(const DeviceChain &) = delete;
    DeviceChain &operator=(const DeviceChain &) = delete;
    ~DeviceChain() {
        if (!group->may_free()) {
            (void)chain.release();
            for (Mask &mask : masks) {
                (void)mask.release();
            }
            (void)std::make_unique<std::vector<Tensor>>(std::move(held)).release();
            return;
        }
        const std::lock_guard lock(group->mutex);
        chain.reset();
        masks.clear();
    }

    bool of_tokens() const {
        return layers[0].linear;
    }
    void check_tensor(const Tensor &tensor, const char *what) const {
        group->check_device(tensor, what);
        if (tensor.dim() != (of_tokens() ? 3 : 4)) {
            fail(std::string(what) + (of_tokens() ? " is no [N, T, C]" : " is no [N, C, H, W]"));
        }
        if (tensor.scalar_type() != type) {
            fail(std::string(what) + " has another type than the chain, which has its `dtype`: convert it");
        }
    }

    /** A new chain of these weights. */
    Chain make(const std::vector<HostWeights> &weights) const {
        std::vector<distile_weights_source> sources;
        std::vector<std::vector<const distile_polykernel *>> polykernels;
        sources.reserve(layers.size());
        for (size_t i = 0; i < layers.size(); i++) {
            sources.push_back(weights[i].source());
            polykernels.emplace_back(group->contexts.size(), layers[i].polykernel);
        }
        std::vector<distile_chain_layer> described(layers.size());
        for (size_t i = 0; i < layers.size(); i++) {
            described[i].polykernels = polykernels[i].data();
            described[i].weights = &sources[i];
            described[i].residual = layers[i].residual >= 0 ? narrow_int(layers[i].residual) : 0;
        }
        distile_chain *made = nullptr;
        group->check(
            distile_chain_create(group->group.get(), described.data(), static_cast<int32_t>(layers.size()), &made));
        count_packed(static_cast<int64_t>(layers.size()));
        return Chain(made);
    }

    /** As many masks as there are to be set. */
    void make_masks(size_t count) {
        while (masks.size() < count) {
            distile_mask *made = nullptr;
            bindings::check(distile_mask_create(group->first(), &made), group->first());
            masks.emplace_back(made);
        }
    }

    /** Contiguous [batch, height, width, channels]. */
    distile_tensor view_of_images(const Tensor &tensor) const {
        distile_tensor view{};
        view.data = tensor.mutable_data_ptr();
        view.dtype = *type_of(type);
        view.batch = narrow_int(tensor.size(0));
        view.height = narrow_int(tensor.size(1));
        view.width = narrow_int(tensor.size(2));
        view.channels = narrow_int(tensor.size(3));
        view.stride_w = view.channels;
        view.stride_h = view.stride_w * view.width;
        view.stride_n = view.stride_h * view.height;
        return view;
    }

    /** A tensor that another rank has. */
    distile_tensor tensor_elsewhere(const Ints &sizes) const {
        if (!group->has_ranks || sizes.size() != (of_tokens() ? 3 : 4)) {
            fail("no rank has tensors of these sizes");
        }
        distile_tensor made{};
        made.dtype = *type_of(type);
        made.batch = narrow_int(sizes[0]);
        const int64_t rows = of_tokens() ? rows_of_tokens(sizes[1]) : sizes[2];
        made.height = narrow_int(rows);
        made.width = narrow_int(of_tokens() ? sizes[1] / rows : sizes[3]);
        made.channels = narrow_int(of_tokens() ? sizes[2] : sizes[1]);
        made.stride_w = made.channels;
        made.stride_h = made.stride_w * made.width;
        made.stride_n = made.stride_h * made.height;
        return made;
    }

    /** Gives the devices of another chain of these layers the images that those of this one keep: it runs on them with
     * masks without pixels. False if there are none any more. */
    bool move_images(distile_chain *to, const Tensor &images) {
        const distile_tensor view = view_of_images(images);
        const distile_status status = distile_chain_collect(chain.get(), &view);
        if (status == DISTILE_ERROR_BAD_VALUE) {
            return false;
        }
        group->check(status);
        make_masks(layers.size());
        std::vector<distile_mask *> none;
        int64_t height = view.height, width = view.width;
        for (size_t i = 0; i < layers.size(); i++) {
            const distile_conv2d &conv = layers[i].conv;
            if (!layers[i].linear) {
                const auto outputs = [](int64_t extent, int32_t pads, int32_t kernel, int32_t dilation,
                                        int32_t stride) {
                    return (extent + pads - int64_t{dilation} * (kernel - 1) - 1) / stride + 1;
                };
                height = outputs(height, conv.pad_top + conv.pad_bottom, conv.kernel_h, conv.dilation_h, conv.stride_h);
                width = outputs(width, conv.pad_left + conv.pad_right, conv.kernel_w, conv.dilation_w, conv.stride_w);
            }
            // There are no indices to be read.
            bindings::check(distile_mask_set_indices(masks[i].get(), static_cast<const int32_t *>(view.data), nullptr,
                                                     view.batch, narrow_int(height), narrow_int(width), 0),
                            group->first());
            none.push_back(masks[i].get());
        }
        distile_chain_args args{};
        args.input = &view;
        args.masks = none.data();
        held.push_back(images);
        group->check(distile_chain_run(to, &args));
        return true;
    }

    /** Makes the chain anew, with other weights. */
    void renew(const std::vector<HostWeights> &weights, const Tensor *images) {
        Chain made = make(weights);
        if (images && !move_images(made.get(), *images)) {
            kept.clear();
        }
        chain = std::move(made);
    }

    void set_masks(const GivenMasks &given) {
        make_masks(given.plain.size());
        for (size_t i = 0; i < given.plain.size(); i++) {
            const Extents &extents = given.extents[i];
            bindings::check(distile_mask_set_bytes(
                                masks[i].get(), static_cast<const uint8_t *>(given.plain[i].const_data_ptr()),
                                static_cast<int32_t>(extents.batch), static_cast<int32_t>(extents.height),
                                static_cast<int32_t>(extents.width), extents.height * extents.width, extents.width),
                            group->first());
        }
    }
};

/** Never destroyed. */
Numbered<DeviceGroup> &groups() {
    static auto &groups = *new Numbered<DeviceGroup>("group of devices");
    return groups;
}

Numbered<DeviceChain> &chains() {
    static auto &chains = *new Numbered<DeviceChain>("chain of layers");
    return chains;
}

}  // namespace

int64_t make_group(const Ints &devices, const Ints &streams, const Ints &threads, const std::vector<double> &speeds,
                   double imbalance, int64_t timeout_ms, int64_t overlap, bool any_order, int64_t rank, int64_t ranks,
                   int64_t exchange, bool asynchronous) {
    if (devices.empty() || streams.size() != devices.size() || threads.size() != devices.size() ||
        (!speeds.empty() && speeds.size() != 2 * devices.size())) {
        fail("the lists of a group have lengths that do not fit");
    }
    auto made = std::make_shared<DeviceGroup>();
    std::vector<distile_context *> contexts;
    for (size_t i = 0; i < devices.size(); i++) {
        const auto device = static_cast<int32_t>(devices[i]);
        if (device < 0) {
            distile_context_options options{};
            options.threads = narrow_int(threads[i]);
            made->contexts.push_back(make_context(options));
        } else {
            // The host chooses the variants of all devices. The first works on PyTorch's current stream.
            made->contexts.push_back(bindings::make_cuda_context_of(
                device, i == 0 ? current_stream(device) : reinterpret_cast<void *>(streams[i]), current_math(),
                bindings::Chooser::host));
        }
        contexts.push_back(made->contexts.back().get());
    }
    made->device_index = static_cast<int32_t>(devices[0]);
    std::vector<distile_group_speed> given;
    for (size_t i = 0; i + 1 < speeds.size(); i += 2) {
        given.push_back({speeds[i], speeds[i + 1]});
    }
    distile_group_options options{};
    options.speeds = given.empty() ? nullptr : given.data();
    options.imbalance = imbalance;
    options.timeout_ms = static_cast<int32_t>(std::min<int64_t>(timeout_ms, INT32_MAX));
    options.overlap = static_cast<distile_overlap>(overlap);
    options.any_order = any_order ? 1 : 0;
    distile_transport transport{};
    if (ranks > 0) {
        transport.rank = static_cast<int32_t>(std::min<int64_t>(rank, INT32_MAX));
        transport.ranks = static_cast<int32_t>(std::min<int64_t>(ranks, INT32_MAX));
        transport.exchange = reinterpret_cast<decltype(transport.exchange)>(exchange);
        transport.asynchronous = asynchronous ? 1 : 0;
        options.transport = &transport;
        made->has_ranks = true;
    }
    distile_group *group = nullptr;
    bindings::check(distile_group_create(contexts.data(), static_cast<int32_t>(contexts.size()), &options, &group),
                    nullptr);
    made->group.reset(group);
    return groups().add(std::move(made));
}

void free_group(int64_t group) {
    groups().remove(group);
}

Ints lacking_polykernels(int64_t group, const std::vector<Tensor> &parameters, ScalarType type, const Ints &layers,
                         const std::string &activations) {
    const std::shared_ptr<DeviceGroup> owner = groups().find(group);
    const std::vector<ChainLayer> read = read_layers(layers, activations, parameters);
    Ints lacking;
    for (size_t i = 0; i < read.size(); i++) {
        if (!bindings::find_polykernel(key_of(read[i], *owner, type))) {
            lacking.push_back(static_cast<int64_t>(i));
        }
    }
    return lacking;
}

int64_t make_chain(int64_t group, const std::vector<Tensor> &parameters, ScalarType type, const Ints &layers,
                   const std::string &activations) {
    auto made = std::make_shared<DeviceChain>();
    made->group = groups().find(group);
    made->type = type;
    made->numbers = layers;
    made->layers = read_layers(layers, activations, parameters);
    if (made->layers.empty()) {
        fail("a chain has at least one layer");
    }
    std::vector<HostWeights> weights;
    for (size_t i = 0; i < made->layers.size(); i++) {
        ChainLayer &layer = made->layers[i];
        const bindings::OperatorKey key = key_of(layer, *made->group, type);
        layer.polykernel = bindings::find_polykernel(key);
        if (!layer.polykernel) {
            layer.polykernel = bindings::general_polykernel(key);
        }
        if (!layer.polykernel) {
            fail("layer " + std::to_string(i) + " has no PolyKernel");
        }
        // Before packing: a write meanwhile makes these weights old.
        made->states.push_back(layer.state());
        weights.push_back(layer.host_weights());
    }
    {
        const std::lock_guard lock(made->group->mutex);
        made->chain = made->make(weights);
    }
    for (ChainLayer &layer : made->layers) {
        layer.weight = Tensor();
        layer.bias.reset();
    }
    return chains().add(std::move(made));
}

void run_chain(const OptionalTensor &input, const std::vector<Tensor> &masks, const OptionalTensor &output,
               const std::vector<Tensor> &parameters, int64_t chain, bool zero, const Ints &input_sizes,
               const Ints &output_sizes) {
    const std::shared_ptr<DeviceChain> object = chains().find(chain);
    DeviceChain &run = *object;
    DeviceGroup &group = *run.group;
    const distile_dtype type = *type_of(run.type);
    // What calls PyTorch comes before the lock, as that may run code of Python's, which may free chains of the group.
    View input_view{};
    distile_tensor input_tensor{}, output_tensor{};
    if (!input_sizes.empty()) {
        input_tensor = run.tensor_elsewhere(input_sizes);
    }
    if (!output_sizes.empty()) {
        output_tensor = run.tensor_elsewhere(output_sizes);
    }
    if (input) {
        run.check_tensor(*input, "the input");
        input_view = view_of(*input, type);
        input_tensor = input_view.view;
    }
    if (output) {
        run.check_tensor(*output, "`out`");
        output_tensor = output_view(*output, type);
    }
    const GivenMasks given(group, masks, run.layers.size());
    std::vector<ChainLayer> layers = run.layers;
    take_weights(layers, run.numbers, parameters);
    std::vector<WeightState> states;
    for (const ChainLayer &layer : layers) {
        states.push_back(layer.state());
    }
    std::vector<Tensor> old;  // Freed without the lock.
    std::unique_lock lock(group.mutex);
    if (!(states == run.states)) {
        const Ints kept = run.kept;
        lock.unlock();
        std::vector<HostWeights> weights;
        for (const ChainLayer &layer : layers) {
            weights.push_back(layer.host_weights());
        }
        OptionalTensor images;
        if (!kept.empty()) {
            images = empty(masks[0], kept, run.type);
        }
        lock.lock();
        group.follow_current_stream();
        run.renew(weights, images ? &*images : nullptr);
        run.states.swap(states);
    }
    group.follow_current_stream();
    run.set_masks(given);
    std::vector<distile_mask *> of_layers;
    for (const size_t number : given.of_layers) {
        of_layers.push_back(run.masks[number].get());
    }
    distile_chain_args args{};
    args.input = input || !input_sizes.empty() ? &input_tensor : nullptr;
    args.output = output || !output_sizes.empty() ? &output_tensor : nullptr;
    args.masks = given.elsewhere ? nullptr : of_layers.data();
    args.inactive = zero ? DISTILE_ZERO : DISTILE_KEEP;
    run.held.insert(run.held.end(), given.plain.begin(), given.plain.end());
    if (input) {
        run.held.push_back(input_view.owner);
    }
    if (output) {
        run.held.push_back(*output);
    }
    group.check(distile_chain_run(run.chain.get(), &args));
    old.swap(run.held);  // The devices have ended.
    if (args.input && !args.output) {
        run.kept = {input_tensor.batch, input_tensor.height, input_tensor.width, input_tensor.channels};
    }
}

Ints kept_images(int64_t chain) {
    const std::shared_ptr<DeviceChain> object = chains().find(chain);
    const std::lock_guard lock(object->group->mutex);
    const Ints &kept = object->kept;
    return kept.empty()          ? kept
           : object->of_tokens() ? Ints{kept[0], kept[1] * kept[2], kept[3]}
                                 : Ints{kept[0], kept[3], kept[1], kept[2]};
}

void collect_images(const Tensor &output, int64_t chain) {
    const std::shared_ptr<DeviceChain> object = chains().find(chain);
    DeviceGroup &group = *object->group;
    const bool elsewhere = group.has_ranks && output.numel() == 0;
    distile_tensor view{};
    if (!elsewhere) {
        object->check_tensor(output, "`out`");
        view = output_view(output, *type_of(object->type));
    }
    std::vector<Tensor> old;  // Freed without the lock.
    const std::lock_guard lock(group.mutex);
    group.follow_current_stream();
    object->held.push_back(output);
    group.check(distile_chain_collect(object->chain.get(), elsewhere ? nullptr : &view));
    old.swap(object->held);
}

std::vector<double> chain_info(int64_t chain) {
    const std::shared_ptr<DeviceChain> object = chains().find(chain);
    const std::lock_guard lock(object->group->mutex);
    distile_chain_info info{};
    object->group->check(distile_chain_get_info(object->chain.get(), &info));
    const auto number = [](int64_t value) { return static_cast<double>(value); };
    return {number(info.devices),    number(info.busy_devices), number(info.pixels),      info.imbalance,
            number(info.halo_bytes), number(info.row_bytes),    number(info.input_bytes), number(info.plans),
            number(info.partitions), number(info.moved_pixels)};
}

void free_chain(int64_t chain) {
    chains().remove(chain);
}

}  // namespace distile::python
