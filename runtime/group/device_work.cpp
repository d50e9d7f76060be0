#include "runtime/dispatch/kernel.h"
#include "runtime/group/run_chain.h"

namespace distile {

namespace {

void add_spans(const SpanList &spans, const PixelBox &box, BitImage &bits) {
    for (const Span &span : spans) {
        bits.set(span.image - box.image, span.y - box.y, span.first - box.x, span.last - box.x);
    }
}

}  // namespace

DeviceWork::DeviceWork(distile_chain &of, Fault &fault, size_t own)
    : Member(of, fault, own), part(of.plan.parts[number]), device(of.devices[own]) {
}

/** The memory is zero except where something shall be written. */
PlacedTensor DeviceWork::take(const Planner &planner, const distile_output_spec &spec, const Mask &mask,
                              distile_store store, const PixelBox &box) {
    distile_tensor made{};
    require_of(&context, distile_planner_next(planner.get(), &spec, mask.get(), store, &made));
    return {&context, made, box.image, box.y, box.x};
}

void DeviceWork::prepare() {
    if (device.plan == chain.plans) {
        return;
    }
    device.input_bits = BitImage(part.boxes[0].shape);
    add_spans(part.input, part.boxes[0], device.input_bits);
    std::vector<MaskOfPlan> masks{{device.input.get(), &device.input_bits}};
    std::vector<const SpanList *> lists{&part.input, &part.output};
    for (const std::vector<Fetch> &fetches : part.fetches) {
        for (const Fetch &piece : fetches) {
            if (is_here(piece.from)) {  // Other ranks' pixels come in messages.
                lists.push_back(&piece.spans);
            }
        }
    }
    for (size_t i = 0; i < chain.layers.size(); i++) {
        DeviceLayer &layer = device.layers[i];
        const PartOutput &output = part.layers[i];
        layer.present_bits = output.own;
        if (i + 1 < chain.layers.size()) {
            for (const Fetch &piece : part.fetches[i]) {
                add_spans(piece.spans, part.boxes[i + 1], layer.present_bits);
            }
        }
        masks.push_back({layer.own.get(), &output.own});
        masks.push_back({layer.present.get(), &layer.present_bits});
        if (group.overlaps(place)) {
            masks.push_back({layer.rim.get(), &output.rim});
            masks.push_back({layer.interior.get(), &output.interior});
        }
        // Where code has other variants, the device chooses.
        const char *const name = chain.variants[i].c_str();
        layer.variant = chain.layers[i].kernels[place]->find(name) >= 0 ? name : nullptr;
    }
    own_way().prepare(context, masks, lists);
    device.plan = chain.plans;
}

/** The planner gives the memory of a tensor that neither this device nor another needs: the others have told that they
 * have the tensor two before this one, and the work of this device follows that, so they have fetched what they read of
 * those before it. What ranks fetch is in messages then. */
void DeviceWork::make_tensor(size_t tensor) {
    const PixelBox &box = part.boxes[tensor];
    const bool is_last = tensor == chain.layers.size();
    const ChainLayer &layer = chain.layers[is_last ? tensor - 1 : tensor];
    distile_output_spec spec{};
    spec.batch = box.shape.batch;
    spec.height = box.shape.height;
    spec.width = box.shape.width;
    spec.channels = is_last ? layer.out_channels : layer.in_channels;
    spec.dtype = layer.dtype;
    if (!is_last) {
        const distile_border border = distile_kernel_border(layer.kernels[place].get());
        spec.border_top = border.top;
        spec.border_bottom = border.bottom;
        spec.border_left = border.left;
        spec.border_right = border.right;
    }
    const Mask &mask = tensor == 0 ? device.input : device.layers[tensor - 1].present;
    device.tensors[tensor] = take(device.planner, spec, mask, DISTILE_STORE_EXACT, box);
}

PlacedTensor DeviceWork::take_images(const KeptPart &kept) {
    KeptImages &images = device.images;
    images.no_pixels = BitImage(kept.box.shape);
    own_way().prepare(context, {{images.shape.get(), &images.no_pixels}}, {&kept.spans});
    distile_output_spec spec{};
    spec.batch = kept.box.shape.batch;
    spec.height = kept.box.shape.height;
    spec.width = kept.box.shape.width;
    spec.channels = chain.layers[0].in_channels;
    spec.dtype = chain.layers[0].dtype;
    // With this mode the whole tensor is zero, and the mask only has its shape.
    return take(images.planner, spec, images.shape, DISTILE_STORE_TILES, kept.box);
}

void DeviceWork::run_layer(size_t i, const Mask &mask) {
    const ChainLayer &layer = chain.layers[i];
    distile_run_args args{};
    args.input = &device.tensors[i].tensor;
    args.output = &device.tensors[i + 1].tensor;
    args.weights = layer.weights[place].get();
    args.mask = mask.get();
    args.variant = device.layers[i].variant;
    // Parts of a mask shall have the bits of the whole.
    args.fixed_order = group.any_order ? 0 : 1;
    if (layer.planned.residual >= 0) {
        args.residual = &device.tensors[static_cast<size_t>(layer.planned.residual)].tensor;
    }
    require_of(&context, distile_run(layer.kernels[place].get(), &args));
}

}  // namespace distile
