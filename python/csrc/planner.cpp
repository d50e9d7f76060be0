#include "python/csrc/planner.h"
#include "python/csrc/numbered.h"
#include "python/csrc/session.h"
#include <algorithm>
#include <array>
#include <memory>
#include <mutex>

namespace distile::python {

namespace {

/** A planner. It has a session of its own, because the session of a thread ends with the thread. */
struct Buffers {
    Buffers(int32_t device_index, int32_t threads, const distile_planner_options &options)
        : session(device_index, threads, DISTILE_MATH_DEFAULT), device_index(device_index) {
        distile_planner *made = nullptr;
        check(distile_planner_create(session.context(), &options, &made), session.context());
        planner.reset(made);
    }

    std::mutex mutex;
    Session session;
    distile::Planner planner;
    int32_t device_index;
};

/** Never destroyed: at the end of a process, tensors may outlive it. */
Numbered<Buffers> &planners() {
    static auto &planners = *new Numbered<Buffers>("planner");
    return planners;
}

int32_t device_index_of(const Tensor &tensor) {
    return tensor.is_cpu() ? -1 : tensor.get_device_index();
}

/** DLPack's DLManagedTensor. Extensions by the stable ABI cannot include PyTorch's header of it. */
struct ManagedTensor {
    void *data;
    int32_t device_type, device_index;
    int32_t dimensions;
    uint8_t type_code, type_bits;
    uint16_t type_lanes;
    int64_t *sizes, *strides;
    uint64_t byte_offset;
    void *owner;
    void (*free)(ManagedTensor *self);
};
constexpr int32_t on_cpu = 1, on_cuda = 2;

/** DLPack's number of a kind of type; the size says the rest. */
std::optional<uint8_t> type_code(distile_dtype dtype) {
    constexpr uint8_t ieee_float = 2, brain_float = 4, float8_e4m3fn = 10, float8_e5m2 = 12;
    switch (dtype) {
    case DISTILE_FLOAT32:
    case DISTILE_FLOAT16:
        return ieee_float;
    case DISTILE_BFLOAT16:
        return brain_float;
    case DISTILE_FLOAT8_E4M3FN:
        return float8_e4m3fn;
    case DISTILE_FLOAT8_E5M2:
        return float8_e5m2;
    default:
        return std::nullopt;
    }
}

/** A tensor in a planner's buffer, as DLPack describes it. */
struct Exported {
    Exported(std::shared_ptr<Buffers> given, const distile_tensor &view, uint8_t code, bool tokens)
        : owner(std::move(given)) {
        if (tokens) {
            sizes = {view.batch, int64_t{view.height} * view.width, view.channels};  // Rows follow each other.
            strides = {view.stride_n, view.stride_w, 1};
        } else {
            sizes = {view.batch, view.channels, view.height, view.width};
            strides = {view.stride_n, 1, view.stride_h, view.stride_w};
        }
        const bool cpu = owner->device_index < 0;
        managed.data = view.data;
        managed.device_type = cpu ? on_cpu : on_cuda;
        managed.device_index = cpu ? 0 : owner->device_index;
        managed.dimensions = tokens ? 3 : 4;
        managed.type_code = code;
        managed.type_bits = static_cast<uint8_t>(8 * distile_dtype_size(view.dtype));
        managed.type_lanes = 1;
        managed.sizes = sizes.data();
        managed.strides = strides.data();
        managed.owner = this;
        managed.free = [](ManagedTensor *self) {
            const std::unique_ptr<Exported> exported(static_cast<Exported *>(self->owner));
        };
    }

    std::shared_ptr<Buffers> owner;
    std::array<int64_t, 4> sizes{}, strides{};
    ManagedTensor managed{};
};

}  // namespace

int64_t make_planner(const Tensor &like, int64_t buffers, int64_t clearing) {
    distile_planner_options options{};
    options.buffers = static_cast<int32_t>(std::min<int64_t>(std::max<int64_t>(buffers, -1), INT32_MAX));
    options.clearing = static_cast<distile_clearing>(clearing);
    return planners().add(std::make_shared<Buffers>(device_index_of(like),
                                                    static_cast<int32_t>(torch::stable::get_num_threads()), options));
}

int64_t next_output(const Tensor &mask, int64_t planner, int64_t channels, ScalarType type, bool whole) {
    const std::shared_ptr<Buffers> owner = planners().find(planner);
    if (device_index_of(mask) != owner->device_index) {
        fail("the mask is on another device than the planner");
    }
    const std::optional<distile_dtype> dtype = type_of(type);
    const std::optional<uint8_t> code = dtype ? type_code(*dtype) : std::nullopt;
    if (!code) {
        fail("a planner's tensors are " + float_type_names("or"));
    }
    if (channels < 1 || channels > INT32_MAX) {
        fail("there are " + std::to_string(channels) + " channels; a tensor has at least 1");
    }
    const std::lock_guard lock(owner->mutex);
    Session &session = owner->session;
    session.follow_current_stream();
    distile_mask *active = session.mask(mask);
    const bool tokens = mask.dim() == 2;
    distile_output_spec spec{};
    spec.batch = static_cast<int32_t>(mask.size(0));
    const int64_t height = tokens ? rows_of_tokens(mask.size(1)) : mask.size(1);
    spec.height = static_cast<int32_t>(height);
    spec.width = static_cast<int32_t>(tokens ? mask.size(1) / height : mask.size(2));
    spec.channels = static_cast<int32_t>(channels);
    spec.dtype = *dtype;
    distile_tensor view{};
    check(distile_planner_next(owner->planner.get(), &spec, active, whole ? DISTILE_STORE_TILES : DISTILE_STORE_EXACT,
                               &view),
          session.context());
    auto exported = std::make_unique<Exported>(owner, view, *code, tokens);
    return reinterpret_cast<int64_t>(&exported.release()->managed);
}

int64_t planner_bytes(int64_t planner) {
    const std::shared_ptr<Buffers> owner = planners().find(planner);
    const std::lock_guard lock(owner->mutex);
    return distile_planner_bytes(owner->planner.get());
}

void free_planner(int64_t planner) {
    planners().remove(planner);
}

}  // namespace distile::python
