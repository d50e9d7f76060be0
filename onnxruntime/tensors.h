/** \file
 * Tensors of ONNX Runtime as tensors of distile. NHWC images and tokens are used in place; NCHW images are transposed
 * in memory of the session.
 */
#ifndef DISTILE_ONNXRUNTIME_TENSORS_H
#define DISTILE_ONNXRUNTIME_TENSORS_H

#include "onnxruntime/operator.h"

namespace distile::ort {

enum class ImageLayout {
    nchw,  /**< [N, C, H, W] */
    nhwc,  /**< [N, H, W, C] */
    tokens /**< [N, T, C], or [T, C]; with more dimensions, all but the first and the last are those of tokens. */
};

/** The attribute `layout`: "NCHW" (if absent) or "NHWC". */
ImageLayout image_layout(const NodeView &node);

/** The layout of a tensor, which holds images of a layout, or tokens if it has less than 4 dimensions. */
ImageLayout layout_of(const Tensor &tensor, ImageLayout images);

/** Scratch memory for transposed operands; see read(). */
constexpr size_t output_scratch = 0, kept_scratch = 1, x_scratch = 2, other_scratch = 3;

/** The operand of distile with a number of scratch memory, which holds a transposed image. Fails for NCHW on a GPU. */
distile_tensor read(const Lease &lease, const Tensor &tensor, ImageLayout layout, size_t scratch);

/** The bytes of the mask of an output with a batch of images: [N, H, W], [N, 1, H, W], [N, H, W, 1], or for tokens [N,
 * T] or [T]. That of one image serves all. */
bindings::MaskBytes mask_bytes(const Tensor &mask, ImageLayout layout, int64_t batch);

/** The mask of an output, from its bytes. */
distile_mask *mask_of(const Lease &lease, const Tensor &mask, ImageLayout layout, int64_t batch, int32_t role = 0);

/** A value that distile has as int32_t. */
int32_t number(int64_t value, const char *name);

/** The output of a node. Its inactive pixels are 0, or those of the tensor `kept`. */
class Output {
public:
    /** `like`: an input whose shape it has, except for these extents. */
    Output(const Call &call, const Lease &lease, const Tensor &like, ImageLayout layout, int32_t height, int32_t width,
           int32_t channels, const std::optional<Tensor> &kept);
    const distile_tensor &view() const {
        return view_;
    }
    distile_inactive inactive() const {
        return kept_ ? DISTILE_KEEP : DISTILE_ZERO;
    }
    /** After the operator has written the active pixels. */
    void finish(distile_mask *mask) const;

private:
    const Lease &lease_;
    ImageLayout layout_;
    std::optional<Tensor> kept_;
    Tensor tensor_;
    distile_tensor view_{};
};

}  // namespace distile::ort

#endif
