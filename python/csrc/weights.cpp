#include "weights.h"
#include <atomic>
#include <distile/polykernel.h>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

namespace distile::python {

namespace {

std::atomic<int64_t> packings{0};

/** A tensor as it was when it was packed. Holding it keeps its memory from being used again for another. */
struct Source {
    Tensor tensor;
    const void *data;
    int64_t version;

    explicit Source(const Tensor &tensor) : tensor(tensor), data(tensor.const_data_ptr()), version(version_of(tensor)) {
    }
    bool is(const Tensor &other) const {
        return data == other.const_data_ptr() && version == version_of(other) &&
               tensor.scalar_type() == other.scalar_type() && tensor.sizes() == other.sizes() &&
               tensor.strides() == other.strides();
    }
};

struct Packed {
    const distile_polykernel *polykernel;
    Source filter;
    std::optional<Source> bias;
    SharedWeights weights;

    bool is_of(const distile_polykernel &wanted, const Tensor &other_filter, const OptionalTensor &other_bias) const {
        return polykernel == &wanted && filter.is(other_filter) && bias.has_value() == other_bias.has_value() &&
               (!bias || bias->is(*other_bias));
    }
};

/** By place and math, which decides about the code and that about the layout. Those of another math stay, for graphs
 * that were captured with it. */
struct Places {
    std::mutex mutex;
    std::map<std::pair<int64_t, distile_math>, std::unique_ptr<Packed>> packed;
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

SharedWeights pack(Session &session, const distile_polykernel &polykernel, const Tensor &filter,
                   const OptionalTensor &bias, distile_weights_order order) {
    const Tensor host_filter = host_copy(filter, false);
    const std::optional<distile_dtype> type = type_of(host_filter);
    if (!type) {
        fail("a weight has a type other than float32, float16 and bfloat16");
    }
    OptionalTensor host_bias;
    distile_weights_source source{};
    source.filter = host_filter.const_data_ptr();
    source.dtype = *type;
    source.order = order;
    if (bias) {
        if (bias->dim() != 1 || bias->size(0) != polykernel.operands[polykernel.num_operands - 1].channels) {
            fail("the bias must have one element for each output channel");
        }
        host_bias = host_copy(*bias, true);
        source.bias = static_cast<const float *>(host_bias->const_data_ptr());
    }
    distile_weights *weights = nullptr;
    check(distile_weights_pack(session.kernel(polykernel), &source, &weights), session.context());
    packings++;
    return SharedWeights(weights, distile_weights_destroy);
}

}  // namespace

SharedWeights pack_weights(Session &session, const distile_polykernel &polykernel, const Tensor &filter,
                           const OptionalTensor &bias, distile_weights_order order, int64_t place) {
    if (place == 0) {
        return pack(session, polykernel, filter, bias, order);
    }
    {
        const std::lock_guard lock(places().mutex);
        const auto found = places().packed.find({place, session.math()});
        if (found != places().packed.end() && found->second->is_of(polykernel, filter, bias)) {
            return found->second->weights;
        }
    }
    if (is_inference(filter) || (bias && is_inference(*bias))) {
        return pack(session, polykernel, filter, bias, order);
    }
    // The versions are read before packing: a write meanwhile makes these weights old.
    auto packed = std::make_unique<Packed>(Packed{&polykernel, Source(filter), std::nullopt, nullptr});
    if (bias) {
        packed->bias.emplace(*bias);
    }
    packed->weights = pack(session, polykernel, filter, bias, order);
    SharedWeights weights = packed->weights;
    {
        const std::lock_guard lock(places().mutex);
        places().packed[{place, session.math()}].swap(packed);
    }
    return weights;  // The old ones are freed without the lock: that may need Python's.
}

void free_weights(int64_t place) {
    std::vector<std::unique_ptr<Packed>> old;  // Freed without the lock.
    const std::lock_guard lock(places().mutex);
    auto found = places().packed.lower_bound({place, DISTILE_MATH_DEFAULT});
    while (found != places().packed.end() && found->first.first == place) {
        old.push_back(std::move(found->second));
        found = places().packed.erase(found);
    }
}

int64_t times_packed() {
    return packings;
}

}  // namespace distile::python
