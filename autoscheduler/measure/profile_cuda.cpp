#include "autoscheduler/measure/gpu_measure.h"
#include "autoscheduler/measure/host_tensor.h"
#include "autoscheduler/measure/points.h"
#include "autoscheduler/measure/profile.h"
#include "autoscheduler/measure/trial_runner.h"
#include "autoscheduler/search/disturbance.h"
#include "autoscheduler/search/spread.h"
#include <algorithm>
#include <chrono>
#include <cmath>
#include <distile/distile.hpp>
#include <distile/quantize.h>
#include <random>

namespace distile {

namespace {

/** One point to measure. */
struct TimedPoint {
    const PlanVariant *variant = nullptr;
    int64_t first_tiles = 0, tiles = 0;  ///< The time is that of all counts between these.
    int batch = 1;
    Extents input, output;
    Mask mask;
    std::unique_ptr<GpuGraph> graph;
};

/** Keeps the points of one variant, sorted by tiles, that linear interpolation needs to be true to the others. */
void keep_corners(const std::vector<PlanTime> &times, size_t first, size_t last, std::vector<PlanTime> &kept) {
    constexpr double tolerance = 0.01;
    const PlanTime &begin = times[first], &end = times[last];
    size_t worst = first;
    double largest = tolerance;
    for (size_t i = first + 1; i < last; i++) {
        const double part =
            static_cast<double>(times[i].tiles - begin.tiles) / static_cast<double>(end.tiles - begin.tiles);
        const double line = begin.microseconds + part * (end.microseconds - begin.microseconds);
        const double error = std::abs(line / times[i].microseconds - 1);
        if (error > largest) {
            worst = i;
            largest = error;
        }
    }
    if (worst == first) {
        kept.push_back(end);
        return;
    }
    keep_corners(times, first, worst, kept);
    keep_corners(times, worst, last, kept);
}

/** Everything of one plan on one GPU or a part of it. */
class CudaMeasurer {
public:
    CudaMeasurer(const Plan &plan, const SharedObject &object, int multiprocessors)
        : plan_(plan), polykernel_(object.polykernel()), slice_(multiprocessors), images_(images_of(plan.op)) {
        kernel_ = make_kernel(context_, polykernel_);
        // Random numbers, because those that repeat take less power and so run at a higher clock.
        std::mt19937 random(1);
        const float largest = op().is_quantized() ? 100 : 1;
        std::uniform_real_distribution<float> value(op().dtype().dtype == DISTILE_UINT8 ? 0 : -largest, largest);
        if (op().reads_keys()) {
            std::vector<float> tokens(static_cast<size_t>(images_) * op().typical_keys * op().token_channels());
            std::generate(tokens.begin(), tokens.end(), [&] { return value(random); });
            tokens_ = upload(tokens);
        } else {
            weights_ = draw_weights(random);
        }
        std::vector<float> image(static_cast<size_t>(op().typical_height) * op().typical_width * op().in_channels());
        std::generate(image.begin(), image.end(), [&] { return value(random); });
        std::vector<float> images;
        images.reserve(static_cast<size_t>(images_) * image.size());
        for (int n = 0; n < images_; n++) {
            images.insert(images.end(), image.begin(), image.end());
        }
        input_ = upload(images);
        const size_t outputs = static_cast<size_t>(images_) * op().typical_output().height *
                               op().typical_output().width * op().out_channels();
        const DataType &type = op().output_dtype();
        output_ = upload(std::vector<float>(outputs, 0.0f), type);
        if (op().has_residual()) {
            residual_ = upload(std::vector<float>(outputs, 0.5f), type);
        }
    }

    const GpuSlice &slice() const {
        return slice_;
    }

    /** Adds the times of all variants. */
    void measure(double seconds, const Progress &progress, Profile &profile) {
        const std::string what = "measuring with " + std::to_string(slice_.multiprocessors()) + " multiprocessors";
        for (const PlanVariant &variant : plan_.variants) {
            progress(what, 0.5 * static_cast<double>(&variant - plan_.variants.data()) /
                               static_cast<double>(plan_.variants.size()));
            add_points(variant);
        }
        // The variants take turns, so that a change of the machine's speed meets all of them alike. Those with about as
        // many tiles follow each other: a large load lowers the clock, also for what comes just after it.
        std::vector<TimedPoint *> turns;
        for (TimedPoint &point : points_) {
            turns.push_back(&point);
        }
        std::stable_sort(turns.begin(), turns.end(),
                         [](const TimedPoint *a, const TimedPoint *b) { return a->tiles < b->tiles; });
        const Attempt attempt = steadiest([&] { return replay(turns, seconds, what, progress); });
        if (profile.doubt.empty()) {
            profile.doubt = doubt_of(attempt.disturbance);
        }
        for (const PlanVariant &variant : plan_.variants) {
            std::vector<PlanTime> all;
            for (size_t i = 0; i < points_.size(); i++) {
                const TimedPoint &point = points_[i];
                if (point.variant != &variant) {
                    continue;
                }
                const double time = Spread(attempt.us[i]).median;
                for (const int64_t tiles : {point.first_tiles, point.tiles}) {
                    if (all.empty() || all.back().tiles < tiles) {
                        all.push_back({variant.name, slice_.multiprocessors(), tiles, time});
                    }
                }
            }
            profile.times.push_back(all.front());
            if (all.size() > 1) {
                keep_corners(all, 0, all.size() - 1, profile.times);
            }
        }
    }

private:
    /** The repeats of each point. */
    struct Attempt {
        std::vector<std::vector<double>> us;
        Disturbance disturbance;
    };

    Attempt replay(const std::vector<TimedPoint *> &turns, double seconds, const std::string &what,
                   const Progress &progress) {
        using Clock = std::chrono::steady_clock;
        const Clock::time_point start = Clock::now();
        Attempt attempt;
        attempt.us.resize(points_.size());
        double elapsed = 0;
        constexpr int least_rounds = 4;
        for (int round = 0; round < least_rounds || elapsed < seconds; round++) {
            for (TimedPoint *const point : turns) {
                attempt.us[point - points_.data()].push_back(point->graph->time());
            }
            elapsed = std::chrono::duration<double>(Clock::now() - start).count();
            progress(what, 0.5 + 0.5 * std::min(1.0, std::min(elapsed / seconds, (round + 1.0) / least_rounds)));
        }
        std::vector<RepeatedTime> repeated;
        for (size_t i = 0; i < points_.size(); i++) {
            repeated.push_back({points_[i].variant->name, points_[i].tiles, attempt.us[i]});
        }
        attempt.disturbance = disturbance_of(repeated, 0);
        return attempt;
    }

    /** Attention of many images with many tokens takes long. */
    static int images_of(const Operator &op) {
        constexpr int64_t most_scores = 1 << 26;
        const int64_t scores = int64_t{op.typical_width} * op.typical_keys;
        return op.reads_keys() ? static_cast<int>(std::clamp<int64_t>(most_scores / scores, 1, most_images))
                               : most_images;
    }

    std::unique_ptr<GpuMemory> upload(const std::vector<float> &values) const {
        return upload(values, op().dtype());
    }
    static std::unique_ptr<GpuMemory> upload(const std::vector<float> &values, const DataType &type) {
        const std::vector<char> stored = store_as(type, values);
        return std::make_unique<GpuMemory>(stored.data(), stored.size());
    }

    Weights draw_weights(std::mt19937 &random) const {
        distile_weights_source source{};
        source.order = DISTILE_OHWI;
        if (op().is_quantized()) {
            std::vector<int8_t> filter(op().filter_elements());
            std::generate(filter.begin(), filter.end(), [&] { return static_cast<int8_t>(random()); });
            const std::vector<float> scales(op().out_channels(), 0x1p-12f);
            const distile_scale usual = {1, 0}, none = {};
            const distile_scale result = op().output_dtype().is_quantized() ? usual : none;
            distile_quantization quantization{};
            quantization.input = usual;
            quantization.filter_scales = scales.data();
            quantization.output = result;
            quantization.residual = op().has_residual() ? result : none;
            source.filter = filter.data();
            source.dtype = DISTILE_INT8;
            source.quantization = &quantization;
            return pack_weights(context_, kernel_, source);
        }
        std::uniform_real_distribution<float> value(-.1f, .1f);
        std::vector<float> filter(op().filter_elements());
        std::generate(filter.begin(), filter.end(), [&] { return value(random); });
        source.filter = filter.data();
        return pack_weights(context_, kernel_, source);
    }

    const Operator &op() const {
        return plan_.op;
    }

    void add_points(const PlanVariant &variant) {
        const Extents whole = {op().typical_height, op().typical_width};
        const auto [height, width] = op().mask_of(op().typical_output());
        const int tile_h = variant.tile_h(), tile_w = variant.tile_w();
        const int64_t columns = (width + tile_w - 1) / tile_w, rows = (height + tile_h - 1) / tile_h;
        const size_t first = points_.size();
        if (variant.dense) {
            const auto add_dense = [&](int batch, const Extents &input) {
                const Extents output = op().output_of(input);
                const int64_t tiles =
                    int64_t{batch} * ((output.width + tile_w - 1) / tile_w) * ((output.height + tile_h - 1) / tile_h);
                add(variant, tiles, tiles, batch, input,
                    std::vector<uint8_t>(static_cast<size_t>(batch) * output.height * output.width, 1));
            };
            for (const Extents &input : parts_of_input(op())) {
                add_dense(1, input);
            }
            for (int batch = 2; batch <= images_; batch *= 2) {
                add_dense(batch, whole);
            }
        } else {
            // All counts that fill the same blocks take the same time.
            const auto found = variant.theta.find(op().reads_keys() ? "block_rows" : "block_pixels");
            const int64_t block = found == variant.theta.end() ? 1 : std::max(1, found->second / (tile_h * tile_w));
            const int64_t all = images_ * columns * rows, most_blocks = (all + block - 1) / block;
            const TileDisc disc(height, width, tile_h, tile_w);
            const auto measure = [&](int64_t blocks) {
                const int64_t tiles = std::min(blocks * block, all);
                const int64_t images = (tiles + columns * rows - 1) / (columns * rows);
                const int batch = images <= 1 ? 1 : images <= few_images ? std::min(few_images, images_) : images_;
                std::vector<uint8_t> bytes;
                for (int n = 0; n < batch; n++) {
                    const std::vector<uint8_t> image = disc.mask(tiles * (n + 1) / batch - tiles * n / batch);
                    bytes.insert(bytes.end(), image.begin(), image.end());
                }
                return add(variant, (blocks - 1) * block + 1, tiles, batch, whole, bytes);
            };
            double below_time = measure(1);
            for (int64_t below = 1; below < most_blocks;) {
                const int64_t above = std::min(most_blocks, below + std::max<int64_t>(1, below / 4));
                const double above_time = measure(above);
                // With more images, each wave of blocks is a small part of the time.
                if (above * block <= few_images * columns * rows) {
                    refine(measure, below, below_time, above, above_time);
                }
                below = above;
                below_time = above_time;
            }
        }
        std::sort(points_.begin() + static_cast<std::ptrdiff_t>(first), points_.end(),
                  [](const TimedPoint &a, const TimedPoint &b) { return a.tiles < b.tiles; });
    }

    /** Measures between two numbers of blocks until a line through the points is true: a kernel's time moves in waves
     * of blocks. */
    template<typename Measure>
    void refine(const Measure &measure, int64_t below, double below_time, int64_t above, double above_time) {
        constexpr double tolerance = 0.02;
        // Where the ends differ by less, nothing between them is far off.
        if (above - below <= 1 || std::abs(above_time / below_time - 1) < tolerance) {
            return;
        }
        const int64_t middle = (below + above) / 2;
        const double time = measure(middle);
        const double part = static_cast<double>(middle - below) / static_cast<double>(above - below);
        if (std::abs((below_time + part * (above_time - below_time)) / time - 1) < tolerance) {
            return;
        }
        refine(measure, below, below_time, middle, time);
        refine(measure, middle, time, above, above_time);
    }

    /** Adds a point and returns its time for now. */
    double add(const PlanVariant &variant, int64_t first_tiles, int64_t tiles, int batch, const Extents &input,
               const std::vector<uint8_t> &bytes) {
        TimedPoint point;
        point.variant = &variant;
        point.first_tiles = first_tiles;
        point.tiles = tiles;
        point.batch = batch;
        point.input = input;
        point.output = op().output_of(input);
        point.mask = make_mask(context_);
        const auto [height, width] = op().mask_of(point.output);
        const GpuMemory device_bytes(bytes.data(), bytes.size());
        check(context_, distile_mask_set_bytes(point.mask.get(), static_cast<const uint8_t *>(device_bytes.data()),
                                               batch, height, width, int64_t{height} * width, width));
        // The bytes must stay until the stream has read them.
        slice_.synchronise();
        point.graph = std::make_unique<GpuGraph>(slice_, [&] { run(point); });
        points_.push_back(std::move(point));
        return points_.back().graph->time();
    }

    /** The call that needs no wait. Its tiles are listed by the first one, outside of the graph. */
    void run(const TimedPoint &point) {
        const DataType &type = op().dtype();
        const distile_tensor input = make_tensor(type, input_->data(), point.batch, point.input, op().in_channels());
        const distile_tensor output =
            make_tensor(op().output_dtype(), output_->data(), point.batch, point.output, op().out_channels());
        distile_tensor residual = output;
        residual.data = residual_ ? residual_->data() : nullptr;
        distile_run_args args{};
        args.input = &input;
        args.output = &output;
        args.residual = residual_ ? &residual : nullptr;
        const distile_tensor tokens = tokens_ ? tokens_of(op(), point.batch, tokens_->data()) : distile_tensor{};
        args.key = op().reads("DISTILE_ROLE_KEY") ? &tokens : nullptr;
        args.value = op().reads("DISTILE_ROLE_VALUE") ? &tokens : nullptr;
        args.weights = weights_.get();
        args.mask = point.mask.get();
        args.variant = point.variant->name.c_str();
        check(context_, distile_run(kernel_.get(), &args));
    }

    const Plan &plan_;
    const distile_polykernel &polykernel_;
    const GpuSlice slice_;
    const int images_;  ///< At most.
    const Context context_ = make_context(slice_);
    Kernel kernel_;
    Weights weights_;
    std::unique_ptr<GpuMemory> input_, output_, residual_, tokens_;
    std::vector<TimedPoint> points_;
};

}  // namespace

Profile profile_cuda(const Plan &plan, const SharedObject &object, const ProfileOptions &options,
                     const Progress &progress) {
    Profile profile;
    for (int multiprocessors : options.threads.empty() ? std::vector<int>{0} : options.threads) {
        CudaMeasurer measurer(plan, object, multiprocessors);
        profile.device = measurer.slice().device();
        measurer.measure(options.seconds_per_variant * static_cast<double>(plan.variants.size()), progress, profile);
    }
    return profile;
}

}  // namespace distile
