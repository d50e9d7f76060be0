#include "onnxruntime/operators/window.h"
#include "onnxruntime/tensors.h"
#include <algorithm>
#include <distile/layers.h>

namespace distile::ort {

namespace {

/** A mask that one call sets, whose bytes are the node's output: [N, H, W] or [N, T]. */
class OutputMask {
public:
    OutputMask(const Call &call, const Lease &lease, const Shape &shape)
        : mask_(lease->result_mask(shape[0], shape.size() < 3 ? 1 : shape[1], shape.back())) {
        const int64_t width = shape.back(), image = shape.size() < 3 ? width : shape[1] * width;
        auto *const bytes = static_cast<uint8_t *>(call.output(shape, boolean).data);
        check(distile_mask_mirror(mask_, bytes, image, width), lease->context());
    }
    OutputMask(const OutputMask &) = delete;
    OutputMask &operator=(const OutputMask &) = delete;
    ~OutputMask() {
        distile_mask_mirror(mask_, nullptr, 0, 0);
    }

    distile_mask *get() const {
        return mask_;
    }

private:
    distile_mask *mask_;
};

/** The shape of the mask of a tensor: [N, H, W], or that of its tokens. */
Shape mask_shape(const Tensor &tensor, ImageLayout layout, const distile_tensor &view) {
    return layout == ImageLayout::tokens ? Shape(tensor.shape.begin(), tensor.shape.end() - 1)
                                         : Shape{view.batch, view.height, view.width};
}

/** The attribute `size`: height and width. */
Shape size_of(const NodeView &node) {
    Shape size = node.integers("size", {0, 0});
    if (std::min(size[0], size[1]) < 1) {
        fail("node '" + node.name() + "' has no attribute size: the height and the width of its output");
    }
    return size;
}

/** Fails unless a mask is [N, H, W]. */
void check_image(const Tensor &mask) {
    if (mask.shape.size() != 3) {
        fail("the mask has " + std::to_string(mask.shape.size()) + " dimensions instead of 3: [N, H, W]");
    }
}

/** A mask unit: where the channels times weights, plus a bias, exceed a threshold. */
class FromScores : public LeasingKernel {
public:
    explicit FromScores(const Setup &setup)
        : LeasingKernel(setup), layout_(image_layout(setup.node)), bias_(setup.node.number("bias", 0)),
          threshold_(setup.node.number("threshold", 0)) {
    }

    void compute(const Call &call) override {
        const Lease lease = lease_for(call);
        const Tensor x = call.input(0);
        const ImageLayout layout = layout_of(x, layout_);
        const distile_tensor scores = read(lease, x, layout, x_scratch);
        const auto weights = call.optional(1);
        if (weights && weights->elements() != scores.channels) {
            fail("the weights of scores do not have one element for each channel");
        }
        const OutputMask mask(call, lease, mask_shape(x, layout, scores));
        check(distile_mask_set_scores(mask.get(), &scores,
                                      weights ? static_cast<const float *>(weights->data) : nullptr, bias_, threshold_),
              lease->context());
    }

private:
    ImageLayout layout_;
    float bias_, threshold_;
};

/** Where two tensors differ by more than a threshold. */
class Difference : public LeasingKernel {
public:
    explicit Difference(const Setup &setup)
        : LeasingKernel(setup), layout_(image_layout(setup.node)), threshold_(setup.node.number("threshold", 0)) {
    }

    void compute(const Call &call) override {
        const Lease lease = lease_for(call);
        const Tensor a = call.input(0);
        const ImageLayout layout = layout_of(a, layout_);
        const distile_tensor first = read(lease, a, layout, x_scratch);
        const distile_tensor second = read(lease, call.input(1), layout, other_scratch);
        const OutputMask mask(call, lease, mask_shape(a, layout, first));
        check(distile_mask_set_difference(mask.get(), &first, &second, threshold_), lease->context());
    }

private:
    ImageLayout layout_;
    float threshold_;
};

/** A mask [N, H, W] from another. */
class FromMask : public LeasingKernel {
public:
    using LeasingKernel::LeasingKernel;

    void compute(const Call &call) override {
        const Lease lease = lease_for(call);
        const Tensor source = call.input(0);
        check_image(source);
        const Shape shape = shape_from(source.shape);
        distile_mask *const mask = mask_of(lease, source, ImageLayout::nhwc, source.shape[0]);
        const OutputMask result(call, lease, shape);
        check(change(result.get(), mask, shape), lease->context());
    }

private:
    virtual Shape shape_from(const Shape &source) const = 0;
    virtual distile_status change(distile_mask *result, distile_mask *mask, const Shape &shape) const = 0;
};

class Dilate : public FromMask {
public:
    explicit Dilate(const Setup &setup) : FromMask(setup), radius_(setup.node.integers("radius", {1, 1})) {
    }

private:
    Shape shape_from(const Shape &source) const override {
        return source;
    }
    distile_status change(distile_mask *result, distile_mask *mask, const Shape &) const override {
        return distile_mask_dilate(result, mask, number(radius_[0], "a radius"), number(radius_[1], "a radius"));
    }

    Shape radius_;
};

class PoolMask : public FromMask {
public:
    explicit PoolMask(const Setup &setup) : FromMask(setup), factor_(setup.node.integers("factor", {2, 2})) {
    }

private:
    Shape shape_from(const Shape &source) const override {
        Shape shape = source;
        for (const size_t axis : {1, 2}) {
            const int64_t factor = std::max<int64_t>(factor_[axis - 1], 1);
            shape[axis] = (shape[axis] + factor - 1) / factor;
        }
        return shape;
    }
    distile_status change(distile_mask *result, distile_mask *mask, const Shape &) const override {
        return distile_mask_pool(result, mask, number(factor_[0], "a factor"), number(factor_[1], "a factor"));
    }

    Shape factor_;
};

/** The first and the last pixel of cell i along an axis: each is `factor` pixels long, and cell 0 begins at pixel
 * `offset`. The first and the last cell reach to the ends. */
std::pair<int64_t, int64_t> span_of(int64_t i, int64_t cells, int64_t factor, int64_t offset, int64_t pixels) {
    const int64_t begin = offset + i * factor;
    const int64_t low = std::clamp<int64_t>(i == 0 ? 0 : begin, 0, pixels - 1);
    return {low, i == cells - 1 ? pixels - 1 : std::clamp<int64_t>(begin + factor - 1, low, pixels - 1)};
}

/** The cells of a grid of rows and columns that begins anywhere in the image: [N, rows, columns]. */
class CellsOfMask : public Kernel {
public:
    explicit CellsOfMask(const Setup &setup)
        : factor_(setup.node.integers("factor", {1, 1})), offset_(setup.node.integers("offset", {0, 0})) {
        if (std::min(factor_[0], factor_[1]) < 1) {
            fail("node '" + setup.node.name() + "' has a factor below 1");
        }
    }

    void compute(const Call &call) override {
        const Tensor source = call.input(0), size = call.input(1);
        check_image(source);
        const auto *const wanted = static_cast<const int64_t *>(size.data);
        if (size.elements() != 2 || std::min(wanted[0], wanted[1]) < 1 || source.elements() == 0) {
            fail("the size of cells is not that of an image: 2 numbers from 1 on");
        }
        const Shape shape{source.shape[0], wanted[0], wanted[1]};
        const auto *from = static_cast<const uint8_t *>(source.data);
        auto *to = static_cast<uint8_t *>(call.output(shape, boolean).data);
        std::vector<uint8_t> any(source.shape[2]);
        for (int64_t n = 0; n < shape[0]; n++, from += source.shape[1] * source.shape[2]) {
            for (int64_t i = 0; i < shape[1]; i++, to += shape[2]) {
                const auto [low, high] = span_of(i, shape[1], factor_[0], offset_[0], source.shape[1]);
                join_rows(from, low, high, any);
                join_columns(any, shape[2], to);
            }
        }
    }

private:
    /** For each column, whether it is active in any of the rows. */
    static void join_rows(const uint8_t *image, int64_t low, int64_t high, std::vector<uint8_t> &any) {
        const auto width = static_cast<int64_t>(any.size());
        std::copy_n(image + low * width, width, any.begin());
        for (int64_t y = low + 1; y <= high; y++) {
            const uint8_t *const row = image + y * width;
            for (int64_t x = 0; x < width; x++) {
                any[x] |= row[x];
            }
        }
    }

    void join_columns(const std::vector<uint8_t> &any, int64_t cells, uint8_t *to) const {
        for (int64_t j = 0; j < cells; j++) {
            const auto [low, high] = span_of(j, cells, factor_[1], offset_[1], static_cast<int64_t>(any.size()));
            to[j] = std::any_of(any.begin() + low, any.begin() + high + 1, [](uint8_t byte) { return byte != 0; });
        }
    }

    Shape factor_, offset_;
};

distile_window_kind window_kind(const NodeView &node) {
    const std::string kind = node.text("kind", "conv");
    for (const auto &[name, value] :
         {std::pair("conv", DISTILE_WINDOW_CONV), std::pair("transposed", DISTILE_WINDOW_TRANSPOSED),
          std::pair("upsampled", DISTILE_WINDOW_UPSAMPLED)}) {
        if (kind == name) {
            return value;
        }
    }
    fail("the kind of a window is '" + kind + "', but there are only conv, transposed and upsampled");
}

/** Through the window of an operator: the input that active outputs read, or the output that active inputs change. */
template<decltype(&distile_mask_needed_input) function> class ThroughWindow : public FromMask {
public:
    explicit ThroughWindow(const Setup &setup) : FromMask(setup), size_(size_of(setup.node)) {
        window_ =
            window_of(setup.node, setup.node.integers("kernel_shape", {1, 1}), setup.node.integers("strides", {1, 1}))
                .window;
        window_.kind = window_kind(setup.node);
    }

private:
    Shape shape_from(const Shape &source) const override {
        return {source[0], size_[0], size_[1]};
    }
    distile_status change(distile_mask *result, distile_mask *mask, const Shape &shape) const override {
        return function(result, mask, &window_, number(shape[1], "a height"), number(shape[2], "a width"));
    }

    Shape size_;
    distile_window window_{};
};

/** From the numbers y * width + x of active pixels: [N, count], of which [N] numbers say how many are used. */
class FromIndices : public LeasingKernel {
public:
    explicit FromIndices(const Setup &setup) : LeasingKernel(setup), size_(size_of(setup.node)) {
    }

    void compute(const Call &call) override {
        const Lease lease = lease_for(call);
        const Tensor indices = call.input(0);
        if (indices.shape.size() != 2) {
            fail("the indices have " + std::to_string(indices.shape.size()) + " dimensions instead of 2: [N, count]");
        }
        const auto counts = call.optional(1);
        if (counts && counts->elements() != indices.shape[0]) {
            fail("the counts of indices do not have one element for each image");
        }
        const Shape shape{indices.shape[0], size_[0], size_[1]};
        const OutputMask mask(call, lease, shape);
        check(distile_mask_set_indices(mask.get(), static_cast<const int32_t *>(indices.data),
                                       counts ? static_cast<const int32_t *>(counts->data) : nullptr,
                                       number(shape[0], "a batch"), number(shape[1], "a height"),
                                       number(shape[2], "a width"), indices.shape[1]),
              lease->context());
    }

private:
    Shape size_;
};

/** From bits: [N, H, words], 32 pixels a word. */
class FromBits : public LeasingKernel {
public:
    explicit FromBits(const Setup &setup) : LeasingKernel(setup), width_(setup.node.integer("width", 0)) {
        if (width_ < 1) {
            fail("node '" + setup.node.name() + "' has no attribute width: that of its output");
        }
    }

    void compute(const Call &call) override {
        const Lease lease = lease_for(call);
        const Tensor words = call.input(0);
        if (words.shape.size() != 3) {
            fail("the bits have " + std::to_string(words.shape.size()) + " dimensions instead of 3: [N, H, words]");
        }
        const Shape shape{words.shape[0], words.shape[1], width_};
        const OutputMask mask(call, lease, shape);
        check(distile_mask_set_bits(mask.get(), static_cast<const uint32_t *>(words.data), number(shape[0], "a batch"),
                                    number(shape[1], "a height"), number(width_, "a width"), words.shape[2]),
              lease->context());
    }

private:
    int64_t width_;
};

/** The reverse. */
class ToBits : public LeasingKernel {
public:
    using LeasingKernel::LeasingKernel;

    void compute(const Call &call) override {
        const Lease lease = lease_for(call);
        const Tensor source = call.input(0);
        check_image(source);
        distile_mask *const mask = mask_of(lease, source, ImageLayout::nhwc, source.shape[0]);
        const uint32_t *words = nullptr;
        int32_t words_per_row = 0;
        check(distile_mask_bits(mask, &words, &words_per_row), lease->context());
        const int64_t used = (source.shape.back() + 31) / 32;
        const Shape shape{source.shape[0], source.shape[1], used};
        auto *target = static_cast<uint32_t *>(call.output(shape, int32).data);
        for (int64_t row = 0; row < shape[0] * shape[1]; row++) {
            std::copy_n(words + row * words_per_row, used, target + row * used);
        }
    }
};

}  // namespace

std::vector<OperatorType> mask_types() {
    return {{"MaskFromScores", {{}, {float32, optional}}, {boolean}, make_kernel<FromScores>},
            {"MaskDifference", {{}, {}}, {boolean}, make_kernel<Difference>},
            {"MaskDilate", {{boolean}}, {boolean}, make_kernel<Dilate>},
            {"MaskPool", {{boolean}}, {boolean}, make_kernel<PoolMask>},
            {"MaskCells", {{boolean}, {int64}}, {boolean}, make_kernel<CellsOfMask>, true},
            {"MaskNeededInput", {{boolean}}, {boolean}, make_kernel<ThroughWindow<distile_mask_needed_input>>},
            {"MaskAffectedOutput", {{boolean}}, {boolean}, make_kernel<ThroughWindow<distile_mask_affected_output>>},
            {"MaskFromIndices", {{int32}, {int32, optional}}, {boolean}, make_kernel<FromIndices>},
            {"MaskFromBits", {{int32}}, {boolean}, make_kernel<FromBits>},
            {"MaskToBits", {{boolean}}, {int32}, make_kernel<ToBits>, true}};
}

}  // namespace distile::ort
