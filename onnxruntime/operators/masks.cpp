#include "tensors.h"
#include <algorithm>
#include <distile/layers.h>

namespace distile::ort {

namespace {

enum MaskInput : size_t { input_source, input_weights };
constexpr size_t source_scratch = 2;

/** The bytes of a mask as the node's output. */
void write(const Call &call, const Lease &lease, distile_mask *mask, const Shape &shape) {
    const Tensor output = call.output(shape, boolean);
    const int64_t width = shape.back(), image = shape.size() < 3 ? width : shape[shape.size() - 2] * width;
    check(distile_mask_get_bytes(mask, static_cast<uint8_t *>(output.data), image, width), lease->context());
}

/** A mask unit: where the channels times weights, plus a bias, exceed a threshold. */
class FromScores : public Kernel {
public:
    explicit FromScores(const Setup &setup)
        : sessions_(setup.sessions), layout_(image_layout(setup.node)), bias_(setup.node.number("bias", 0)),
          threshold_(setup.node.number("threshold", 0)) {
    }

    void compute(const Call &call) override {
        const Lease lease(*sessions_, call, -1);
        const Tensor source = call.input(input_source);
        const bool tokens = source.shape.size() < 4;
        const distile_tensor scores = read(lease, source, tokens ? Layout::tokens : layout_, source_scratch);
        const auto weights = call.optional(input_weights);
        if (weights && weights->elements() != scores.channels) {
            fail("the weights of scores do not have one element for each channel");
        }
        const Mask mask = lease->make_mask();
        check(distile_mask_set_scores(mask.get(), &scores,
                                      weights ? static_cast<const float *>(weights->data) : nullptr, bias_, threshold_),
              lease->context());
        write(call, lease, mask.get(),
              tokens ? Shape(source.shape.begin(), source.shape.end() - 1)
                     : Shape{scores.batch, scores.height, scores.width});
    }

private:
    std::shared_ptr<Sessions> sessions_;
    Layout layout_;
    float bias_, threshold_;
};

/** A mask [N, H, W] from another. */
class FromMask : public Kernel {
public:
    explicit FromMask(const Setup &setup, const char *attribute, Shape otherwise)
        : sessions_(setup.sessions), numbers_(setup.node.integers(attribute, std::move(otherwise))) {
    }

    void compute(const Call &call) override {
        const Lease lease(*sessions_, call, -1);
        const Tensor source = call.input(input_source);
        if (source.shape.size() != 3) {
            fail("the mask is [N, H, W]");
        }
        const Mask result = lease->make_mask();
        Shape shape = source.shape;
        check(change(result.get(), mask_of(lease, source, Layout::nhwc), shape), lease->context());
        write(call, lease, result.get(), shape);
    }

protected:
    int32_t at(size_t index) const {
        return number(numbers_[index], "a radius or a factor");
    }

private:
    virtual distile_status change(distile_mask *result, distile_mask *mask, Shape &shape) const = 0;

    std::shared_ptr<Sessions> sessions_;
    Shape numbers_;
};

class Dilate : public FromMask {
public:
    explicit Dilate(const Setup &setup) : FromMask(setup, "radius", {1, 1}) {
    }

private:
    distile_status change(distile_mask *result, distile_mask *mask, Shape &) const override {
        return distile_mask_dilate(result, mask, at(0), at(1));
    }
};

class PoolMask : public FromMask {
public:
    explicit PoolMask(const Setup &setup) : FromMask(setup, "factor", {2, 2}) {
    }

private:
    distile_status change(distile_mask *result, distile_mask *mask, Shape &shape) const override {
        for (const size_t axis : {1, 2}) {
            const int64_t factor = std::max(at(axis - 1), 1);
            shape[axis] = (shape[axis] + factor - 1) / factor;
        }
        return distile_mask_pool(result, mask, at(0), at(1));
    }
};

template<typename Made> std::unique_ptr<Kernel> make(const Setup &setup) {
    return std::make_unique<Made>(setup);
}

}  // namespace

std::vector<OperatorType> mask_types() {
    return {{"MaskFromScores", {{}, {float32, optional}}, boolean, false, make<FromScores>},
            {"MaskDilate", {{boolean}}, boolean, false, make<Dilate>},
            {"MaskPool", {{boolean}}, boolean, false, make<PoolMask>}};
}

}  // namespace distile::ort
