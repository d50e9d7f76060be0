#include "autoscheduler/measure/orders.h"
#include "autoscheduler/measure/trial_runner.h"
#include "autoscheduler/search/spread.h"
#include "masks/mask_families.h"
#include <array>
#include <chrono>
#include <cmath>

namespace distile {

namespace {

constexpr std::array<distile_tile_order, 3> orders = {DISTILE_TILES_BY_ROWS, DISTILE_TILES_ALONG_MORTON,
                                                      DISTILE_TILES_ALONG_HILBERT};
constexpr std::array<const char *, 2> masks = {"blob:0.3:1", "blob:0.9:1"};
constexpr double worth = .98;
constexpr int least_order_rounds = 5;

/** A variant in an order. */
struct OrderedVariant {
    OrderedVariant(const distile_polykernel &polykernel, size_t number, distile_tile_order order, TrialDevice &device,
                   const TrialData &data)
        : variant(polykernel.variants[number]), single(alone(polykernel, number)) {
        variant.order = order;
        single.variants = &variant;
        runner = device.runner(single, data);
    }
    OrderedVariant(const OrderedVariant &) = delete;
    OrderedVariant &operator=(const OrderedVariant &) = delete;

    distile_variant variant;
    distile_polykernel single;
    std::unique_ptr<TrialRunner> runner;
    std::array<std::vector<double>, masks.size()> us;
};

distile_tile_order best_order(const distile_polykernel &polykernel, size_t number, TrialDevice &device,
                              const TrialData &data, double seconds) {
    using Clock = std::chrono::steady_clock;
    std::vector<std::unique_ptr<OrderedVariant>> variants;
    const auto [height, width] = data.mask_extents();
    for (const distile_tile_order order : orders) {
        variants.push_back(std::make_unique<OrderedVariant>(polykernel, number, order, device, data));
        for (const char *mask : masks) {
            variants.back()->runner->add_mask(draw_named_mask(mask, data.batch, height, width).bytes);
        }
    }
    const Clock::time_point end =
        Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
    for (int round = 0; round < least_order_rounds || Clock::now() < end; round++) {
        for (size_t mask = 0; mask < masks.size(); mask++) {
            for (const std::unique_ptr<OrderedVariant> &one : variants) {
                one->us[mask].push_back(one->runner->time_us(mask));
            }
        }
    }
    distile_tile_order best = DISTILE_TILES_BY_ROWS;
    double least = worth;
    for (size_t i = 1; i < variants.size(); i++) {
        double ratio = 1;
        for (size_t mask = 0; mask < masks.size(); mask++) {
            ratio *= Spread(variants[i]->us[mask]).median / Spread(variants[0]->us[mask]).median;
        }
        ratio = std::pow(ratio, 1.0 / static_cast<double>(masks.size()));
        if (ratio < least) {
            least = ratio;
            best = orders[i];
        }
    }
    return best;
}

}  // namespace

std::vector<distile_tile_order> measure_orders(const Plan &plan, const SharedObject &object, int threads,
                                               double seconds_per_variant, const Progress &progress) {
    const std::unique_ptr<TrialDevice> device = make_cpu_device(threads);
    const TrialData data(plan.op, plan.op.typical_batch, {plan.op.typical_height, plan.op.typical_width}, true);
    std::vector<distile_tile_order> found(plan.variants.size(), DISTILE_TILES_BY_ROWS);
    for (size_t i = 0; i < found.size(); i++) {
        progress("measuring orders", static_cast<double>(i) / static_cast<double>(found.size()));
        if (!plan.variants[i].dense) {
            found[i] = best_order(object.polykernel(), i, *device, data, seconds_per_variant);
        }
    }
    return found;
}

}  // namespace distile
