#include "runtime/dispatch/call.h"
#include "runtime/base/types.h"
#include "runtime/tensor/tensor.h"
#include <algorithm>

namespace distile {

namespace {

/** The tiles [first, last) along one axis whose pixels all lie in a range. */
struct TileRange {
    int32_t first, last;
};

TileRange tiles_inside(const PixelRange &pixels, int64_t extent, int64_t tile) {
    const int64_t num_tiles = (extent + tile - 1) / tile;
    const int64_t first = (pixels.first + tile - 1) / tile;
    const int64_t last = pixels.last >= extent ? num_tiles : pixels.last / tile;
    return {static_cast<int32_t>(std::min(first, num_tiles)), static_cast<int32_t>(last)};
}

/** The tiles of an output of this shape that read only the input and its border. */
TileRect interior_tiles(const distile_kernel &kernel, const distile_variant &variant, const distile_tensor &input,
                        const MaskShape &output) {
    const PixelRect readable = {{-int64_t{input.border_top}, int64_t{input.height} + input.border_bottom},
                                {-int64_t{input.border_left}, int64_t{input.width} + input.border_right}};
    const PixelRect pixels = kernel.kind.interior(kernel.polykernel.op, readable);
    const TileRange rows = tiles_inside(pixels.rows, output.height, variant.tile_h);
    const TileRange columns = tiles_inside(pixels.columns, output.width, variant.tile_w);
    return {columns.first, columns.last, rows.first, rows.last};
}

using PackedOperands = std::vector<distile_weights::Operand>;

/** The operand with this role, from the arguments or the packed weights. */
distile_array operand_of(distile_role role, const distile_run_args &args, const distile_tensor &input,
                         const PackedOperands &packed) {
    switch (role) {
    case DISTILE_ROLE_INPUT:
        return array_of(input);
    case DISTILE_ROLE_RESIDUAL:
        return array_of(without_border(*args.residual));
    case DISTILE_ROLE_KEY:
        return array_of(without_border(*args.key));
    case DISTILE_ROLE_VALUE:
        return array_of(without_border(*args.value));
    case DISTILE_ROLE_OUTPUT:
        return array_of(without_border(*args.output));
    default:
        break;
    }
    return std::find_if(packed.begin(), packed.end(),
                        [&](const distile_weights::Operand &operand) { return operand.role == role; })
        ->array;
}

/** The mask whose tiles a variant computes. Code of operators that read keys stores all rows that it computes, so their
 * dense variant is one for many rows of the call's mask. */
distile_mask &mask_of(distile_kernel &kernel, const distile_variant &variant, const distile_run_args &args) {
    return variant.dense && !kernel.kind.tokens ? kernel.full_mask(args.mask->shape) : *args.mask;
}

/** The listed pixels of each image, in the type of a call. */
const uint32_t *starts_of(distile_mask &mask) {
    return reinterpret_cast<const uint32_t *>(mask.cumulative_lengths());
}

/** Adds the rows of each image, and the keys and their factor, to the call of an operator that reads a key or a value.
 */
void add_keys(distile_kernel &kernel, const distile_variant &variant, const distile_run_args &args,
              distile_kernel_call &call) {
    call.scale = scale_of(kernel, args);
    call.row_starts = starts_of(mask_of(kernel, variant, args));
    if (args.key_mask) {
        const TileList keys = args.key_mask->list({1, 1}, {0, args.key_mask->shape.width, 0, 1});
        call.key_xy = keys.xy;
        call.key_capacity = static_cast<int32_t>(keys.capacity);
        call.key_starts = starts_of(*args.key_mask);
    }
}

/** Operators that read keys count on the rows of a list. */
CellOrder order_of(const distile_kernel &kernel, const distile_variant &variant) {
    if (!kernel.kind.tokens && variant.order == DISTILE_TILES_ALONG_MORTON) {
        return CellOrder::Morton;
    }
    return !kernel.kind.tokens && variant.order == DISTILE_TILES_ALONG_HILBERT ? CellOrder::Hilbert
                                                                               : CellOrder::RowMajor;
}

}  // namespace

distile_array array_of(const distile_tensor &tensor) {
    const distile_tensor whole = with_border_inside(tensor);
    distile_array array{};
    array.data = whole.data;
    array.dtype = whole.dtype;
    array.dimensions = 4;
    array.dim[0] = {0, whole.channels, 1};
    array.dim[1] = {-tensor.border_left, whole.width, static_cast<int32_t>(whole.stride_w)};
    array.dim[2] = {-tensor.border_top, whole.height, static_cast<int32_t>(whole.stride_h)};
    array.dim[3] = {0, whole.batch, whole.batch > 1 ? static_cast<int32_t>(whole.stride_n) : 0};
    return array;
}

float scale_of(const distile_kernel &kernel, const distile_run_args &args) {
    return args.scale != 0 || !kernel.kind.tokens ? args.scale : kernel.kind.tokens->scale(kernel.polykernel.op);
}

bool is_listless(const distile_variant &variant, const MaskShape &shape) {
    return variant.dense == 0 && variant.tile_h == 1 && variant.tile_w == 1 &&
           shape.num_pixels() <= variant.listless_pixels;
}

TileList list_of(distile_kernel &kernel, const distile_variant &variant, const distile_run_args &args,
                 const distile_tensor &input) {
    return mask_of(kernel, variant, args)
        .list_in(order_of(kernel, variant), {variant.tile_h, variant.tile_w},
                 interior_tiles(kernel, variant, input, args.mask->shape));
}

distile_kernel_call call_of(distile_kernel &kernel, const distile_variant &variant, const distile_run_args &args,
                            const distile_tensor &input, const TileList &list, int64_t tiles, Operands &operands) {
    const PackedOperands none;
    const PackedOperands &packed = args.weights ? args.weights->find(variant.layout)->operands : none;
    const distile_polykernel &polykernel = kernel.polykernel;
    // Tokens have no border, whatever the tensor says.
    const distile_tensor read = kernel.kind.tokens ? without_border(input) : input;
    for (int32_t i = 0; i < polykernel.num_operands; i++) {
        operands[i] = operand_of(polykernel.operands[i].role, args, read, packed);
    }
    const MaskBits bits = args.mask->bits();
    distile_kernel_call call{};
    call.operands = operands.data();
    call.num_operands = polykernel.num_operands;
    call.tile_xy = list.xy;
    call.tile_capacity = static_cast<int32_t>(list.capacity);
    call.num_tiles = static_cast<int32_t>(tiles);
    call.num_interior = static_cast<int32_t>(list.num_interior);
    call.tile_count = list.device_count;
    call.bits = bits.words;
    call.words_per_row = bits.words_per_row;
    call.height = args.mask->shape.height;
    call.batch = args.mask->shape.batch;
    call.threads = kernel.context.device->threads();
    call.store_tiles = args.store == DISTILE_STORE_TILES ? 1 : 0;
    call.fixed_order = args.fixed_order;
    call.slope = args.weights ? args.weights->slope : 0;
    if (kernel.kind.tokens) {
        add_keys(kernel, variant, args, call);
    }
    return call;
}

}  // namespace distile
