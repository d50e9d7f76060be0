/** \file
 * Timing: two sides in turns, and single calls too short for the clock.
 */
#ifndef DISTILE_BENCH_MEASURE_H
#define DISTILE_BENCH_MEASURE_H

#include <cstdint>
#include <functional>
#include <vector>

namespace distile::bench {

/** Microseconds of the calls of one side, one in each round. */
struct Spread {
    double minimum, first_quartile, median, third_quartile;
    int32_t rounds;
};

Spread spread_of(std::vector<double> microseconds);

/** Evicts everything from every cache of the cores that this process may use. */
class CacheFlusher {
public:
    void flush();

private:
    std::vector<uint64_t> memory_;
};

struct MeasureOptions {
    int32_t rounds = 30;  /**< At least. */
    double seconds = 0.5; /**< At least, for all rounds of a row together. */
};

/** Calls all sides in turns. Before its timed call, each side runs untimed for a moment: the threads of the others
 * have then stopped spinning for work, and caches and threads are as they are in a program that uses only this side.
 * With a flusher, the caches are flushed between that and the timed call. */
std::vector<Spread> measure_sides(const std::vector<std::function<void()>> &sides, const MeasureOptions &options,
                                  CacheFlusher *flusher = nullptr);

struct PairTiming {
    Spread ours, peer;
};

/** Times two sides as measure_sides() does. */
PairTiming measure_pair(const std::function<void()> &ours, const std::function<void()> &peer,
                        const MeasureOptions &options, CacheFlusher *flusher);

/** Calls all sides in turns, each first untimed. For sides that all use one pool of threads, or none. */
std::vector<Spread> measure_turns(const std::vector<std::function<void()>> &sides, const MeasureOptions &options);

/** The time of one call among `calls`, which must take some tens of microseconds together. */
Spread measure_calls(const std::function<void()> &call, int32_t calls, const MeasureOptions &options);

}  // namespace distile::bench

#endif
