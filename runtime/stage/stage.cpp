#include "runtime/stage/stage.h"
#include "runtime/base/context.h"
#include "runtime/base/device.h"
#include "runtime/stage/check_stage.h"
#include "runtime/stage/stage_target.h"
#include <algorithm>

namespace distile {

void Device::run_stage(const Stage &, StageTrace *) {
    throw Failure{fail(&context, DISTILE_ERROR_INTERNAL, "distile_run_stage: the device has a target, but no stages")};
}

namespace {

const StageTarget &target_of(distile_context *context, const char *call) {
    const StageTarget *const target = context->device->stage_target();
    if (!target) {
        throw Failure{fail(context, DISTILE_ERROR_UNSUPPORTED_DEVICE,
                           "%s: stages run on CPUs and on NVIDIA GPUs of compute capability 8.0 and later; call the "
                           "layers one by one here",
                           call)};
    }
    return *target;
}

}  // namespace

}  // namespace distile

using namespace distile;

extern "C" {

distile_status distile_run_stage(distile_context *context, const distile_stage_args *args) {
    constexpr const char *call = "distile_run_stage";
    constexpr auto check = [](distile_context *, const char *, const distile_stage_args &) { return DISTILE_OK; };
    return call_with(context, call, args, +check, [&] {
        context->device->run_stage(checked_stage(context, *args, target_of(context, call)), nullptr);
    });
}

distile_status distile_trace_stage(distile_context *context, const distile_stage_args *args, distile_stage_item *items,
                                   int64_t capacity, int64_t *count) {
    constexpr const char *call = "distile_trace_stage";
    constexpr auto check = [](distile_context *, const char *, const distile_stage_args &) { return DISTILE_OK; };
    return call_with(context, call, args, +check, [&] {
        require(check_pointers(context, call, {{count, "pointer to the number of items"}}));
        if (capacity < 0 || (capacity > 0 && !items)) {
            throw Failure{fail(context, DISTILE_ERROR_BAD_VALUE, "%s: room for %lld items at %s", call,
                               static_cast<long long>(capacity), items ? "their place" : "null")};
        }
        StageTrace trace;
        context->device->run_stage(checked_stage(context, *args, target_of(context, call)), &trace);
        *count = static_cast<int64_t>(trace.items.size());
        std::copy_n(trace.items.begin(), std::min(*count, capacity), items);
    });
}

int64_t distile_stage_weights_bytes(const distile_context *context, distile_dtype dtype, int32_t out_channels,
                                    int32_t in_channels, int32_t kernel_h, int32_t kernel_w, int32_t groups) {
    const StageTarget *const target = context ? context->device->stage_target() : nullptr;
    const StageFilter filter{out_channels, in_channels, kernel_h, kernel_w, groups};
    const bool is_possible =
        target && find_type(raw(dtype)) && target->packs(dtype) && target->is_possible(filter, dtype);
    return is_possible ? target->weight_bytes(filter, dtype) : 0;
}

distile_status distile_pack_stage_weights(distile_context *context, distile_dtype dtype, int32_t out_channels,
                                          int32_t in_channels, int32_t kernel_h, int32_t kernel_w, int32_t groups,
                                          const float *weights, void *packed) {
    constexpr const char *call = "distile_pack_stage_weights";
    if (!context) {
        return fail_null(call, "context");
    }
    return guarded(context, call, [&] {
        const StageTarget &target = target_of(context, call);
        require(check_pointers(context, call, {{weights, "weights"}, {packed, "memory for packed weights"}}));
        if (!find_type(raw(dtype)) || !target.packs(dtype)) {
            return fail(context, DISTILE_ERROR_BAD_TYPE, "%s: the type is %s; weights of stages are %s here", call,
                        TypeText(raw(dtype)).text, target.weight_types);
        }
        const StageFilter filter{out_channels, in_channels, kernel_h, kernel_w, groups};
        if (!target.is_possible(filter, dtype)) {
            return fail(
                context, DISTILE_ERROR_BAD_CHANNELS,
                "%s: a convolution of %d x %d from %d to %d channels in %d groups; stages take multiples of %d, "
                "in %s here",
                call, kernel_h, kernel_w, in_channels, out_channels, groups, target.channels_at_once(dtype),
                target.group_text());
        }
        target.pack(filter, dtype, weights, packed);
        return DISTILE_OK;
    });
}

}  // extern "C"
