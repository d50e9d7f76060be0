/** \file
 * The benchmark of ways to make items from a mask: what each saves, and what it costs to make.
 */
#include "bench/harness/list_orders.h"
#include "bench/harness/machine.h"
#include "bench/harness/masks.h"
#include "bench/harness/measure.h"
#include "bench/harness/operators.h"
#include "bench/harness/problem.h"
#include "bench/harness/results.h"
#include "bench/harness/source_version.h"
#include "reference/processor.h"
#include "reference/tensors.h"
#include "runtime/choice/cover.h"
#include "runtime/choice/placed_tiles.h"
#include "runtime/cpu/bitmask.h"
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <exception>
#include <fmt/core.h>
#include <functional>
#include <random>
#include <regex>
#include <thread>

namespace {

using namespace distile;
using namespace distile::bench;

constexpr const char *examples = R"(
A row placed/<mask>/<size>/<density>/<tile> counts and times tiles on a grid, placed by component and placed by row. A row
cover/<change>/<size>/<order> times covers of masks that follow each other, with what was decided before and without. A
row order/<PolyKernel>/<size>/<density> times a PolyKernel's masked variant on lists of tiles in several orders.

Examples:
  distile_items_bench --out results.json
  distile_items_bench --filter '^placed/blob/64/'
)";

struct Options {
    std::string filter = "", out;
    bool resume = false;
    MeasureOptions measure;
};

/** A mask of one image as bits. */
struct MaskOfRow {
    explicit MaskOfRow(const ByteMask &bytes)
        : active(bytes.active_pixels()),
          words(static_cast<size_t>(bytes.height) * static_cast<size_t>((bytes.width + 63) / 64)), bits{words.data(), 1,
                                                                                                        bytes.height,
                                                                                                        bytes.width} {
        pack_bitmask(bytes.bytes.data(), 0, bytes.width, 1, bytes.height, bytes.width, words.data());
    }

    int64_t active;
    std::vector<uint64_t> words;
    Bitmask bits;
};

/** Squares of 8 x 8 pixels that touch no other, at any place: as good as it gets for tiles that lie anywhere. */
ByteMask draw_squares(int32_t size, double density, uint64_t seed) {
    constexpr int32_t edge = 8;
    ByteMask mask;
    mask.height = mask.width = size;
    mask.bytes.resize(static_cast<size_t>(size) * size);
    std::mt19937_64 random(seed);
    std::uniform_int_distribution<int32_t> place(0, size - edge);
    const double wanted = density * size * size / (edge * edge);
    for (int32_t tries = 0, drawn = 0; tries < 100 * size && drawn < wanted; tries++) {
        const int32_t top = place(random), left = place(random);
        bool is_free = true;
        for (int32_t y = std::max(top - 1, 0); y < std::min(top + edge + 1, size); y++) {
            for (int32_t x = std::max(left - 1, 0); x < std::min(left + edge + 1, size); x++) {
                is_free = is_free && mask.bytes[static_cast<size_t>(y) * size + x] == 0;
            }
        }
        for (int32_t y = top; is_free && y < top + edge; y++) {
            std::fill_n(&mask.bytes[static_cast<size_t>(y) * size + left], edge, uint8_t{1});
        }
        drawn += is_free ? 1 : 0;
    }
    return mask;
}

struct PlacedRow {
    MaskSpec mask;
    int32_t size;
    Granularity tile;

    std::string name() const {
        return fmt::format("placed/{}/{}/{}/{}x{}", mask.name, size, mask.density, tile.h, tile.w);
    }
};

std::vector<PlacedRow> placed_rows() {
    std::vector<MaskSpec> masks = {{"sige_church"}, {"squares", .1, 1}, {"squares", .3, 1}, {"random", .1, 1}};
    for (const double density : {.05, .1, .3, .5, .7, .9}) {
        masks.push_back({"blob", density, 1});
    }
    std::vector<PlacedRow> rows;
    for (const MaskSpec &mask : masks) {
        for (const int32_t size : {40, 64, 256}) {
            for (const Granularity &tile : {Granularity{1, 2}, {1, 4}, {1, 16}, {2, 4}, {4, 4}, {8, 8}}) {
                rows.push_back({mask, size, tile});
            }
        }
    }
    return rows;
}

Json measure(const PlacedRow &row, const MeasureOptions &options) {
    const MaskOfRow mask(row.mask.name == "squares" ? draw_squares(row.size, row.mask.density, row.mask.seed)
                                                    : make_byte_mask(row.mask, 1, row.size, row.size));
    std::vector<uint64_t> scratch(static_cast<size_t>(tile_scratch_words(mask.bits)));
    const int64_t most = num_tiles({1, row.size, row.size}, row.tile) + tile_list_slack;
    std::vector<uint32_t> xy(static_cast<size_t>(most)), image(xy.size());
    int64_t on_grid = 0, by_component = 0, by_row = 0;
    const std::vector<Spread> spreads = measure_turns(
        {[&] {
             count_tiles(mask.bits, &row.tile, 1, scratch.data(), &on_grid);
             list_tiles(mask.bits, row.tile, {0, row.size, 0, row.size}, scratch.data(), xy.data(), image.data());
         },
         [&] { by_component = static_cast<int64_t>(place_by_component(mask.bits, row.tile).size()); },
         [&] { by_row = static_cast<int64_t>(place_by_row(mask.bits, row.tile).size()); }},
        options);
    return {{"row", row.name()},
            {"status", "measured"},
            {"kind", "placed"},
            {"mask", row.mask.name},
            {"size", row.size},
            {"active", mask.active},
            {"tile_h", row.tile.h},
            {"tile_w", row.tile.w},
            {"on_grid", on_grid},
            {"by_component", by_component},
            {"by_row", by_row},
            {"t_grid_us", rounded(spreads[0].median)},
            {"t_component_us", rounded(spreads[1].median)},
            {"t_row_us", rounded(spreads[2].median)}};
}

struct CoverRow {
    const char *change;
    int32_t size;
    CellOrder order;

    std::string name() const {
        constexpr const char *orders[] = {"rows", "morton", "hilbert"};
        return fmt::format("cover/{}/{}/{}", change, size, orders[static_cast<size_t>(order)]);
    }
};

std::vector<CoverRow> cover_rows() {
    std::vector<CoverRow> rows;
    for (const int32_t size : {256, 1024}) {
        for (const char *change : {"nothing", "square", "everything", "other"}) {
            rows.push_back({change, size, CellOrder::RowMajor});
        }
        rows.push_back({"square", size, CellOrder::Hilbert});
    }
    return rows;
}

/** Masks in a circle, with blobs over three tenths of the pixels: a square of an eighth of the extent walks over them,
 * all of them move by a pixel, or each mask is another one. */
std::vector<MaskOfRow> masks_in_turn(const CoverRow &row) {
    constexpr int32_t count = 16;
    const std::string change = row.change;
    const ByteMask still = make_byte_mask({"blob", .3, 1}, 1, row.size, row.size);
    std::vector<MaskOfRow> masks;
    masks.reserve(count);
    for (int32_t i = 0; i < count; i++) {
        ByteMask mask = change == "other"
                            ? make_byte_mask({"blob", .3, static_cast<uint64_t>(1 + i)}, 1, row.size, row.size)
                            : still;
        const auto at = [&](int32_t y, int32_t x) -> uint8_t & {
            return mask.bytes[static_cast<size_t>(y) * row.size + x];
        };
        if (change == "square") {
            const int32_t edge = row.size / 8, from = row.size / 4 + 4 * std::min(i, count - i);
            for (int32_t y = from; y < from + edge; y++) {
                std::fill_n(&at(y, from), edge, uint8_t{1});
            }
        } else if (change == "everything") {
            // Back and forth.
            std::rotate(mask.bytes.begin(), mask.bytes.begin() + std::min(i, count - i), mask.bytes.end());
        }
        masks.emplace_back(mask);
    }
    return masks;
}

Json measure(const CoverRow &row, const MeasureOptions &options) {
    // Times of larger tiles that are shorter a pixel.
    const std::vector<std::vector<TimePoint>> points = {{{1, 21}, {1 << 20, 20 + (1 << 20)}},
                                                        {{1, 26}, {1 << 16, 20 + 6 * (1 << 16)}},
                                                        {{1, 90}, {1 << 12, 20 + 70 * (1 << 12)}}};
    std::vector<TimedVariant> variants;
    for (size_t i = 0; i < points.size(); i++) {
        variants.push_back({points[i].data(), 2, 1 << (2 * i), 1 << (2 * i), 0});
    }
    const std::vector<MaskOfRow> masks = masks_in_turn(row);
    CoverPlanner planner(variants, row.order);
    size_t next = 0, next_kept = 0;
    int64_t changed = 0;
    const std::vector<Spread> spreads =
        measure_turns({[&] { plan_cover(masks[next++ % masks.size()].bits, variants, row.order); },
                       [&] {
                           planner.plan(masks[next_kept++ % masks.size()].bits);
                           changed = planner.changed_nodes();
                       }},
                      options);
    const int64_t nodes = num_tiles({1, row.size, row.size}, {variants.back().tile_h, variants.back().tile_w});
    return {{"row", row.name()},
            {"status", "measured"},
            {"kind", "cover"},
            {"change", row.change},
            {"size", row.size},
            {"nodes", nodes},
            {"changed_nodes", changed},
            {"t_new_us", rounded(spreads[0].median)},
            {"t_kept_us", rounded(spreads[1].median)}};
}

struct OrderRow {
    const char *polykernel;
    int32_t size;
    double density;

    std::string name() const {
        return fmt::format("order/{}/{}/{}", polykernel, size, density);
    }
};

std::vector<OrderRow> order_rows() {
    std::vector<OrderRow> rows;
    for (const char *polykernel : {"conv3x3_256", "conv1x1_256_1024", "depthwise3x3_576"}) {
        for (const int32_t size : {64, 128, 256}) {
            for (const double density : {.3, .9}) {
                rows.push_back({polykernel, size, density});
            }
        }
    }
    return rows;
}

/** The masked variant that is fastest for a mask by the PolyKernel's times. */
std::string fastest_masked(const Context &context, distile_polykernel polykernel, const Mask &mask) {
    const std::vector<distile_variant> all(polykernel.variants, polykernel.variants + polykernel.num_variants);
    std::vector<distile_variant> masked;
    std::vector<distile_time_point> times;
    for (size_t i = 0; i < all.size(); i++) {
        if (all[i].dense != 0) {
            continue;
        }
        for (int32_t j = 0; j < polykernel.num_times; j++) {
            if (polykernel.times[j].variant == static_cast<int32_t>(i)) {
                times.push_back(polykernel.times[j]);
                times.back().variant = static_cast<int32_t>(masked.size());
            }
        }
        masked.push_back(all[i]);
    }
    polykernel.variants = masked.data();
    polykernel.num_variants = static_cast<int32_t>(masked.size());
    polykernel.times = times.data();
    polykernel.num_times = static_cast<int32_t>(times.size());
    polykernel.fallback = nullptr;
    distile_choice choice{};
    check(context, distile_kernel_choose(make_kernel(context, polykernel).get(), mask.get(), &choice));
    return choice.variant;
}

Json measure(const OrderRow &row, const MeasureOptions &options) {
    constexpr int32_t threads = 2;
    distile_context_options context_options{};
    context_options.threads = threads;
    const Context context = make_context(context_options);
    const distile_polykernel &built = find_polykernel(row.polykernel);
    const distile_polykernel &polykernel = taken_polykernel(built, make_kernel(context, built));
    const BenchOperator op =
        make_operator({row.polykernel, 0, row.polykernel}, "order", row.size, row.size, polykernel);
    Problem problem(op, 1);
    const ByteMask bytes = make_byte_mask({"blob", row.density, 1}, 1, op.output_height(), op.output_width());
    const Mask mask = make_mask(context);
    check(context,
          distile_mask_set_bytes(mask.get(), bytes.bytes.data(), 1, bytes.height, bytes.width, 0, bytes.width));

    const ListedVariant listed(polykernel, fastest_masked(context, polykernel, mask));
    const Kernel kernel = make_kernel(context, listed.polykernel());
    const Weights weights = pack_weights(context, kernel, problem.weights());
    const std::vector<OrderedList> lists = ordered_lists(bytes, listed.variant().tile_h, listed.variant().tile_w);
    const AlignedFloats memory(problem.output_size());
    const distile_tensor output = problem.output(memory.data());
    distile_run_args args{};
    args.input = &problem.input(true);
    args.output = &output;
    args.weights = weights.get();
    args.mask = mask.get();
    const auto run_on = [&](const OrderedList &list) {
        ListedVariant::set_list(list.entries.data(), static_cast<int32_t>(list.entries.size() / 2));
        check(context, distile_run(kernel.get(), &args));
    };
    // The order changes no bit.
    std::vector<float> first;
    std::vector<std::function<void()>> sides;
    for (const OrderedList &list : lists) {
        std::fill_n(memory.data(), problem.output_size(), 0.0F);
        run_on(list);
        const std::vector<float> result(memory.data(), memory.data() + problem.output_size());
        if (first.empty()) {
            first = result;
        } else if (std::memcmp(first.data(), result.data(), result.size() * sizeof(float)) != 0) {
            throw std::runtime_error(row.name() + ": another order gives another result");
        }
        sides.emplace_back([&run_on, &list] { run_on(list); });
    }
    const std::vector<Spread> spreads = measure_turns(sides, options);
    Json result = {
        {"row", row.name()}, {"status", "measured"},   {"kind", "order"},    {"kernel", row.polykernel},
        {"size", row.size},  {"density", row.density}, {"threads", threads}, {"variant", listed.variant().name}};
    for (size_t i = 0; i < lists.size(); i++) {
        result[fmt::format("t_{}_us", lists[i].order)] = rounded(spreads[i].median);
    }
    return result;
}

/** Measures the rows of a kind that the filter selects. */
template<typename Row> void measure_rows(const std::vector<Row> &rows, const Options &options, Results &results) {
    const std::regex filter(options.filter);
    for (const Row &row : rows) {
        if (!std::regex_search(row.name(), filter) || results.is_measured(row.name())) {
            continue;
        }
        const auto begin = std::chrono::steady_clock::now();
        const double before = seconds_of_others();
        Json result = measure(row, options.measure);
        const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
        const double cores = std::max(1U, std::thread::hardware_concurrency());
        result["others_busy"] = rounded(std::max(0.0, seconds_of_others() - before) / elapsed.count() / cores);
        std::printf("%s%s\n", result.dump().c_str(), is_disturbed(result) ? "  (others are busy)" : "");
        std::fflush(stdout);
        results.add(result);
    }
}

void run(const Options &options) {
    Results results(
        options.out, options.resume,
        {{"date", utc_now()},
         {"backend", "cpu"},
         {"device", cpu_name()},
         {"system", system_name()},
         {"versions", {{"source", source_version()}, {"compiler", DISTILE_BENCH_COMPILER}}},
         {"about", "ways to make items from a mask, on one thread; times are medians in microseconds, all sides in "
                   "turns. placed: tiles on a grid, placed by connected component (DynaSpa), and by row; the grid's "
                   "time is that of counting and listing them. cover: covers of three sizes, 1, 4 and 16 pixels wide, "
                   "of masks in turn, by new planners and by one that keeps what did not change. order: a "
                   "PolyKernel's masked variant on two threads with tiles row by row, along curves of Morton and "
                   "Hilbert, and in blocks of 16 x 16 tiles along a Hilbert curve; all results have equal bits"}});
    measure_rows(placed_rows(), options, results);
    measure_rows(cover_rows(), options, results);
    measure_rows(order_rows(), options, results);
}

}  // namespace

int main(int argc, char **argv) {
    Options options;
    CLI::App app("Measures ways to make items from a mask.");
    app.footer(examples);
    app.add_option("--filter", options.filter, "A regular expression of the names of rows");
    app.add_option("--rounds", options.measure.rounds, "Rounds of a row, at least")->check(CLI::Range(3, 1000));
    app.add_option("--seconds", options.measure.seconds, "Seconds of a row, at least")->check(CLI::Range(0.0, 60.0));
    app.add_option("--out", options.out, "File of results (JSON)");
    app.add_flag("--resume", options.resume, "Keep the rows that the file has");
    CLI11_PARSE(app, argc, argv);
    try {
        run(options);
        return 0;
    } catch (const std::exception &error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
}
