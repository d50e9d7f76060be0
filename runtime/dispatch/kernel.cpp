#include "runtime/dispatch/kernel.h"
#include "runtime/base/types.h"
#include "runtime/dispatch/quantized_operator.h"
#include <algorithm>
#include <cstring>

using namespace distile;

namespace {

/** The most full masks that a kernel keeps, not counting those of graphs. */
constexpr std::ptrdiff_t most_full_masks = 16;

/** The power of a number that is nearest to a stretch: layers with about as many nonzeros share a table. */
double step_of(double stretch) {
    constexpr double base = 1.25, half = 1.118;
    double step = 1;
    while (step * half < stretch) {
        step *= base;
    }
    return step;
}

/** What packed weights of a quantized operator depend on beside their shape; "" for all others. */
std::string quantized_types(const distile_polykernel &polykernel) {
    if (!is_quantized(polykernel)) {
        return "";
    }
    const QuantizedOperator quantized = quantized_operator(polykernel);
    return std::string(", ") + find_type(quantized.input)->name + " to " + find_type(quantized.output)->name +
           (quantized.in_output_units ? " in its units" : "");
}

}  // namespace

distile_kernel::distile_kernel(distile_context &given, const distile_polykernel &of)
    : context(given), polykernel(of), kind(*find_operator_kind(of.kind)), input(*find_operand(of, DISTILE_ROLE_INPUT)),
      output(*find_operand(of, DISTILE_ROLE_OUTPUT)), residual(find_operand(of, DISTILE_ROLE_RESIDUAL)),
      key(find_operand(of, DISTILE_ROLE_KEY)), value(find_operand(of, DISTILE_ROLE_VALUE)),
      weights_shape(kind.weights ? kind.weights->shape(of.op) + quantized_types(of) : ""),
      threads_(given.device->threads()) {
    for (int32_t i = 0; i < of.num_variants; i++) {
        const WeightLayout *layout = kind.weights ? find_layout(of.variants[i].layout) : nullptr;
        variants.push_back({of.variants[i], layout && skips_zeros(*layout), {}});
        if (layout && std::find(layouts.begin(), layouts.end(), layout) == layouts.end()) {
            layouts.push_back(layout);
        }
        if (of.variants[i].dense == 0) {
            granularities_.push_back({of.variants[i].tile_h, of.variants[i].tile_w});
        }
    }
    granularities_.push_back({1, 1});
    tiles_.resize(granularities_.size());
    set_times(std::vector<distile_time_point>(of.times, of.times + of.num_times));
}

int32_t distile_kernel::find(const char *name) const {
    for (int32_t i = 0; i < num_variants(); i++) {
        if (std::strcmp(name, variants[i].name) == 0) {
            return i;
        }
    }
    return -1;
}

void distile_kernel::add_dense(const distile_dense_candidate &candidate) {
    // Everything that can fail comes first, so a failure leaves the kernel unchanged.
    TimeTable times(points_, num_variants() + 1, threads_);
    variants.reserve(variants.size() + 1);
    names_.emplace_back(candidate.name);
    Variant variant{};
    variant.name = names_.back().c_str();
    variant.tile_h = variant.tile_w = 1;
    variant.dense = 1;
    variant.external = candidate;
    variant.external.name = variant.name;
    variants.push_back(variant);
    times_ = std::move(times);
}

void distile_kernel::set_times(std::vector<distile_time_point> points) {
    times_ = TimeTable(points, num_variants(), threads_);
    points_ = std::move(points);
    choice_tables_.forget();
}

void distile_kernel::add_time(int32_t variant, int64_t tiles, double microseconds) {
    std::vector<distile_time_point> points = points_;
    const bool is_first = std::none_of(points.begin(), points.end(), [&](const distile_time_point &point) {
        return point.variant == variant && point.threads == threads_;
    });
    if (is_first && times_.knows(variant)) {
        // The points of other thread counts give the curve its shape, this point its height.
        const double scale = microseconds / times_.predict(variant, tiles);
        for (const TimePoint &point : times_.points(variant)) {
            points.push_back({variant, threads_, point.tiles, scale * point.microseconds});
        }
    }
    points.erase(std::remove_if(points.begin(), points.end(),
                                [&](const distile_time_point &point) {
                                    return point.variant == variant && point.tiles == tiles &&
                                           point.threads == threads_;
                                }),
                 points.end());
    points.push_back({variant, threads_, tiles, microseconds});
    set_times(std::move(points));
}

distile_choice distile_kernel::choice_of(int32_t variant, int64_t active_pixels, int64_t tiles) const {
    const distile_variant &chosen = variants[variant];
    distile_choice choice{};
    choice.kernel = polykernel.name;
    choice.variant = chosen.name;
    choice.variant_index = variant;
    choice.dense = chosen.dense;
    choice.tile_h = chosen.tile_h;
    choice.tile_w = chosen.tile_w;
    choice.tiles = tiles;
    choice.active_pixels = active_pixels;
    choice.predicted_us = tiles >= 0 && times_.knows(variant) ? times_.predict(variant, tiles) : 0;
    return choice;
}

distile_choice distile_kernel::describe(int32_t variant, distile_mask &mask) const {
    if (!mask.counts_on_host()) {
        return choice_of(variant, -1, -1);
    }
    const distile_variant &which = variants[variant];
    const Granularity granularity = {which.tile_h, which.tile_w};
    int64_t tiles = num_tiles(mask.shape, granularity);
    if (which.dense == 0) {
        mask.count(&granularity, 1, &tiles);
    }
    return choice_of(variant, mask.active_pixels(), tiles);
}

bool distile_kernel::has_every_key(distile_mask *key_mask) const {
    if (!key_mask) {
        return true;
    }
    // A graph takes any key mask that it finds when it is launched.
    return !context.device->is_capturing() && !context.device->chooses_for(*key_mask) &&
           key_mask->active_pixels() == key_mask->shape.num_pixels();
}

double distile_kernel::stretch_of(const distile_weights *weights) const {
    const bool known = weights && polykernel.nonzeros > 0;
    return known ? std::max(1.0, static_cast<double>(weights->nonzeros) / static_cast<double>(polykernel.nonzeros)) : 1;
}

distile_choice distile_kernel::choose(distile_mask &mask, distile_mask *key_mask, const distile_weights *weights) {
    // Count all granularities at once, so a GPU makes us wait only once.
    mask.count(granularities_.data(), static_cast<int32_t>(granularities_.size()), tiles_.data());
    int32_t best = 0;
    int64_t best_tiles = 0;
    Cost best_cost{};
    const int64_t *counted = tiles_.data();
    const double stretch = stretch_of(weights);
    for (int32_t i = 0; i < num_variants(); i++) {
        const distile_variant &variant = variants[i];
        const int64_t tiles = variant.dense ? num_tiles(mask.shape, {variant.tile_h, variant.tile_w}) : *counted++;
        Cost cost = cost_of(timed(i), tiles);
        cost.value *= variants[i].skips_zeros ? stretch : 1;
        if (i == 0 || is_better(cost, best_cost)) {
            // The candidates come last, so they share one answer; it may take a wait, so only the fastest asks.
            if (is_external(i) && !has_every_key(key_mask)) {
                break;
            }
            best = i;
            best_tiles = tiles;
            best_cost = cost;
        }
    }
    return choice_of(best, tiles_.back(), best_tiles);
}

TimedVariant distile_kernel::timed(int32_t variant) const {
    const distile_variant &of = variants[variant];
    const std::vector<TimePoint> &points = times_.points(variant);
    return {points.data(), static_cast<int32_t>(points.size()), of.tile_h, of.tile_w, of.dense};
}

ChoiceTable &distile_kernel::choice_table(const MaskShape &shape, const distile_weights *weights) {
    ChoiceTable &table = choice_tables_.find(*this, shape, step_of(stretch_of(weights)));
    if (table.variants.size() > 1 && !chooser) {
        chooser = context.device->make_chooser(polykernel.num_variants);
    }
    return table;
}

distile_choice distile_kernel::choose_on_device(const distile_mask &mask, const distile_weights *weights) {
    const ChoiceTable &table = choice_table(mask.shape, weights);
    if (table.variants.size() == 1) {
        return choice_of(table.variants.front(), -1, -1);
    }
    distile_choice choice{};
    choice.kernel = polykernel.name;
    choice.variant = chosen_on_device;
    choice.variant_index = -1;
    choice.tiles = choice.active_pixels = -1;
    return choice;
}

distile_mask &distile_kernel::full_mask(const MaskShape &shape) {
    const bool capturing = context.device->is_capturing();
    auto found = std::find_if(full_masks_.begin(), full_masks_.end(),
                              [&](const FullMask &full) { return full.mask->shape == shape; });
    if (found == full_masks_.end()) {
        if (capturing) {
            throw Failure{
                fail(&context, DISTILE_ERROR_CAPTURING,
                     "'%s' needs tiles for a new shape during graph capture; make the same calls with the same "
                     "shapes once before the capture",
                     polykernel.name)};
        }
        const auto is_free = [](const FullMask &full) { return !full.captured; };
        FullMask made{};
        if (std::count_if(full_masks_.begin(), full_masks_.end(), is_free) < most_full_masks) {
            full_masks_.reserve(full_masks_.size() + 1);
            made.mask = context.device->make_mask();
        } else {
            found = std::find_if(full_masks_.begin(), full_masks_.end(), is_free);
            made = std::move(*found);
            full_masks_.erase(found);
        }
        made.mask->set_all(shape);
        full_masks_.push_back(std::move(made));
        found = full_masks_.end() - 1;
    }
    found->captured = found->captured || capturing;
    return *found->mask;
}
