#include "bound.h"
#include "bound_cpu.h"
#include "bound_cuda.h"
#include "bound_depthwise.h"
#include "cuda_space.h"
#include <algorithm>
#include <cmath>

namespace distile {

namespace {

/** Gets the terms of a bound by name. */
class NamedTerms {
public:
    void time(const char *name, double us) {
        result_.terms[std::string("t_") + name] = us;
        result_.us = std::max(result_.us, us);
    }
    void count(const char *name, double value) {
        result_.terms[name] = value;
    }
    void launches(double us) {
        launch_us_ = us;
    }
    Bound finish() {
        result_.terms["launch_us"] = launch_us_;
        result_.us += launch_us_;
        return result_;
    }

private:
    Bound result_;
    double launch_us_ = 0;
};

/** Gets their sum and the largest of them. */
class TimesAlone {
public:
    void time(const char *, double us) {
        largest_ = std::max(largest_, us);
        sum_ += us;
    }
    void count(const char *, double) {
    }
    void launches(double us) {
        launch_us_ = us;
    }
    BoundOfPoints::Times finish() const {
        return {largest_ + launch_us_, sum_};
    }

private:
    double largest_ = 0, sum_ = 0, launch_us_ = 0;
};

/** The knobs that the bound knows, in the order in which it takes their values. */
const std::vector<const char *> &known_knobs(const Workload &workload) {
    return workload.device.backend == "cuda" ? cuda_knobs()
           : workload.problem.depthwise      ? depthwise_knobs()
                                             : cpu_knobs();
}

/** A block of a GPU, whether it prefetches or not. */
BlockNeeds block_needs(const Workload &workload, Theta theta) {
    theta["prefetch"] = 1;
    return {shared_bytes(theta, workload.problem), staged_pixels(theta, workload.problem),
            prefetch_registers(theta, workload.problem)};
}

template<typename Sink>
void add_terms(const Workload &workload, const BoundKnobs &knobs, int64_t tiles, BoundForm form, Sink &sink) {
    if (workload.device.backend == "cuda") {
        add_cuda_terms(workload, knobs, tiles, form, sink);
    } else if (workload.problem.depthwise) {
        add_depthwise_terms(workload, knobs.values, tiles, sink);
    } else {
        add_cpu_terms(workload, knobs.values, tiles, sink);
    }
}

}  // namespace

Workload workload_of(const Operator &op, const DeviceProfile &device) {
    Workload workload;
    workload.problem = problem_of(op, device.backend, device.vector_lanes, device.vector_registers);
    workload.batch = op.typical_batch;
    workload.height = op.typical_output().height;
    workload.width = op.typical_output().width;
    workload.threads = device.cores;
    workload.device = device;
    return workload;
}

double Bound::sum() const {
    double result = 0;
    for (const auto &[name, value] : terms) {
        result += name.rfind("t_", 0) == 0 ? value : 0;
    }
    return result;
}

Bound bound(const Workload &workload, const Theta &theta, int64_t tiles, BoundForm form) {
    BoundKnobs knobs;
    const std::vector<const char *> &names = known_knobs(workload);
    for (size_t i = 0; i < names.size(); i++) {
        const auto found = theta.find(names[i]);
        knobs.values[i] = found == theta.end() ? 0 : found->second;
    }
    if (workload.device.backend == "cuda") {
        knobs.block = block_needs(workload, theta);
        knobs.warp = warp_accesses(knobs, workload.problem, workload.device.shared_banks);
    }
    NamedTerms terms;
    add_terms(workload, knobs, tiles, form, terms);
    return terms.finish();
}

BoundOfPoints::BoundOfPoints(const Workload &workload, const Space &space, BoundForm form)
    : workload_(workload), space_(space), form_(form) {
    for (const char *name : known_knobs(workload)) {
        const auto found =
            std::find_if(space.knobs.begin(), space.knobs.end(), [&](const Knob &knob) { return knob.name == name; });
        positions_.push_back(found == space.knobs.end() ? -1 : static_cast<int>(found - space.knobs.begin()));
    }
    if (space.backend == "cuda") {
        size_t count = 1;
        for (const Knob &knob : space.knobs) {
            const bool matters = knob.name != "splits" && knob.name != "prefetch";
            strides_.push_back(matters ? count : 0);
            count *= matters ? knob.values.size() : 1;
        }
        blocks_ = std::vector<std::atomic<uint64_t>>(count);
    }
}

BoundKnobs BoundOfPoints::read(const PackedTheta &point) const {
    BoundKnobs knobs;
    for (size_t i = 0; i < positions_.size(); i++) {
        const int knob = positions_[i];
        knobs.values[i] = knob < 0 ? 0 : space_.knobs[knob].values[point.choices[knob]];
    }
    if (!blocks_.empty()) {
        knobs.block = block(point);
        knobs.warp = warp_accesses(knobs, workload_.problem, workload_.device.shared_banks);
    }
    return knobs;
}

BlockNeeds BoundOfPoints::block(const PackedTheta &point) const {
    size_t index = 0;
    for (size_t knob = 0; knob < strides_.size(); knob++) {
        index += strides_[knob] * point.choices[knob];
    }
    // No block takes no shared memory, so that 0 stands for nothing yet.
    uint64_t packed = blocks_[index].load(std::memory_order_relaxed);
    if (packed == 0) {
        const BlockNeeds needs = block_needs(workload_, unpack(space_, point));
        packed = static_cast<uint64_t>(needs.shared_bytes) << 40 | static_cast<uint64_t>(needs.staged_pixels) << 16 |
                 static_cast<uint64_t>(needs.prefetch_registers);
        blocks_[index].store(packed, std::memory_order_relaxed);
    }
    return {static_cast<int64_t>(packed >> 40), static_cast<int>(packed >> 16 & 0xffffff),
            static_cast<int>(packed & 0xffff)};
}

BoundOfPoints::Times BoundOfPoints::operator()(const BoundKnobs &knobs, int64_t tiles) const {
    TimesAlone times;
    add_terms(workload_, knobs, tiles, form_, times);
    return times.finish();
}

double input_footprint(const Workload &workload, int tile_h, int tile_w, double pixels) {
    const Problem &problem = workload.problem;
    const int image_h = (workload.height + problem.scale_h - 1) / problem.scale_h;
    const int image_w = (workload.width + problem.scale_w - 1) / problem.scale_w;
    // Groups together read all channels.
    const double pixel_bytes = static_cast<double>(problem.in_channels) * problem.groups * problem.bytes_per_element;
    // The columns of the image that the pixels fill, over the height of a tile, and the rows of tiles that takes. A
    // part of a tile fills its rows one after the other.
    double columns = std::ceil(pixels / tile_h), rows = tile_h;
    if (pixels < tile_h * tile_w) {
        columns = std::min<double>(pixels, tile_w);
        rows = std::ceil(pixels / tile_w);
    }
    if (columns > image_w) {
        rows *= std::ceil(columns / image_w);
        columns = image_w;
    }
    const auto window = [](double outputs, int stride, int kernel, int dilation) {
        return (outputs - 1) * stride + (kernel - 1) * dilation + 1;
    };
    const auto bytes_of = [&](double height, double width) {
        return window(height, problem.stride_h, problem.kernel_h, problem.dilation_h) *
               window(width, problem.stride_w, problem.kernel_w, problem.dilation_w) * pixel_bytes;
    };
    // Where the strides skip parts of the input, pixels that share nothing read less.
    const double apart = pixels * problem.kernel_h * problem.kernel_w * pixel_bytes;
    return std::min({bytes_of(rows, columns), apart, workload.batch * bytes_of(image_h, image_w)});
}

int64_t memory_transactions(int64_t rows, int64_t columns, int64_t row_elements, int64_t transaction) {
    if (columns == row_elements) {
        return (rows * columns + transaction - 1) / transaction;
    }
    // A transaction that holds several rows of the matrix serves them all.
    const int64_t rows_at_once = std::max<int64_t>(1, transaction / row_elements);
    return (rows + rows_at_once - 1) / rows_at_once * ((columns + transaction - 1) / transaction);
}

int occupancy(const DeviceProfile &device, int threads, int registers_per_thread, int64_t shared_bytes) {
    int64_t blocks = std::min(device.max_blocks, device.max_threads / threads);
    blocks = std::min<int64_t>(blocks, device.registers / (int64_t{registers_per_thread} * threads));
    if (shared_bytes > 0) {
        blocks = std::min(blocks, device.shared_bytes / shared_bytes);
    }
    return static_cast<int>(blocks);
}

int shared_passes(const int *addresses, int count, int words, int banks) {
    std::array<int, 64> words_of_bank{};
    int most = 0;
    for (int i = 0; i < count; i++) {
        if (std::find(addresses, addresses + i, addresses[i]) != addresses + i) {
            continue;
        }
        for (int word = addresses[i]; word < addresses[i] + words; word++) {
            most = std::max(most, ++words_of_bank[word % banks]);
        }
    }
    return most;
}

}  // namespace distile
