#include "runtime/dispatch/device_choice.h"
#include "runtime/dispatch/kernel.h"
#include "runtime/dispatch/possible_variants.h"
#include <algorithm>
#include <cstring>

namespace distile {

namespace {

/** The most tables that a kernel keeps, not counting those of graphs. */
constexpr std::ptrdiff_t most_tables = 16;

/** The bytes of a vector's elements. */
template<typename T> size_t bytes_of(const std::vector<T> &values) {
    return values.size() * sizeof(T);
}

ChoiceTable make_table(const distile_kernel &kernel, const MaskShape &shape, double stretch, bool capturing) {
    // What the application's dense candidates enqueue runs in any case, so they are left out.
    std::vector<TimedVariant> own;
    std::vector<std::vector<TimePoint>> stretched;
    for (int32_t i = 0; i < kernel.polykernel.num_variants; i++) {
        own.push_back(kernel.timed(i));
        if (stretch > 1 && kernel.variants[i].skips_zeros) {
            stretched.emplace_back(own[i].points, own[i].points + own[i].num_points);
            for (TimePoint &point : stretched.back()) {
                point.microseconds *= stretch;
            }
            own[i].points = stretched.back().data();
        }
    }
    ChoiceTable table{};
    table.shape = shape;
    table.stretch = stretch;
    table.variants = possible_variants(own, shape);
    if (const double launch_us = kernel.context.device->launch_us(); launch_us > 0) {
        Launches launches{{}, launch_us, kernel.polykernel.run_chosen ? 0 : launch_us};
        for (int32_t i = 0; i < kernel.polykernel.num_variants; i++) {
            launches.of_variants.push_back(kernel.polykernel.variants[i].launch);
        }
        table.variants = worth_launching(own, table.variants, shape, launches);
    }
    if (table.variants.size() < 2) {
        return table;
    }
    if (capturing) {
        throw Failure{fail(&kernel.context, DISTILE_ERROR_CAPTURING,
                           "the GPU cannot choose a variant of '%s' for masks of this shape yet; before the capture, "
                           "make the same call in a context with the option choose_on_device, or name a variant",
                           kernel.polykernel.name)};
    }
    std::vector<ChoiceVariant> variants;
    std::vector<TimePoint> points;
    for (const int32_t index : table.variants) {
        const TimedVariant &variant = own[index];
        const Granularity granularity = {variant.tile_h, variant.tile_w};
        const auto num_known = static_cast<int32_t>(table.granularities.size());
        const int32_t place = table.place_of(granularity);
        if (variant.dense == 0 && place == num_known) {
            table.granularities.push_back(granularity);
        }
        variants.push_back({index, place, variant.tile_h, variant.tile_w, variant.dense,
                            static_cast<int32_t>(points.size()), variant.num_points,
                            static_cast<uint32_t>(num_tiles(shape, granularity))});
        points.insert(points.end(), variant.points, variant.points + variant.num_points);
    }
    table.ranges = choice_by_count(own, table.variants, shape);
    table.operands.resize(variants.size());
    table.calls.resize(variants.size());
    table.counts.resize(table.granularities.size());
    std::vector<unsigned char> bytes(bytes_of(variants) + bytes_of(points));
    std::memcpy(bytes.data(), variants.data(), bytes_of(variants));
    std::copy_n(reinterpret_cast<const unsigned char *>(points.data()), bytes_of(points),
                bytes.data() + bytes_of(variants));
    table.memory = kernel.context.device->upload(bytes.data(), bytes.size());
    table.bytes = static_cast<uint32_t>(bytes.size());
    return table;
}

}  // namespace

int32_t ChoiceTable::place_of(const Granularity &granularity) const {
    return static_cast<int32_t>(std::find(granularities.begin(), granularities.end(), granularity) -
                                granularities.begin());
}

ChoiceTable &ChoiceTables::find(const distile_kernel &kernel, const MaskShape &shape, double stretch) {
    const bool capturing = kernel.context.device->is_capturing();
    auto found = std::find_if(tables_.begin(), tables_.end(), [&](const ChoiceTable &table) {
        return !table.stale && table.shape == shape && table.stretch == stretch;
    });
    if (found == tables_.end()) {
        tables_.reserve(tables_.size() + 1);
        ChoiceTable made = make_table(kernel, shape, stretch, capturing);
        // A capture forbids to free memory.
        if (!capturing) {
            tables_.erase(std::remove_if(tables_.begin(), tables_.end(),
                                         [](const ChoiceTable &table) { return table.stale && !table.captured; }),
                          tables_.end());
            const auto is_free = [](const ChoiceTable &table) { return !table.captured; };
            if (std::count_if(tables_.begin(), tables_.end(), is_free) >= most_tables) {
                tables_.erase(std::find_if(tables_.begin(), tables_.end(), is_free));
            }
        }
        tables_.push_back(std::move(made));
        found = tables_.end() - 1;
    }
    found->captured = found->captured || capturing;
    return *found;
}

void ChoiceTables::forget() noexcept {
    for (ChoiceTable &table : tables_) {
        table.stale = true;
    }
}

}  // namespace distile
