#include "autoscheduler/measure/points.h"
#include "autoscheduler/measure/profile.h"
#include "autoscheduler/measure/trial_runner.h"
#include "autoscheduler/search/disturbance.h"
#include "autoscheduler/search/spread.h"
#include <algorithm>
#include <chrono>
#include <cmath>

namespace distile {

namespace {

/** Numbers of tiles of an image to measure: few, where a call's fixed costs show, then parts of the image. */
std::vector<int64_t> opencl_tile_counts(int64_t all) {
    std::vector<int64_t> counts = {1, 16, 64};
    for (double part : {0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0}) {
        counts.push_back(std::llround(part * static_cast<double>(all)));
    }
    counts.erase(std::remove_if(counts.begin(), counts.end(), [&](int64_t count) { return count < 1 || count > all; }),
                 counts.end());
    std::sort(counts.begin(), counts.end());
    counts.erase(std::unique(counts.begin(), counts.end()), counts.end());
    return counts;
}

/** The repeats of a call. */
struct Repeats {
    std::vector<double> us;
    Disturbance disturbance;
};

/** Repeats a call for some seconds. */
Repeats repeat(TrialRunner &runner, size_t mask, const RepeatedTime &point, double seconds) {
    using Clock = std::chrono::steady_clock;
    constexpr size_t least = 3, most = 1000;
    RepeatedTime repeated = point;
    const Clock::time_point start = Clock::now();
    do {
        repeated.us.push_back(runner.time_us(mask));
    } while (repeated.us.size() < least ||
             (repeated.us.size() < most && std::chrono::duration<double>(Clock::now() - start).count() < seconds));
    return {repeated.us, disturbance_of({repeated}, 0)};
}

/** Measures the variants of a plan one by one. */
class OpenClMeasurer {
public:
    OpenClMeasurer(const Plan &plan, const SharedObject &object, TrialDevice &device, int units)
        : plan_(plan), object_(object), device_(device), units_(units) {
    }

    /** Adds the times of a variant, measured in about `seconds` seconds. */
    void measure(size_t index, double seconds, Profile &profile) const {
        const PlanVariant &variant = plan_.variants[index];
        const Operator &op = plan_.op;
        const distile_polykernel single = alone(object_.polykernel(), index);
        const Extents whole{op.typical_height, op.typical_width};
        const std::vector<PlanTime> &times = profile.times;
        const size_t first = times.size();
        for (const int images : {1, few_images, most_images}) {
            // A dense variant computes every tile, so parts of the image stand for numbers of tiles.
            const std::vector<Extents> inputs =
                variant.dense && images == 1 ? parts_of_input(op) : std::vector<Extents>{whole};
            for (const Extents &input : inputs) {
                measure(single, variant, images, input, seconds / static_cast<double>(3 * inputs.size()), profile);
            }
            // Slow devices get small batches, and larger ones take as much longer.
            if (times.size() > first && times.back().microseconds > slow_us) {
                break;
            }
        }
    }

private:
    static constexpr double slow_us = 50000;

    /** Adds those of numbers of tiles beyond the last. */
    void measure(const distile_polykernel &single, const PlanVariant &variant, int images, const Extents &input,
                 double seconds, Profile &profile) const {
        std::vector<PlanTime> &times = profile.times;
        const TrialData data(plan_.op, images, input, false);
        const std::unique_ptr<TrialRunner> runner = device_.runner(single, data);
        const auto [height, width] = data.output_extents;
        const int64_t all = tiles_of_image(data.output_extents, variant.tile_h(), variant.tile_w());
        const TileDisc disc(height, width, variant.tile_h(), variant.tile_w());
        const std::vector<int64_t> counts = variant.dense ? std::vector<int64_t>{all} : opencl_tile_counts(all);
        for (const int64_t count : counts) {
            const bool is_known = !times.empty() && times.back().variant == variant.name;
            if (is_known && images * count <= times.back().tiles) {
                continue;
            }
            const std::vector<uint8_t> image = disc.mask(count);
            std::vector<uint8_t> bytes;
            for (int n = 0; n < images; n++) {
                bytes.insert(bytes.end(), image.begin(), image.end());
            }
            const RepeatedTime point{variant.name, images * count, {}};
            const size_t mask = runner->add_mask(bytes);
            const Repeats repeats =
                steadiest([&] { return repeat(*runner, mask, point, seconds / static_cast<double>(counts.size())); });
            times.push_back({variant.name, units_, point.tiles, Spread(repeats.us).median});
            if (profile.doubt.empty()) {
                profile.doubt = doubt_of(repeats.disturbance);
            }
        }
    }

    const Plan &plan_;
    const SharedObject &object_;
    TrialDevice &device_;
    int units_;
};

}  // namespace

Profile profile_opencl(const Plan &plan, const SharedObject &object, const ProfileOptions &options,
                       const Progress &progress) {
    const std::unique_ptr<TrialDevice> device = make_opencl_device(options.threads.empty() ? 0 : options.threads[0]);
    const OpenClMeasurer measurer(plan, object, *device, opencl_units());
    Profile profile{device->name(), {}, ""};
    for (size_t i = 0; i < plan.variants.size(); i++) {
        progress("measuring " + plan.variants[i].name,
                 static_cast<double>(i) / static_cast<double>(plan.variants.size()));
        measurer.measure(i, options.seconds_per_variant, profile);
    }
    return profile;
}

}  // namespace distile
