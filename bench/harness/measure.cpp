#include "bench/harness/measure.h"
#include "bench/harness/machine.h"
#include "reference/processor.h"
#include <algorithm>
#include <chrono>
#include <numeric>
#include <thread>

namespace distile::bench {

namespace {

using Clock = std::chrono::steady_clock;

double microseconds_since(Clock::time_point start) {
    return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

/** Runs one side until the other's threads sleep. TBB's workers, on which oneDNN runs, look for work for one
 * millisecond after a call and take a core from others while they do; ours for some tens of microseconds. */
void settle(const std::function<void()> &side) {
    constexpr double settled_us = 1500;
    const Clock::time_point start = Clock::now();
    do {
        side();
    } while (microseconds_since(start) < settled_us);
}

double time_side(const std::function<void()> &side, CacheFlusher *flusher) {
    settle(side);
    if (flusher) {
        flusher->flush();
    }
    const Clock::time_point start = Clock::now();
    side();
    return microseconds_since(start);
}

bool go_on(size_t rounds, Clock::time_point start, const MeasureOptions &options) {
    return rounds < static_cast<size_t>(options.rounds) || microseconds_since(start) < options.seconds * 1e6;
}

std::vector<Spread> spreads_of(std::vector<std::vector<double>> times) {
    std::vector<Spread> spreads;
    spreads.reserve(times.size());
    for (std::vector<double> &series : times) {
        spreads.push_back(spread_of(std::move(series)));
    }
    return spreads;
}

}  // namespace

Spread spread_of(std::vector<double> microseconds) {
    std::sort(microseconds.begin(), microseconds.end());
    const auto at = [&](double part) {
        const double position = part * static_cast<double>(microseconds.size() - 1);
        const auto below = static_cast<size_t>(position);
        const size_t above = std::min(below + 1, microseconds.size() - 1);
        return microseconds[below] +
               (position - static_cast<double>(below)) * (microseconds[above] - microseconds[below]);
    };
    return {at(0), at(0.25), at(0.5), at(0.75), static_cast<int32_t>(microseconds.size())};
}

void CacheFlusher::flush() {
    // Reading and writing twice the last level's size leaves nothing else in it. Every core takes part, because no
    // core can reach the private caches of another.
    const std::vector<int> cores = usable_cores();
    const size_t words_per_core = 2 * last_level_cache_bytes() / sizeof(uint64_t) / cores.size() + 1;
    memory_.resize(words_per_core * cores.size());
    std::vector<std::thread> threads;
    for (size_t i = 0; i < cores.size(); i++) {
        threads.emplace_back([&, i] {
            pin_this_thread(cores[i]);
            uint64_t *const begin = memory_.data() + i * words_per_core;
            const uint64_t sum = std::accumulate(begin, begin + words_per_core, uint64_t{1});
            std::fill_n(begin, words_per_core, sum);
        });
    }
    for (std::thread &thread : threads) {
        thread.join();
    }
}

std::vector<Spread> measure_sides(const std::vector<std::function<void()>> &sides, const MeasureOptions &options,
                                  CacheFlusher *flusher) {
    // The first round warms up and does not count.
    for (const std::function<void()> &side : sides) {
        time_side(side, flusher);
    }
    std::vector<std::vector<double>> times(sides.size());
    for (const Clock::time_point start = Clock::now(); go_on(times.front().size(), start, options);) {
        for (size_t i = 0; i < sides.size(); i++) {
            times[i].push_back(time_side(sides[i], flusher));
        }
    }
    return spreads_of(std::move(times));
}

PairTiming measure_pair(const std::function<void()> &ours, const std::function<void()> &peer,
                        const MeasureOptions &options, CacheFlusher *flusher) {
    const std::vector<Spread> spreads = measure_sides({ours, peer}, options, flusher);
    return {spreads[0], spreads[1]};
}

std::vector<Spread> measure_turns(const std::vector<std::function<void()>> &sides, const MeasureOptions &options) {
    std::vector<std::vector<double>> times(sides.size());
    for (const Clock::time_point start = Clock::now(); go_on(times.front().size(), start, options);) {
        for (size_t i = 0; i < sides.size(); i++) {
            sides[i]();
            const Clock::time_point begin = Clock::now();
            sides[i]();
            times[i].push_back(microseconds_since(begin));
        }
    }
    return spreads_of(std::move(times));
}

Spread measure_calls(const std::function<void()> &call, int32_t calls, const MeasureOptions &options) {
    std::vector<double> times;
    settle(call);
    for (const Clock::time_point start = Clock::now(); go_on(times.size(), start, options);) {
        const Clock::time_point begin = Clock::now();
        for (int32_t i = 0; i < calls; i++) {
            call();
        }
        times.push_back(microseconds_since(begin) / calls);
    }
    return spread_of(std::move(times));
}

}  // namespace distile::bench
