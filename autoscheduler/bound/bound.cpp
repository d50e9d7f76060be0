#include "autoscheduler/bound/bound.h"
#include "autoscheduler/bound/bound_backend.h"
#include <algorithm>
#include <cmath>

namespace distile {

namespace {

// A thread has at most 255 registers, so it loads fewer than 2^10 times in a step, with fewer than 2^15 passes.

uint64_t pack(const WarpAccesses &warp) {
    return static_cast<uint64_t>(warp.input_loads) << 54 | static_cast<uint64_t>(warp.input_passes) << 39 |
           static_cast<uint64_t>(warp.weight_loads) << 29 | static_cast<uint64_t>(warp.weight_passes) << 14 |
           static_cast<uint64_t>(warp.store_passes);
}

WarpAccesses unpack_accesses(uint64_t packed) {
    return {static_cast<int>(packed >> 54), static_cast<int>(packed >> 39 & 0x7fff),
            static_cast<int>(packed >> 29 & 0x3ff), static_cast<int>(packed >> 14 & 0x7fff),
            static_cast<int>(packed & 0x3fff)};
}

}  // namespace

Workload workload_of(const Operator &op, const DeviceProfile &device) {
    Workload workload;
    workload.problem = problem_of(op, device.backend, device.vector_lanes, device.vector_registers);
    workload.batch = op.typical_batch;
    workload.height = op.typical_mask().height;
    workload.width = op.typical_mask().width;
    workload.keys = std::max(op.typical_keys, 1);
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
    const BoundTerms &model = bound_backend(workload.device.backend).model(workload.problem);
    BoundKnobs knobs;
    const std::vector<std::string> &names = model.knobs();
    for (size_t i = 0; i < names.size(); i++) {
        const auto found = theta.find(names[i]);
        knobs.values[i] = found == theta.end() ? 0 : found->second;
    }
    if (model.block) {
        knobs.block = model.block(workload, theta, knobs);
    }
    NamedTerms terms;
    model.named(workload, knobs, tiles, form, terms);
    return terms.finish();
}

BoundOfPoints::BoundOfPoints(const Workload &workload, const Space &space, BoundForm form)
    : workload_(workload), model_(bound_backend(workload.device.backend).model(workload.problem)), space_(space),
      form_(form) {
    for (const std::string &name : model_.knobs()) {
        const auto found =
            std::find_if(space.knobs.begin(), space.knobs.end(), [&](const Knob &knob) { return knob.name == name; });
        positions_.push_back(found == space.knobs.end() ? -1 : static_cast<int>(found - space.knobs.begin()));
    }
    if (model_.block) {
        size_t count = 1;
        for (const Knob &knob : space.knobs) {
            const std::vector<const char *> &apart = model_.beside_block;
            const bool matters = std::find(apart.begin(), apart.end(), knob.name) == apart.end();
            strides_.push_back(matters ? count : 0);
            count *= matters ? knob.values.size() : 1;
        }
        blocks_ = std::vector<PackedNeeds>(count);
    }
}

BoundKnobs BoundOfPoints::read(const PackedTheta &point) const {
    BoundKnobs knobs;
    for (size_t i = 0; i < positions_.size(); i++) {
        const int knob = positions_[i];
        knobs.values[i] = knob < 0 ? 0 : space_.knobs[knob].values[point.choices[knob]];
    }
    if (!blocks_.empty()) {
        knobs.block = block(point, knobs);
    }
    return knobs;
}

BlockNeeds BoundOfPoints::block(const PackedTheta &point, const BoundKnobs &knobs) const {
    size_t index = 0;
    for (size_t knob = 0; knob < strides_.size(); knob++) {
        index += strides_[knob] * point.choices[knob];
    }
    PackedNeeds &packed = blocks_[index];
    // No block takes no shared memory, so that 0 stands for nothing yet.
    const uint64_t block = packed.block.load(std::memory_order_acquire);
    if (block == 0) {
        const BlockNeeds needs = model_.block(workload_, unpack(space_, point), knobs);
        packed.warp.store(pack(needs.warp), std::memory_order_relaxed);
        packed.block.store(static_cast<uint64_t>(needs.shared_bytes) << 40 |
                               static_cast<uint64_t>(needs.staged_pixels) << 16 |
                               static_cast<uint64_t>(needs.prefetch_registers),
                           std::memory_order_release);
        return needs;
    }
    return {static_cast<int64_t>(block >> 40), static_cast<int>(block >> 16 & 0xffffff),
            static_cast<int>(block & 0xffff), unpack_accesses(packed.warp.load(std::memory_order_relaxed))};
}

BoundOfPoints::Times BoundOfPoints::operator()(const BoundKnobs &knobs, int64_t tiles) const {
    TimesAlone times;
    model_.times(workload_, knobs, tiles, form_, times);
    return times.finish();
}

double input_footprint(const Workload &workload, int tile_h, int tile_w, double pixels) {
    const Problem &problem = workload.problem;
    const int image_h = (workload.height + problem.scale_h - 1) / problem.scale_h;
    const int image_w = (workload.width + problem.scale_w - 1) / problem.scale_w;
    // Groups together read all channels.
    const double pixel_bytes = static_cast<double>(problem.in_channels) * problem.groups * problem.bytes_per_input;
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
