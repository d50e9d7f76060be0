#include "profile.h"
#include "conv2d_reference.h"
#include "operator_schema.h"
#include "processor.h"
#include "tensors.h"
#include <algorithm>
#include <chrono>
#include <cmath>
#include <distile/distile.hpp>
#include <thread>

namespace distile {

TileDisc::TileDisc(int height, int width, int tile_h, int tile_w)
    : height_(height), width_(width), tile_h_(tile_h), tile_w_(tile_w) {
    for (int y = 0; y < height; y += tile_h) {
        for (int x = 0; x < width; x += tile_w) {
            const double dy = y + 0.5 * tile_h - 0.5 * height, dx = x + 0.5 * tile_w - 0.5 * width;
            tiles_.push_back({std::hypot(dy, dx), y, x});
        }
    }
    std::stable_sort(tiles_.begin(), tiles_.end(),
                     [](const Tile &a, const Tile &b) { return a.distance < b.distance; });
}

std::vector<uint8_t> TileDisc::mask(int64_t num_tiles) const {
    std::vector<uint8_t> bytes(static_cast<size_t>(height_) * width_, 0);
    for (int64_t i = 0; i < num_tiles; i++) {
        const Tile &tile = tiles_[i];
        for (int y = tile.y; y < std::min(tile.y + tile_h_, height_); y++) {
            for (int x = tile.x; x < std::min(tile.x + tile_w_, width_); x++) {
                bytes[static_cast<size_t>(y) * width_ + x] = 1;
            }
        }
    }
    return bytes;
}

std::vector<Extents> parts_of_input(const Operator &op) {
    const Extents whole = {op.typical_height, op.typical_width};
    std::vector<Extents> inputs;
    for (int part : {8, 4, 2, 1}) {
        Extents input = whole;
        int &cut = whole.height == 1 ? input.width : input.height;
        cut = std::max(cut / part, 1);
        const Extents output = op.output_of(input);
        if (output.height >= 1 && output.width >= 1 && (part == 1 || cut > 1 || inputs.empty())) {
            inputs.push_back(input);
        }
    }
    return inputs;
}

size_t filter_elements(const Operator &op) {
    return filter_size(op.schema().convolution(op).conv);
}

Border border_of(const Operator &op) {
    const distile_border border = op.border();
    return {border.top, border.bottom, border.left, border.right};
}

double median(std::vector<double> values) {
    std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
    return values[values.size() / 2];
}

namespace {

int64_t divide_up(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

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

/** One point to measure: a variant with a mask, over the whole typical image or, for a dense candidate, over
 * its upper part. */
struct Point {
    const char *variant;
    int64_t tiles;
    distile_tensor input, output;
    Mask mask;
    std::vector<double> microseconds;
};

/** The tensors of a plan's typical size: a bordered input and an output. */
struct Tensors {
    explicit Tensors(const Operator &op)
        : input_tensor(op.typical_batch, op.typical_height, op.typical_width, op.in_channels(), border_of(op)),
          output_tensor(op.typical_batch, op.typical_output().height, op.typical_output().width, op.out_channels()),
          input(input_tensor.view()), output(output_tensor.view()) {
        // Any numbers will do that are neither all zero nor denormal.
        std::vector<float> values(int64_t{input.batch} * input.height * input.width * input.channels);
        for (size_t i = 0; i < values.size(); i++) {
            values[i] = static_cast<float>(i % 17) * 0.125f - 1.0f;
        }
        input_tensor.set(values.data());
    }

    BorderedTensor input_tensor, output_tensor;
    distile_tensor input, output;
};

std::vector<Point> make_points(const Plan &plan, const Context &context, const Tensors &tensors) {
    const int height = tensors.output.height, width = tensors.output.width, batch = tensors.output.batch;
    std::vector<Point> points;
    for (const PlanVariant &variant : plan.variants) {
        const int tile_h = variant.theta.at("tile_h"), tile_w = variant.theta.at("tile_w");
        if (variant.dense) {
            for (const Extents &input : parts_of_input(plan.op)) {
                const Extents output = plan.op.output_of(input);
                Point point{variant.name.c_str(), 0, tensors.input, tensors.output, make_mask(context), {}};
                point.input.height = input.height;
                point.input.width = input.width;
                point.output.height = output.height;
                point.output.width = output.width;
                point.tiles = int64_t{batch} * divide_up(output.width, tile_w) * divide_up(output.height, tile_h);
                const int64_t pixels = int64_t{output.height} * output.width;
                const std::vector<uint8_t> bytes(batch * pixels, 1);
                check(context, distile_mask_set_bytes(point.mask.get(), bytes.data(), batch, output.height,
                                                      output.width, pixels, output.width));
                points.push_back(std::move(point));
            }
            continue;
        }
        const TileDisc disc(height, width, tile_h, tile_w);
        for (int64_t count : tile_counts(divide_up(width, tile_w) * divide_up(height, tile_h))) {
            Point point{variant.name.c_str(), batch * count, tensors.input, tensors.output, make_mask(context), {}};
            const std::vector<uint8_t> image = disc.mask(count);
            std::vector<uint8_t> bytes;
            for (int n = 0; n < batch; n++) {
                bytes.insert(bytes.end(), image.begin(), image.end());
            }
            check(context, distile_mask_set_bytes(point.mask.get(), bytes.data(), batch, height, width,
                                                  int64_t{height} * width, width));
            points.push_back(std::move(point));
        }
    }
    return points;
}

}  // namespace

Profile profile(const Plan &plan, const SharedObject &object, const ProfileOptions &options, const Progress &progress) {
    if (plan.backend == "cuda") {
        return profile_cuda(plan, object, options, progress);
    }
    std::vector<int> thread_counts = options.threads;
    if (thread_counts.empty()) {
        const int cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
        thread_counts = cores > 1 ? std::vector<int>{1, cores} : std::vector<int>{1};
    }
    std::vector<PlanTime> times;
    for (int threads : thread_counts) {
        distile_context_options context_options{};
        context_options.threads = threads;
        const Context context = make_context(context_options);
        const Kernel kernel = make_kernel(context, object.polykernel());
        const std::vector<float> filter(filter_elements(plan.op), 0.01f);
        distile_weights_source source{};
        source.filter = filter.data();
        source.order = DISTILE_OHWI;
        const Weights weights = pack_weights(context, kernel, source);
        const Tensors tensors(plan.op);
        std::vector<float> residual(plan.op.has_residual() ? tensors.output_tensor.memory().size() : 0, 0.5f);
        std::vector<Point> points = make_points(plan, context, tensors);

        using Clock = std::chrono::steady_clock;
        const double budget = options.seconds_per_variant * static_cast<double>(plan.variants.size());
        const Clock::time_point start = Clock::now();
        double elapsed = 0;
        // The variants take turns, so that a change of the machine's speed meets all of them alike.
        for (int round = 0; round < 5 || elapsed < budget; round++) {
            for (Point &point : points) {
                distile_tensor residual_tensor = point.output;
                residual_tensor.data = residual.data();
                distile_run_args args{};
                args.input = &point.input;
                args.output = &point.output;
                args.residual = plan.op.has_residual() ? &residual_tensor : nullptr;
                args.weights = weights.get();
                args.mask = point.mask.get();
                args.variant = point.variant;
                // Twice: a variant in steady use finds its code and the pool's threads ready.
                for (int repeat = 0; repeat < 2; repeat++) {
                    const Clock::time_point before = Clock::now();
                    check(context, distile_run(kernel.get(), &args));
                    if (repeat == 1 && round > 0) {
                        point.microseconds.push_back(
                            std::chrono::duration<double, std::micro>(Clock::now() - before).count());
                    }
                }
            }
            elapsed = std::chrono::duration<double>(Clock::now() - start).count();
            progress("measuring with " + std::to_string(threads) + (threads == 1 ? " thread" : " threads"),
                     std::min(1.0, elapsed / budget));
        }
        for (Point &point : points) {
            times.push_back({point.variant, threads, point.tiles, median(point.microseconds)});
        }
    }
    return {cpu_name(), times};
}

}  // namespace distile
