/** \file
 * The benchmark of linear layers with pruned weights of 16 bits: kernels for a bitmap of the weights beside cuBLAS.
 */
#include "bench/gpu/pruned_linear.h"
#include "bench/gpu/results_header.h"
#include "bench/harness/command_line.h"
#include "bench/harness/measure.h"
#include "bench/harness/results.h"
#include "bench/peers/gpu_peer.h"
#include "kernels/bitmap.h"
#include "kernels/cuda_bitmap/arguments.h"
#include "runtime/kinds/bitmap_layout.h"
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fmt/core.h>
#include <map>
#include <memory>
#include <optional>
#include <random>

namespace {

using namespace distile;
using namespace distile::bench;

constexpr const char *examples = R"(
A row is <type>/<rows>x<columns>/<tokens>/<zeros>: the weights' rows are output channels. Every combination of blocks,
splits and units ahead is timed, and the fastest one once more, in turns with cuBLAS. Weights are rotated among copies
that the L2 cache does not hold.

Examples:
  distile_bitmap_bench --out results.json
  distile_bitmap_bench --shape 4096x4096 --tokens 16 --zeros .5 --type float16 bfloat16 --all
)";

struct Options {
    std::vector<std::string> shapes{"2048x2048", "4096x4096", "11008x4096"};
    std::vector<std::string> types{"float16"};
    std::vector<int32_t> tokens{1, 8, 16, 32, 64}, ahead{0, 2}, splits{1, 2, 4, 8, 16};
    std::vector<double> zeros{.5, .6, .7, .8, .9, .95};
    int32_t rounds = 15, rotated_mb = 160;
    std::string out;
    bool resume = false, all = false, no_cublas = false;
};

struct Configuration {
    int32_t pixels, channels, splits, ahead;

    std::string name() const {
        return fmt::format("{}x{} splits {} ahead {}", pixels, channels, splits, ahead);
    }
};

/** A layer: its weights in both forms. */
struct Layer : LinearLayer {
    Layer(int32_t num_rows, int32_t num_columns, double zeros, distile_dtype type, size_t rotated_bytes)
        : LinearLayer(num_rows, num_columns, type) {
        std::mt19937 random(1);
        std::vector<float> filter(dense.size());
        const auto threshold = static_cast<uint32_t>(zeros * 4294967295.0);
        for (float &weight : filter) {
            const bool is_zero = random() < threshold;
            weight = is_zero ? 0 : (static_cast<float>(random() >> 8) / 8388608.0f - 1) * .05f;
        }
        take(filter, rotated_bytes, random);
        distile_weights_source source{};
        source.filter = filter.data();
        source.order = DISTILE_OI;
        source.bias = bias.data();
        const std::vector<PackedArray> packed =
            pack_bitmap({rows, columns, 1, 1}, {source, filter.data(), nullptr, dtype});
        bytes = packed[0].values.size() * sizeof(float);
        bitmaps = std::make_unique<Copies>(packed[0].values.data(), bytes, rotated_bytes);
    }

    size_t bytes = 0;
    std::unique_ptr<Copies> bitmaps;
};

void run_ours(Launcher &launcher, const Layer &layer, const Tokens &tokens, const Configuration &with, size_t copy) {
    distile_dot_product_code code{};
    code.tile_h = code.tile_w = 1;
    code.block_pixels = with.pixels;
    code.block_channels = with.channels;
    code.staged_blocks = with.ahead;
    code.reduction_splits = with.splits;
    if (distile_call_cuda_bitmap(&code, LinearCall(launcher, layer, tokens, (*layer.bitmaps)[copy]).get()) != 0) {
        throw std::runtime_error("a launch failed: " + with.name());
    }
}

std::vector<Configuration> configurations(const Layer &layer, int32_t tokens, const Options &options) {
    int32_t pixels = 8;
    while (pixels < tokens && pixels < cuda_bitmap::most_pixels) {
        pixels *= 2;
    }
    std::vector<Configuration> all;
    for (const int32_t channels : {128, 64, 32, 16}) {
        for (const int32_t splits : options.splits) {
            for (const int32_t ahead : options.ahead) {
                const bool fits = cuda_bitmap::has_blocks(pixels, channels) &&
                                  splits <= (layer.columns + DISTILE_BITMAP_COLUMNS - 1) / DISTILE_BITMAP_COLUMNS;
                // Fewer blocks leave most multiprocessors empty, many more only add sums.
                const int64_t blocks = int64_t{(layer.rows + channels - 1) / channels} * splits;
                if (fits && blocks >= 32 && (splits == 1 || blocks <= 2048)) {
                    all.push_back({pixels, channels, splits, ahead});
                }
            }
        }
    }
    return all;
}

std::string describe(const Launcher &launcher, int32_t pixels, distile_dtype dtype) {
    return launcher.describe(std::string("distile_bitmap_") + type_name(dtype) + "_" + std::to_string(pixels),
                             cuda_bitmap::threads, cuda_bitmap::shared_bytes);
}

Json measure(const std::string &name, const GpuSlice &slice, Launcher &launcher, const Layer &layer, int32_t count,
             double zeros, const std::optional<Cublas> &cublas, const Options &options) {
    const Tokens tokens(layer, count);
    const Expected expected(layer, tokens);
    const auto run = [&](const Configuration &with, size_t copy) { run_ours(launcher, layer, tokens, with, copy); };
    const size_t copies = layer.bitmaps->count();
    const Fastest<Configuration> found =
        fastest_of(configurations(layer, count, options), slice, layer, tokens, expected, copies, run);
    const std::string &mistakes = found.mistakes;
    Json result{{"row", name},
                {"status", "measured"},
                {"kind", "bitmap"},
                {"type", type_name(layer.dtype)},
                {"rows", layer.rows},
                {"columns", layer.columns},
                {"tokens", count},
                {"zeros", zeros},
                {"right", mistakes.empty()},
                {"bytes", layer.bytes},
                {"copies", copies}};
    if (!mistakes.empty()) {
        result["mistakes"] = mistakes;
    }
    if (!found.best) {
        result["status"] = "failed";
        return result;
    }
    const auto ours = graph_of_copies(slice, copies, [&](size_t i) { run(*found.best, i); });
    std::optional<TimedPeer> theirs;
    if (cublas) {
        theirs = peer_of("cuBLAS", *cublas, slice, layer, tokens, expected);
        if (!theirs->mistake.empty()) {
            result["peer_mistake"] = theirs->mistake;
        }
    }
    std::vector<double> our_times;
    for (int32_t round = 0; round < options.rounds; round++) {
        our_times.push_back(ours->time() / static_cast<double>(copies));
        if (theirs) {
            theirs->times.push_back(theirs->graph->time() / static_cast<double>(layer.all->count()));
        }
    }
    const Spread our_spread = spread_of(our_times);
    result["configuration"] = found.best->name();
    result["t_us"] = rounded(our_spread.median);
    result["us"] = to_json(our_spread);
    result["gb_per_s"] = rounded(static_cast<double>(layer.bytes) / our_spread.median * 1e-3);
    std::string compared;
    if (theirs) {
        const Spread their_spread = spread_of(theirs->times);
        const double dense_bytes = static_cast<double>(layer.dense.size()) * 2;
        result["peer"] = theirs->peer->description();
        result["implementation"] = theirs->peer->implementation();
        result["t_peer_us"] = rounded(their_spread.median);
        result["peer_us"] = to_json(their_spread);
        result["peer_gb_per_s"] = rounded(dense_bytes / their_spread.median * 1e-3);
        result["ratio"] = rounded(their_spread.median / our_spread.median);
        compared = fmt::format(", cuBLAS {:8.2f} us ({:6.0f} GB/s): {:.2f} times", their_spread.median,
                               dense_bytes / their_spread.median * 1e-3, their_spread.median / our_spread.median);
    }
    result["configurations"] = found.times;
    std::printf("%-36s %8.2f us (%6.0f GB/s)%s  [%s]%s\n", name.c_str(), our_spread.median,
                static_cast<double>(layer.bytes) / our_spread.median * 1e-3, compared.c_str(),
                found.best->name().c_str(), mistakes.empty() ? "" : " SOME WRONG");
    if (options.all) {
        for (const auto &[with, us] : found.times.items()) {
            std::printf("    %-32s %8.2f us\n", with.c_str(), us.get<double>());
        }
        std::printf("    %s\n", describe(launcher, found.best->pixels, layer.dtype).c_str());
    }
    std::fflush(stdout);
    return result;
}

int run(const Options &options) {
    CU(cuInit, 0U);
    const GpuSlice slice(0);
    Launcher launcher(slice);
    std::optional<Cublas> cublas;
    std::string peer;
    if (!options.no_cublas) {
        open(cublas, slice, peer);
    }
    Results results(
        options.out, options.resume,
        results_header(
            slice.device(),
            "linear layers with zeros at random among their weights, by a bitmap of these, and by cuBLAS with all "
            "weights; medians of replays of graphs in microseconds, in turns; weights are rotated among "
            "copies that the L2 cache does not hold; ours is the fastest of all configurations; without the "
            "runtime around it",
            Json::object({{"peer", peer.empty() ? "none" : peer}})));
    bool all_right = true;
    for (const std::string &type : options.types) {
        const distile_dtype dtype = type == "float16" ? DISTILE_FLOAT16 : DISTILE_BFLOAT16;
        for (const std::string &shape : options.shapes) {
            int32_t rows = 0, columns = 0;
            if (std::sscanf(shape.c_str(), "%dx%d", &rows, &columns) != 2 || rows < 1 || columns < 1) {
                throw std::runtime_error("no shape: " + shape);
            }
            for (const double zeros : options.zeros) {
                std::unique_ptr<Layer> layer;
                for (const int32_t tokens : options.tokens) {
                    const std::string name = fmt::format("{}/{}/{}/{}", type, shape, tokens, zeros);
                    if (results.is_measured(name)) {
                        std::printf("%-36s measured before\n", name.c_str());
                        continue;
                    }
                    if (!layer) {
                        layer = std::make_unique<Layer>(rows, columns, zeros, dtype,
                                                        static_cast<size_t>(options.rotated_mb) << 20);
                    }
                    const Json result = measure(name, slice, launcher, *layer, tokens, zeros, cublas, options);
                    all_right = all_right && result.at("right") == true;
                    results.add(result);
                }
            }
        }
        for (const int32_t pixels : {8, 16, 32, 64}) {
            std::printf("%s\n", describe(launcher, pixels, dtype).c_str());
        }
    }
    std::printf("%s\n", all_right ? "all right" : "SOME RESULTS ARE WRONG");
    return all_right ? 0 : 1;
}

}  // namespace

int main(int argc, char **argv) {
    Options options;
    CLI::App app("Measures linear layers with pruned weights of 16 bits beside cuBLAS.");
    app.footer(examples);
    app.add_option("--shape", options.shapes, "Rows and columns of the weights, as 4096x4096");
    app.add_option("--type", options.types, "float16 or bfloat16")->check(CLI::IsMember({"float16", "bfloat16"}));
    app.add_option("--tokens", options.tokens, "Numbers of tokens")->check(CLI::Range(1, 4096));
    app.add_option("--zeros", options.zeros, "Shares of weights that are 0")->check(CLI::Range(0.0, 1.0));
    app.add_option("--ahead", options.ahead, "Units to fetch ahead, each tried")->check(CLI::Range(0, 64));
    app.add_option("--splits", options.splits, "Parts of the reduction, each tried")->check(CLI::Range(1, 64));
    app.add_option("--rounds", options.rounds, "Rounds of a row")->check(CLI::Range(3, 1000));
    app.add_option("--rotated-mb", options.rotated_mb, "Megabytes of copies of the weights")
        ->check(CLI::Range(1, 8192));
    app.add_flag("--all", options.all, "Print the time of each configuration");
    app.add_flag("--no-cublas", options.no_cublas, "Leave cuBLAS out");
    return run_command_line(app, argc, argv, options, run);
}
