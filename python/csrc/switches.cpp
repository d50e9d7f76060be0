#include "python/csrc/switches.h"
#include "bindings/cuda_session.h"
#include "python/csrc/numbered.h"
#include "python/csrc/session.h"

namespace distile::python {

namespace {

/** A switch with a context of its own, because a session ends with its thread. */
struct OwnSwitch {
    std::mutex mutex;
    Context context;
    bindings::SharedSwitch object;
    int32_t device_index = 0;

    void follow_current_stream() const {
        bindings::follow_stream(context.get(), current_stream(device_index));
    }
};

/** Never destroyed: at the end of a process, the driver may be gone. */
Numbered<OwnSwitch> &switches() {
    static auto &all = *new Numbered<OwnSwitch>("switch of graphs");
    return all;
}

int32_t narrow(int64_t value) {
    return static_cast<int32_t>(std::clamp<int64_t>(value, INT32_MIN, INT32_MAX));
}

}  // namespace

int64_t make_switch(const std::vector<Tensor> &masks, int64_t device_index, const Ints &graphs, double budget) {
    auto made = std::make_shared<OwnSwitch>();
    made->device_index = narrow(device_index);
    made->context =
        bindings::make_cuda_context_of(made->device_index, current_stream(made->device_index), DISTILE_MATH_DEFAULT);
    std::vector<void *> addresses;
    for (const int64_t graph : graphs) {
        addresses.push_back(reinterpret_cast<void *>(graph));
    }
    std::vector<const void *> bytes;
    std::vector<int64_t> sizes;
    for (const Tensor &mask : masks) {
        bytes.push_back(mask.const_data_ptr());
        sizes.push_back(mask.numel());
    }
    distile_cuda_switch_args args{};
    args.graphs = addresses.data();
    args.num_graphs = narrow(static_cast<int64_t>(addresses.size()));
    args.num_masks = narrow(static_cast<int64_t>(bytes.size()));
    args.masks = bytes.data();
    args.mask_bytes = sizes.data();
    args.budget = budget;
    made->object = bindings::make_switch(made->context, args);
    return switches().add(std::move(made));
}

void launch_switch(int64_t number) {
    const std::shared_ptr<OwnSwitch> one = switches().find(number);
    const std::lock_guard lock(one->mutex);
    one->follow_current_stream();
    bindings::launch_switch(one->context, one->object);
}

void set_switch(int64_t number, int64_t way) {
    const std::shared_ptr<OwnSwitch> one = switches().find(number);
    const std::lock_guard lock(one->mutex);
    one->follow_current_stream();
    bindings::set_switch(one->context, one->object, narrow(way));
}

std::vector<double> switch_info(int64_t number) {
    const std::shared_ptr<OwnSwitch> one = switches().find(number);
    const std::lock_guard lock(one->mutex);
    one->follow_current_stream();
    const distile_cuda_switch_info info = bindings::info_of(one->context, one->object);
    std::vector<double> numbers{static_cast<double>(info.way), info.density};
    for (int32_t way = 0; way < info.num_graphs; way++) {
        numbers.insert(numbers.end(), {static_cast<double>(info.runs[way]), info.us[way]});
    }
    return numbers;
}

void free_switch(int64_t number) {
    switches().remove(number);
}

}  // namespace distile::python
