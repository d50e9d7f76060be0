/** \file
 * The benchmark of linear layers with weights of the pattern 2:4: kernels for sparse tensor cores beside cuBLAS with
 * all weights, and beside cuSPARSELt.
 */
#include "bench/gpu/pruned_linear.h"
#include "bench/gpu/results_header.h"
#include "bench/harness/command_line.h"
#include "bench/harness/measure.h"
#include "bench/harness/results.h"
#include "bench/peers/gpu_peer.h"
#include "kernels/cuda_two_four/arguments.h"
#include "kernels/two_four.h"
#include "runtime/kinds/two_four_layout.h"
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <fmt/core.h>
#include <memory>
#include <optional>
#include <random>

namespace {

using namespace distile;
using namespace distile::bench;
using cuda_two_four::Cores;

constexpr const char *examples = R"(
A row is <type>/<rows>x<columns>/<tokens>: the weights' rows are output channels. Every combination of blocks and splits
is timed, and the fastest one once more, in turns with the peers. Weights are rotated among copies that the L2 cache does
not hold.

Examples:
  distile_two_four_bench --out results.json
  distile_two_four_bench --shape 4096x4096 --tokens 1024 --type float16 bfloat16 --all
)";

struct Options {
    std::vector<std::string> shapes{"2048x2048", "4096x4096", "11008x4096", "4096x11008"};
    std::vector<std::string> types{"float16"};
    std::vector<int32_t> tokens{256, 512, 1024, 2048, 4096}, splits{1, 2, 3, 4, 6};
    std::vector<int32_t> cores{90, 80};
    int32_t rounds = 15, rotated_mb = 160;
    std::string out;
    bool resume = false, all = false, no_peers = false;
};

/** A layer: its weights in both forms. */
struct Layer : LinearLayer {
    Layer(int32_t num_rows, int32_t num_columns, distile_dtype type, size_t rotated_bytes)
        : LinearLayer(num_rows, num_columns, type) {
        constexpr uint32_t fours = 4;
        std::mt19937 random(1);
        std::vector<float> filter(dense.size());
        for (size_t first = 0; first < filter.size(); first += fours) {
            const uint32_t one = random() % fours, other = (one + 1 + random() % (fours - 1)) % fours;
            for (const uint32_t kept : {one, other}) {
                filter[first + kept] = (static_cast<float>(random() >> 8) / 8388608.0f - 1) * .05f;
            }
        }
        take(filter, rotated_bytes, random);
        distile_weights_source source{};
        source.filter = filter.data();
        source.order = DISTILE_OI;
        source.bias = bias.data();
        const std::vector<PackedArray> packed =
            pack_two_four({rows, columns, 1, 1}, {source, filter.data(), nullptr, dtype});
        bytes = packed[0].values.size() * sizeof(float);
        kept = std::make_unique<Copies>(packed[0].values.data(), bytes, rotated_bytes);
    }

    size_t bytes = 0;
    std::unique_ptr<Copies> kept;
};

struct Configuration {
    cuda_two_four::Block block;
    int32_t splits;

    std::string name() const {
        return fmt::format("sm{} {}x{} splits {}", block.cores == Cores::Sm90 ? 90 : 80, block.pixels, block.channels,
                           splits);
    }
};

void run_ours(Launcher &launcher, const Layer &layer, const Tokens &tokens, const Configuration &with, size_t copy) {
    static constexpr distile_taps taps = {0, 1, 1};
    distile_dot_product_code code{};
    code.tile_h = code.tile_w = code.stride_h = code.stride_w = 1;
    code.rows = code.columns = &taps;
    code.block_pixels = with.block.pixels;
    code.block_channels = with.block.channels;
    code.reduction_splits = with.splits;
    const auto launch = with.block.cores == Cores::Sm90 ? distile_call_cuda_two_four_sm90 : distile_call_cuda_two_four;
    if (launch(&code, LinearCall(launcher, layer, tokens, (*layer.kept)[copy]).get()) != 0) {
        throw std::runtime_error("a launch failed: " + with.name());
    }
}

std::vector<Configuration> configurations(const Layer &layer, int32_t tokens, const Options &options) {
    std::vector<Configuration> all;
    for (const int32_t number : options.cores) {
        const Cores cores = number == 90 ? Cores::Sm90 : Cores::Sm80;
        for (const int32_t pixels : {64, 128, 256}) {
            for (const int32_t channels : {64, 128, 256}) {
                for (const int32_t splits : options.splits) {
                    const int64_t outputs =
                        int64_t{(layer.rows + channels - 1) / channels} * ((tokens + pixels - 1) / pixels);
                    // Many more blocks only add sums.
                    if (cuda_two_four::has_blocks(cores, pixels, channels) &&
                        splits <= layer.columns / DISTILE_TWO_FOUR_COLUMNS &&
                        (splits == 1 || outputs * splits <= 400)) {
                        all.push_back({{cores, pixels, channels}, splits});
                    }
                }
            }
        }
    }
    return all;
}

struct Peers {
    std::optional<Cublas> cublas;
    std::optional<CusparseLt> cusparselt;
};

std::vector<TimedPeer> timed_peers(const GpuSlice &slice, const Layer &layer, const Tokens &tokens,
                                   const Expected &expected, const Peers &peers, Json &result) {
    std::vector<TimedPeer> all;
    const auto add = [&](const std::string &name, const auto &library) {
        try {
            all.push_back(peer_of(name, library, slice, layer, tokens, expected));
            if (!all.back().mistake.empty()) {
                result[name + "_mistake"] = all.back().mistake;
            }
        } catch (const std::runtime_error &error) {
            std::printf("  %s: %s\n", name.c_str(), error.what());
            result[name + "_error"] = error.what();
        }
    };
    if (peers.cublas) {
        add("cublas", *peers.cublas);
    }
    if (peers.cusparselt) {
        add("cusparselt", *peers.cusparselt);
    }
    return all;
}

Json measure(const std::string &name, const GpuSlice &slice, Launcher &launcher, const Layer &layer, int32_t count,
             const Peers &peers, const Options &options) {
    const Tokens tokens(layer, count);
    const Expected expected(layer, tokens);
    const auto run = [&](const Configuration &with, size_t copy) { run_ours(launcher, layer, tokens, with, copy); };
    const size_t copies = layer.kept->count();
    const Fastest<Configuration> found =
        fastest_of(configurations(layer, count, options), slice, layer, tokens, expected, copies, run);
    const std::string &mistakes = found.mistakes;
    Json result{
        {"row", name},          {"status", "measured"},     {"kind", "two_four"}, {"type", type_name(layer.dtype)},
        {"rows", layer.rows},   {"columns", layer.columns}, {"tokens", count},    {"right", mistakes.empty()},
        {"bytes", layer.bytes}, {"copies", copies}};
    if (!mistakes.empty()) {
        result["mistakes"] = mistakes;
    }
    if (!found.best) {
        result["status"] = "failed";
        return result;
    }
    const auto ours = graph_of_copies(slice, copies, [&](size_t i) { run(*found.best, i); });
    std::vector<TimedPeer> others = timed_peers(slice, layer, tokens, expected, peers, result);
    std::vector<double> our_times;
    for (int32_t round = 0; round < options.rounds; round++) {
        our_times.push_back(ours->time() / static_cast<double>(copies));
        for (TimedPeer &other : others) {
            other.times.push_back(other.graph->time() / static_cast<double>(layer.all->count()));
        }
    }
    const double dense_flops = 2.0 * layer.rows * layer.columns * count;
    const Spread our_spread = spread_of(our_times);
    result["configuration"] = found.best->name();
    result["t_us"] = rounded(our_spread.median);
    result["us"] = to_json(our_spread);
    std::string compared;
    for (const TimedPeer &other : others) {
        const Spread spread = spread_of(other.times);
        result[other.name] = {{"name", other.peer->description()},
                              {"implementation", other.peer->implementation()},
                              {"t_us", rounded(spread.median)},
                              {"us", to_json(spread)},
                              {"ratio", rounded(spread.median / our_spread.median)}};
        compared += fmt::format(", {} {:8.2f} us ({:5.0f} TFLOPS): {:.2f} times", other.name, spread.median,
                                dense_flops / spread.median * 1e-6, spread.median / our_spread.median);
    }
    result["configurations"] = found.times;
    std::printf("%-28s %8.2f us (%5.0f TFLOPS)%s  [%s]%s\n", name.c_str(), our_spread.median,
                dense_flops / our_spread.median * 1e-6, compared.c_str(), found.best->name().c_str(),
                mistakes.empty() ? "" : " SOME WRONG");
    if (options.all) {
        for (const auto &[with, us] : found.times.items()) {
            std::printf("    %-32s %8.2f us\n", with.c_str(), us.get<double>());
        }
    }
    std::fflush(stdout);
    return result;
}

int run(const Options &options) {
    CU(cuInit, 0U);
    const GpuSlice slice(0);
    Launcher launcher(slice);
    Peers peers;
    std::string names;
    if (!options.no_peers) {
        open(peers.cublas, slice, names);
        open(peers.cusparselt, slice, names);
    }
    Results results(
        options.out, options.resume,
        results_header(
            slice.device(),
            "linear layers with weights of the pattern 2:4, by sparse tensor cores, by cuBLAS with all weights, and by "
            "cuSPARSELt; medians of replays of graphs in microseconds, in turns; weights are rotated among copies that "
            "the L2 cache does not hold; ours is the fastest of all configurations; without the runtime around it",
            Json::object({{"peers", names}})));
    bool all_right = true;
    for (const std::string &type : options.types) {
        const distile_dtype dtype = type == "float16" ? DISTILE_FLOAT16 : DISTILE_BFLOAT16;
        for (const std::string &shape : options.shapes) {
            int32_t rows = 0, columns = 0;
            if (std::sscanf(shape.c_str(), "%dx%d", &rows, &columns) != 2 || rows < 8 || columns < 8 || rows % 8 != 0 ||
                columns % 8 != 0) {
                throw std::runtime_error("no shape of multiples of 8: " + shape);
            }
            std::unique_ptr<Layer> layer;
            for (const int32_t tokens : options.tokens) {
                const std::string name = fmt::format("{}/{}/{}", type, shape, tokens);
                if (results.is_measured(name)) {
                    std::printf("%-28s measured before\n", name.c_str());
                    continue;
                }
                if (!layer) {
                    layer =
                        std::make_unique<Layer>(rows, columns, dtype, static_cast<size_t>(options.rotated_mb) << 20);
                }
                const Json result = measure(name, slice, launcher, *layer, tokens, peers, options);
                all_right = all_right && result.at("right") == true;
                results.add(result);
            }
        }
    }
    std::printf("%s\n", all_right ? "all right" : "SOME RESULTS ARE WRONG");
    return all_right ? 0 : 1;
}

}  // namespace

int main(int argc, char **argv) {
    Options options;
    CLI::App app("Measures linear layers with weights of the pattern 2:4 beside cuBLAS and cuSPARSELt.");
    app.footer(examples);
    app.add_option("--shape", options.shapes, "Rows and columns of the weights, as 4096x4096");
    app.add_option("--type", options.types, "float16 or bfloat16")->check(CLI::IsMember({"float16", "bfloat16"}));
    app.add_option("--tokens", options.tokens, "Numbers of tokens")->check(CLI::Range(1, 65536));
    app.add_option("--splits", options.splits, "Parts of the reduction, each tried")->check(CLI::Range(1, 64));
    app.add_option("--cores", options.cores, "Kernels for compute capability 8.0 or 9.0")
        ->check(CLI::IsMember({80, 90}));
    app.add_option("--rounds", options.rounds, "Rounds of a row")->check(CLI::Range(3, 1000));
    app.add_option("--rotated-mb", options.rotated_mb, "Megabytes of copies of the weights")
        ->check(CLI::Range(1, 8192));
    app.add_flag("--all", options.all, "Print the time of each configuration");
    app.add_flag("--no-peers", options.no_peers, "Leave cuBLAS and cuSPARSELt out");
    return run_command_line(app, argc, argv, options, run);
}
