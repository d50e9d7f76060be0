#include "onnxruntime/tensors.h"
#include <cstring>
#include <distile/layers.h>
#include <distile/layout.h>

namespace distile::ort {

namespace {

distile_tensor contiguous(void *data, distile_dtype type, int64_t batch, int64_t height, int64_t width,
                          int64_t channels) {
    distile_tensor view = distile_tensor_make(data, number(batch, "a batch"), number(height, "a height"),
                                              number(width, "a width"), number(channels, "the number of channels"));
    view.dtype = type;
    return view;
}

/** A tensor that is used in place, or for NCHW its transposed extents with `data`. */
distile_tensor view_of(const Tensor &tensor, ImageLayout layout, void *data) {
    const Shape &shape = tensor.shape;
    if (layout == ImageLayout::tokens) {
        if (shape.size() < 2) {
            fail("a tensor of tokens has less than 2 dimensions");
        }
        const int64_t channels = shape.back(), batch = shape.size() == 2 ? 1 : shape[0];
        const int64_t pixels = channels == 0 || batch == 0 ? 0 : tensor.elements() / channels / batch;
        return contiguous(data, tensor.dtype(), batch, 1, pixels, channels);
    }
    if (shape.size() != 4) {
        fail("an image has " + std::to_string(shape.size()) + " dimensions instead of 4");
    }
    return layout == ImageLayout::nhwc ? contiguous(data, tensor.dtype(), shape[0], shape[1], shape[2], shape[3])
                                       : contiguous(data, tensor.dtype(), shape[0], shape[2], shape[3], shape[1]);
}

distile_nchw nchw_of(const Tensor &tensor) {
    distile_nchw nchw = distile_nchw_make(tensor.data, number(tensor.shape[1], "the number of channels"),
                                          number(tensor.shape[2], "a height"), number(tensor.shape[3], "a width"));
    nchw.dtype = tensor.dtype();
    return nchw;
}

/** Memory of the session for an NCHW tensor in NHWC. */
void *transposed(const Lease &lease, const Tensor &tensor, size_t scratch) {
    if (lease->device() != DISTILE_CPU || is_quantized(tensor.dtype())) {
        fail("quantized images, and all images on GPUs, are in NHWC: set the attribute layout to NHWC");
    }
    return lease.scratch(scratch, static_cast<size_t>(tensor.elements()) * distile_dtype_size(tensor.dtype()));
}

Shape output_shape(const Tensor &like, ImageLayout layout, int64_t height, int64_t width, int64_t channels) {
    Shape shape = like.shape;
    if (layout == ImageLayout::tokens) {
        shape.back() = channels;
    } else if (layout == ImageLayout::nhwc) {
        shape = {shape[0], height, width, channels};
    } else {
        shape = {shape[0], channels, height, width};
    }
    return shape;
}

/** The mask of each image of a batch. */
bindings::MaskBytes for_each(int64_t batch, bindings::MaskBytes mask) {
    if (mask.batch == 1 && batch > 1) {
        mask.batch = batch;
        mask.of_one_image = true;
    }
    return mask;
}

}  // namespace

int32_t number(int64_t value, const char *name) {
    if (value < 0 || value > INT32_MAX) {
        fail(std::string(name) + " is " + std::to_string(value) + ", which is out of range");
    }
    return static_cast<int32_t>(value);
}

ImageLayout image_layout(const NodeView &node) {
    const std::string layout = node.text("layout", "NCHW");
    if (layout != "NCHW" && layout != "NHWC") {
        fail("the layout is '" + layout + "', but there are only NCHW and NHWC");
    }
    return layout == "NCHW" ? ImageLayout::nchw : ImageLayout::nhwc;
}

ImageLayout layout_of(const Tensor &tensor, ImageLayout images) {
    return tensor.shape.size() < 4 ? ImageLayout::tokens : images;
}

distile_tensor read(const Lease &lease, const Tensor &tensor, ImageLayout layout, size_t scratch) {
    if (layout != ImageLayout::nchw) {
        return view_of(tensor, layout, tensor.data);
    }
    const distile_tensor view = view_of(tensor, layout, transposed(lease, tensor, scratch));
    const distile_nchw from = nchw_of(tensor);
    check(distile_from_nchw(lease->context(), &from, &view), lease->context());
    return view;
}

bindings::MaskBytes mask_bytes(const Tensor &mask, ImageLayout layout, int64_t batch) {
    Shape shape = mask.shape;
    const auto *bytes = static_cast<const uint8_t *>(mask.data);
    if (layout == ImageLayout::tokens) {
        const int64_t images = shape.size() < 2 ? 1 : shape[0];
        return for_each(batch, {bytes, images, 1, images == 0 ? 0 : mask.elements() / images});
    }
    if (shape.size() == 4 && (shape[1] == 1 || shape[3] == 1)) {
        shape.erase(shape.begin() + (shape[1] == 1 ? 1 : 3));
    }
    if (shape.size() != 3) {
        fail("the mask of an image is [N, H, W], [N, 1, H, W] or [N, H, W, 1]");
    }
    return for_each(batch, {bytes, shape[0], shape[1], shape[2]});
}

distile_mask *mask_of(const Lease &lease, const Tensor &mask, ImageLayout layout, int64_t batch, int32_t role) {
    return lease->mask(mask_bytes(mask, layout, batch), role);
}

Output::Output(const Call &call, const Lease &lease, const Tensor &like, ImageLayout layout, int32_t height,
               int32_t width, int32_t channels, const std::optional<Tensor> &kept)
    : lease_(lease), layout_(layout), kept_(kept),
      tensor_(call.output(output_shape(like, layout, height, width, channels), like.type)) {
    if (kept && (kept->shape != tensor_.shape || kept->type != tensor_.type)) {
        fail("the tensor whose inactive pixels are kept has another shape or type than the output");
    }
    view_ = view_of(tensor_, layout,
                    layout == ImageLayout::nchw ? transposed(lease, tensor_, output_scratch) : tensor_.data);
    if (kept && is_quantized(view_.dtype)) {
        // Layers take no quantized tensors. So all pixels are copied, and the operator overwrites the active ones.
        if (lease->device() != DISTILE_CPU) {
            fail("on GPUs, quantized operators keep no pixels of another tensor");
        }
        std::memcpy(view_.data, kept->data, tensor_.bytes());
    }
}

void Output::finish(distile_mask *mask) const {
    if (kept_ && !is_quantized(view_.dtype)) {
        distile_mask *const inactive = lease_->result_mask(view_.batch, view_.height, view_.width);
        check(distile_mask_invert(inactive, mask), lease_->context());
        const distile_tensor kept = read(lease_, *kept_, layout_, kept_scratch);
        distile_combine_args copy{};
        copy.input = &kept;
        copy.output = &view_;
        copy.mask = inactive;
        check(distile_combine(lease_->context(), &copy), lease_->context());
    }
    if (layout_ == ImageLayout::nchw) {
        const distile_nchw to = nchw_of(tensor_);
        check(distile_to_nchw(lease_->context(), &view_, &to), lease_->context());
    }
}

}  // namespace distile::ort
