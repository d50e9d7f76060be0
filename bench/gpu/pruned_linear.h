/** \file
 * Linear layers with pruned weights of 16 bits, for benchmarks that launch kernels without the runtime.
 */
#ifndef DISTILE_BENCH_PRUNED_LINEAR_H
#define DISTILE_BENCH_PRUNED_LINEAR_H

#include "autoscheduler/measure/gpu.h"
#include "autoscheduler/measure/gpu_measure.h"
#include "bench/harness/measure.h"
#include "bench/harness/peer_missing.h"
#include "bench/harness/results.h"
#include "bench/peers/gpu_peer.h"
#include "facts/type_functions.h"
#include "kernels/call.h"
#include "runtime/base/stored_float.h"
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fmt/core.h>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace distile::bench {

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
            CUlaunchConfig config{};
            config.gridDimX = static_cast<unsigned>(launch->blocks[0]);
            config.gridDimY = static_cast<unsigned>(launch->blocks[1]);
            config.gridDimZ = static_cast<unsigned>(launch->blocks[2]);
            config.blockDimX = static_cast<unsigned>(launch->threads[0]);
            config.blockDimY = static_cast<unsigned>(launch->threads[1]);
            config.blockDimZ = static_cast<unsigned>(launch->threads[2]);
            config.sharedMemBytes = static_cast<unsigned>(launch->shared_bytes);
            config.hStream = static_cast<CUstream>(self.slice_.stream());
            CUlaunchAttribute attributes[2] = {};
            config.attrs = attributes;
            if (launch->cluster > 1) {
                CUlaunchAttribute &clusters = attributes[config.numAttrs++];
                clusters.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
                clusters.value.clusterDim.x = static_cast<unsigned>(launch->cluster);
                clusters.value.clusterDim.y = clusters.value.clusterDim.z = 1;
            }
            if (launch->early != 0) {
                CUlaunchAttribute &early = attributes[config.numAttrs++];
                early.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
                early.value.programmaticStreamSerializationAllowed = 1;
            }
            CU(cuLaunchKernelEx, &config, function, launch->arguments, static_cast<void **>(nullptr));
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
    int multiprocessors() const {
        return slice_.multiprocessors();
    }
    /** What the driver made of a kernel. */
    std::string describe(const std::string &wanted, int32_t threads, int32_t shared_bytes) const {
        std::string text;
        for (const auto &[name, function] : functions_) {
            if (wanted == name) {
                int registers = 0, local = 0, blocks = 0;
                CU(cuFuncGetAttribute, &registers, CU_FUNC_ATTRIBUTE_NUM_REGS, function);
                CU(cuFuncGetAttribute, &local, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, function);
                CU(cuOccupancyMaxActiveBlocksPerMultiprocessor, &blocks, function, threads,
                   static_cast<size_t>(shared_bytes));
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

inline uint16_t narrow(float value, distile_dtype dtype) {
    return dtype == DISTILE_FLOAT16 ? StoredFloat<DISTILE_FLOAT16>::from_float(value)
                                    : StoredFloat<DISTILE_BFLOAT16>::from_float(value);
}
inline float widen(uint16_t bits, distile_dtype dtype) {
    return dtype == DISTILE_FLOAT16 ? StoredFloat<DISTILE_FLOAT16>::to_float(bits)
                                    : StoredFloat<DISTILE_BFLOAT16>::to_float(bits);
}

/** A layer with all of its weights, and with copies of them on the device. */
struct LinearLayer {
    LinearLayer(int32_t num_rows, int32_t num_columns, distile_dtype type)
        : rows(num_rows), columns(num_columns), dtype(type), dense(static_cast<size_t>(num_rows) * num_columns),
          bias(num_rows) {
    }
    /** Rounds the filter to the type, draws the bias, and makes the copies. */
    void take(std::vector<float> &filter, size_t rotated_bytes, std::mt19937 &random) {
        for (size_t i = 0; i < filter.size(); i++) {
            dense[i] = narrow(filter[i], dtype);
            filter[i] = widen(dense[i], dtype);
        }
        for (float &each : bias) {
            each = widen(narrow(static_cast<float>(random() >> 8) / 8388608.0f - 1, dtype), dtype);
        }
        all = std::make_unique<Copies>(dense.data(), dense.size() * 2, rotated_bytes);
    }

    int32_t rows, columns;
    distile_dtype dtype;
    std::vector<uint16_t> dense;
    std::vector<float> bias;
    std::unique_ptr<Copies> all;
};

/** Tokens of a layer on the device. */
struct Tokens {
    Tokens(const LinearLayer &layer, int32_t count)
        : count(count), input(draw(layer, count)), from(input), to(static_cast<size_t>(count) * layer.rows),
          bias(layer.bias), narrow_bias(narrow_all_of(layer)), list(listed(count)),
          tiles(std::vector<uint32_t>{static_cast<uint32_t>(count)}),
          bits(std::vector<uint32_t>((count + 31) / 32, ~0U)) {
    }
    static std::vector<uint16_t> draw(const LinearLayer &layer, int32_t count) {
        std::mt19937 random(2);
        std::vector<uint16_t> values(static_cast<size_t>(count) * layer.columns);
        for (uint16_t &value : values) {
            value = narrow(static_cast<float>(random() >> 8) / 8388608.0f - 1, layer.dtype);
        }
        return values;
    }
    static std::vector<uint16_t> narrow_all_of(const LinearLayer &layer) {
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

inline distile_array activation(void *data, distile_dtype dtype, int32_t channels, int32_t tokens) {
    return {data,
            dtype,
            4,
            {{0, channels, 1}, {0, tokens, channels}, {0, 1, tokens * channels}, {0, 1, tokens * channels}}};
}

/** The call of a launcher for a layer whose packed weights are at an address. */
class LinearCall {
public:
    LinearCall(Launcher &launcher, const LinearLayer &layer, const Tokens &tokens, void *weights)
        : operands_{activation(tokens.from.data(), layer.dtype, layer.columns, tokens.count),
                    {weights, DISTILE_FLOAT32, 1, {{0, 1, 1}}},
                    {tokens.bias.data(), DISTILE_FLOAT32, 1, {{0, layer.rows, 1}}},
                    activation(tokens.to.data(), layer.dtype, layer.rows, tokens.count)} {
        call_.hooks = launcher.hooks();
        call_.operands = operands_;
        call_.num_operands = 4;
        call_.tile_xy = tokens.list.data();
        call_.tile_capacity = call_.num_tiles = tokens.count;
        call_.tile_count = tokens.tiles.data();
        call_.bits = tokens.bits.data();
        call_.words_per_row = (tokens.count + 31) / 32;
        call_.height = call_.batch = 1;
        call_.threads = launcher.multiprocessors();
    }
    // It points into itself.
    LinearCall(const LinearCall &) = delete;
    LinearCall &operator=(const LinearCall &) = delete;

    const distile_kernel_call *get() const {
        return &call_;
    }

private:
    distile_array operands_[4];
    distile_kernel_call call_{};
};

/** What some channels should be: the first and the last ones, and some between. */
class Expected {
public:
    Expected(const LinearLayer &layer, const Tokens &tokens) : layer_(layer), tokens_(tokens) {
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

    const LinearLayer &layer_;
    const Tokens &tokens_;
    std::vector<std::pair<double, double>> values_; /**< With their bounds. */
};

inline double time_graph(const GpuGraph &graph, size_t calls, int rounds) {
    std::vector<double> times;
    for (int i = 0; i < rounds; i++) {
        times.push_back(graph.time() / static_cast<double>(calls));
    }
    return spread_of(std::move(times)).median;
}

/** A graph of a call with each copy of the weights. */
template<class Run> std::unique_ptr<GpuGraph> graph_of_copies(const GpuSlice &slice, size_t copies, const Run &run) {
    return std::make_unique<GpuGraph>(slice, [copies, &run] {
        for (size_t i = 0; i < copies; i++) {
            run(i);
        }
    });
}

/** Fills the output with NaN, runs, and returns the mistake in the result; "" if there is none. */
template<class Run> std::string mistake_of(const GpuSlice &slice, const LinearLayer &layer, const Tokens &tokens,
                                           const Expected &expected, const Run &run) {
    write_device(tokens.to.data(), std::vector<uint16_t>(static_cast<size_t>(tokens.count) * layer.rows, 0x7fff));
    run();
    slice.synchronise();
    return expected.mistake_in(tokens.to.get());
}

/** Which configuration is the fastest, what each takes in microseconds, and the mistakes of those that are wrong. */
template<class Configuration> struct Fastest {
    std::optional<Configuration> best;
    Json times = Json::object();
    std::string mistakes;
};

/** Tries configurations. run(configuration, copy) enqueues a call with one of the copies of the weights. */
template<class Configuration, class Run>
Fastest<Configuration> fastest_of(const std::vector<Configuration> &all, const GpuSlice &slice,
                                  const LinearLayer &layer, const Tokens &tokens, const Expected &expected,
                                  size_t copies, const Run &run) {
    constexpr int32_t rounds = 3;
    Fastest<Configuration> found;
    double best_us = 0;
    for (const Configuration &with : all) {
        if (const std::string mistake = mistake_of(slice, layer, tokens, expected, [&] { run(with, 0); });
            !mistake.empty()) {
            found.mistakes += with.name() + ": " + mistake + "; ";
            std::printf("  WRONG %s: %s\n", with.name().c_str(), mistake.c_str());
            std::fflush(stdout);
            continue;
        }
        const double us = time_graph(*graph_of_copies(slice, copies, [&](size_t i) { run(with, i); }), copies, rounds);
        found.times[with.name()] = rounded(us);
        if (!found.best || us < best_us) {
            found.best = with;
            best_us = us;
        }
    }
    return found;
}

/** A library's product with all weights, and its graph, which calls it with each copy of them. */
struct TimedPeer {
    std::string name, mistake;
    std::unique_ptr<GpuPeer> peer;
    std::unique_ptr<GpuGraph> graph;
    std::vector<double> times;
};

template<class Library> TimedPeer peer_of(const std::string &name, const Library &library, const GpuSlice &slice,
                                          const LinearLayer &layer, const Tokens &tokens, const Expected &expected) {
    std::vector<const void *> filters;
    for (size_t i = 0; i < layer.all->count(); i++) {
        filters.push_back((*layer.all)[i]);
    }
    const LinearShape shape{tokens.count, layer.columns, layer.rows, layer.dtype, DISTILE_MATH_FLOAT32};
    TimedPeer made;
    made.name = name;
    made.peer = library.linear(shape, tokens.from.data(), filters, tokens.narrow_bias.data(), tokens.to.data());
    made.mistake = mistake_of(slice, layer, tokens, expected, [&] { made.peer->run(); });
    if (!made.mistake.empty()) {
        std::printf("  %s: %s\n", name.c_str(), made.mistake.c_str());
    }
    made.graph = graph_of_copies(slice, filters.size(), [&](size_t) { made.peer->run(); });
    return made;
}

/** Opens a library, unless it is missing, and adds its description to those of others. */
template<class Library> void open(std::optional<Library> &library, const GpuSlice &slice, std::string &names) {
    try {
        library.emplace(slice);
        names += (names.empty() ? "" : ", ") + library->description();
    } catch (const PeerMissing &missing) {
        std::printf("without a peer: %s\n", missing.what());
    }
}

}  // namespace distile::bench

#endif
