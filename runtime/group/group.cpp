#include "runtime/group/group.h"
#include "runtime/base/enumerators.h"
#include "runtime/base/types.h"
#include "runtime/dispatch/kernel.h"
#include "runtime/mask/mask_checks.h"
#include "runtime/tensor/tensor.h"
#include <algorithm>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <cstring>

namespace distile {

void fail_group(distile_status status, const char *format, ...) {
    char text[700];
    va_list arguments;
    va_start(arguments, format);
    // Some versions of clang-tidy do not see that va_start initializes.
    // NOLINTNEXTLINE(clang-analyzer-valist.Uninitialized)
    std::vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    throw GroupFailure{status, text};
}

namespace {

constexpr int32_t most_devices = 1024, most_layers = 1024;
/** A planner has at most 64 buffers, and three are for what comes and goes. */
constexpr int32_t most_between = 60;
constexpr int32_t most_scale = 256;
/** A device's tensors span fewer than 2^31 elements; those that several share may be larger. */
constexpr int32_t device_bits = 31, shared_bits = 40;

/** Keeps a failed call's message, of the group or of this thread. */
distile_status keep(distile_group *group, const char *call, distile_status status, const char *message) {
    if (!group) {
        return fail_without_context(status, "%s: %s", call, message);
    }
    // The checks that contexts share name the call already.
    const bool named = std::strncmp(message, call, std::strlen(call)) == 0;
    std::snprintf(group->message, sizeof(group->message), "%s%s%s", named ? "" : call, named ? "" : ": ", message);
    return status;
}

distile_status keep_null(distile_group *group, const char *call, const char *what) {
    char text[128];
    std::snprintf(text, sizeof(text), "the %s is null", what);
    return keep(group, call, DISTILE_ERROR_NULL_POINTER, text);
}

/** Runs the body of an API function. Never throws. Contexts keep the messages of their own failures. */
template<typename Body>
distile_status guarded_group(distile_group *group, const distile_context *context, const char *call, const Body &body) {
    const Outcome outcome = outcome_of(context, body);
    return outcome.status == DISTILE_OK ? DISTILE_OK : keep(group, call, outcome.status, outcome.message);
}

void check_speeds(const distile_group_speed *speeds, int32_t count) {
    for (int32_t i = 0; speeds && i < count; i++) {
        if (!(speeds[i].fixed_us >= 0) || !std::isfinite(speeds[i].fixed_us) || !(speeds[i].products_per_us > 0) ||
            !std::isfinite(speeds[i].products_per_us)) {
            fail_group(DISTILE_ERROR_BAD_VALUE,
                       "device %d takes %g us and then does %g products a us; these must be at least 0 and above 0", i,
                       speeds[i].fixed_us, speeds[i].products_per_us);
        }
    }
}

void check_group_options(const distile_group_options &options, int32_t count) {
    if (!is_reserved_zero(options.reserved)) {
        fail_group(DISTILE_ERROR_BAD_VALUE, "a reserved field of the options is not 0");
    }
    if (!(options.imbalance >= 0) || !std::isfinite(options.imbalance)) {
        fail_group(DISTILE_ERROR_BAD_VALUE, "the imbalance is %g; it must be at least 0", options.imbalance);
    }
    if (options.timeout_ms < 0) {
        fail_group(DISTILE_ERROR_BAD_VALUE, "the timeout is %d ms; it must be at least 0", options.timeout_ms);
    }
    if (raw(options.overlap) < 0 || raw(options.overlap) > DISTILE_OVERLAP_NEVER) {
        fail_group(DISTILE_ERROR_BAD_VALUE, "overlap is %d; it must be 0 to %d", raw(options.overlap),
                   DISTILE_OVERLAP_NEVER);
    }
    if (options.any_order != 0 && options.any_order != 1) {
        fail_group(DISTILE_ERROR_BAD_VALUE, "any_order is %d; it must be 0 or 1", options.any_order);
    }
    if (options.reserved32 != 0) {
        fail_group(DISTILE_ERROR_BAD_VALUE, "a reserved field of the options is not 0");
    }
    check_speeds(options.speeds, count);
}

void check_transport(const distile_transport &transport) {
    if (!transport.exchange) {
        fail_group(DISTILE_ERROR_NULL_POINTER, "the transport's function is null");
    }
    if (!is_reserved_zero(transport.reserved) || transport.reserved32 != 0) {
        fail_group(DISTILE_ERROR_BAD_VALUE, "a reserved field of the transport is not 0");
    }
    if (transport.ranks < 1 || transport.ranks > most_devices || transport.rank < 0 ||
        transport.rank >= transport.ranks) {
        fail_group(DISTILE_ERROR_BAD_VALUE, "rank %d of %d; there must be 1 to %d, numbered from 0", transport.rank,
                   transport.ranks, most_devices);
    }
    if (transport.asynchronous != 0 && transport.asynchronous != 1) {
        fail_group(DISTILE_ERROR_BAD_VALUE, "asynchronous is %d; it must be 0 or 1", transport.asynchronous);
    }
}

/** Calls a function for each pair of a group's devices, with their contexts. */
template<typename Use> void for_each_pair(const std::vector<distile_context *> &contexts, const Use &use) {
    for (distile_context *from : contexts) {
        for (distile_context *to : contexts) {
            try {
                use(*from, *to);
            } catch (const Failure &failure) {
                fail_group(failure.status, "%s", distile_context_message(to));
            }
        }
    }
}

/** The ways between all devices of a group. */
std::vector<const Exchange *> find_exchanges(const std::vector<distile_context *> &contexts) {
    std::vector<const Exchange *> exchanges;
    for_each_pair(contexts, [&](const distile_context &from, const distile_context &to) {
        exchanges.push_back(find_exchange(*from.device, *to.device));
        if (!exchanges.back()) {
            fail_group(DISTILE_ERROR_UNSUPPORTED_DEVICE, "nothing copies between %s and %s",
                       device_name(from.device->kind()), device_name(to.device->kind()));
        }
    });
    return exchanges;
}

void connect_all(const distile_group &group) {
    size_t pair = 0;
    for_each_pair(group.contexts, [&](distile_context &from, distile_context &to) {
        const bool beside = group.overlaps(pair % group.contexts.size());
        group.exchanges[pair++]->connect(from, to, beside);
    });
}

/** Makes a group of this process's contexts. */
void fill_group(distile_group &group, distile_context *const *contexts, int32_t count,
                const distile_group_options &options) {
    if (count < 1 || count > most_devices) {
        fail_group(DISTILE_ERROR_BAD_VALUE, "a group of %d contexts; it must have 1 to %d", count, most_devices);
    }
    check_group_options(options, count);
    for (int32_t i = 0; i < count; i++) {
        if (!contexts[i]) {
            fail_group(DISTILE_ERROR_NULL_POINTER, "the context of device %d is null", i);
        }
        if (std::find(contexts, contexts + i, contexts[i]) != contexts + i) {
            fail_group(DISTILE_ERROR_BAD_VALUE, "context %d is in the group before", i);
        }
        group.contexts.push_back(contexts[i]);
        group.times.push_back(options.speeds
                                  ? DeviceTime{options.speeds[i].fixed_us, 1 / options.speeds[i].products_per_us}
                                  : DeviceTime{});
    }
    constexpr double usual_imbalance = .1;
    group.exchanges = find_exchanges(group.contexts);
    group.imbalance = options.imbalance > 0 ? options.imbalance : usual_imbalance;
    group.overlap = options.overlap;
    group.any_order = options.any_order != 0;
    if (group.ranks && group.ranks->is_asynchronous() && contexts[0]->device->kind() == DISTILE_CPU) {
        fail_group(DISTILE_ERROR_BAD_VALUE, "the transport of a CPU is asynchronous");
    }
    connect_all(group);
    group.crew = std::make_unique<Crew>(count);
}

uint64_t bits_of(double number) {
    uint64_t bits = 0;
    std::memcpy(&bits, &number, sizeof(bits));
    return bits;
}

/** Tells all ranks what the devices of each take. Requires room in `group.times` for those of all. */
void share_times(distile_group &group) {
    Ranks &ranks = *group.ranks;
    const RankDevices &devices = ranks.devices();
    std::vector<DeviceTime> all;
    std::vector<distile_message> sends, receives;
    const Outcome outcome = outcome_of(group.contexts[0], [&] {
        all.resize(group.times.size());
        const auto bytes_of = [&](int32_t rank) {
            return devices.count_of(rank) * static_cast<int64_t>(sizeof(DeviceTime));
        };
        std::copy(group.times.begin(), group.times.begin() + devices.count_of(ranks.rank()),
                  all.begin() + devices.first_of(ranks.rank()));
        for (int32_t peer = 0; peer < ranks.count(); peer++) {
            if (peer != ranks.rank()) {
                sends.push_back({peer, 0, &all[group.first_device()], bytes_of(ranks.rank())});
                receives.push_back({peer, 0, &all[static_cast<size_t>(devices.first_of(peer))], bytes_of(peer)});
            }
        }
    });
    ranks.meet(Meeting::CountDevices, outcome, {});
    ranks.exchange(sends, receives, false, nullptr);
    group.times = std::move(all);
}

/** Makes a group with other ranks. What fails on one does on all. */
void make_with_ranks(distile_group &group, distile_context *const *contexts, int32_t count,
                     const distile_group_options &options) {
    check_transport(*options.transport);
    group.ranks = std::make_unique<Ranks>(*options.transport);
    Ranks &ranks = *group.ranks;
    ranks.begin(std::chrono::steady_clock::now() + group.timeout);
    Outcome outcome =
        outcome_of(count > 0 ? contexts[0] : nullptr, [&] { fill_group(group, contexts, count, options); });
    const bool is_well = outcome.status == DISTILE_OK;
    const std::vector<RankRecord> &records =
        ranks.meet(Meeting::MakeGroup, outcome,
                   {{"numbers of ranks", static_cast<uint64_t>(ranks.count())},
                    {"kinds of devices", is_well ? static_cast<uint64_t>(contexts[0]->device->kind()) : 0},
                    {"settings of imbalance", bits_of(group.imbalance)},
                    {"settings of any_order", group.any_order ? 1U : 0U},
                    {"settings of speeds: all ranks give theirs, or none does", options.speeds ? 1U : 0U}},
                   {static_cast<uint64_t>(count)});
    int64_t devices = 0;
    outcome = outcome_of(contexts[0], [&] {
        std::vector<int32_t> counts;
        for (const RankRecord &record : records) {
            counts.push_back(static_cast<int32_t>(record.words[0]));
            devices += counts.back();
        }
        if (devices > most_devices) {
            fail_group(DISTILE_ERROR_BAD_VALUE, "the ranks have %lld devices; at most %d are possible",
                       static_cast<long long>(devices), most_devices);
        }
        ranks.set_devices(RankDevices(counts));
        group.times.resize(static_cast<size_t>(devices));
    });
    ranks.meet(Meeting::CountDevices, outcome, {});
    if (options.speeds) {
        share_times(group);
    }
}

/** What ranks compare of a chain's layers. */
uint64_t hash_of_layers(const distile_chain &chain) {
    Hash hash;
    for (const ChainLayer &layer : chain.layers) {
        for (const Axis &axis : {layer.planned.rows, layer.planned.columns}) {
            for (const int32_t number :
                 {axis.kernel, axis.stride, axis.dilation, axis.pad_before, axis.pad_after, layer.planned.residual}) {
                hash.add(static_cast<uint64_t>(number));
            }
        }
        const distile_kernel &kernel = *layer.kernels[0];
        for (const int32_t number : {layer.in_channels, layer.out_channels, static_cast<int32_t>(layer.dtype),
                                     static_cast<int32_t>(kernel.kind.weights->epilogue(kernel.polykernel.op))}) {
            hash.add(static_cast<uint64_t>(number));
        }
        hash.add_double(layer.planned.work);
        hash.add_bytes(layer.variant.data(), layer.variant.size());
    }
    return hash.value();
}

/** What ranks compare of its weights, which have been packed. */
uint64_t hash_of_weights(const distile_chain &chain, const distile_chain_layer *layers) {
    Hash hash;
    for (size_t i = 0; i < chain.layers.size(); i++) {
        const distile_weights_source &source = *layers[i].weights;
        const auto count = static_cast<size_t>(chain.layers[i].planned.work);
        const auto channels = static_cast<size_t>(chain.layers[i].out_channels);
        const distile_dtype dtype = raw(source.dtype) == 0 ? DISTILE_FLOAT32 : source.dtype;
        // Two weights of int4 share a byte.
        const size_t bytes = raw(dtype) == DISTILE_INT4 ? (count + 1) / 2 : count * distile_dtype_size(dtype);
        hash.add(static_cast<uint64_t>(raw(dtype)));
        hash.add(static_cast<uint64_t>(source.order));
        hash.add_bytes(source.filter, bytes);
        for (const float *const array :
             {source.bias, source.bn_gamma, source.bn_beta, source.bn_mean, source.bn_variance}) {
            hash.add_bytes(array, array ? channels * sizeof(float) : 0);
        }
        hash.add_bytes(source.slope, source.slope ? sizeof(float) : 0);
        hash.add_double(static_cast<double>(source.bn_epsilon));
    }
    return hash.value();
}

/** An operator as a group plans it. */
PlannedLayer planned_of(const distile_polykernel &polykernel) {
    PlannedLayer planned{};
    planned.residual = -1;
    if (polykernel.kind == DISTILE_MASKED_LINEAR) {
        const auto &linear = *static_cast<const distile_linear *>(polykernel.op);
        planned.rows = planned.columns = {1, 1, 1, 0, 0};
        planned.work = static_cast<double>(linear.in_channels) * linear.out_channels;
    } else {
        const distile_conv2d &conv = conv_of(polykernel.op);
        planned.rows = rows_of(conv);
        planned.columns = columns_of(conv);
        planned.work =
            static_cast<double>(conv.in_channels) / conv.groups * conv.out_channels * conv.kernel_h * conv.kernel_w;
    }
    return planned;
}

bool same_axis(const Axis &one, const Axis &other) {
    return one.kernel == other.kernel && one.stride == other.stride && one.dilation == other.dilation &&
           one.pad_before == other.pad_before && one.pad_after == other.pad_after;
}

/** Makes the chains of a group. */
class ChainMaker {
public:
    ChainMaker(distile_group &group, const distile_chain_layer *layers, int32_t count)
        : group_(group), layers_(layers), count_(count), chain_(std::make_unique<distile_chain>(group)) {
    }

    std::unique_ptr<distile_chain> make() {
        for (int32_t i = 0; i < count_; i++) {
            number_ = i;
            add_layer(layers_[i]);
        }
        const auto last = static_cast<size_t>(count_);
        // A tensor is read while the next one is written, and so is in use after one further call of the planner.
        int32_t buffers = 3;
        for (size_t i = 0; i < last; i++) {
            chain_->planned.push_back(chain_->layers[i].planned);
            const int32_t residual = chain_->layers[i].planned.residual;
            // A residual is in use until the tensor to which it is added is made.
            buffers = residual < 0 ? buffers : std::max(buffers, static_cast<int32_t>(i) + 1 - residual + 2);
        }
        chain_->variants.resize(last);
        distile_mask *mask = nullptr;
        require_of(group_.contexts[0], distile_mask_create(group_.contexts[0], &mask));
        chain_->of_bits.reset(mask);
        for (distile_context *context : group_.contexts) {
            chain_->devices.push_back(make_device(context, buffers));
        }
        return std::move(chain_);
    }

private:
    void add_layer(const distile_chain_layer &given) {
        if (!is_reserved_zero(given.reserved) || given.reserved32 != 0) {
            fail_group(DISTILE_ERROR_BAD_VALUE, "layer %d: a reserved field is not 0", number_);
        }
        if (!given.polykernels || !given.weights) {
            fail_group(DISTILE_ERROR_NULL_POINTER, "the %s of layer %d is null",
                       given.polykernels ? "source of weights" : "array of PolyKernels", number_);
        }
        ChainLayer layer;
        layer.variant = given.variant ? given.variant : "";
        for (size_t i = 0; i < group_.contexts.size(); i++) {
            add_kernel(layer, given, i);
        }
        const distile_kernel &kernel = *layer.kernels[0];
        layer.planned.pixel_bytes =
            static_cast<int64_t>(layer.out_channels) * static_cast<int64_t>(distile_dtype_size(layer.dtype));
        if (!chain_->layers.empty()) {
            const ChainLayer &before = chain_->layers.back();
            if (before.dtype != layer.dtype) {
                fail_group(DISTILE_ERROR_BAD_TYPE, "layer %d reads %s, but the one before writes %s", number_,
                           TypeText(raw(layer.dtype)).text, TypeText(raw(before.dtype)).text);
            }
            if (before.out_channels != layer.in_channels) {
                fail_group(DISTILE_ERROR_BAD_CHANNELS, "layer %d reads %d channels, but the one before writes %d",
                           number_, layer.in_channels, before.out_channels);
            }
        }
        row_scale_ = std::min<int64_t>(row_scale_ * layer.planned.rows.stride, INT32_MAX);
        column_scale_ = std::min<int64_t>(column_scale_ * layer.planned.columns.stride, INT32_MAX);
        if (row_scale_ > most_scale || column_scale_ > most_scale) {
            fail_group(DISTILE_ERROR_BAD_VALUE,
                       "the strides multiply to %lld rows and %lld columns; at most %d are possible",
                       static_cast<long long>(row_scale_), static_cast<long long>(column_scale_), most_scale);
        }
        layer.planned.residual = kernel.residual ? given.residual : -1;
        if (kernel.residual) {
            chain_->layers.push_back(std::move(layer));
            check_residual(given.residual);
            return;
        }
        if (given.residual != 0) {
            fail_group(DISTILE_ERROR_BAD_VALUE, "layer %d: '%s' adds no residual, but one is given", number_,
                       kernel.polykernel.name);
        }
        chain_->layers.push_back(std::move(layer));
    }

    void add_kernel(ChainLayer &layer, const distile_chain_layer &given, size_t device) {
        distile_context *const context = group_.contexts[device];
        const distile_polykernel *const polykernel = given.polykernels[device];
        if (!polykernel) {
            fail_group(DISTILE_ERROR_NULL_POINTER, "the PolyKernel of layer %d for device %zu is null", number_,
                       device);
        }
        distile_kernel *made = nullptr;
        require_of(context, distile_kernel_create(context, polykernel, &made));
        layer.kernels.push_back(Kernel(made));  // Owned also where there is no room.
        const distile_polykernel &code = made->polykernel;
        if (code.kind != DISTILE_MASKED_CONV2D && code.kind != DISTILE_MASKED_LINEAR) {
            fail_group(DISTILE_ERROR_BAD_VALUE, "layer %d: '%s' is no masked_conv2d or masked_linear", number_,
                       code.name);
        }
        if (made->input.dtype != made->output.dtype || !find_float_type(raw(made->input.dtype))) {
            fail_group(DISTILE_ERROR_BAD_TYPE, "layer %d: '%s' is quantized; chains have floating-point types", number_,
                       code.name);
        }
        const PlannedLayer planned = planned_of(code);
        if (device == 0) {
            layer.planned = planned;
            layer.in_channels = made->input.channels;
            layer.out_channels = made->output.channels;
            layer.dtype = made->input.dtype;
            if (!layer.variant.empty() && made->find(layer.variant.c_str()) < 0) {
                fail_group(DISTILE_ERROR_BAD_VALUE, "layer %d: '%s' has no variant '%s'", number_, code.name,
                           layer.variant.c_str());
            }
        } else if (!same_axis(planned.rows, layer.planned.rows) || !same_axis(planned.columns, layer.planned.columns) ||
                   planned.work != layer.planned.work || made->input.channels != layer.in_channels ||
                   made->output.channels != layer.out_channels || made->input.dtype != layer.dtype ||
                   (made->residual != nullptr) != (layer.kernels[0]->residual != nullptr) ||
                   made->kind.weights->epilogue(code.op) !=
                       layer.kernels[0]->kind.weights->epilogue(layer.kernels[0]->polykernel.op)) {
            fail_group(DISTILE_ERROR_BAD_VALUE,
                       "layer %d: '%s' of device %zu is another operator than that of device 0", number_, code.name,
                       device);
        }
        for (size_t i = 0; i < device; i++) {
            // Equal code in equal memory reads the same.
            if (group_.contexts[i]->device->memory_space() == context->device->memory_space() &&
                &layer.kernels[i]->polykernel == &code) {
                layer.weights.push_back(layer.weights[i]);
                return;
            }
        }
        distile_weights *weights = nullptr;
        require_of(context, distile_weights_pack(made, given.weights, &weights));
        layer.weights.push_back(std::shared_ptr<distile_weights>(weights, distile_weights_destroy));
    }

    void check_residual(int32_t residual) const {
        const auto last = static_cast<int32_t>(chain_->layers.size()) - 1;
        if (residual < 0 || residual > last) {
            fail_group(DISTILE_ERROR_BAD_VALUE, "layer %d: the residual is tensor %d; it must be 0 to %d", number_,
                       residual, last);
        }
        if (last - residual > most_between) {
            fail_group(DISTILE_ERROR_BAD_VALUE,
                       "layer %d: the residual is of %d layers before; at most %d are possible", number_,
                       last - residual, most_between);
        }
        const ChainLayer &adds = chain_->layers[static_cast<size_t>(last)];
        const int32_t channels = chain_->layers[static_cast<size_t>(residual)].in_channels;
        if (channels != adds.out_channels) {
            fail_group(DISTILE_ERROR_BAD_CHANNELS, "layer %d: the residual has %d channels, but the output has %d",
                       number_, channels, adds.out_channels);
        }
        int64_t rows = 0, columns = 0;
        bool strided = false;
        for (int32_t i = residual; i <= last; i++) {
            const PlannedLayer &between = chain_->layers[static_cast<size_t>(i)].planned;
            const auto growth = [](const Axis &axis) {
                return int64_t{axis.pad_before} + axis.pad_after - int64_t{axis.dilation} * (axis.kernel - 1);
            };
            rows += growth(between.rows);
            columns += growth(between.columns);
            strided = strided || between.rows.stride != 1 || between.columns.stride != 1;
        }
        if (strided || rows != 0 || columns != 0) {
            fail_group(DISTILE_ERROR_BAD_SHAPE, "layer %d: the residual, tensor %d, has another size than the output",
                       number_, residual);
        }
    }

    DeviceRun make_device(distile_context *context, int32_t buffers) const {
        DeviceRun device;
        distile_planner_options options{};
        options.buffers = buffers;
        distile_planner *planner = nullptr;
        require_of(context, distile_planner_create(context, &options, &planner));
        device.planner.reset(planner);
        planner = nullptr;
        // The images before a run and those after it: the first are read while the others are made.
        options.buffers = 3;
        require_of(context, distile_planner_create(context, &options, &planner));
        device.images.planner.reset(planner);
        const auto make_mask = [&] {
            distile_mask *mask = nullptr;
            require_of(context, distile_mask_create(context, &mask));
            return Mask(mask);
        };
        device.input = make_mask();
        device.images.shape = make_mask();
        for (int32_t i = 0; i < count_; i++) {
            device.layers.push_back({make_mask(), make_mask(), make_mask(), make_mask(), {}, nullptr});
        }
        device.tensors.resize(static_cast<size_t>(count_) + 1);
        return device;
    }

    distile_group &group_;
    const distile_chain_layer *layers_;
    int32_t count_;
    int32_t number_ = 0;
    int64_t row_scale_ = 1, column_scale_ = 1;
    std::unique_ptr<distile_chain> chain_;
};

void check_layers(const distile_chain_layer *layers, int32_t count, distile_chain *const *chain) {
    if (!layers || !chain) {
        fail_group(DISTILE_ERROR_NULL_POINTER, "the %s is null", layers ? "pointer to the chain" : "array of layers");
    }
    if (count < 1 || count > most_layers) {
        fail_group(DISTILE_ERROR_BAD_VALUE, "a chain of %d layers; it must have 1 to %d", count, most_layers);
    }
}

/** Keeps what devices or messages may still use where a checker of leaks finds it. */
template<typename Object> void keep_forever(Object *object) {
    static std::atomic<Object *> last{nullptr};
    object->next_kept = last.exchange(object);
}

void check_usable(const distile_group &group) {
    if (group.is_lost) {
        fail_group(DISTILE_ERROR_DEVICE_LOST, "a device did not end in time; make another group");
    }
    if (group.ranks && group.ranks->is_lost()) {
        fail_group(DISTILE_ERROR_DEVICE_LOST, "messages to other ranks failed; make another group");
    }
    if (!group.crew->is_ours()) {
        fail_group(DISTILE_ERROR_INTERNAL, "the group is a parent process's");
    }
}

/** Checks that an output has the size of the last tensor, or that the devices can keep that among their images. */
void check_result(const distile_chain &chain, const distile_chain_args &args, const std::vector<MaskShape> &shapes) {
    const MaskShape &output = shapes.back();
    if (!args.output) {
        if (raw(args.inactive) != DISTILE_KEEP) {
            fail_group(DISTILE_ERROR_BAD_VALUE, "inactive is DISTILE_ZERO, but no output is given");
        }
        if (!(output == shapes.front())) {
            fail_group(DISTILE_ERROR_BAD_SHAPE, "no output is given, and the last tensor has not the input's size");
        }
        if (chain.layers.back().out_channels != chain.layers.front().in_channels) {
            fail_group(DISTILE_ERROR_BAD_CHANNELS,
                       "no output is given, and the last tensor has not the input's channels");
        }
        return;
    }
    if (args.output->batch != output.batch || args.output->height != output.height ||
        args.output->width != output.width) {
        fail_group(DISTILE_ERROR_BAD_SHAPE,
                   "the output is %d x %d x %d (batch, height, width), but this input gives %d x %d x %d",
                   args.output->batch, args.output->height, args.output->width, output.batch, output.height,
                   output.width);
    }
    if (args.input && args.input->data && args.output->data &&
        overlap(without_border(*args.input), without_border(*args.output))) {
        fail_group(DISTILE_ERROR_ALIASING, "the input overlaps the output");
    }
}

/** Checks a tensor of the caller's. With ranks its data may be null. */
void check_caller_tensor(const distile_chain &chain, const char *call, const ChainLayer &layer,
                         const distile_tensor *tensor, const char *name, int32_t channels, int32_t span_bits) {
    distile_context *const context = chain.group.contexts[0];
    if (chain.group.ranks && tensor && !tensor->data) {
        alignas(64) char nothing = 0;
        distile_tensor elsewhere = *tensor;
        elsewhere.data = &nothing;
        require(check_tensor(context, layer.dtype, call, &elsewhere, name, channels, false, span_bits));
        return;
    }
    require(check_tensor(context, layer.dtype, call, tensor, name, channels, false, span_bits));
    require(context->device->check_memory(call, *tensor, name));
}

}  // namespace

/** Contexts keep the messages of shared checks. */
void check_run(const distile_chain &chain, const distile_chain_args *given) {
    constexpr const char *call = "distile_chain_run";
    if (!given) {
        fail_group(DISTILE_ERROR_NULL_POINTER, "the pointer to the arguments is null");
    }
    const distile_chain_args &args = *given;
    distile_context *const context = chain.group.contexts[0];
    const ChainLayer &first = chain.layers.front(), &last = chain.layers.back();
    if (!is_reserved_zero(args.reserved) || args.reserved32 != 0) {
        fail_group(DISTILE_ERROR_BAD_VALUE, "a reserved field of the arguments is not 0");
    }
    require(check_enumerator(context, call, "inactive", args.inactive));
    if (args.input) {
        check_caller_tensor(chain, call, first, args.input, "input", first.in_channels, shared_bits);
        if (!args.input->data && chain.group.first_device() == 0) {
            fail_group(DISTILE_ERROR_BAD_VALUE, "the first rank has no input: its data is null");
        }
    } else if (chain.kept.num_pixels() == 0) {
        fail_group(DISTILE_ERROR_BAD_VALUE, "no input is given, and the devices keep no images");
    }
    if (args.output) {
        // One device alone zeroes the inactive pixels.
        const int32_t bits = args.inactive == DISTILE_ZERO ? device_bits : shared_bits;
        check_caller_tensor(chain, call, last, args.output, "output", last.out_channels, bits);
    }
    const std::vector<MaskShape> shapes = shapes_of(chain.planned, input_shape(chain, args));
    for (const MaskShape &shape : shapes) {
        if (shape.height < 1 || shape.width < 1 || shape.height > largest_extent || shape.width > largest_extent) {
            fail_group(DISTILE_ERROR_BAD_SHAPE, "an input of %d x %d gives a tensor of %d x %d", shapes[0].height,
                       shapes[0].width, shape.height, shape.width);
        }
    }
    check_result(chain, args, shapes);
    if (!args.masks && chain.group.first_device() > 0) {
        return;  // They are the first rank's.
    }
    if (!args.masks) {
        fail_group(DISTILE_ERROR_NULL_POINTER, "the array of masks is null");
    }
    for (size_t i = 0; i < chain.layers.size(); i++) {
        require(check_mask(context, call, args.masks[i]));
        if (!(args.masks[i]->shape == shapes[i + 1])) {
            const MaskShape &is = args.masks[i]->shape, &wanted = shapes[i + 1];
            fail_group(DISTILE_ERROR_BAD_MASK, "the mask of layer %zu is %d x %d x %d, but its output is %d x %d x %d",
                       i, is.batch, is.height, is.width, wanted.batch, wanted.height, wanted.width);
        }
    }
}

void check_collection(const distile_chain &chain, const distile_tensor *output) {
    constexpr const char *call = "distile_chain_collect";
    const MaskShape &kept = chain.kept;
    if (!chain.group.ranks || output) {  // Ranks need not want them.
        const ChainLayer &first = chain.layers.front();
        check_caller_tensor(chain, call, first, output, "output", first.in_channels, shared_bits);
    }
    if (kept.num_pixels() == 0) {
        fail_group(DISTILE_ERROR_BAD_VALUE, "the devices keep no images");
    }
    if (output && !(MaskShape{output->batch, output->height, output->width} == kept)) {
        fail_group(DISTILE_ERROR_BAD_SHAPE, "the output is %d x %d x %d, but the images are %d x %d x %d",
                   output->batch, output->height, output->width, kept.batch, kept.height, kept.width);
    }
}

}  // namespace distile

using namespace distile;

bool distile_group::overlaps(size_t context) const {
    bool asynchronous = ranks && ranks->is_asynchronous();
    for (size_t other = 0; other < contexts.size(); other++) {
        asynchronous = asynchronous || (other != context && exchange(other, context).asynchronous);
    }
    return overlap == DISTILE_OVERLAP_ALWAYS || (overlap == DISTILE_OVERLAP_WHERE_ASYNCHRONOUS && asynchronous);
}

extern "C" {

distile_status distile_group_create(distile_context *const *contexts, int32_t count,
                                    const distile_group_options *options, distile_group **group) {
    constexpr const char *call = "distile_group_create";
    if (!contexts || !group) {
        return fail_null(call, contexts ? "pointer to the group" : "array of contexts");
    }
    return guarded_group(nullptr, nullptr, call, [&] {
        const distile_group_options chosen = options ? *options : distile_group_options{};
        constexpr int32_t usual_timeout = 60000;
        auto created = std::make_unique<distile_group>();
        created->timeout = std::chrono::milliseconds(chosen.timeout_ms > 0 ? chosen.timeout_ms : usual_timeout);
        if (!chosen.transport) {
            fill_group(*created, contexts, count, chosen);
        } else {
            const Outcome outcome =
                outcome_of(contexts[0], [&] { make_with_ranks(*created, contexts, count, chosen); });
            if (outcome.status != DISTILE_OK) {
                if (created->may_be_in_use()) {
                    keep_forever(created.release());
                }
                fail_group(outcome.status, "%s", outcome.message);
            }
        }
        *group = created.release();
    });
}

void distile_group_destroy(distile_group *group) {
    if (group && group->may_be_in_use()) {
        keep_forever(group);
    } else {
        const std::unique_ptr<distile_group> owned(group);
    }
}

const char *distile_group_message(const distile_group *group) {
    return group ? group->message : distile_context_message(nullptr);
}

distile_status distile_chain_create(distile_group *group, const distile_chain_layer *layers, int32_t count,
                                    distile_chain **chain) {
    constexpr const char *call = "distile_chain_create";
    if (!group) {
        return fail_null(call, "group");
    }
    return guarded_group(group, group->contexts[0], call, [&] {
        check_usable(*group);
        if (!group->ranks) {
            check_layers(layers, count, chain);
            *chain = ChainMaker(*group, layers, count).make().release();
            return;
        }
        group->ranks->begin(std::chrono::steady_clock::now() + group->timeout);
        std::unique_ptr<distile_chain> made;
        const Outcome outcome = outcome_of(group->contexts[0], [&] {
            check_layers(layers, count, chain);
            made = ChainMaker(*group, layers, count).make();
            made->rounds = std::make_unique<RankRounds>();
            RankTensors &given = made->rounds->given;
            given.have_input.resize(static_cast<size_t>(group->ranks->count()));
            given.want_output.resize(static_cast<size_t>(group->ranks->count()));
            made->number = group->chains + 1;
        });
        group->ranks->meet(Meeting::MakeChain, outcome,
                           {{"layers", made ? hash_of_layers(*made) : 0},
                            {"weights", made ? hash_of_weights(*made, layers) : 0},
                            {"numbers of chains", made ? made->number : 0}});
        group->chains = made->number;
        *chain = made.release();
    });
}

void distile_chain_destroy(distile_chain *chain) {
    if (chain && chain->group.may_be_in_use()) {
        keep_forever(chain);
    } else {
        const std::unique_ptr<distile_chain> owned(chain);
    }
}

distile_status distile_chain_run(distile_chain *chain, const distile_chain_args *args) {
    constexpr const char *call = "distile_chain_run";
    if (!chain) {
        return fail_null(call, "chain");
    }
    distile_group *const group = &chain->group;
    return guarded_group(group, group->contexts[0], call, [&] {
        check_usable(*group);
        if (group->ranks) {
            run_on_ranks(*chain, args);
            return;
        }
        check_run(*chain, args);
        plan_run(*chain, *args);
        run_chain(*chain, *args);
    });
}

distile_status distile_chain_collect(distile_chain *chain, const distile_tensor *output) {
    constexpr const char *call = "distile_chain_collect";
    if (!chain) {
        return fail_null(call, "chain");
    }
    distile_group *const group = &chain->group;
    distile_context *const context = group->contexts[0];
    return guarded_group(group, context, call, [&] {
        check_usable(*group);
        if (group->ranks) {
            collect_on_ranks(*chain, output);
            return;
        }
        check_collection(*chain, output);
        collect_images(*chain, *output);
    });
}

distile_status distile_chain_get_info(const distile_chain *chain, distile_chain_info *info) {
    constexpr const char *call = "distile_chain_get_info";
    if (!chain) {
        return fail_null(call, "chain");
    }
    distile_group *const group = &chain->group;
    if (!info) {
        return keep_null(group, call, "pointer to the result");
    }
    return guarded_group(group, group->contexts[0], call, [&] {
        distile_chain_info found{};
        const MaskShape &input = chain->input;
        const std::vector<DeviceTime> &times = group->times;
        if (input.num_pixels() > 0) {
            const std::vector<const BitImage *> masks = chain->masks();
            const std::vector<CostedMask> costs = costs_of(chain->planned, masks);
            found.devices = static_cast<int32_t>(times.size());
            const int64_t pixel_bytes =
                chain->layers[0].in_channels * static_cast<int64_t>(distile_dtype_size(chain->layers[0].dtype));
            for (const Part &part : chain->plan.parts) {
                found.busy_devices += part.is_empty ? 0 : 1;
                found.input_bytes += part.input_pixels * pixel_bytes;
                for (const PartOutput &output : part.layers) {
                    found.pixels += output.pixels;
                }
            }
            found.imbalance = imbalance_of(chain->partition, count_cells_of(chain->partition, costs, input), times);
            found.halo_bytes = chain->plan.halo_bytes;
            const Partition rows =
                partition_rows(costs, input, times, row_scale(chain->planned, chain->planned.size()));
            // Bands of rows are cells as wide as all strides divide.
            found.row_bytes = halo_bytes_of(chain->planned, input, masks, rows, found.devices);
            found.plans = chain->plans;
            found.partitions = chain->partitions;
            found.moved_pixels = chain->moved_pixels;
        }
        *info = found;
    });
}

const char *distile_chain_variant(const distile_chain *chain, int32_t layer) {
    const bool known = chain && chain->input.num_pixels() > 0 && layer >= 0 &&
                       static_cast<size_t>(layer) < chain->variants.size() &&
                       !chain->variants[static_cast<size_t>(layer)].empty();
    return known ? chain->variants[static_cast<size_t>(layer)].c_str() : nullptr;
}

}  // extern "C"
