#include "runtime/dispatch/weights.h"
#include "facts/type_names.h"
#include "runtime/base/activation.h"
#include "runtime/base/enumerators.h"
#include "runtime/base/int4.h"
#include "runtime/base/types.h"
#include "runtime/dispatch/float_filter.h"
#include "runtime/dispatch/kernel.h"
#include "runtime/dispatch/quantized_operator.h"
#include "runtime/dispatch/quantized_source.h"
#include "runtime/kinds/filter.h"
#include "runtime/kinds/nonzeros_layout.h"
#include "runtime/tensor/tensor.h"
#include <algorithm>
#include <distile/quantize.h>
#include <functional>
#include <string>

using namespace distile;

namespace {

constexpr const char *pack_call = "distile_weights_pack";

distile_status check_quantization_of(const distile_kernel &kernel, const distile_weights_source &source) {
    distile_context *context = &kernel.context;
    const char *const name = kernel.polykernel.name;
    if (!is_quantized(kernel.polykernel)) {
        return source.quantization
                   ? fail(context, DISTILE_ERROR_BAD_VALUE,
                          "%s: '%s' is not quantized, but the source has a quantization", pack_call, name)
                   : DISTILE_OK;
    }
    return check_quantization(context, pack_call, "'" + std::string(name) + "'", source,
                              {kernel.input.dtype, kernel.output.dtype,
                               kernel.residual ? kernel.residual->dtype : DISTILE_FLOAT32, kernel.output.channels});
}

distile_status check_source(const distile_kernel &kernel, const distile_weights_source *source, const void *weights) {
    distile_context *context = &kernel.context;
    if (!kernel.kind.weights) {
        return fail(context, DISTILE_ERROR_BAD_VALUE, "%s: '%s' has no weights to pack", pack_call,
                    kernel.polykernel.name);
    }
    if (!source) {
        return fail_null(context, pack_call, "source");
    }
    distile_status status =
        check_pointers(context, pack_call, {{source->filter, "source's filter"}, {weights, "pointer to the weights"}});
    if (status != DISTILE_OK) {
        return status;
    }
    if (raw(source->dtype) != 0 && !find_float_type(raw(source->dtype)) && !is_quantized(kernel.polykernel)) {
        return fail(context, DISTILE_ERROR_BAD_TYPE, "%s: the filter has the data type %s; the types are %s", pack_call,
                    TypeText(raw(source->dtype)).text, float_type_names().c_str());
    }
    status = check_enumerator(context, pack_call, "order", source->order);
    if (status != DISTILE_OK) {
        return status;
    }
    const bool normalised = source->bn_mean && source->bn_variance;
    if (!normalised && (source->bn_mean || source->bn_variance || source->bn_gamma || source->bn_beta)) {
        return fail(context, DISTILE_ERROR_BAD_VALUE, "%s: batch normalisation needs both mean and variance",
                    pack_call);
    }
    if (!is_reserved_zero(source->reserved)) {
        return fail(context, DISTILE_ERROR_BAD_VALUE, "%s: a reserved field of the source is not 0", pack_call);
    }
    const distile_status aligned = check_source_alignment(context, pack_call, *source);
    return aligned == DISTILE_OK ? check_quantization_of(kernel, *source) : aligned;
}

/** The threads of a context, for packing. Those of a GPU's have nothing else to do, and would be started for it. */
TaskLoop loop_of(distile_context &context) {
    if (context.device->kind() != DISTILE_CPU) {
        return {};
    }
    return [&context](int32_t count, const std::function<void(int32_t)> &task) {
        context.run_parallel(
            [](void *closure, int32_t i) { (*static_cast<const std::function<void(int32_t)> *>(closure))(i); },
            const_cast<std::function<void(int32_t)> *>(&task), count);
    };
}

/** Converts values to the type in which they are stored, in parts that threads share. */
void store(const PackedValues &values, const Type &type, unsigned char *to, const TaskLoop &loop) {
    constexpr size_t part = size_t{1} << 16;
    run_tasks(loop, static_cast<int32_t>((values.size() + part - 1) / part), [&](int32_t i) {
        const size_t begin = part * i, count = std::min(part, values.size() - begin);
        type.from_float(values.data() + begin, to + begin * type.bytes, count);
    });
}

/** Copies an array to device memory, converted to the type in which it is stored, and counts its bytes. */
distile_weights::Operand upload(Device &device, const PackedArray &packed, distile_dtype dtype, const TaskLoop &loop,
                                int64_t &bytes) {
    const size_t count = packed.values.size();
    const Type *const type = find_type(dtype);
    const size_t stored = type ? count * type->bytes : count / 2;
    bytes += static_cast<int64_t>(stored);
    distile_weights::Operand operand{packed.role, {}, device.make_filled(stored, [&](void *to) {
                                         if (type) {
                                             store(packed.values, *type, static_cast<unsigned char *>(to), loop);
                                         } else {
                                             int4_blocks_from_float(packed.values.data(), to, count);
                                         }
                                     })};
    // Code only reads it.
    operand.array.data = const_cast<void *>(operand.memory.get());
    operand.array.dtype = dtype;
    operand.array.dimensions = static_cast<int32_t>(packed.extents.size());
    int32_t stride = 1;
    for (size_t i = 0; i < packed.extents.size(); i++) {
        operand.array.dim[i] = {0, packed.extents[i], stride};
        stride *= packed.extents[i];
    }
    return operand;
}

void add_layout(distile_weights &weights, const distile_kernel &kernel, const FilterSource &source,
                const WeightLayout &layout) {
    distile_weights::PackedLayout added{layout.name, {}};
    for (const PackedArray &packed : kernel.kind.weights->pack(kernel.polykernel.op, source, layout)) {
        const bool as_filter =
            layout.keeps_int4 && packed.role == DISTILE_ROLE_WEIGHTS && source.source.dtype == DISTILE_INT4;
        const distile_dtype dtype = as_filter ? DISTILE_INT4 : stored_type(layout, kernel.polykernel, packed.role);
        if (skips_zeros(layout) && packed.role == DISTILE_ROLE_WEIGHTS) {
            weights.nonzeros = nonzeros_of(packed, layout.order);
        }
        added.operands.push_back(upload(*kernel.context.device, packed, dtype, source.loop, weights.bytes));
    }
    weights.layouts.push_back(std::move(added));
}

}  // namespace

const distile_weights::PackedLayout *distile_weights::find(const char *layout) const {
    for (const PackedLayout &known : layouts) {
        if (known.name == layout) {
            return &known;
        }
    }
    return nullptr;
}

extern "C" {

distile_status distile_weights_pack(distile_kernel *kernel, const distile_weights_source *source,
                                    distile_weights **weights) {
    if (!kernel) {
        return fail_null(pack_call, "kernel");
    }
    distile_context *context = &kernel->context;
    const distile_status status = check_source(*kernel, source, weights);
    if (status != DISTILE_OK) {
        return status;
    }
    return guarded(context, pack_call, [&] {
        try {
            const FloatFilter filter(*context, *source, kernel->kind.weights->filter_elements(kernel->polykernel.op));
            auto packed = std::make_unique<distile_weights>();
            packed->memory_space = context->device->memory_space();
            packed->kind = kernel->kind.kind;
            packed->shape = kernel->weights_shape;
            const bool quantizes = is_quantized(kernel->polykernel);
            const QuantizedOperator quantized =
                quantizes ? quantized_operator(kernel->polykernel) : QuantizedOperator{};
            packed->slope = slope_of(source->slope);
            packed->zero_byte = quantizes ? static_cast<uint8_t>(source->quantization->output.zero_point) : 0;
            const FilterSource given{*source, filter.values(), quantizes ? &quantized : nullptr, kernel->input.dtype,
                                     loop_of(*context)};
            for (const WeightLayout *layout : kernel->layouts) {
                add_layout(*packed, *kernel, given, *layout);
            }
            *weights = packed.release();
            return DISTILE_OK;
        } catch (const SourceError &error) {
            return fail(context, DISTILE_ERROR_BAD_VALUE, "%s: %s", pack_call, error.what());
        }
    });
}

void distile_weights_destroy(distile_weights *weights) {
    const std::unique_ptr<distile_weights> owned(weights);
}

int64_t distile_weights_bytes(const distile_weights *weights) {
    return weights ? weights->bytes : 0;
}

}  // extern "C"
