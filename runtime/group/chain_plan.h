/** \file
 * What each device of a group does of a chain of layers: its pixels, the box of each tensor that it keeps, and what it
 * fetches from others. Pure functions on host memory.
 *
 * Tensor 0 is the chain's input, and layer i makes tensor i + 1 from tensor i. A device keeps of each tensor a box that
 * it treats as an image: the boxes of all tensors begin at the same place and end so that each layer computes a box
 * from the box before. The pixels that it owns read only what is in the box, or beyond the edge of the whole image
 * where the box ends too. So the padding of its layers is right for them.
 */
#ifndef DISTILE_CHAIN_PLAN_H
#define DISTILE_CHAIN_PLAN_H

#include "runtime/group/partition.h"
#include "runtime/kinds/conv2d.h"
#include <memory>

namespace distile {

/** A layer: a convolution along each axis. */
struct PlannedLayer {
    Axis rows, columns;
    int32_t residual = -1;  ///< The tensor that it adds; -1: none.
    double work = 1;        ///< What an output pixel takes, in any unit.
    int64_t pixel_bytes;    ///< The size of a pixel of its output.
};

/** Pixels [first, last) of a row, in the whole tensor. */
struct Span {
    int32_t image, y, first, last;
};

/** Spans of a tensor. */
class SpanList {
public:
    void push_back(const Span &span) {
        spans_.push_back(span);
    }
    std::vector<Span>::const_iterator begin() const {
        return spans_.begin();
    }
    std::vector<Span>::const_iterator end() const {
        return spans_.end();
    }
    size_t size() const {
        return spans_.size();
    }

    /** What an exchange keeps of these spans on the device that copies them, which is always the same one. */
    mutable std::shared_ptr<const void> prepared;
    /** Where its pixels lie in a message too. */
    mutable std::shared_ptr<const void> prepared_packed;

private:
    std::vector<Span> spans_;
};

/** What a device copies from another's tensor. */
struct Fetch {
    int32_t from;
    int64_t pixels;
    SpanList spans;
};

/** A device's part of a layer's output, as bits of its box. */
struct PartOutput {
    BitImage own;       ///< The active pixels that it computes.
    BitImage rim;       ///< Own pixels that another device fetches.
    BitImage interior;  ///< The others.
    int64_t pixels;     ///< In `own`.
};

/** A device's part of a chain. */
struct Part {
    bool is_empty = true;            ///< It has nothing to do, and no boxes.
    std::vector<PixelBox> boxes;     ///< One for each tensor.
    SpanList input;                  ///< What it reads of tensor 0.
    int64_t input_pixels = 0;        ///< Their number.
    std::vector<PartOutput> layers;  ///< One for each layer.
    /** For each layer, what the next one reads of its output on other devices. */
    std::vector<std::vector<Fetch>> fetches;
    SpanList output;               ///< Its pixels of the last tensor.
    std::vector<bool> neighbours;  ///< The devices that it copies from or that copy from it.
};

struct ChainPlan {
    std::vector<MaskShape> shapes;  ///< One for each tensor.
    std::vector<Part> parts;
    int64_t halo_pixels = 0, halo_bytes = 0;  ///< What one run exchanges.
};

/** The pixels of tensor 0 that a device can keep between runs: those of its cells, active or not. */
struct KeptPart {
    PixelBox box;  ///< Empty if it has no cell.
    SpanList spans;
};
std::vector<KeptPart> kept_parts(const Partition &partition, const MaskShape &input, int32_t num_parts);

/** Pixels of tensor 0 by the devices that keep them. */
std::vector<Fetch> by_owner(const SpanList &spans, const Partition &partition, const MaskShape &input,
                            int32_t num_parts);

/** The extents of each tensor: the input's, and each layer's output. An extent is 0 if an output is empty. */
std::vector<MaskShape> shapes_of(const std::vector<PlannedLayer> &layers, const MaskShape &input);

/** What a partition costs of a chain: each layer's mask over tensor 0. `masks` are those of the layers' outputs. */
std::vector<CostedMask> costs_of(const std::vector<PlannedLayer> &layers, const std::vector<const BitImage *> &masks);

/** The product of the layers' strides before a tensor. */
int32_t row_scale(const std::vector<PlannedLayer> &layers, size_t tensor);
int32_t column_scale(const std::vector<PlannedLayer> &layers, size_t tensor);

/** The bytes that a run exchanges with a partition. */
int64_t halo_bytes_of(const std::vector<PlannedLayer> &layers, const MaskShape &input,
                      const std::vector<const BitImage *> &masks, const Partition &partition, int32_t num_parts);

/** The imbalance for which curves are cut, and below which a partition counts as balanced. */
constexpr double good_imbalance = .015, most_imbalance = .03;

/** The partition of a chain: along one of the Hilbert curves through the images, or in bands of rows or columns,
 * whichever exchanges least of those that balance. */
Partition partition_chain(const std::vector<PlannedLayer> &layers, const MaskShape &input,
                          const std::vector<const BitImage *> &masks, const std::vector<DeviceTime> &devices);

/** Keeps a chain's partition while it fits new masks: it is one of their shape, its imbalance is at most a threshold,
 * or a new one is hardly better. Else replaces it, and data must move. Returns whether it did. */
bool renew_partition(Partition &partition, const std::vector<PlannedLayer> &layers, const MaskShape &input,
                     const std::vector<const BitImage *> &masks, const std::vector<DeviceTime> &devices,
                     double threshold);

/** Plans a chain for `num_parts` devices. Cells of the partition are multiples of all strides. */
ChainPlan plan_chain(const std::vector<PlannedLayer> &layers, const MaskShape &input,
                     const std::vector<const BitImage *> &masks, const Partition &partition, int32_t num_parts);

}  // namespace distile

#endif
