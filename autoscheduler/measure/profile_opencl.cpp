#include "points.h"
#include "profile.h"
#include "spread.h"
#include "trial_runner.h"
#include <algorithm>
#include <chrono>
#include <cmath>

namespace distile {

namespace {

/** Numbers of tiles to measure: few, where a call's fixed costs show, then parts of the image. */
std::vector<int64_t> tile_counts(int64_t all) {
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

/** The median time of calls, which take so many seconds together. */
double median_time(TrialRunner &runner, size_t mask, double seconds) {
    using Clock = std::chrono::steady_clock;
    constexpr size_t least = 3, most = 1000;
    std::vector<double> times;
    const Clock::time_point start = Clock::now();
    do {
        times.push_back(runner.time_us(mask));
    } while (times.size() < least ||
             (times.size() < most && std::chrono::duration<double>(Clock::now() - start).count() < seconds));
    return Spread(times).median;
}

}  // namespace

Profile profile_opencl(const Plan &plan, const SharedObject &object, const ProfileOptions &options,
                       const Progress &progress) {
    const std::unique_ptr<TrialDevice> device = make_opencl_device(options.threads.empty() ? 0 : options.threads[0]);
    const int units = opencl_units();
    const Operator &op = plan.op;
    Profile profile{device->name(), {}};
    for (size_t i = 0; i < plan.variants.size(); i++) {
        const PlanVariant &variant = plan.variants[i];
        progress("measuring " + variant.name, static_cast<double>(i) / static_cast<double>(plan.variants.size()));
        distile_polykernel single = object.polykernel();
        single.variants += i;
        single.num_variants = 1;
        single.num_times = 0;
        single.otherwise = nullptr;
        // A dense variant computes every tile, so parts of the image stand for numbers of tiles.
        const std::vector<Extents> inputs =
            variant.dense ? parts_of_input(op) : std::vector<Extents>{{op.typical_height, op.typical_width}};
        for (const Extents &input : inputs) {
            const TrialData data(op, op.typical_batch, input, false);
            const std::unique_ptr<TrialRunner> runner = device->runner(single, data);
            const auto [height, width] = data.output_extents;
            const int64_t all = tiles_of_image(data.output_extents, variant.tile_h(), variant.tile_w());
            const TileDisc disc(height, width, variant.tile_h(), variant.tile_w());
            const std::vector<int64_t> counts = variant.dense ? std::vector<int64_t>{all} : tile_counts(all);
            for (int64_t count : counts) {
                const std::vector<uint8_t> image = disc.mask(count);
                std::vector<uint8_t> bytes;
                for (int n = 0; n < data.batch; n++) {
                    bytes.insert(bytes.end(), image.begin(), image.end());
                }
                const double part = 1.0 / static_cast<double>(inputs.size() * counts.size());
                profile.times.push_back(
                    {variant.name, units, data.batch * count,
                     median_time(*runner, runner->add_mask(bytes), options.seconds_per_variant * part)});
            }
        }
    }
    return profile;
}

}  // namespace distile
