#include "runtime/group/chain_plan.h"
#include "runtime/cpu/bit_rows.h"
#include <algorithm>
#include <limits>

namespace distile {

namespace {

/** Pixels [first, last) along an axis; empty if last <= first. */
struct Extent {
    int32_t first = 0, last = 0;

    bool is_empty() const {
        return last <= first;
    }
    void include(const Extent &other) {
        if (!other.is_empty()) {
            *this = is_empty() ? other : Extent{std::min(first, other.first), std::max(last, other.last)};
        }
    }
};

/** The inputs that outputs read, within an input of `size`. */
Extent inputs_of(const Axis &axis, const Extent &outputs, int32_t size) {
    if (outputs.is_empty()) {
        return {};
    }
    const int64_t first = int64_t{outputs.first} * axis.stride - axis.pad_before;
    const int64_t last =
        int64_t{outputs.last - 1} * axis.stride - axis.pad_before + int64_t{axis.kernel - 1} * axis.dilation + 1;
    return {static_cast<int32_t>(std::clamp<int64_t>(first, 0, size)),
            static_cast<int32_t>(std::clamp<int64_t>(last, 0, size))};
}

/** The least input extent, up to `most`, whose output has an extent; `most` if there is none. */
int32_t input_for(const Axis &axis, int32_t output, int32_t most) {
    int32_t low = 0, high = most;
    while (low < high) {
        const int32_t middle = low + (high - low) / 2;
        if (conv_output_extent(axis, middle) >= output) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return high;
}

/** A chain along one axis: what the boxes of a part are. */
struct ChainAxis {
    std::vector<Axis> layers;
    std::vector<int32_t> sizes, scales;  ///< One for each tensor.

    /** The box of each tensor that contains the pixels that a part owns and reads of it. */
    std::vector<Extent> boxes(const std::vector<Extent> &wanted) const {
        const size_t last = layers.size();
        int64_t begin = INT64_MAX;
        for (size_t i = 0; i <= last; i++) {
            if (!wanted[i].is_empty()) {
                begin = std::min(begin, int64_t{wanted[i].first} * scales[i]);
            }
        }
        // No box is empty: each layer needs one to read. An output may be smaller than what comes before it, or larger.
        for (size_t i = 0; i <= last; i++) {
            begin = std::min(begin, int64_t{sizes[i] - 1} * scales[i]);
        }
        begin -= begin % scales[last];
        const auto first_of = [&](size_t tensor) { return static_cast<int32_t>(begin / scales[tensor]); };
        int32_t end = 0;
        for (size_t i = last + 1; i-- > 0;) {
            const int32_t first = first_of(i);
            int32_t least = std::max(wanted[i].is_empty() ? 0 : wanted[i].last, first + 1);
            if (i < last) {
                const int32_t after = end - first_of(i + 1);
                least = std::max(least, first + input_for(layers[i], after, sizes[i] - first));
            }
            end = std::min(least, sizes[i]);
        }
        std::vector<Extent> boxes(last + 1);
        int64_t extent = end - first_of(0);
        for (size_t i = 0; i <= last; i++) {
            boxes[i] = {first_of(i), first_of(i) + static_cast<int32_t>(extent)};
            extent = i < last ? conv_output_extent(layers[i], extent) : extent;
        }
        return boxes;
    }
};

/** The partition at the resolution of a tensor. */
struct TensorOwners {
    const Partition &partition;
    MaskShape shape;
    int32_t cell_h, cell_w;

    TensorOwners(const Partition &of, const MaskShape &tensor, int32_t scale_h, int32_t scale_w)
        : partition(of), shape(tensor), cell_h(of.cell_h / scale_h), cell_w(of.cell_w / scale_w) {
    }

    /** Calls run(owner, first, last) for the pixels [first, last) of a row, in runs of one owner. */
    template<typename Run>
    void for_each_owner(int32_t image, int32_t y, int32_t first, int32_t last, const Run &run) const {
        const int32_t row = std::min(y / cell_h, partition.cells.height - 1), columns = partition.cells.width;
        const auto column_of = [&](int32_t x) { return std::min(x / cell_w, columns - 1); };
        while (first < last) {
            const uint16_t owner = partition.owner(image, row, column_of(first));
            int32_t column = column_of(first) + 1;
            while (column < columns && int64_t{column} * cell_w < last &&
                   partition.owner(image, row, column) == owner) {
                column++;
            }
            const int32_t end = column < columns ? std::min(last, column * cell_w) : last;
            run(owner, first, end);
            first = end;
        }
    }
};

/** The pixels of a mask that each part owns: their bounds. */
struct OwnedBounds {
    Extent images, rows, columns;
};

std::vector<OwnedBounds> owned_bounds(const BitImage &mask, const TensorOwners &owners, int32_t num_parts) {
    std::vector<OwnedBounds> bounds(static_cast<size_t>(num_parts));
    for (int32_t n = 0; n < mask.shape.batch; n++) {
        for (int32_t y = 0; y < mask.shape.height; y++) {
            const uint64_t *const bits = mask.row(n, y);
            owners.for_each_owner(n, y, 0, mask.shape.width, [&](uint16_t owner, int32_t begin, int32_t end) {
                const int32_t first = first_bit(bits, begin, end);
                if (first < end) {
                    bounds[owner].images.include({n, n + 1});
                    bounds[owner].rows.include({y, y + 1});
                    bounds[owner].columns.include({first, last_bit(bits, begin, end) + 1});
                }
            });
        }
    }
    return bounds;
}

/** The active pixels in a box that a part owns. */
BitImage owned_bits(const BitImage &mask, const TensorOwners &owners, uint16_t part, const PixelBox &box) {
    BitImage owned(box.shape);
    const BitImage active = crop(mask, box);
    for (int32_t n = 0; n < box.shape.batch; n++) {
        for (int32_t y = 0; y < box.shape.height; y++) {
            owners.for_each_owner(box.image + n, box.y + y, box.x, box.x + box.shape.width,
                                  [&](uint16_t owner, int32_t first, int32_t last) {
                                      if (owner == part) {
                                          owned.set(n, y, first - box.x, last - box.x);
                                      }
                                  });
        }
    }
    for (size_t i = 0; i < owned.words.size(); i++) {
        owned.words[i] &= active.words[i];
    }
    return owned;
}

/** The pixels of a layer's input, in a part's box, that its own outputs read. */
BitImage read_bits(const PlannedLayer &layer, const BitImage &own, const PixelBox &input, RowMemory &memory) {
    BitImage read(input.shape);
    const auto axis_of = [](const Axis &axis) {
        return WindowAxis{axis.kernel, axis.stride, axis.pad_before, axis.dilation};
    };
    memory.reset();
    scatter_bits(own.view(), {axis_of(layer.rows), axis_of(layer.columns)}, input.shape.height, input.shape.width,
                 read.words.data(), memory);
    return read;
}

void unite(BitImage &image, const BitImage &other) {
    for (size_t i = 0; i < image.words.size(); i++) {
        image.words[i] |= other.words[i];
    }
}

void subtract(BitImage &image, const BitImage &other) {
    for (size_t i = 0; i < image.words.size(); i++) {
        image.words[i] &= ~other.words[i];
    }
}

/** Calls call(span) for each run of bits in a box. */
template<typename Call> void for_each_span(const BitImage &bits, const PixelBox &box, const Call &call) {
    for (int32_t n = 0; n < bits.shape.batch; n++) {
        for (int32_t y = 0; y < bits.shape.height; y++) {
            for_each_run(bits.row(n, y), bits.shape.width, [&](int32_t first, int32_t last) {
                call(Span{box.image + n, box.y + y, box.x + first, box.x + last});
            });
        }
    }
}

/** Makes a plan. */
class ChainPlanner {
public:
    ChainPlanner(const std::vector<PlannedLayer> &layers, const MaskShape &input,
                 const std::vector<const BitImage *> &masks, const Partition &partition, int32_t num_parts)
        : layers_(layers), masks_(masks), rows_{}, columns_{}, memory_(HostMemory(distile_context_options{})) {
        plan_.shapes = shapes_of(layers, input);
        plan_.parts.resize(static_cast<size_t>(num_parts));
        for (size_t i = 0; i <= layers.size(); i++) {
            rows_.sizes.push_back(plan_.shapes[i].height);
            columns_.sizes.push_back(plan_.shapes[i].width);
            rows_.scales.push_back(row_scale(layers, i));
            columns_.scales.push_back(column_scale(layers, i));
            owners_.emplace_back(partition, plan_.shapes[i], rows_.scales[i], columns_.scales[i]);
        }
        for (const PlannedLayer &layer : layers) {
            rows_.layers.push_back(layer.rows);
            columns_.layers.push_back(layer.columns);
        }
    }

    ChainPlan plan() {
        find_boxes();
        for (size_t part = 0; part < plan_.parts.size(); part++) {
            if (!plan_.parts[part].is_empty) {
                find_pixels(static_cast<uint16_t>(part));
            }
        }
        for (Part &part : plan_.parts) {
            for (size_t i = 0; i < part.fetches.size(); i++) {
                for (const Fetch &fetch : part.fetches[i]) {
                    add_rim(plan_.parts[static_cast<size_t>(fetch.from)], i, fetch);
                }
            }
        }
        for (Part &part : plan_.parts) {
            for (PartOutput &output : part.layers) {
                output.interior = output.own;
                subtract(output.interior, output.rim);
            }
        }
        return std::move(plan_);
    }

    /** The bytes of the halos alone. */
    int64_t count_halos() {
        find_boxes();
        int64_t bytes = 0;
        for (size_t number = 0; number < plan_.parts.size(); number++) {
            int64_t pixels = 0;
            for (size_t i = 1; i < layers_.size() && !plan_.parts[number].is_empty; i++) {
                pixels = repeats(i) ? pixels : count_halo(static_cast<uint16_t>(number), i);
                bytes += pixels * layers_[i - 1].pixel_bytes;
            }
        }
        return bytes;
    }

private:
    /** Whether a layer reads the same halo as the layer before it. */
    bool repeats(size_t layer) const {
        const auto same = [](const Axis &one, const Axis &other) {
            return one.kernel == other.kernel && one.stride == 1 && other.stride == 1 &&
                   one.dilation == other.dilation && one.pad_before == other.pad_before;
        };
        return layer >= 2 && masks_[layer] == masks_[layer - 1] && masks_[layer - 1] == masks_[layer - 2] &&
               same(layers_[layer].rows, layers_[layer - 1].rows) &&
               same(layers_[layer].columns, layers_[layer - 1].columns);
    }

    int64_t count_halo(uint16_t number, size_t layer) {
        const Part &part = plan_.parts[number];
        const BitImage own = owned_bits(*masks_[layer], owners_[layer + 1], number, part.boxes[layer + 1]);
        const BitImage before = owned_bits(*masks_[layer - 1], owners_[layer], number, part.boxes[layer]);
        BitImage halo = read_bits(layers_[layer], own, part.boxes[layer], memory_);
        leave_halo(part, layer, before, halo);
        return halo.count();
    }

    void find_boxes() {
        const auto num_parts = static_cast<int32_t>(plan_.parts.size());
        std::vector<std::vector<OwnedBounds>> outputs;
        for (size_t i = 0; i < layers_.size(); i++) {
            outputs.push_back(owned_bounds(*masks_[i], owners_[i + 1], num_parts));
        }
        for (size_t part = 0; part < plan_.parts.size(); part++) {
            Extent images;
            std::vector<Extent> rows(layers_.size() + 1), columns(layers_.size() + 1);
            for (size_t i = 0; i < layers_.size(); i++) {
                const OwnedBounds &own = outputs[i][part];
                images.include(own.images);
                rows[i + 1].include(own.rows);
                columns[i + 1].include(own.columns);
                rows[i].include(inputs_of(layers_[i].rows, own.rows, plan_.shapes[i].height));
                columns[i].include(inputs_of(layers_[i].columns, own.columns, plan_.shapes[i].width));
                if (layers_[i].residual >= 0) {
                    rows[static_cast<size_t>(layers_[i].residual)].include(own.rows);
                    columns[static_cast<size_t>(layers_[i].residual)].include(own.columns);
                }
            }
            if (images.is_empty()) {
                continue;
            }
            Part &made = plan_.parts[part];
            made.is_empty = false;
            made.neighbours.resize(plan_.parts.size());
            const std::vector<Extent> y = rows_.boxes(rows), x = columns_.boxes(columns);
            for (size_t i = 0; i <= layers_.size(); i++) {
                made.boxes.push_back({images.first,
                                      y[i].first,
                                      x[i].first,
                                      {images.last - images.first, y[i].last - y[i].first, x[i].last - x[i].first}});
            }
        }
    }

    void find_pixels(uint16_t number) {
        Part &part = plan_.parts[number];
        BitImage input(part.boxes[0].shape);
        part.fetches.resize(layers_.size());
        for (size_t i = 0; i < layers_.size(); i++) {
            PartOutput output{owned_bits(*masks_[i], owners_[i + 1], number, part.boxes[i + 1]), {}, {}, 0};
            output.rim = BitImage(output.own.shape);
            output.pixels = output.own.count();
            BitImage read = read_bits(layers_[i], output.own, part.boxes[i], memory_);
            if (i == 0) {
                unite(input, read);
            } else {
                find_fetches(number, i, read);
            }
            // A residual is a tensor of this resolution, so its box is the output's.
            if (layers_[i].residual == 0) {
                unite(input, output.own);
            }
            part.layers.push_back(std::move(output));
        }
        part.input_pixels = input.count();
        for_each_span(input, part.boxes[0], [&](const Span &span) { part.input.push_back(span); });
        for_each_span(part.layers.back().own, part.boxes.back(),
                      [&](const Span &span) { part.output.push_back(span); });
    }

    /** Leaves of what a part reads of a tensor what others compute. Their inactive pixels are 0 everywhere. */
    void leave_halo(const Part &part, size_t tensor, const BitImage &own, BitImage &read) const {
        const BitImage active = crop(*masks_[tensor - 1], part.boxes[tensor]);
        for (size_t i = 0; i < read.words.size(); i++) {
            read.words[i] &= active.words[i];
        }
        subtract(read, own);
    }

    /** What a part fetches of a tensor of which it reads some pixels. */
    void find_fetches(uint16_t number, size_t tensor, BitImage &read) {
        Part &part = plan_.parts[number];
        leave_halo(part, tensor, part.layers[tensor - 1].own, read);
        std::vector<Fetch> fetches(plan_.parts.size());
        for_each_span(read, part.boxes[tensor], [&](const Span &span) {
            owners_[tensor].for_each_owner(span.image, span.y, span.first, span.last,
                                           [&](uint16_t owner, int32_t first, int32_t last) {
                                               fetches[owner].spans.push_back({span.image, span.y, first, last});
                                               fetches[owner].pixels += last - first;
                                           });
        });
        for (size_t from = 0; from < fetches.size(); from++) {
            if (fetches[from].pixels == 0) {
                continue;
            }
            fetches[from].from = static_cast<int32_t>(from);
            plan_.halo_pixels += fetches[from].pixels;
            plan_.halo_bytes += fetches[from].pixels * layers_[tensor - 1].pixel_bytes;
            part.neighbours[from] = true;
            plan_.parts[from].neighbours[number] = true;
            part.fetches[tensor - 1].push_back(std::move(fetches[from]));
        }
    }

    static void add_rim(Part &owner, size_t layer, const Fetch &fetch) {
        const PixelBox &box = owner.boxes[layer + 1];
        for (const Span &span : fetch.spans) {
            owner.layers[layer].rim.set(span.image - box.image, span.y - box.y, span.first - box.x, span.last - box.x);
        }
    }

    const std::vector<PlannedLayer> &layers_;
    const std::vector<const BitImage *> &masks_;
    ChainAxis rows_, columns_;
    std::vector<TensorOwners> owners_;  ///< One for each tensor.
    RowMemory memory_;
    ChainPlan plan_;
};

}  // namespace

std::vector<MaskShape> shapes_of(const std::vector<PlannedLayer> &layers, const MaskShape &input) {
    std::vector<MaskShape> shapes{input};
    for (const PlannedLayer &layer : layers) {
        const MaskShape &before = shapes.back();
        shapes.push_back({input.batch, static_cast<int32_t>(conv_output_extent(layer.rows, before.height)),
                          static_cast<int32_t>(conv_output_extent(layer.columns, before.width))});
    }
    return shapes;
}

int32_t row_scale(const std::vector<PlannedLayer> &layers, size_t tensor) {
    int32_t scale = 1;
    for (size_t i = 0; i < tensor; i++) {
        scale *= layers[i].rows.stride;
    }
    return scale;
}

int32_t column_scale(const std::vector<PlannedLayer> &layers, size_t tensor) {
    int32_t scale = 1;
    for (size_t i = 0; i < tensor; i++) {
        scale *= layers[i].columns.stride;
    }
    return scale;
}

std::vector<CostedMask> costs_of(const std::vector<PlannedLayer> &layers, const std::vector<const BitImage *> &masks) {
    std::vector<CostedMask> costs;
    for (size_t i = 0; i < layers.size(); i++) {
        const CostedMask cost{masks[i], row_scale(layers, i + 1), column_scale(layers, i + 1), layers[i].work};
        const auto same = std::find_if(costs.begin(), costs.end(), [&](const CostedMask &other) {
            return other.mask == cost.mask && other.scale_h == cost.scale_h && other.scale_w == cost.scale_w;
        });
        if (same != costs.end()) {
            same->work += cost.work;
        } else {
            costs.push_back(cost);
        }
    }
    return costs;
}

std::vector<Fetch> by_owner(const SpanList &spans, const Partition &partition, const MaskShape &input,
                            int32_t num_parts) {
    const TensorOwners owners(partition, input, 1, 1);
    std::vector<Fetch> all(static_cast<size_t>(num_parts));
    for (const Span &span : spans) {
        owners.for_each_owner(span.image, span.y, span.first, span.last,
                              [&](uint16_t owner, int32_t first, int32_t last) {
                                  all[owner].spans.push_back({span.image, span.y, first, last});
                                  all[owner].pixels += last - first;
                              });
    }
    std::vector<Fetch> fetches;
    for (size_t owner = 0; owner < all.size(); owner++) {
        if (all[owner].pixels > 0) {
            all[owner].from = static_cast<int32_t>(owner);
            fetches.push_back(std::move(all[owner]));
        }
    }
    return fetches;
}

std::vector<KeptPart> kept_parts(const Partition &partition, const MaskShape &input, int32_t num_parts) {
    SpanList rows;
    for (int32_t n = 0; n < input.batch; n++) {
        for (int32_t y = 0; y < input.height; y++) {
            rows.push_back({n, y, 0, input.width});
        }
    }
    std::vector<KeptPart> parts(static_cast<size_t>(num_parts));
    for (Fetch &fetch : by_owner(rows, partition, input, num_parts)) {
        OwnedBounds bounds;
        for (const Span &span : fetch.spans) {
            bounds.images.include({span.image, span.image + 1});
            bounds.rows.include({span.y, span.y + 1});
            bounds.columns.include({span.first, span.last});
        }
        KeptPart &part = parts[static_cast<size_t>(fetch.from)];
        part.box = {bounds.images.first,
                    bounds.rows.first,
                    bounds.columns.first,
                    {bounds.images.last - bounds.images.first, bounds.rows.last - bounds.rows.first,
                     bounds.columns.last - bounds.columns.first}};
        part.spans = std::move(fetch.spans);
    }
    return parts;
}

int64_t halo_bytes_of(const std::vector<PlannedLayer> &layers, const MaskShape &input,
                      const std::vector<const BitImage *> &masks, const Partition &partition, int32_t num_parts) {
    return ChainPlanner(layers, input, masks, partition, num_parts).count_halos();
}

Partition partition_chain(const std::vector<PlannedLayer> &layers, const MaskShape &input,
                          const std::vector<const BitImage *> &masks, const std::vector<DeviceTime> &devices) {
    const std::vector<CostedMask> costs = costs_of(layers, masks);
    const PartitionRules rules{good_imbalance, row_scale(layers, layers.size()), column_scale(layers, layers.size())};
    Partition best;
    int64_t least = INT64_MAX;
    double balance = std::numeric_limits<double>::infinity();
    const auto consider = [&](Partition candidate) {
        const double imbalance = imbalance_of(candidate, count_cells_of(candidate, costs, input), devices);
        // What does not balance counts by how little it lacks.
        const double over = imbalance < most_imbalance ? 0 : imbalance;
        if (over > balance) {
            return;
        }
        const int64_t bytes = halo_bytes_of(layers, input, masks, candidate, static_cast<int32_t>(devices.size()));
        if (over < balance || bytes < least) {
            best = std::move(candidate);
            least = bytes;
            balance = over;
        }
    };
    for (const bool transposed : {false, true}) {
        for (const bool mirrored : {false, true}) {
            consider(partition_along({CellOrder::Hilbert, transposed, mirrored}, costs, input, devices, rules));
        }
    }
    consider(partition_rows(costs, input, devices, rules.multiple_h));
    consider(partition_bands(false, costs, input, devices, rules));
    consider(partition_bands(true, costs, input, devices, rules));
    return best;
}

bool renew_partition(Partition &partition, const std::vector<PlannedLayer> &layers, const MaskShape &input,
                     const std::vector<const BitImage *> &masks, const std::vector<DeviceTime> &devices,
                     double threshold) {
    const std::vector<CostedMask> costs = costs_of(layers, masks);
    const auto imbalance_now = [&](const Partition &any) {
        return imbalance_of(any, count_cells_of(any, costs, input), devices);
    };
    const double before = fits(partition, input) ? imbalance_now(partition) : std::numeric_limits<double>::infinity();
    if (before <= threshold) {
        return false;
    }
    Partition next = partition_chain(layers, input, masks, devices);
    // Where pixels are too coarse for the threshold, only a real gain is worth moving data.
    if (imbalance_now(next) > before - threshold / 2) {
        return false;
    }
    partition = std::move(next);
    return true;
}

ChainPlan plan_chain(const std::vector<PlannedLayer> &layers, const MaskShape &input,
                     const std::vector<const BitImage *> &masks, const Partition &partition, int32_t num_parts) {
    return ChainPlanner(layers, input, masks, partition, num_parts).plan();
}

}  // namespace distile
