/** \file
 * The benchmark of linear layers with pruned weights of 16 bits: kernels for a bitmap of the weights beside cuBLAS.
 */
#include "autoscheduler/measure/gpu.h"
#include "autoscheduler/measure/gpu_measure.h"
#include "bench/harness/machine.h"
#include "bench/harness/measure.h"
#include "bench/harness/peer_missing.h"
#include "bench/harness/results.h"
#include "bench/harness/source_version.h"
#include "bench/peers/gpu_peer.h"
#include "facts/type_functions.h"
#include "kernels/bitmap.h"
#include "kernels/cuda_bitmap/arguments.h"
#include "runtime/base/stored_float.h"
#include "runtime/kinds/bitmap_layout.h"
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <exception>
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

/** Calls launchers without the runtime: each launch goes on a slice's stream. */
class Launcher {
public:
    explicit Launcher(const GpuSlice &slice) : slice_(slice), scratch_(scratch_bytes), signals_(signal_words) {
        signals_.set(std::vector<uint32_t>(signal_words));
        gpu_.use_module = [](distile_hooks *of, const char *code, size_t) {
            Launcher &self = from(of);
            auto &module = self.modules_[code];
            if (!module) {
                module = std::make_unique<Module>(code);
            }
            self.used_ = module.get();
            return 0;
        };
        gpu_.launch = [](distile_hooks *of, const distile_gpu_launch *launch) {
            Launcher &self = from(of);
            auto &function = self.functions_[launch->kernel];
            if (!function) {
                function = self.used_->find(launch->kernel);
                CU(cuFuncSetAttribute, function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, launch->shared_bytes);
                CU(cuFuncSetAttribute, function, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, 100);
            }
            CU(cuLaunchKernel, function, static_cast<unsigned>(launch->blocks[0]),
               static_cast<unsigned>(launch->blocks[1]), static_cast<unsigned>(launch->blocks[2]),
               static_cast<unsigned>(launch->threads[0]), static_cast<unsigned>(launch->threads[1]),
               static_cast<unsigned>(launch->threads[2]), static_cast<unsigned>(launch->shared_bytes),
               static_cast<CUstream>(self.slice_.stream()), launch->arguments, static_cast<void **>(nullptr));
            return 0;
        };
        gpu_.allocate = [](distile_hooks *of, uint64_t bytes, uint64_t *address) {
            if (bytes > scratch_bytes) {
                throw std::runtime_error("more scratch memory than the benchmark has");
            }
            *address = reinterpret_cast<uint64_t>(from(of).scratch_.data());
            return 0;
        };
        gpu_.signals = [](distile_hooks *of, uint64_t bytes, uint64_t *address) {
            if (bytes > signal_words * sizeof(uint32_t)) {
                throw std::runtime_error("more signals than the benchmark has");
            }
            *address = reinterpret_cast<uint64_t>(from(of).signals_.data());
            return 0;
        };
        hooks_.hooks.gpu = &gpu_;
        hooks_.hooks.report = [](distile_hooks *, const char *message) { std::fprintf(stderr, "%s\n", message); };
        hooks_.owner = this;
    }
    Launcher(const Launcher &) = delete;
    Launcher &operator=(const Launcher &) = delete;

    distile_hooks *hooks() {
        return &hooks_.hooks;
    }
    /** What the driver made of a kernel. */
    std::string describe(int32_t pixels, distile_dtype dtype) const {
        std::string text;
        const std::string wanted = std::string("distile_bitmap_") + type_name(dtype) + "_" + std::to_string(pixels);
        for (const auto &[name, function] : functions_) {
            if (wanted == name) {
                int registers = 0, local = 0, blocks = 0;
                CU(cuFuncGetAttribute, &registers, CU_FUNC_ATTRIBUTE_NUM_REGS, function);
                CU(cuFuncGetAttribute, &local, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, function);
                CU(cuOccupancyMaxActiveBlocksPerMultiprocessor, &blocks, function, int{cuda_bitmap::threads},
                   size_t{cuda_bitmap::shared_bytes});
                text = fmt::format("{}: {} registers, {} bytes of local memory, {} blocks on a multiprocessor", wanted,
                                   registers, local, blocks);
            }
        }
        return text;
    }

private:
    static constexpr size_t scratch_bytes = size_t{256} << 20, signal_words = 1 << 20;
    struct Owned {
        distile_hooks hooks;  // The first member, of which code knows the address.
        Launcher *owner;
    };
    static Launcher &from(distile_hooks *of) {
        return *reinterpret_cast<Owned *>(of)->owner;
    }

    const GpuSlice &slice_;
    Owned hooks_{};
    distile_gpu_hooks gpu_{};
    DeviceArray<uint8_t> scratch_;
    DeviceArray<uint32_t> signals_;
    std::map<const char *, std::unique_ptr<Module>> modules_;
    std::map<const char *, CUfunction> functions_;
    Module *used_ = nullptr;
};

/** An array on the device, as often as it takes to exceed some memory. */
class Copies {
public:
    Copies(const void *data, size_t bytes, size_t all_bytes)
        : bytes_((bytes + alignment - 1) / alignment * alignment),
          count_(std::clamp<size_t>(all_bytes / bytes_ + 1, 2, most)), memory_(bytes_ * count_) {
        const auto first = reinterpret_cast<CUdeviceptr>(memory_.data());
        CU(cuMemcpyHtoD, first, data, bytes);
        for (size_t i = 1; i < count_; i++) {
            CU(cuMemcpyDtoD, first + i * bytes_, first, bytes_);
        }
        CU(cuCtxSynchronize);
    }
    size_t count() const {
        return count_;
    }
    void *operator[](size_t i) const {
        return memory_.data() + i % count_ * bytes_;
    }

private:
    static constexpr size_t alignment = 4096, most = 256;
    size_t bytes_, count_;
    DeviceArray<uint8_t> memory_;
};

struct Configuration {
    int32_t pixels, channels, splits, ahead;

    std::string name() const {
        return fmt::format("{}x{} splits {} ahead {}", pixels, channels, splits, ahead);
    }
};

uint16_t narrow(float value, distile_dtype dtype) {
    return dtype == DISTILE_FLOAT16 ? StoredFloat<DISTILE_FLOAT16>::from_float(value)
                                    : StoredFloat<DISTILE_BFLOAT16>::from_float(value);
}
float widen(uint16_t bits, distile_dtype dtype) {
    return dtype == DISTILE_FLOAT16 ? StoredFloat<DISTILE_FLOAT16>::to_float(bits)
                                    : StoredFloat<DISTILE_BFLOAT16>::to_float(bits);
}

/** A layer: its weights in both forms, and what it reads and writes. */
class Layer {
public:
    Layer(int32_t rows, int32_t columns, double zeros, distile_dtype dtype, size_t rotated_bytes)
        : rows(rows), columns(columns), dtype(dtype), dense(static_cast<size_t>(rows) * columns), bias(rows) {
        std::mt19937 random(1);
        std::vector<float> filter(dense.size());
        const auto threshold = static_cast<uint32_t>(zeros * 4294967295.0);
        for (size_t i = 0; i < filter.size(); i++) {
            const bool is_zero = random() < threshold;
            dense[i] = narrow(is_zero ? 0 : (static_cast<float>(random() >> 8) / 8388608.0f - 1) * .05f, dtype);
            filter[i] = widen(dense[i], dtype);
        }
        for (float &each : bias) {
            each = widen(narrow(static_cast<float>(random() >> 8) / 8388608.0f - 1, dtype), dtype);
        }
        distile_weights_source source{};
        source.filter = filter.data();
        source.order = DISTILE_OI;
        source.bias = bias.data();
        const std::vector<PackedArray> packed =
            pack_bitmap({rows, columns, 1, 1}, {source, filter.data(), nullptr, dtype});
        bytes = packed[0].values.size() * sizeof(float);
        bitmaps = std::make_unique<Copies>(packed[0].values.data(), bytes, rotated_bytes);
        all = std::make_unique<Copies>(dense.data(), dense.size() * 2, rotated_bytes);
    }

    int32_t rows, columns;
    distile_dtype dtype;
    std::vector<uint16_t> dense;
    std::vector<float> bias;
    size_t bytes = 0;
    std::unique_ptr<Copies> bitmaps, all;
};

/** Tokens of a layer on the device. */
struct Tokens {
    Tokens(const Layer &layer, int32_t count)
        : count(count), input(draw(layer, count)), from(input), to(static_cast<size_t>(count) * layer.rows),
          bias(layer.bias), narrow_bias(narrow_all_of(layer)), list(listed(count)),
          tiles(std::vector<uint32_t>{static_cast<uint32_t>(count)}), bits(std::vector<uint32_t>(8, ~0U)) {
    }
    static std::vector<uint16_t> draw(const Layer &layer, int32_t count) {
        std::mt19937 random(2);
        std::vector<uint16_t> values(static_cast<size_t>(count) * layer.columns);
        for (uint16_t &value : values) {
            value = narrow(static_cast<float>(random() >> 8) / 8388608.0f - 1, layer.dtype);
        }
        return values;
    }
    static std::vector<uint16_t> narrow_all_of(const Layer &layer) {
        std::vector<uint16_t> values(layer.bias.size());
        std::transform(layer.bias.begin(), layer.bias.end(), values.begin(),
                       [&](float value) { return narrow(value, layer.dtype); });
        return values;
    }
    static std::vector<uint32_t> listed(int32_t count) {
        std::vector<uint32_t> xy(2 * static_cast<size_t>(count));
        for (int32_t i = 0; i < count; i++) {
            xy[i] = static_cast<uint32_t>(i);
        }
        return xy;
    }

    int32_t count;
    std::vector<uint16_t> input;
    DeviceArray<uint16_t> from, to;
    DeviceArray<float> bias;
    DeviceArray<uint16_t> narrow_bias;
    DeviceArray<uint32_t> list, tiles, bits;
};

distile_array activation(void *data, distile_dtype dtype, int32_t channels, int32_t tokens) {
    return {data,
            dtype,
            4,
            {{0, channels, 1}, {0, tokens, channels}, {0, 1, tokens * channels}, {0, 1, tokens * channels}}};
}

void run_ours(Launcher &launcher, const Layer &layer, const Tokens &tokens, const Configuration &with, size_t copy) {
    distile_dot_product_code code{};
    code.tile_h = code.tile_w = 1;
    code.block_pixels = with.pixels;
    code.block_channels = with.channels;
    code.staged_blocks = with.ahead;
    code.reduction_splits = with.splits;
    const distile_array weights{(*layer.bitmaps)[copy], DISTILE_FLOAT32, 1, {{0, 1, 1}}},
        bias{tokens.bias.data(), DISTILE_FLOAT32, 1, {{0, layer.rows, 1}}};
    const distile_array operands[] = {activation(tokens.from.data(), layer.dtype, layer.columns, tokens.count), weights,
                                      bias, activation(tokens.to.data(), layer.dtype, layer.rows, tokens.count)};
    distile_kernel_call call{};
    call.hooks = launcher.hooks();
    call.operands = operands;
    call.num_operands = 4;
    call.tile_xy = tokens.list.data();
    call.tile_capacity = call.num_tiles = tokens.count;
    call.tile_count = tokens.tiles.data();
    call.bits = tokens.bits.data();
    call.words_per_row = (tokens.count + 31) / 32;
    call.height = call.batch = 1;
    if (distile_call_cuda_bitmap(&code, &call) != 0) {
        throw std::runtime_error("a launch failed: " + with.name());
    }
}

/** What some channels should be: the first and the last ones, and some between. */
class Expected {
public:
    Expected(const Layer &layer, const Tokens &tokens) : layer_(layer), tokens_(tokens) {
        std::vector<float> weights(layer.columns), inputs(tokens.input.size());
        std::transform(tokens.input.begin(), tokens.input.end(), inputs.begin(),
                       [&](uint16_t bits) { return widen(bits, layer.dtype); });
        for (int32_t i = 0; i < checked; i++) {
            const int32_t o = channel(i);
            std::transform(layer.dense.begin() + int64_t{o} * layer.columns,
                           layer.dense.begin() + int64_t{o + 1} * layer.columns, weights.begin(),
                           [&](uint16_t bits) { return widen(bits, layer.dtype); });
            for (int32_t token = 0; token < tokens.count; token++) {
                double sum = layer.bias[o], magnitude = std::abs(sum);
                for (int32_t k = 0; k < layer.columns; k++) {
                    const double product =
                        static_cast<double>(weights[k]) * inputs[static_cast<size_t>(token) * layer.columns + k];
                    sum += product;
                    magnitude += std::abs(product);
                }
                const double unit = layer.dtype == DISTILE_FLOAT16 ? 1.0 / 1024 : 1.0 / 128;
                values_.emplace_back(sum, unit * std::abs(sum) + 1e-5 * magnitude + 1e-6);
            }
        }
    }
    /** "" if an output is right. */
    std::string mistake_in(const std::vector<uint16_t> &output) const {
        double largest = 0;
        int32_t wrong = 0;
        std::string first;
        for (int32_t i = 0; i < checked; i++) {
            for (int32_t token = 0; token < tokens_.count; token++) {
                const auto &[value, bound] = values_[static_cast<size_t>(i) * tokens_.count + token];
                const float got = widen(output[static_cast<size_t>(token) * layer_.rows + channel(i)], layer_.dtype);
                const double error = std::isnan(got) ? 1e30 : std::abs(got - value) / bound;
                if (error > 1) {
                    wrong++;
                    first = first.empty()
                                ? fmt::format("channel {}, token {}: {} in place of {}", channel(i), token, got, value)
                                : first;
                }
                largest = std::max(largest, error);
            }
        }
        return wrong == 0 ? ""
                          : fmt::format("{} of {} numbers are wrong, up to {:.3g} times the bound; first {}", wrong,
                                        checked * tokens_.count, largest, first);
    }

private:
    static constexpr int32_t checked = 64, ends = 16;
    int32_t channel(int32_t i) const {
        const int32_t o = i < ends ? i : i < 2 * ends ? layer_.rows - 1 - (i - ends) : i * 977 + 13;
        return std::max(o, 0) % layer_.rows;
    }

    const Layer &layer_;
    const Tokens &tokens_;
    std::vector<std::pair<double, double>> values_; /**< With their bounds. */
};

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

double time_graph(const GpuGraph &graph, size_t calls, int rounds) {
    std::vector<double> times;
    for (int i = 0; i < rounds; i++) {
        times.push_back(graph.time() / static_cast<double>(calls));
    }
    return spread_of(std::move(times)).median;
}

Json measure(const std::string &name, const GpuSlice &slice, Launcher &launcher, const Layer &layer, int32_t count,
             double zeros, const std::optional<Cublas> &cublas, const Options &options) {
    const Tokens tokens(layer, count);
    const Expected expected(layer, tokens);
    const auto graph_of = [&](const Configuration &with) {
        return std::make_unique<GpuGraph>(slice, [&, with] {
            for (size_t i = 0; i < layer.bitmaps->count(); i++) {
                run_ours(launcher, layer, tokens, with, i);
            }
        });
    };
    Json timed = Json::object();
    std::optional<Configuration> best;
    double best_us = 0;
    std::string mistakes;
    for (const Configuration &with : configurations(layer, count, options)) {
        write_device(tokens.to.data(), std::vector<uint16_t>(static_cast<size_t>(count) * layer.rows, 0x7fff));
        run_ours(launcher, layer, tokens, with, 0);
        slice.synchronise();
        const std::string mistake = expected.mistake_in(tokens.to.get());
        if (!mistake.empty()) {
            mistakes += with.name() + ": " + mistake + "; ";
            std::printf("  WRONG %s: %s\n", with.name().c_str(), mistake.c_str());
            std::fflush(stdout);
            continue;
        }
        const double us = time_graph(*graph_of(with), layer.bitmaps->count(), 3);
        timed[with.name()] = rounded(us);
        if (!best || us < best_us) {
            best = with;
            best_us = us;
        }
    }
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
                {"copies", layer.bitmaps->count()}};
    if (!mistakes.empty()) {
        result["mistakes"] = mistakes;
    }
    if (!best) {
        result["status"] = "failed";
        return result;
    }
    const auto ours = graph_of(*best);
    std::unique_ptr<GpuPeer> peer;
    std::unique_ptr<GpuGraph> theirs;
    if (cublas) {
        std::vector<const void *> filters;
        for (size_t i = 0; i < layer.all->count(); i++) {
            filters.push_back((*layer.all)[i]);
        }
        const LinearShape shape{count, layer.columns, layer.rows, layer.dtype, DISTILE_MATH_FLOAT32};
        peer = cublas->linear(shape, tokens.from.data(), filters, tokens.narrow_bias.data(), tokens.to.data());
        write_device(tokens.to.data(), std::vector<uint16_t>(static_cast<size_t>(count) * layer.rows, 0x7fff));
        peer->run();
        slice.synchronise();
        if (const std::string mistake = expected.mistake_in(tokens.to.get()); !mistake.empty()) {
            std::printf("  cuBLAS: %s\n", mistake.c_str());
            result["peer_mistake"] = mistake;
        }
        theirs = std::make_unique<GpuGraph>(slice, [&] {
            for (size_t i = 0; i < filters.size(); i++) {
                peer->run();
            }
        });
    }
    std::vector<double> our_times, their_times;
    for (int32_t round = 0; round < options.rounds; round++) {
        our_times.push_back(ours->time() / static_cast<double>(layer.bitmaps->count()));
        if (theirs) {
            their_times.push_back(theirs->time() / static_cast<double>(layer.all->count()));
        }
    }
    const Spread our_spread = spread_of(our_times);
    result["configuration"] = best->name();
    result["t_us"] = rounded(our_spread.median);
    result["us"] = to_json(our_spread);
    result["gb_per_s"] = rounded(static_cast<double>(layer.bytes) / our_spread.median * 1e-3);
    std::string compared;
    if (theirs) {
        const Spread their_spread = spread_of(their_times);
        const double dense_bytes = static_cast<double>(layer.dense.size()) * 2;
        result["peer"] = peer->description();
        result["implementation"] = peer->implementation();
        result["t_peer_us"] = rounded(their_spread.median);
        result["peer_us"] = to_json(their_spread);
        result["peer_gb_per_s"] = rounded(dense_bytes / their_spread.median * 1e-3);
        result["ratio"] = rounded(their_spread.median / our_spread.median);
        compared = fmt::format(", cuBLAS {:8.2f} us ({:6.0f} GB/s): {:.2f} times", their_spread.median,
                               dense_bytes / their_spread.median * 1e-3, their_spread.median / our_spread.median);
    }
    result["configurations"] = timed;
    std::printf("%-36s %8.2f us (%6.0f GB/s)%s  [%s]%s\n", name.c_str(), our_spread.median,
                static_cast<double>(layer.bytes) / our_spread.median * 1e-3, compared.c_str(), best->name().c_str(),
                mistakes.empty() ? "" : " SOME WRONG");
    if (options.all) {
        for (const auto &[with, us] : timed.items()) {
            std::printf("    %-32s %8.2f us\n", with.c_str(), us.get<double>());
        }
        std::printf("    %s\n", launcher.describe(best->pixels, layer.dtype).c_str());
    }
    std::fflush(stdout);
    return result;
}

int run(const Options &options) {
    CU(cuInit, 0U);
    const GpuSlice slice(0);
    Launcher launcher(slice);
    std::optional<Cublas> cublas;
    std::string peer = "none";
    try {
        if (!options.no_cublas) {
            cublas.emplace(slice);
            peer = cublas->description();
        }
    } catch (const PeerMissing &missing) {
        std::printf("without cuBLAS: %s\n", missing.what());
    }
    int driver = 0;
    CU(cuDriverGetVersion, &driver);
    Results results(
        options.out, options.resume,
        {{"date", utc_now()},
         {"backend", "cuda"},
         {"device", slice.device()},
         {"system", system_name()},
         {"versions", {{"source", source_version()}, {"CUDA driver", driver}, {"peer", peer}}},
         {"about",
          "linear layers with zeros at random among their weights, by a bitmap of these, and by cuBLAS with all "
          "weights; medians of replays of graphs in microseconds, in turns; weights are rotated among "
          "copies that the L2 cache does not hold; ours is the fastest of all configurations; without the "
          "runtime around it"}});
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
            std::printf("%s\n", launcher.describe(pixels, dtype).c_str());
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
    app.add_option("--out", options.out, "File of results (JSON)");
    app.add_flag("--resume", options.resume, "Keep the rows that the file has");
    app.add_flag("--all", options.all, "Print the time of each configuration");
    app.add_flag("--no-cublas", options.no_cublas, "Leave cuBLAS out");
    CLI11_PARSE(app, argc, argv);
    try {
        return run(options);
    } catch (const std::exception &error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
}
