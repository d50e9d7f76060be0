#include "autoscheduler/measure/profile.h"
#include "autoscheduler/measure/host_tensor.h"
#include "autoscheduler/measure/points.h"
#include "autoscheduler/measure/trial_runner.h"
#include "autoscheduler/measure/waiting.h"
#include "autoscheduler/search/disturbance.h"
#include "autoscheduler/search/spread.h"
#include "reference/processor.h"
#include <algorithm>
#include <chrono>
#include <cmath>
#include <distile/distile.hpp>
#include <thread>

namespace distile {

namespace {

/** Tile counts to measure: a few small ones, where a call's fixed costs show, then parts of the image. */
std::vector<int64_t> tile_counts(int64_t all) {
    std::vector<int64_t> counts = {1, 16, 48};
    for (double part : {0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.7, 0.85, 1.0}) {
        counts.push_back(std::llround(part * static_cast<double>(all)));
    }
    counts.erase(std::remove_if(counts.begin(), counts.end(), [&](int64_t count) { return count < 1 || count > all; }),
                 counts.end());
    std::sort(counts.begin(), counts.end());
    counts.erase(std::unique(counts.begin(), counts.end()), counts.end());
    return counts;
}

/** One point to measure: a variant with a mask, over the whole typical image or, for a dense candidate, over a part. */
struct Point {
    const char *variant;
    int64_t tiles;
    distile_tensor input, output, residual;
    Mask mask;
    std::vector<double> microseconds;
};

/** The tensors of a plan's typical size: a bordered input, an output and a residual. */
struct Tensors {
    explicit Tensors(const Operator &op)
        : input(op.dtype(), op.typical_batch, {op.typical_height, op.typical_width}, op.in_channels(), op.border()),
          output(op.output_dtype(), op.typical_batch, op.typical_output(), op.out_channels()),
          residual(op.output_dtype(), op.typical_batch, op.typical_output(), op.out_channels()) {
        // Any numbers will do that are neither all zero nor denormal.
        std::vector<float> values(int64_t{op.typical_batch} * op.typical_height * op.typical_width * op.in_channels());
        for (size_t i = 0; i < values.size(); i++) {
            values[i] = static_cast<float>(i % 17) * 0.125f - 1.0f;
        }
        input.set(values);
        values.resize(int64_t{op.typical_batch} * op.typical_keys * std::max(op.in_channels(), op.out_channels()),
                      0.5f);
        tokens = store_as(op.dtype(), values);
    }

    HostTensor input, output, residual;
    std::vector<char> tokens; /**< The contents of a key or a value. */
};

/** The part of a tensor that begins with its first pixel. */
distile_tensor part_of(const HostTensor &tensor, const Extents &extents) {
    distile_tensor part = tensor.view();
    part.height = extents.height;
    part.width = extents.width;
    return part;
}

std::vector<Point> make_points(const Plan &plan, const Context &context, const Tensors &tensors) {
    const Operator &op = plan.op;
    const int batch = op.typical_batch;
    std::vector<Point> points;
    const auto add = [&](const PlanVariant &variant, const Extents &input, int64_t tiles_of_image,
                         const std::vector<uint8_t> &image) {
        const Extents output = op.output_of(input), rows = op.mask_of(output);
        points.push_back({variant.name.c_str(),
                          batch * tiles_of_image,
                          part_of(tensors.input, input),
                          part_of(tensors.output, output),
                          part_of(tensors.residual, output),
                          make_mask(context),
                          {}});
        std::vector<uint8_t> bytes;
        for (int n = 0; n < batch; n++) {
            bytes.insert(bytes.end(), image.begin(), image.end());
        }
        check(context, distile_mask_set_bytes(points.back().mask.get(), bytes.data(), batch, rows.height, rows.width,
                                              int64_t{rows.height} * rows.width, rows.width));
    };
    for (const PlanVariant &variant : plan.variants) {
        const Extents whole = {op.typical_height, op.typical_width}, output = op.mask_of(op.typical_output());
        if (variant.dense) {
            for (const Extents &input : parts_of_input(op)) {
                const Extents part = op.mask_of(op.output_of(input));
                add(variant, input, tiles_of_image(part, variant.tile_h(), variant.tile_w()),
                    std::vector<uint8_t>(size_t{1} * part.height * part.width, 1));
            }
            continue;
        }
        const TileDisc disc(output.height, output.width, variant.tile_h(), variant.tile_w());
        for (int64_t count : tile_counts(tiles_of_image(output, variant.tile_h(), variant.tile_w()))) {
            add(variant, whole, count, disc.mask(count));
        }
    }
    return points;
}

/** What one attempt measured. */
struct Attempt {
    std::vector<RepeatedTime> points;
    Disturbance disturbance;
};

/** Measures the variants of a plan with some number of threads. */
class Profiler {
public:
    Profiler(const Plan &plan, const SharedObject &object, const TrialData &data, int threads)
        : plan_(plan), threads_(threads), context_(make_context(options_of(threads))),
          kernel_(make_kernel(context_, object.polykernel())), weights_(data.pack(context_, kernel_)),
          tensors_(plan.op),
          tokens_(plan.op.reads_keys() ? tokens_of(plan.op, plan.op.typical_batch, tensors_.tokens.data())
                                       : distile_tensor{}),
          points_(make_points(plan, context_, tensors_)) {
    }

    Attempt measure(double budget, const Progress &progress) {
        using Clock = std::chrono::steady_clock;
        for (Point &point : points_) {
            point.microseconds.clear();
        }
        const Waiting waiting(threads_);
        const Clock::time_point start = Clock::now();
        double elapsed = 0;
        // The variants take turns, so that a change of the machine's speed meets all of them alike.
        for (int round = 0; round < 5 || elapsed < budget; round++) {
            for (Point &point : points_) {
                const double us = time_us(point);
                if (round > 0) {
                    point.microseconds.push_back(us);
                }
            }
            elapsed = std::chrono::duration<double>(Clock::now() - start).count();
            progress("measuring with " + std::to_string(threads_) + (threads_ == 1 ? " thread" : " threads"),
                     std::min(1.0, elapsed / budget));
        }
        Attempt attempt;
        for (const Point &point : points_) {
            attempt.points.push_back({point.variant, point.tiles, point.microseconds});
        }
        attempt.disturbance = disturbance_with_order(attempt.points, waiting.share());
        return attempt;
    }

private:
    static distile_context_options options_of(int threads) {
        distile_context_options options{};
        options.threads = threads;
        return options;
    }

    double time_us(Point &point) const {
        using Clock = std::chrono::steady_clock;
        distile_run_args args{};
        args.input = &point.input;
        args.output = &point.output;
        args.residual = plan_.op.has_residual() ? &point.residual : nullptr;
        args.weights = weights_.get();
        args.key = plan_.op.reads("DISTILE_ROLE_KEY") ? &tokens_ : nullptr;
        args.value = plan_.op.reads("DISTILE_ROLE_VALUE") ? &tokens_ : nullptr;
        args.mask = point.mask.get();
        args.variant = point.variant;
        // A variant in steady use finds its code and the pool's threads ready.
        check(context_, distile_run(kernel_.get(), &args));
        const Clock::time_point before = Clock::now();
        check(context_, distile_run(kernel_.get(), &args));
        return std::chrono::duration<double, std::micro>(Clock::now() - before).count();
    }

    const Plan &plan_;
    int threads_;
    Context context_;
    Kernel kernel_;
    Weights weights_;
    Tensors tensors_;
    distile_tensor tokens_;
    std::vector<Point> points_;
};

}  // namespace

Profile profile_cpu(const Plan &plan, const SharedObject &object, const ProfileOptions &options,
                    const Progress &progress) {
    std::vector<int> thread_counts = options.threads;
    if (thread_counts.empty()) {
        const int cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
        thread_counts = cores > 1 ? std::vector<int>{1, cores} : std::vector<int>{1};
    }
    Profile profile{cpu_name(), {}, ""};
    // For its weights.
    const TrialData data(plan.op, 1, {plan.op.typical_height, plan.op.typical_width}, false, options.weights);
    const double budget = options.seconds_per_variant * static_cast<double>(plan.variants.size());
    for (int threads : thread_counts) {
        Profiler profiler(plan, object, data, threads);
        const Attempt attempt = steadiest([&] { return profiler.measure(budget, progress); });
        for (const RepeatedTime &point : attempt.points) {
            profile.times.push_back({point.variant, threads, point.tiles, Spread(point.us).median});
        }
        if (profile.doubt.empty()) {
            profile.doubt = doubt_of(attempt.disturbance);
        }
    }
    return profile;
}

}  // namespace distile
