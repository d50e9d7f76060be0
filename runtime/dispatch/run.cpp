#include "runtime/dispatch/run.h"
#include "kernels/call.h"
#include "runtime/base/types.h"
#include "runtime/dispatch/call.h"
#include "runtime/dispatch/read_input.h"
#include "runtime/tensor/tensor.h"
#include <algorithm>
#include <cstring>

namespace distile {

namespace {

distile_status fail_variant(const distile_kernel &kernel, const char *call, const char *variant,
                            const RunResult &result) {
    const distile_context &context = kernel.context;
    const std::string reason = context.kernel_failed ? std::string(": ") + context.message : "";
    return fail(&kernel.context, result.status, "%s: the variant '%s' of '%s' failed with code %d%s", call, variant,
                kernel.polykernel.name, result.code, reason.c_str());
}

/** Fails if a call may have more tiles than the device can address. */
distile_status check_tiles(const distile_kernel &kernel, const char *call, const distile_variant &variant,
                           int64_t tiles) {
    const int64_t most = kernel.context.device->most_virtual_pixels();
    if (tiles * variant.tile_h * variant.tile_w <= most) {
        return DISTILE_OK;
    }
    return fail(&kernel.context, DISTILE_ERROR_BAD_SHAPE, "%s: %lld tiles of %d x %d exceed %lld pixels", call,
                static_cast<long long>(tiles), variant.tile_h, variant.tile_w, static_cast<long long>(most));
}

/** The zeros of a run. */
Zeros zeros_of(const distile_run_args &args) {
    return {*args.output, *args.mask, args.weights ? args.weights->zero_byte : uint8_t{0}};
}

/** Makes calls and, with `zero`, zeros the inactive pixels once. */
distile_status make_calls(const distile_kernel &kernel, const char *call, const distile_run_args &args,
                          const VariantCalls &calls, bool zero) {
    const Zeros zeros = zeros_of(args);
    kernel.context.kernel_failed.store(false, std::memory_order_relaxed);
    const RunResult result = kernel.context.device->run(kernel.code.get(), calls, zero ? &zeros : nullptr);
    kernel.context.rethrow_from_code();
    if (result.code == 0) {
        return DISTILE_OK;
    }
    const char *const variant =
        calls.choice ? chosen_on_device : kernel.polykernel.variants[calls.variants[result.failed]].name;
    return fail_variant(kernel, call, variant, result);
}

/** Scores have a row for each head, which the mask does not know, and columns of inactive keys, which no row writes:
 * all of them become 0 before. Returns whether the run itself needs to zero anything. */
bool zero_scores(const distile_kernel &kernel, const distile_run_args &args, bool zero) {
    if (args.inactive != DISTILE_ZERO || kernel.output.channels != 0) {
        return zero;
    }
    kernel.context.device->update_pixels(nullptr, *args.output, nullptr, true);
    return false;
}

/** Runs one of the PolyKernel's variants. */
distile_status run_code(distile_kernel &kernel, const char *call, const distile_run_args &args,
                        const distile_choice &choice) {
    const Variant &variant = kernel.variants[choice.variant_index];
    distile_mask &mask = *args.mask;
    const int64_t tiles = choice.tiles >= 0 ? choice.tiles : num_tiles(mask.shape, {variant.tile_h, variant.tile_w});
    require(check_tiles(kernel, call, variant, tiles));
    const bool zero =
        zero_scores(kernel, args, args.inactive == DISTILE_ZERO && choice.active_pixels != mask.shape.num_pixels());
    if (tiles == 0) {
        if (zero) {
            kernel.context.device->write(zeros_of(args));
        }
        return DISTILE_OK;
    }
    const ReadInput input(kernel, variant, mask, *args.input, *args.output);
    const TileList list =
        is_listless(variant, mask.shape) ? TileList{} : list_of(kernel, variant, args, input.tensor());
    Operands operands{};
    distile_kernel_call one = call_of(kernel, variant, args, input.tensor(), list, tiles, operands);
    return make_calls(kernel, call, args, {kernel.polykernel, &choice.variant_index, &one, 1, nullptr}, zero);
}

/** Enqueues every possible variant, of which the device makes one. If their code does not choose, the device chooses
 * before, and leaves tiles to one of them only: then all need lists, also those that could do without. */
distile_status run_possible(distile_kernel &kernel, const char *call, const distile_run_args &args) {
    const MaskShape &shape = args.mask->shape;
    ChoiceTable &table = kernel.choice_table(shape, args.weights);
    const bool code_chooses = kernel.polykernel.run_chosen != nullptr;
    for (size_t i = 0; i < table.variants.size(); i++) {
        const int32_t index = table.variants[i];
        const Variant &variant = kernel.variants[index];
        const Granularity granularity = {variant.tile_h, variant.tile_w};
        const int64_t tiles = num_tiles(shape, granularity);
        require(check_tiles(kernel, call, variant, tiles));
        const bool listless = code_chooses && is_listless(variant, shape);
        const TileList list = listless ? TileList{} : list_of(kernel, variant, args, *args.input);
        if (variant.dense == 0) {
            table.counts[table.place_of(granularity)] = list.device_count;
        }
        table.calls[i] = call_of(kernel, variant, args, *args.input, list, tiles, table.operands[i]);
        if (!code_chooses) {
            table.calls[i].tile_count = kernel.chooser->tile_count(index);
        }
    }
    VariantCalls calls{kernel.polykernel, table.variants.data(), table.calls.data(),
                       static_cast<int32_t>(table.calls.size()), nullptr};
    if (code_chooses) {
        calls.choice = &kernel.chooser->describe(table);
    } else {
        kernel.chooser->choose(table);
    }
    return make_calls(kernel, call, args, calls, zero_scores(kernel, args, args.inactive == DISTILE_ZERO));
}

/** Copies `from`, unless null, to the pixels of the output that are active in the mask; with `zero`, zeros the others.
 * The heads of scores share a mask of height 1; all other outputs have its height. */
void update_output(distile_kernel &kernel, const distile_run_args &args, const distile_tensor *from, bool zero) {
    const int32_t height = args.mask->shape.height;
    const auto part_of = [height](const distile_tensor &tensor, int32_t first) {
        distile_tensor part = without_border(tensor);
        part.data = static_cast<char *>(part.data) + first * part.stride_h * element_bytes(part.dtype);
        part.height = height;
        return part;
    };
    for (int32_t first = 0; first < args.output->height; first += height) {
        const distile_tensor source = from ? part_of(*from, first) : distile_tensor{};
        kernel.context.device->update_pixels(args.mask, part_of(*args.output, first), from ? &source : nullptr, zero);
    }
}

/** Runs one of the application's dense candidates. */
distile_status run_candidate(distile_kernel &kernel, const char *call, const distile_run_args &args,
                             const distile_choice &choice) {
    Device &device = *kernel.context.device;
    const Variant &variant = kernel.variants[choice.variant_index];
    const distile_tensor &output = *args.output;
    const bool every_pixel = choice.active_pixels == args.mask->shape.num_pixels() || args.store == DISTILE_STORE_TILES;
    const bool zero = args.inactive == DISTILE_ZERO && !every_pixel;
    const bool aliased = args.residual && same_view(*args.residual, output);
    const bool direct = !aliased && (every_pixel || zero);
    distile_tensor result = output;
    ScratchMemory memory;
    if (!direct) {
        result = distile_tensor_make(nullptr, output.batch, output.height, output.width, output.channels);
        result.dtype = output.dtype;
        memory = device.take_scratch(static_cast<size_t>(result.batch * result.stride_n * element_bytes(output.dtype)));
        result.data = memory.get();
    }
    distile_run_args whole{};
    whole.input = args.input;
    whole.residual = args.residual;
    whole.output = &result;
    whole.key = args.key;
    whole.value = args.value;
    whole.scale = scale_of(kernel, args);
    kernel.context.kernel_failed.store(false, std::memory_order_relaxed);
    const int code = variant.external.run(variant.external.user, device.stream(), &whole);
    if (code != 0) {
        return fail_variant(kernel, call, variant.name, {code, DISTILE_ERROR_KERNEL, 0});
    }
    if (every_pixel && !direct) {
        device.update_pixels(nullptr, output, &result, false);
    } else if (!every_pixel) {
        update_output(kernel, args, direct ? nullptr : &result, zero);
    }
    const Zeros zeros = zeros_of(args);
    if (zero && zeros.byte != 0) {
        device.write(zeros);
    }
    return DISTILE_OK;
}

}  // namespace

distile_status run_variant(distile_kernel &kernel, const char *call, const distile_run_args &args,
                           const distile_choice &choice) {
    if (choice.variant_index < 0) {
        return run_possible(kernel, call, args);
    }
    return kernel.is_external(choice.variant_index) ? run_candidate(kernel, call, args, choice)
                                                    : run_code(kernel, call, args, choice);
}

}  // namespace distile
