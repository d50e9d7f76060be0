#include "python/csrc/weights.h"
#include "bindings/cuda_session.h"
#include "bindings/registry.h"
#include "bindings/weight_pattern.h"
#include "python/csrc/checksum.h"
#include <algorithm>
#include <atomic>
#include <distile/polykernel.h>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <vector>

namespace distile::python {

namespace {

std::atomic<int64_t> packings{0};
std::atomic<bool> reads_contents{true};

/** What tells whether a tensor was written. PyTorch counts writes of its own, but neither those through `.data` or a
 * view of NumPy, nor any to tensors of inference mode. Those show in the contents, which the host reads on a CPU. */
struct Fingerprint {
    bool read;
    uint64_t number; /**< A checksum of the contents, or the count. */

    bool operator==(const Fingerprint &other) const {
        return read == other.read && number == other.number;
    }
};

/** Nothing for a tensor whose writes do not show. */
std::optional<Fingerprint> fingerprint_of(const Tensor &tensor) {
    if (reads_contents && tensor.is_cpu()) {
        return Fingerprint{true, checksum(tensor)};
    }
    if (is_inference(tensor)) {
        return std::nullopt;
    }
    return Fingerprint{false, static_cast<uint64_t>(version_of(tensor))};
}

/** A tensor as it was when it was packed. Holding it keeps its memory from being used again for another. */
struct Source {
    Tensor tensor;
    const void *data;
    Fingerprint fingerprint;

    Source(const Tensor &tensor, const Fingerprint &fingerprint)
        : tensor(tensor), data(tensor.const_data_ptr()), fingerprint(fingerprint) {
    }
    bool operator==(const Source &other) const {
        return data == other.data && fingerprint == other.fingerprint &&
               tensor.scalar_type() == other.tensor.scalar_type() && tensor.sizes().equals(other.tensor.sizes()) &&
               tensor.strides().equals(other.tensor.strides());
    }
};

}  // namespace

/** What weights were packed from. */
struct WeightSources {
    Source filter;
    std::optional<Source> bias;

    bool operator==(const WeightSources &other) const {
        return filter == other.filter && bias == other.bias;
    }
};

namespace {

/** The sources now; nothing if their writes do not show. */
std::optional<WeightSources> sources_of(const Tensor &filter, const OptionalTensor &bias) {
    const std::optional<Fingerprint> of_filter = fingerprint_of(filter);
    const std::optional<Fingerprint> of_bias = bias ? fingerprint_of(*bias) : std::nullopt;
    if (!of_filter || (bias && !of_bias)) {
        return std::nullopt;
    }
    WeightSources sources{Source(filter, *of_filter), std::nullopt};
    if (bias) {
        sources.bias.emplace(*bias, *of_bias);
    }
    return sources;
}

struct Packed {
    const distile_polykernel *polykernel;
    WeightSources sources;
    float slope;
    SharedWeights weights;
};

/** Whether a filter has the pattern 2:4 for inputs of a type. */
struct KnownPattern {
    Source filter;
    distile_dtype input;
    bool is_kept;
};

/** What stages read of a parameter. */
struct KeptParameter {
    Source source;
    distile_dtype type;
    Tensor made;
};

/** By place and by math, which decides about the code and that about the layout, and by the calls that the code serves,
 * which may take turns. Those of another math stay, for graphs that were captured with it. */
struct Places {
    using Key = std::tuple<int64_t, distile_math, bindings::Serves>;

    std::mutex mutex;
    std::map<Key, std::unique_ptr<Packed>> packed;
    std::map<std::pair<int64_t, StageParameter>, std::unique_ptr<KeptParameter>> parameters;
    std::map<int64_t, std::unique_ptr<KnownPattern>> patterns;
};

/** Never destroyed: at the end of a process, tensors may outlive the interpreter that they need. */
Places &places() {
    static auto &places = *new Places;
    return places;
}

/** In host memory, contiguous, of a type that distile reads. */
Tensor host_copy(const Tensor &tensor, bool to_float32) {
    Tensor copy =
        tensor.is_cpu() ? tensor : torch::stable::to(tensor, torch::stable::Device(torch::headeronly::DeviceType::CPU));
    if (to_float32 && copy.scalar_type() != ScalarType::Float) {
        copy = torch::stable::to(copy, ScalarType::Float);
    }
    return torch::stable::contiguous(copy);
}

/** Whether a graph captures what a call does with a tensor. */
bool is_captured(const Tensor &tensor) {
    return !tensor.is_cpu() && bindings::capture_of(current_stream(tensor.get_device_index())) != 0;
}

/** Whether a filter has the pattern 2:4. A part of the output channels after the other comes to the host, because most
 * filters lack the pattern in the first. */
bool has_pattern(Tensor filter, distile_dtype type, distile_dtype input) {
    constexpr int64_t part_elements = int64_t{1} << 20;
    const auto extent = [&filter](int64_t i) { return static_cast<int32_t>(i < filter.dim() ? filter.size(i) : 1); };
    const int64_t channels = filter.size(0);
    const int64_t part = std::max<int64_t>(1, part_elements * channels / std::max<int64_t>(1, filter.numel()));
    for (int64_t first = 0; first < channels; first += part) {
        const int64_t count = std::min(part, channels - first);
        const Tensor host = host_copy(torch::stable::narrow(filter, 0, first, count), false);
        if (!bindings::keeps_two_of_four({host.const_data_ptr(),
                                          type,
                                          DISTILE_OIHW,
                                          {static_cast<int32_t>(count), extent(1), extent(2), extent(3)}},
                                         input)) {
            return false;
        }
    }
    return true;
}

SharedWeights pack(Session &session, const distile_polykernel &polykernel, const Tensor &filter,
                   const OptionalTensor &bias, distile_weights_order order, float slope) {
    if (is_captured(filter)) {
        fail("weights cannot be packed while a graph is captured: make the same call before the capture. Weights made "
             "in "
             "torch.inference_mode are packed in each call: make the module outside that mode");
    }
    const HostWeights host(filter, bias, order, slope);
    const distile_weights_source source = host.source();
    distile_weights *weights = nullptr;
    check(distile_weights_pack(session.kernel(polykernel), &source, &weights), session.context());
    packings++;
    return SharedWeights(weights, distile_weights_destroy);
}

}  // namespace

bool keeps_two_of_four(const Tensor &filter, ScalarType input, int64_t place) {
    const std::optional<distile_dtype> type = type_of(filter), of_input = type_of(input);
    if (!type || !of_input || filter.numel() == 0) {
        return false;
    }
    const std::optional<Fingerprint> fingerprint = place == 0 ? std::nullopt : fingerprint_of(filter);
    if (fingerprint) {
        const Source source(filter, *fingerprint);
        const std::lock_guard lock(places().mutex);
        const auto found = places().patterns.find(place);
        if (found != places().patterns.end() && found->second->filter == source && found->second->input == *of_input) {
            return found->second->is_kept;
        }
    }
    if (is_captured(filter)) {
        return false;
    }
    const bool is_kept = has_pattern(filter, *type, *of_input);
    if (fingerprint) {
        auto known = std::make_unique<KnownPattern>(KnownPattern{Source(filter, *fingerprint), *of_input, is_kept});
        const std::lock_guard lock(places().mutex);
        places().patterns[place].swap(known);
    }
    return is_kept;
}

HostWeights::HostWeights(const Tensor &filter, const OptionalTensor &bias, distile_weights_order order, float slope)
    : filter_(host_copy(filter, false)), type_(DISTILE_FLOAT32), order_(order), slope_(slope) {
    const std::optional<distile_dtype> type = type_of(filter_);
    if (!type) {
        fail("a weight has a type other than " + float_type_names());
    }
    type_ = *type;
    if (bias) {
        bias_ = host_copy(*bias, true);
    }
}

distile_weights_source HostWeights::source() const {
    distile_weights_source source{};
    source.filter = filter_.const_data_ptr();
    source.dtype = type_;
    source.order = order_;
    source.slope = &slope_;
    source.bias = bias_ ? static_cast<const float *>(bias_->const_data_ptr()) : nullptr;
    return source;
}

WeightState::WeightState(const Tensor &filter, const OptionalTensor &bias) {
    if (std::optional<WeightSources> sources = sources_of(filter, bias)) {
        sources_ = std::make_shared<const WeightSources>(std::move(*sources));
    }
}

bool WeightState::operator==(const WeightState &other) const {
    return sources_ && other.sources_ && *sources_ == *other.sources_;
}

SharedWeights pack_weights(Session &session, const distile_polykernel &polykernel, const Tensor &filter,
                           const OptionalTensor &bias, distile_weights_order order, float slope, int64_t place) {
    // Before packing: a write meanwhile makes these weights old.
    std::optional<WeightSources> sources = place == 0 ? std::nullopt : sources_of(filter, bias);
    if (!sources) {
        return pack(session, polykernel, filter, bias, order, slope);
    }
    const Places::Key key{place, session.math(), bindings::serves(polykernel)};
    {
        const std::lock_guard lock(places().mutex);
        const auto found = places().packed.find(key);
        if (found != places().packed.end() && found->second->polykernel == &polykernel &&
            found->second->sources == *sources && found->second->slope == slope) {
            return found->second->weights;
        }
    }
    SharedWeights weights = pack(session, polykernel, filter, bias, order, slope);
    auto packed = std::make_unique<Packed>(Packed{&polykernel, std::move(*sources), slope, weights});
    {
        const std::lock_guard lock(places().mutex);
        places().packed[key].swap(packed);
    }
    return weights;  // The old ones are freed without the lock: that may need Python's.
}

Tensor stage_parameter(const Tensor &parameter, StageParameter what, distile_dtype type, int64_t place,
                       const std::function<Tensor()> &make) {
    const std::optional<Fingerprint> fingerprint = place == 0 ? std::nullopt : fingerprint_of(parameter);
    if (!fingerprint) {
        return make();
    }
    auto kept = std::make_unique<KeptParameter>(KeptParameter{Source(parameter, *fingerprint), type, parameter});
    {
        const std::lock_guard lock(places().mutex);
        const auto found = places().parameters.find({place, what});
        if (found != places().parameters.end() && found->second->type == type &&
            found->second->source == kept->source) {
            return found->second->made;
        }
    }
    kept->made = make();
    packings += what == StageParameter::weights ? 1 : 0;
    const Tensor made = kept->made;
    {
        const std::lock_guard lock(places().mutex);
        places().parameters[{place, what}].swap(kept);
    }
    return made;  // The old one is freed without the lock.
}

void free_weights(int64_t place) {
    std::vector<std::unique_ptr<Packed>> old;  // Freed without the lock.
    std::vector<std::unique_ptr<KeptParameter>> old_parameters;
    std::unique_ptr<KnownPattern> old_pattern;
    const std::lock_guard lock(places().mutex);
    if (const auto known = places().patterns.find(place); known != places().patterns.end()) {
        old_pattern = std::move(known->second);
        places().patterns.erase(known);
    }
    auto kept = places().parameters.lower_bound({place, StageParameter::weights});
    while (kept != places().parameters.end() && kept->first.first == place) {
        old_parameters.push_back(std::move(kept->second));
        kept = places().parameters.erase(kept);
    }
    auto found = places().packed.lower_bound({place, DISTILE_MATH_DEFAULT, bindings::Serves::all_calls});
    while (found != places().packed.end() && std::get<int64_t>(found->first) == place) {
        old.push_back(std::move(found->second));
        found = places().packed.erase(found);
    }
}

void check_contents(bool read) {
    reads_contents = read;
}

int64_t times_packed() {
    return packings;
}

void count_packed(int64_t times) {
    packings += times;
}

}  // namespace distile::python
