/** \file
 * The benchmark of covers of mixed granularity on a GPU: how long the GPU takes to make what the host plans.
 */
#include "autoscheduler/measure/gpu.h"
#include "autoscheduler/measure/gpu_measure.h"
#include "bench/gpu/gpu_cover.h"
#include "bench/gpu/results_header.h"
#include "bench/harness/command_line.h"
#include "bench/harness/masks.h"
#include "bench/harness/measure.h"
#include "bench/harness/results.h"
#include "runtime/choice/cover.h"
#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <fmt/core.h>
#include <limits>
#include <memory>

namespace {

using namespace distile;
using namespace distile::bench;

constexpr const char *examples = R"(
A row is cover/<size>/<images>/<density>/<sizes of tiles>: the two kernels that make a cover, replayed in a graph. They
must make the tiles that plan_cover() makes on the host.

Examples:
  distile_cover_bench --out results.json
  distile_cover_bench --size 1024 --density 0.3 --once     # for a profiler
)";

struct Options {
    std::vector<int32_t> sizes{256, 1024, 2048}, batches{1, 4};
    std::vector<double> densities{.1, .3, .7};
    int32_t rounds = 15;
    std::string out;
    bool resume = false, once = false;
};

/** What a tile of each level takes in microseconds: about as on one multiprocessor, where larger tiles multiply faster.
 */
constexpr std::array<float, cover_levels> tile_us = {.010F, .028F, .072F, .20F, .64F};

/** Which levels a cover may use. */
struct Levels {
    const char *name;
    std::array<bool, cover_levels> has;
};
constexpr Levels all_levels[] = {{"1-4-16", {true, false, true, false, true}},
                                 {"1-2-4-8-16", {true, true, true, true, true}}};

/** A tile: its level, place and image. */
using Tile = std::array<uint32_t, 3>;

/** What the host plans by these times, whose variants cost nothing but their tiles. */
std::vector<Tile> host_cover(const Bitmask &mask, const Levels &levels, double &us) {
    constexpr int64_t most = int64_t{1} << 40;
    std::vector<std::array<TimePoint, 2>> points;
    std::vector<int32_t> level_of;
    points.reserve(cover_levels);
    std::vector<TimedVariant> variants;
    for (int32_t level = 0; level < cover_levels; level++) {
        if (levels.has[static_cast<size_t>(level)]) {
            const double one = static_cast<double>(tile_us[static_cast<size_t>(level)]);
            points.push_back({TimePoint{1, one}, TimePoint{most, one * static_cast<double>(most)}});
            variants.push_back({points.back().data(), 2, 1 << level, 1 << level, 0});
            level_of.push_back(level);
        }
    }
    const auto before = std::chrono::steady_clock::now();
    const Cover cover = plan_cover(mask, variants, CellOrder::RowMajor);
    us = std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - before).count();
    std::vector<Tile> tiles;
    for (const CoverTiles &size : cover.sizes) {
        for (size_t i = 0; i < size.xy.size(); i++) {
            tiles.push_back(
                {static_cast<uint32_t>(level_of[static_cast<size_t>(size.variant)]), size.xy[i], size.image[i]});
        }
    }
    std::sort(tiles.begin(), tiles.end());
    return tiles;
}

/** The times of tiles of these levels; others are infinite. */
std::array<float, cover_levels> times_of(const Levels &levels) {
    std::array<float, cover_levels> times{};
    for (size_t level = 0; level < times.size(); level++) {
        times[level] = levels.has[level] ? tile_us[level] : std::numeric_limits<float>::infinity();
    }
    return times;
}

/** The tiles that the GPU made, in the order of the host's. */
std::vector<Tile> sorted_tiles(const GpuCover &cover) {
    std::vector<Tile> tiles;
    for (int32_t level = 0; level < cover_levels; level++) {
        const std::vector<uint32_t> found = cover.tiles(level);
        for (size_t i = 0; i < found.size() / 2; i++) {
            tiles.push_back({static_cast<uint32_t>(level), found[i], found[found.size() / 2 + i]});
        }
    }
    std::sort(tiles.begin(), tiles.end());
    return tiles;
}

Json measure(const std::string &name, const GpuSlice &slice, const ByteMask &mask, const Levels &levels,
             const Options &options) {
    const GpuCover cover(slice, mask, times_of(levels));
    if (options.once) {
        cover.run();
        slice.synchronise();
    }
    const GpuGraph graph(slice, [&] { cover.run(); });
    std::vector<double> times;
    for (int32_t round = 0; round < options.rounds; round++) {
        graph.replay();
        times.push_back(graph.time());
    }
    std::vector<uint64_t> words(static_cast<size_t>(mask.batch) * mask.height * ((mask.width + 63) / 64));
    pack_bitmask(mask.bytes.data(), int64_t{mask.height} * mask.width, mask.width, mask.batch, mask.height, mask.width,
                 words.data());
    double host_us = 0;
    const std::vector<Tile> expected = host_cover({words.data(), mask.batch, mask.height, mask.width}, levels, host_us);
    const std::vector<Tile> found = sorted_tiles(cover);
    const Spread spread = spread_of(times);
    return {{"row", name},           {"status", "measured"},          {"kind", "gpu_cover"},
            {"size", mask.height},   {"batch", mask.batch},           {"density", mask.density()},
            {"levels", levels.name}, {"tiles", found.size()},         {"t_us", rounded(spread.median)},
            {"us", to_json(spread)}, {"t_host_us", rounded(host_us)}, {"equal", found == expected}};
}

int run(const Options &options) {
    CU(cuInit, 0U);
    const GpuSlice slice(0);
    Results results(
        options.out, options.resume,
        results_header(slice.device(),
                       "covers of mixed granularity of masks of blobs, made by two kernels from a mask's bits; "
                       "t_us: medians of replays of a graph in microseconds; t_host_us: plan_cover() on the "
                       "host, once; equal: both have the same tiles"));
    bool all_equal = true;
    for (const int32_t size : options.sizes) {
        for (const int32_t batch : options.batches) {
            for (const double density : options.densities) {
                const ByteMask mask = make_byte_mask({"blob", density, 1}, batch, size, size);
                for (const Levels &levels : all_levels) {
                    const std::string name = fmt::format("cover/{}/n{}/{}/{}", size, batch, density, levels.name);
                    if (results.is_measured(name)) {
                        continue;
                    }
                    const Json result = measure(name, slice, mask, levels, options);
                    std::printf("%s\n", result.dump().c_str());
                    std::fflush(stdout);
                    all_equal = all_equal && result.at("equal") == true;
                    results.add(result);
                }
            }
        }
    }
    return all_equal ? 0 : 1;
}

}  // namespace

int main(int argc, char **argv) {
    Options options;
    CLI::App app("Measures how long a GPU takes to make covers of mixed granularity.");
    app.footer(examples);
    app.add_option("--size", options.sizes, "Rows and columns of the images")->check(CLI::Range(1, 8192));
    app.add_option("--batch", options.batches, "Images")->check(CLI::Range(1, 256));
    app.add_option("--density", options.densities, "Parts of active pixels")->check(CLI::Range(0.0, 1.0));
    app.add_option("--rounds", options.rounds, "Rounds of a row")->check(CLI::Range(3, 1000));
    app.add_flag("--once", options.once, "Run each once before the graph, for a profiler");
    return run_command_line(app, argc, argv, options, run);
}
