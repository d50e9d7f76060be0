#include "runtime/cpu/general/general_polykernel.h"
#include "facts/weight_layouts.h"
#include "runtime/base/enumerators.h"
#include "runtime/base/types.h"
#include "runtime/cpu/products/listed_convolution.h"
#include "runtime/kinds/group_blocks.h"
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <distile/general.h>
#include <memory>
#include <vector>

namespace distile {

namespace {

static_assert(DISTILE_CPU_CHANNEL_BLOCK == panel_channels, "the weights of Halide's code are panels");

/** A descriptor, and what it points to. */
struct General {
    distile_polykernel polykernel{};
    distile_conv2d conv{};
    distile_linear linear{};
    std::vector<distile_operand> operands;
    distile_variant variant{};

    General(distile_operator_kind kind, const void *op, distile_dtype types, distile_dtype weights) {
        const bool is_linear = kind == DISTILE_MASKED_LINEAR;
        if (is_linear) {
            std::memcpy(&linear, op, sizeof(linear));
        } else {
            std::memcpy(&conv, op, sizeof(conv));
        }
        const int32_t in = is_linear ? linear.in_channels : conv.in_channels;
        const int32_t out = is_linear ? linear.out_channels : conv.out_channels;
        operands = {{DISTILE_ROLE_INPUT, types, in},
                    {DISTILE_ROLE_WEIGHTS, weights, out},
                    {DISTILE_ROLE_BIAS, DISTILE_FLOAT32, out}};
        if ((is_linear ? linear.residual : conv.residual) != 0) {
            operands.push_back({DISTILE_ROLE_RESIDUAL, types, out});
        }
        operands.push_back({DISTILE_ROLE_OUTPUT, types, out});
        variant.name = "listed";
        variant.tile_h = variant.tile_w = 1;
        variant.layout = "cpu-o16";
        polykernel.version = DISTILE_POLYKERNEL_VERSION;
        polykernel.name = is_linear ? "general_linear" : "general_conv2d";
        polykernel.kind = kind;
        polykernel.op = is_linear ? static_cast<const void *>(&linear) : &conv;
        polykernel.num_operands = static_cast<int32_t>(operands.size());
        polykernel.operands = operands.data();
        polykernel.device = DISTILE_CPU;
        polykernel.features = "";
        polykernel.plan_hash = hash(is_linear ? static_cast<const void *>(&linear) : &conv,
                                    is_linear ? sizeof(linear) : sizeof(conv), types, weights);
        polykernel.num_variants = 1;
        polykernel.variants = &variant;
    }

private:
    /** Tells time tables of operators apart (FNV-1a). */
    static uint64_t hash(const void *op, size_t bytes, distile_dtype types, distile_dtype weights) {
        uint64_t hash = 14695981039346656037U;
        const auto add = [&](uint64_t number) { hash = (hash ^ number) * 1099511628211U; };
        for (size_t i = 0; i < bytes; i++) {
            add(static_cast<const unsigned char *>(op)[i]);
        }
        add(types);
        add(weights);
        return hash;
    }
};

/** Whether the numbers are those of a convolution or a linear layer. */
bool are_numbers(const distile_conv2d &conv) {
    const int32_t smallest = std::min({conv.in_channels, conv.out_channels, conv.groups, conv.kernel_h, conv.kernel_w,
                                       conv.stride_h, conv.stride_w, conv.dilation_h, conv.dilation_w});
    const int32_t padding = std::min({conv.pad_top, conv.pad_bottom, conv.pad_left, conv.pad_right});
    return smallest > 0 && padding >= 0 && is_enumerator(conv.epilogue) && (conv.residual == 0 || conv.residual == 1);
}

GroupBlocks blocks_of(const distile_conv2d &conv) {
    return {conv.groups, conv.in_channels / conv.groups, conv.out_channels / conv.groups, panel_channels};
}

/** The operand with this role; null if there is none. */
const distile_array *find_array(const distile_polykernel &polykernel, const distile_kernel_call &call,
                                distile_role role) {
    for (int32_t i = 0; i < polykernel.num_operands; i++) {
        if (polykernel.operands[i].role == role) {
            return &call.operands[i];
        }
    }
    return nullptr;
}

PixelMemory memory_of(const distile_array *array) {
    if (!array) {
        return {};
    }
    const auto &x = array->dim[1], &y = array->dim[2];
    auto *const first = static_cast<float *>(array->data);
    return {first - int64_t{x.min} * x.stride - int64_t{y.min} * y.stride, x.stride, y.stride, array->dim[3].stride};
}

/** The window of a linear layer is a pixel. */
distile_conv2d convolution_of(distile_operator_kind kind, const void *op) {
    if (kind == DISTILE_MASKED_CONV2D) {
        return *static_cast<const distile_conv2d *>(op);
    }
    const auto &linear = *static_cast<const distile_linear *>(op);
    distile_conv2d conv{};
    conv.in_channels = linear.in_channels;
    conv.out_channels = linear.out_channels;
    conv.residual = linear.residual;
    conv.groups = conv.kernel_h = conv.kernel_w = conv.stride_h = conv.stride_w = conv.dilation_h = conv.dilation_w = 1;
    // The caller's number may be no enumerator, so it is not read as one.
    std::memcpy(&conv.epilogue, &linear.epilogue, sizeof(conv.epilogue));
    return conv;
}

}  // namespace

void run_general(CpuDevice &device, const distile_polykernel &polykernel, const distile_kernel_call &call) {
    const distile_conv2d conv = convolution_of(polykernel.kind, polykernel.op);
    const distile_array &input = *find_array(polykernel, call, DISTILE_ROLE_INPUT);
    const distile_array &weights = *find_array(polykernel, call, DISTILE_ROLE_WEIGHTS);
    const auto &x = input.dim[1], &y = input.dim[2];
    ListedConvolution listed{};
    listed.input = memory_of(&input);
    listed.output = memory_of(find_array(polykernel, call, DISTILE_ROLE_OUTPUT));
    listed.residual = memory_of(find_array(polykernel, call, DISTILE_ROLE_RESIDUAL));
    listed.rows = {conv.kernel_h, conv.stride_h, conv.dilation_h, conv.pad_top, y.min, y.min + y.extent};
    listed.columns = {conv.kernel_w, conv.stride_w, conv.dilation_w, conv.pad_left, x.min, x.min + x.extent};
    const GroupBlocks blocks = blocks_of(conv);
    const bool by_diagonals = blocks.form() == GroupForm::Diagonals;
    const int32_t groups = by_diagonals ? 1 : conv.groups;
    listed.in_channels = conv.in_channels / groups;
    listed.diagonals = by_diagonals ? blocks.group_outputs : 0;
    listed.weights.numbers = weights.data;
    listed.weights.type = product_weights(weights.dtype);
    listed.weights.bytes = static_cast<int64_t>(distile_dtype_size(weights.dtype));
    listed.weights.out_channels = conv.out_channels / groups;
    listed.weights.reduction =
        int64_t{by_diagonals ? listed.diagonals : listed.in_channels} * conv.kernel_h * conv.kernel_w;
    listed.groups = {groups, blocks.padded_outputs() * listed.weights.reduction * listed.weights.bytes,
                     blocks.padded_outputs()};
    listed.bias = static_cast<const float *>(find_array(polykernel, call, DISTILE_ROLE_BIAS)->data);
    listed.activation = {conv.epilogue, call.slope};
    listed.xy = call.tile_xy;
    listed.image = call.tile_xy + call.tile_capacity;
    listed.count = call.num_tiles;
    run_convolution(device.context, device.products(), listed);
}

}  // namespace distile

using namespace distile;

extern "C" {

distile_status distile_general_polykernel_create(distile_context *context, distile_operator_kind kind, const void *op,
                                                 distile_dtype types, distile_dtype weights,
                                                 const distile_polykernel **polykernel) {
    constexpr const char *call = "distile_general_polykernel_create";
    if (!context) {
        return fail_null(call, "context");
    }
    return guarded(context, call, [&] {
        require(check_pointers(context, call, {{op, "operator"}, {polykernel, "address of the PolyKernel"}}));
        const int32_t number = raw(kind);
        if (number != DISTILE_MASKED_CONV2D && number != DISTILE_MASKED_LINEAR) {
            return fail(context, DISTILE_ERROR_BAD_VALUE,
                        "%s: the kind is %d; there is general code for DISTILE_MASKED_CONV2D and DISTILE_MASKED_LINEAR",
                        call, number);
        }
        if (context->device->kind() != DISTILE_CPU) {
            return fail(context, DISTILE_ERROR_OTHER_DEVICE, "%s: there is general code for CPUs, not for %s", call,
                        device_name(context->device->kind()));
        }
        if (raw(types) != DISTILE_FLOAT32 || (raw(weights) != DISTILE_FLOAT32 && raw(weights) != DISTILE_BFLOAT16)) {
            return fail(context, DISTILE_ERROR_BAD_TYPE,
                        "%s: tensors of %s with weights of %s; general code has tensors of float32 with weights of "
                        "float32 or bfloat16",
                        call, TypeText(raw(types)).text, TypeText(raw(weights)).text);
        }
        const distile_conv2d conv = convolution_of(static_cast<distile_operator_kind>(number), op);
        if (!are_numbers(conv)) {
            return fail(
                context, DISTILE_ERROR_BAD_VALUE,
                "%s: a number of the operator is out of range: channels, kernel, strides and dilations are positive, "
                "padding is at least 0, the activation is known, and residual is 0 or 1",
                call);
        }
        if (conv.in_channels % conv.groups != 0 || conv.out_channels % conv.groups != 0) {
            return fail(context, DISTILE_ERROR_BAD_CHANNELS,
                        "%s: %d groups do not divide %d input and %d output channels", call, conv.groups,
                        conv.in_channels, conv.out_channels);
        }
        *polykernel = &std::make_unique<General>(kind, op, types, weights).release()->polykernel;
        return DISTILE_OK;
    });
}

void distile_general_polykernel_destroy(const distile_polykernel *polykernel) {
    // The descriptor is the first member.
    static_assert(offsetof(General, polykernel) == 0);
    const std::unique_ptr<const General> owned(reinterpret_cast<const General *>(polykernel));
}

}  // extern "C"
