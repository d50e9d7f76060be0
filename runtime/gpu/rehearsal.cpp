#include "runtime/gpu/rehearsal.h"
#include "kernels/call.h"
#include "runtime/dispatch/quantized_operator.h"
#include <algorithm>

namespace distile {

namespace {

/** A packed array, whose strides satisfy the code's assumptions. */
distile_array packed_array(distile_dtype dtype, const std::vector<int32_t> &extents) {
    distile_array array{};
    array.data = reinterpret_cast<void *>(nowhere);
    array.dtype = dtype;
    array.dimensions = static_cast<int32_t>(extents.size());
    int32_t stride = 1;
    for (size_t i = 0; i < extents.size(); i++) {
        array.dim[i] = {0, extents[i], stride};
        stride *= extents[i];
    }
    return array;
}

/** The smallest square input with a nonempty output, and that output. */
struct SmallImages {
    explicit SmallImages(const distile_kernel &kernel) {
        const auto size_for = [&](int32_t extent) {
            return kernel.kind.output_size(kernel.polykernel.op, {extent, extent});
        };
        ImageSize size = size_for(input);
        while ((size.height < 1 || size.width < 1) && input < 1 << 15) {
            input *= 2;
            size = size_for(input);
        }
        height = static_cast<int32_t>(size.height);
        width = static_cast<int32_t>(size.width);
        input_height = kernel.kind.tokens ? kernel.kind.tokens->input(kernel.polykernel.op) : input;
    }

    int32_t input = 1, input_height = 1;
    int32_t height = 0, width = 0;
};

std::vector<int32_t> extents_of(const distile_operand &operand, const SmallImages &images,
                                const std::vector<PackedArray> &packed) {
    // As many tokens of keys as of queries.
    const int32_t channels = operand.channels != 0 ? operand.channels : images.input;
    switch (operand.role) {
    case DISTILE_ROLE_INPUT:
        return {channels, images.input, images.input_height, 1};
    case DISTILE_ROLE_KEY:
    case DISTILE_ROLE_VALUE:
        return {channels, images.input, 1, 1};
    case DISTILE_ROLE_RESIDUAL:
    case DISTILE_ROLE_OUTPUT:
        return {channels, images.width, images.height, 1};
    default:
        break;
    }
    const auto found = std::find_if(packed.begin(), packed.end(),
                                    [&](const PackedArray &array) { return array.role == operand.role; });
    return found->extents;
}

}  // namespace

void rehearse(const distile_kernel &kernel,
              const std::function<RunResult(const distile_variant &, distile_kernel_call &)> &rehearse) {
    const distile_polykernel &polykernel = kernel.polykernel;
    distile_context &context = kernel.context;
    const SmallImages images(kernel);
    const bool quantizes = is_quantized(polykernel);
    const QuantizedOperator quantized = quantizes ? quantized_operator(polykernel) : QuantizedOperator{};
    for (const Variant &variant : kernel.variants) {
        const WeightPacking *weights = kernel.kind.weights;
        const WeightLayout *layout = weights ? find_layout(variant.layout) : nullptr;
        const std::vector<PackedArray> packed =
            weights ? weights->pack(polykernel.op, {{}, nullptr, quantizes ? &quantized : nullptr}, *layout)
                    : std::vector<PackedArray>();
        std::vector<distile_array> operands;
        for (int32_t i = 0; i < polykernel.num_operands; i++) {
            const distile_operand &operand = polykernel.operands[i];
            operands.push_back(packed_array(layout ? stored_type(*layout, polykernel, operand.role) : operand.dtype,
                                            extents_of(operand, images, packed)));
        }
        const auto *words = reinterpret_cast<const uint32_t *>(nowhere);
        distile_kernel_call call{};
        call.operands = operands.data();
        call.num_operands = polykernel.num_operands;
        call.tile_xy = call.tile_count = call.bits = words;
        call.tile_capacity = call.num_tiles = 1;
        call.words_per_row = (images.width + 31) / 32;
        call.height = images.height;
        call.batch = 1;
        call.threads = 1;
        if (kernel.kind.tokens) {
            call.key_xy = call.row_starts = call.key_starts = words;
            call.key_capacity = 1;
            call.scale = 1;
        }
        context.kernel_failed = false;
        const RunResult result = rehearse(variant, call);
        if (result.code != 0) {
            const std::string reason = context.kernel_failed ? std::string(": ") + context.message : "";
            throw Failure{fail(&context, result.status, "cannot load the variant '%s' of '%s' (code %d)%s",
                               variant.name, polykernel.name, result.code, reason.c_str())};
        }
    }
}

}  // namespace distile
