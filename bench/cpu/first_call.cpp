#include "bench/cpu/first_call.h"
#include "autoscheduler/compile/process.h"
#include "bench/harness/machine.h"
#include "bench/peers/peer_onednn.h"
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <fmt/core.h>
#include <functional>
#include <limits>
#include <stdexcept>
#include <utility>

namespace distile::bench {

namespace {

/** Counts what the library requests from an application's allocator. */
class CountingAllocator {
public:
    void use_in(distile_context_options &options) {
        options.allocate = &CountingAllocator::allocate;
        options.deallocate = &CountingAllocator::deallocate;
        options.allocator_user = this;
    }
    int64_t calls() const {
        return calls_;
    }
    int64_t peak_bytes() const {
        return peak_;
    }

private:
    /** Before every block, as long as its alignment. */
    static constexpr size_t header = 64;

    static void *allocate(void *user, size_t bytes, size_t alignment) {
        auto *self = static_cast<CountingAllocator *>(user);
        const size_t size = (header + bytes + alignment - 1) / alignment * alignment;
        void *block = alignment > header ? nullptr : std::aligned_alloc(header, size);
        if (!block) {
            return nullptr;
        }
        *static_cast<size_t *>(block) = bytes;
        self->calls_++;
        const int64_t now = self->bytes_ += static_cast<int64_t>(bytes);
        int64_t peak = self->peak_;
        while (peak < now && !self->peak_.compare_exchange_weak(peak, now)) {}
        return static_cast<char *>(block) + header;
    }
    static void deallocate(void *user, void *memory) {
        void *block = static_cast<char *>(memory) - header;
        static_cast<CountingAllocator *>(user)->bytes_ -= static_cast<int64_t>(*static_cast<size_t *>(block));
        // NOLINTNEXTLINE(cppcoreguidelines-no-malloc,cppcoreguidelines-owning-memory)
        std::free(block);
    }

    std::atomic<int64_t> calls_{0}, bytes_{0}, peak_{0};
};

double microseconds(const std::function<void()> &work) {
    const auto start = std::chrono::steady_clock::now();
    work();
    return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
}

/** Compares some computed pixels with plain loops; comparing all would take seconds. */
void check_pixels(const Problem &problem, const float *result, const ByteMask &mask) {
    constexpr size_t step = 97;
    constexpr double tolerance = 1e-4;
    const distile_conv2d &conv = problem.op().conv;
    const auto channels = static_cast<size_t>(conv.out_channels);
    std::vector<double> sums;
    double worst = 0, largest = std::numeric_limits<double>::min();
    size_t seen = 0;
    for (size_t pixel = 0; pixel < mask.bytes.size(); pixel++) {
        if (mask.bytes[pixel] == 0 || seen++ % step != 0) {
            continue;
        }
        const auto x = static_cast<int32_t>(pixel % mask.width), y = static_cast<int32_t>(pixel / mask.width);
        problem.sum_pixel(y / mask.height, y % mask.height, x, sums);
        for (size_t c = 0; c < channels; c++) {
            const double due = apply_epilogue(conv.epilogue, sums[c]);
            const double difference = std::abs(due - result[pixel * channels + c]);
            largest = std::max(largest, std::abs(due));
            worst = std::isnan(difference) ? std::numeric_limits<double>::infinity() : std::max(worst, difference);
        }
    }
    if (!(worst <= tolerance * largest)) {
        throw std::runtime_error(fmt::format("the first call's result differs from plain loops by {} of the largest "
                                             "value; {} is allowed",
                                             worst / largest, tolerance));
    }
}

}  // namespace

Json measure_first_call(const ConvolutionRow &row, Side side, const RunnerOptions &options) {
    constexpr const char *vendor = "onednn3";
    if (row.peer != vendor || row.linked) {
        throw PeerMissing(fmt::format("first calls are measured against '{}' only, which is not linked", vendor));
    }
    const BenchOperator op = find_operator(options.operators_path, row.op);
    Problem problem(op, row.batch);
    const ByteMask mask = make_byte_mask(row.mask, row.batch, op.output_height(), op.output_width());
    AlignedFloats output(problem.output_size());
    const float *const result = output.data();
    CountingAllocator allocator;
    Context context;
    std::unique_ptr<MaskedOperator> masked;
    std::unique_ptr<Peer> peer;

    restart_peak();
    const MemoryUse before = memory_use();
    const double setup_us = microseconds([&] {
        if (side == Side::Peer) {
            peer = make_onednn_peer(problem, std::move(output));
            return;
        }
        distile_context_options context_options{};
        context_options.threads = options.threads;
        allocator.use_in(context_options);
        context = make_context(context_options);
        masked = std::make_unique<MaskedOperator>(context, problem, options.times, std::move(output));
    });
    const MemoryUse made = memory_use();
    const auto call = [&] {
        if (side == Side::Peer) {
            peer->run(row.bordered);
        } else {
            masked->run(mask, row.bordered, row.zero, nullptr);
        }
    };
    const double first_us = microseconds(call), second_us = microseconds(call);
    const MemoryUse called = memory_use();
    const int64_t allocations = allocator.calls();
    constexpr int32_t later_calls = 10;
    for (int32_t i = 0; i < later_calls; i++) {
        call();
    }
    const MemoryUse after = memory_use();

    ByteMask all = mask;
    std::fill(all.bytes.begin(), all.bytes.end(), uint8_t{1});
    check_pixels(problem, result, side == Side::Peer ? all : mask);
    return {{"setup_us", rounded(setup_us)},
            {"first_us", rounded(first_us)},
            {"second_us", rounded(second_us)},
            {"setup_bytes", made.heap - before.heap},
            {"calls_bytes", called.heap - made.heap},
            {"later_bytes", after.heap - called.heap},
            {"peak_bytes", after.peak_resident - before.resident},
            {"scratch_bytes", allocator.peak_bytes()},
            {"scratch_allocations", allocations},
            {"later_scratch_allocations", allocator.calls() - allocations},
            {"variant", side == Side::Peer ? peer->implementation(row.bordered) : masked->choose(mask).variant},
            {"description", side == Side::Peer ? peer->description() : masked->polykernel().name}};
}

Json measure_first_call_apart(const std::string &row, Side side, const RunnerOptions &options) {
    constexpr double most_seconds = 120;
    const TemporaryFolder folder;
    Command command;
    command.words = {"/proc/self/exe", "--first-call",    side == Side::Ours ? "ours" : "peer",
                     "--rows",         options.rows_path, "--filter",
                     "^" + row + "$",  "--threads",       std::to_string(options.threads)};
    for (const std::string &path : options.times) {
        command.words.insert(command.words.end(), {"--times", path});
    }
    command.log = folder.path() + "/log";
    CommandLimits limits;
    limits.seconds = most_seconds;
    CommandResult ended;
    run_each({command}, 1, limits, [&](size_t, const CommandResult &result) {
        ended = result;
        return true;
    });
    if (!ended.ok()) {
        throw std::runtime_error(ended.timed_out
                                     ? fmt::format("the process for a first call took more than {} s", most_seconds)
                                     : "the process for a first call failed; it printed: " + ended.printed);
    }
    Json measured = Json::parse(ended.printed);
    if (measured.contains("missing")) {
        throw PeerMissing(measured.at("missing"));
    }
    return measured;
}

}  // namespace distile::bench
