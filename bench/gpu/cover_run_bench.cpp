/** \file
 * The benchmark of convolutions over covers of mixed granularity: in one launch, against those of one granularity.
 */
#include "bench/gpu/gpu_cover.h"
#include "bench/gpu/kernels/cover_convolutions.h"
#include "bench/gpu/results_header.h"
#include "bench/harness/command_line.h"
#include "bench/harness/masks.h"
#include "bench/harness/measure.h"
#include "bench/harness/results.h"
#include "cover_convolutions_float16_cubin.h"
#include "cover_convolutions_tf32_cubin.h"
#include "kernels/tensor_core/arguments.h"
#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fmt/core.h>
#include <limits>
#include <map>
#include <random>

namespace {

using namespace distile;
using namespace distile::bench;

constexpr const char *examples = R"(
A row is run/<type>/<channels>/<size>/<images>/<mask>: 3x3 convolutions on lists that are there, in turns: over single
pixels, over tiles of 8 x 8, and over covers of both with several thresholds.

Examples:
  distile_cover_run_bench --out results.json
  distile_cover_run_bench --type tf32 --batch 32
)";

struct Options {
    std::vector<int32_t> batches{1, 4, 32};
    std::vector<std::string> types{"float16", "tf32"};
    int32_t rounds = 9;
    std::string out;
    bool resume = false;
};

struct Operator {
    int32_t channels, size;
};
constexpr Operator all_operators[] = {{128, 112}, {256, 64}};

struct MaskOf {
    const char *name, *family;
    double density;
    double speckle;  ///< The part of all pixels that are active beside it.
};
constexpr MaskOf all_masks[] = {{"full", "dense", 1, 0},     {"blob-0.3", "blob", .3, 0},
                                {"blob-0.6", "blob", .6, 0}, {"blob-0.9", "blob", .9, 0},
                                {"mixed", "blob", .6, .02},  {"edit", "sige_church", 0, 0}};

/** The names of the kernels by what they compute: their block's pixels and channels follow. */
const std::map<int32_t, std::vector<const char *>> all_kernels = {
    {128,
     {"pixels_128_m64n128", "pixels_128_m128n128", "pixels_128_m256n128", "tiles_128_m128n128", "tiles_128_m256n128",
      "cover_128_m128n128", "cover_128_m256n128"}},
    {256,
     {"pixels_256_m64n128", "pixels_256_m64n256", "pixels_256_m128n256", "tiles_256_m128n256", "cover_256_m128n256"}}};

/** The fewest active pixels of a tile that is copied as a box. */
constexpr int32_t all_thresholds[] = {32, 40, 48, 56, 64};

struct Kernel {
    std::string name;
    CUfunction function;
    CoverLaunch launch;
};

std::vector<Kernel> kernels_of(const Module &module, int32_t channels) {
    std::vector<Kernel> kernels;
    for (const char *name : all_kernels.at(channels)) {
        Kernel kernel{name, module.find(name), {}};
        const CUdeviceptr at = module.find_variable((kernel.name + "_launch").c_str());
        CU(cuMemcpyDtoH, static_cast<void *>(&kernel.launch), at, sizeof(CoverLaunch));
        CU(cuFuncSetAttribute, kernel.function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
           kernel.launch.shared_bytes);
        kernels.push_back(kernel);
    }
    return kernels;
}

ByteMask draw(const MaskOf &of, int32_t batch, int32_t size) {
    ByteMask mask = make_byte_mask({of.family, of.density, 1}, batch, size, size);
    if (of.speckle > 0) {
        const ByteMask speckle = make_byte_mask({"random", of.speckle, 2}, batch, size, size);
        for (size_t i = 0; i < mask.bytes.size(); i++) {
            mask.bytes[i] |= speckle.bytes[i];
        }
    }
    return mask;
}

/** A convolution's tensors. Any bits serve as packed weights, because all kernels read them alike. */
class Tensors {
public:
    Tensors(const Operator &op, const std::string &type, int32_t batch)
        : op_(op), batch_(batch), bytes_(type == "tf32" ? 4 : 2),
          input_(drawn(size_t{1} * batch * op.size * op.size * op.channels, 1)),
          weights_(drawn(size_t{9} * op.channels * op.channels, .05F)),
          bias_(std::vector<float>(static_cast<size_t>(op.channels))), output_(output_words()),
          parts_(size_t{1024} * 256 * 128), signals_(std::vector<uint32_t>(4096)) {
    }
    size_t output_words() const {
        return size_t{1} * batch_ * op_.size * op_.size * op_.channels * bytes_ / 4;
    }
    const DeviceArray<uint32_t> &output() const {
        return output_;
    }
    /** The value of an element of an output's words. */
    double value(const std::vector<uint32_t> &words, size_t element) const {
        if (bytes_ == 4) {
            float value = 0;
            std::memcpy(&value, &words[element], sizeof(value));
            return value;
        }
        const uint32_t half = words[element / 2] >> (16 * (element % 2)) & 0xffff, exponent = half >> 10 & 31;
        const double fraction = half & 1023;
        const double size =
            exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, static_cast<int>(exponent) - 25);
        return (half & 0x8000) != 0 ? -size : size;
    }
    size_t elements() const {
        return output_words() * 4 / bytes_;
    }

    tensor_core::Launch<2> launch(const GpuCover &cover, const Kernel &kernel, int32_t multiprocessors) const {
        tensor_core::Launch<2> launch{};
        const int32_t pixel = op_.channels * bytes_ / 16;
        const tensor_core::Tensor shape{nullptr, pixel, pixel * op_.size, pixel * op_.size * op_.size};
        tensor_core::Arguments &a = launch.arguments;
        a.input = a.output = shape;
        a.input.data = reinterpret_cast<char *>(input_.data());
        a.output.data = reinterpret_cast<char *>(output_.data());
        a.weights = reinterpret_cast<const char *>(weights_.data());
        a.bias = bias_.data();
        a.end_row = a.end_column = a.height = a.width = op_.size;
        a.bits = cover.call().words;
        a.words_per_row = cover.call().words_per_row;
        a.batch = batch_;
        if (kernel.launch.balanced != 0) {
            a.parts = parts_.data();
            a.signals = signals_.data();
        }
        const tensor_core::Tiles tiles = tiles_of(cover, box_level), pixels = tiles_of(cover, 0);
        launch.tiles[0] = kernel.launch.has_tiles != 0 ? tiles : pixels;
        launch.tiles[1] = pixels;
        // As the runtime, which knows no count when a graph is captured: for the whole image.
        const int64_t items = int64_t{kernel.launch.channel_blocks} *
                              ((int64_t{batch_} * op_.size * op_.size - 1) / kernel.launch.block_pixels + 1);
        const int64_t resident = int64_t{multiprocessors} * kernel.launch.blocks;
        const int64_t most = kernel.launch.balanced != 0 ? tensor_core::most_sharers * items : items;
        launch.tiles[0].blocks = launch.tiles[1].blocks = static_cast<uint32_t>(std::min(most, resident));
        return launch;
    }

private:
    static constexpr int32_t box_level = 3;
    static_assert(1 << box_level == cover_box);

    std::vector<uint32_t> drawn(size_t elements, float most) const {
        std::mt19937 random(1);
        std::uniform_real_distribution<float> values(-most, most);
        std::vector<uint32_t> words(elements * bytes_ / 4);
        constexpr size_t drawn_words = size_t{1} << 20;
        for (size_t i = 0; i < words.size(); i++) {
            if (i >= drawn_words) {
                words[i] = words[i - drawn_words];
            } else if (bytes_ == 4) {
                const float value = values(random);
                std::memcpy(&words[i], &value, sizeof(value));
            } else {
                words[i] = half_of(values(random)) | half_of(values(random)) << 16;
            }
        }
        return words;
    }
    /** Rounded towards zero, and 0 below the least normal number. */
    static uint32_t half_of(float value) {
        uint32_t bits = 0;
        std::memcpy(&bits, &value, sizeof(bits));
        const int32_t exponent = static_cast<int32_t>(bits >> 23 & 255) - 127 + 15;
        return exponent <= 0 ? 0 : (bits >> 16 & 0x8000) | static_cast<uint32_t>(exponent) << 10 | (bits >> 13 & 1023);
    }
    tensor_core::Tiles tiles_of(const GpuCover &cover, int32_t level) const {
        tensor_core::Tiles tiles{};
        tiles.xy = cover.call().xy[level];
        tiles.count = cover.call().totals + level;
        tiles.capacity = static_cast<int32_t>(cover.capacity(level));
        const auto extent = [](int32_t value) { return static_cast<cuuint64_t>(value); };
        const std::array<cuuint64_t, 4> extents = {extent(op_.channels), extent(op_.size), extent(op_.size),
                                                   extent(batch_)};
        const std::array<cuuint64_t, 3> strides = {extent(op_.channels * bytes_),
                                                   extent(op_.channels * bytes_) * op_.size,
                                                   extent(op_.channels * bytes_) * op_.size * op_.size};
        const std::array<cuuint32_t, 4> box = {static_cast<cuuint32_t>(128 / bytes_), cover_box, cover_box, 1};
        const std::array<cuuint32_t, 4> steps = {1, 1, 1, 1};
        CU(cuTensorMapEncodeTiled, reinterpret_cast<CUtensorMap *>(&tiles.input_map),
           bytes_ == 4 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 4U,
           static_cast<void *>(input_.data()), extents.data(), strides.data(), box.data(), steps.data(),
           CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
           CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
        return tiles;
    }

    Operator op_;
    int32_t batch_, bytes_;
    DeviceArray<uint32_t> input_, weights_;
    DeviceArray<float> bias_;
    DeviceArray<uint32_t> output_;
    DeviceArray<float> parts_;
    DeviceArray<uint32_t> signals_;
};

/** A kernel on the lists of a cover. */
struct Side {
    const Kernel *kernel;
    int32_t threshold;  ///< 0: one granularity.
    std::unique_ptr<GpuCover> cover;
    tensor_core::Launch<2> launch;
    std::unique_ptr<GpuGraph> graph;
    std::vector<double> times;

    double us() const {
        return spread_of(times).median;
    }
};

void enqueue(const GpuSlice &slice, const Side &side) {
    std::array<void *, 1> arguments = {const_cast<tensor_core::Launch<2> *>(&side.launch)};
    CU(cuLaunchKernel, side.kernel->function, side.launch.tiles[0].blocks, 1U, 1U,
       static_cast<unsigned>(side.kernel->launch.threads), 1U, 1U,
       static_cast<unsigned>(side.kernel->launch.shared_bytes), static_cast<CUstream>(slice.stream()), arguments.data(),
       static_cast<void **>(nullptr));
}

/** Tiles with at least `threshold` active pixels. More than a tile has: single pixels only. */
std::array<float, cover_levels> times_by(int32_t threshold) {
    constexpr float never = std::numeric_limits<float>::infinity();
    return {1, never, never, threshold > cover_box * cover_box ? never : static_cast<float>(threshold) - .5F, never};
}

/** The largest difference of two outputs' elements, by the largest element. */
double difference(const Tensors &tensors, const std::vector<uint32_t> &one, const std::vector<uint32_t> &other) {
    double most = 0, largest = 0;
    for (size_t i = 0; i < tensors.elements(); i++) {
        const double a = tensors.value(one, i), b = tensors.value(other, i);
        most = std::max(most, std::abs(a));
        largest = std::max(largest, std::abs(a - b));
    }
    return most > 0 ? largest / most : std::numeric_limits<double>::infinity();
}

Json measure(const std::string &name, const GpuSlice &slice, const Operator &op, const std::string &type,
             const Tensors &tensors, const std::vector<Kernel> &kernels, const ByteMask &mask, const Options &options) {
    std::vector<Side> sides;
    const auto add = [&](const Kernel &kernel, int32_t threshold, int32_t listed) {
        Side side{&kernel, threshold, std::make_unique<GpuCover>(slice, mask, times_by(listed)), {}, nullptr, {}};
        side.launch = tensors.launch(*side.cover, kernel, slice.multiprocessors());
        sides.push_back(std::move(side));
    };
    constexpr int32_t pixels = cover_box * cover_box;
    for (const Kernel &kernel : kernels) {
        if (kernel.launch.has_tiles == 0 || kernel.launch.has_pixels == 0) {
            add(kernel, 0, kernel.launch.has_tiles != 0 ? 1 : pixels + 1);
        } else {
            for (const int32_t threshold : all_thresholds) {
                add(kernel, threshold, threshold);
            }
        }
    }
    // All sides must leave the same output.
    double error = 0;
    std::vector<uint32_t> first;
    for (const Side &side : sides) {
        CU(cuMemsetD8, reinterpret_cast<CUdeviceptr>(tensors.output().data()), static_cast<unsigned char>(0),
           tensors.output_words() * sizeof(uint32_t));
        CU(cuCtxSynchronize);
        side.cover->run();
        enqueue(slice, side);
        slice.synchronise();
        if (op.size * op.size * mask.batch <= 4 * 112 * 112) {
            const std::vector<uint32_t> output = tensors.output().get();
            error = std::max(error, first.empty() ? 0 : difference(tensors, first, output));
            first = first.empty() ? output : first;
        }
    }
    for (Side &side : sides) {
        side.graph = std::make_unique<GpuGraph>(slice, [&] { enqueue(slice, side); });
    }
    for (int32_t round = 0; round < options.rounds; round++) {
        for (Side &side : sides) {
            side.graph->replay();
            side.times.push_back(side.graph->time());
        }
    }
    Json by_kernel = Json::object(), by_threshold = Json::object();
    const Side *pixel_side = nullptr, *tile_side = nullptr, *cover_side = nullptr;
    const auto take = [](const Side *&best, const Side &side) {
        best = !best || side.us() < best->us() ? &side : best;
    };
    for (const Side &side : sides) {
        if (side.threshold == 0) {
            by_kernel[side.kernel->name] = rounded(side.us());
            take(side.kernel->launch.has_tiles != 0 ? tile_side : pixel_side, side);
        } else {
            by_threshold[side.kernel->name][std::to_string(side.threshold)] = rounded(side.us());
            take(cover_side, side);
        }
    }
    const double uniform = std::min(pixel_side->us(), tile_side->us());
    return {{"row", name},
            {"status", "measured"},
            {"kind", "gpu_cover_run"},
            {"type", type},
            {"channels", op.channels},
            {"size", op.size},
            {"batch", mask.batch},
            {"density", mask.density()},
            {"pixels", pixel_side->cover->count(0)},
            {"tiles", tile_side->cover->count(3)},
            {"max_rel_err", rounded(error)},
            {"t_pixels_us", rounded(pixel_side->us())},
            {"t_tiles_us", rounded(tile_side->us())},
            {"t_cover_us", rounded(cover_side->us())},
            {"gain", rounded(uniform / cover_side->us())},
            {"cover_kernel", cover_side->kernel->name},
            {"cover_threshold", cover_side->threshold},
            {"cover_tiles", cover_side->cover->count(3)},
            {"cover_pixels", cover_side->cover->count(0)},
            {"uniform_us", by_kernel},
            {"thresholds_us", by_threshold}};
}

int run(const Options &options) {
    CU(cuInit, 0U);
    const GpuSlice slice(0);
    Results results(
        options.out, options.resume,
        results_header(
            slice.device(),
            "3x3 convolutions on lists that are there, in microseconds: medians of replays of graphs in turns; "
            "t_pixels_us and t_tiles_us: the fastest over "
            "single pixels and over tiles of 8 x 8; t_cover_us: over a cover of both in one launch, with the "
            "best of all thresholds (fewest active pixels of a tile) and blocks; gain: of the faster of the "
            "first two over it; max_rel_err: of all to the first, for up to 4 images"));
    constexpr double tolerance = 2e-3;  // Two roundings to float16 and sums in other orders.
    bool all_alike = true;
    for (const std::string &type : options.types) {
        const Module module(type == "tf32" ? static_cast<const void *>(distile_cover_convolutions_tf32_cubin)
                                           : static_cast<const void *>(distile_cover_convolutions_float16_cubin));
        for (const Operator &op : all_operators) {
            const std::vector<Kernel> kernels = kernels_of(module, op.channels);
            for (const int32_t batch : options.batches) {
                const Tensors tensors(op, type, batch);
                for (const MaskOf &of : all_masks) {
                    const std::string name =
                        fmt::format("run/{}/{}/{}/n{}/{}", type, op.channels, op.size, batch, of.name);
                    if (results.is_measured(name)) {
                        continue;
                    }
                    const Json row =
                        measure(name, slice, op, type, tensors, kernels, draw(of, batch, op.size), options);
                    std::printf("%-36s pixels %8.1f  tiles %8.1f  cover %8.1f us: %.3f  error %.1e\n", name.c_str(),
                                row.at("t_pixels_us").get<double>(), row.at("t_tiles_us").get<double>(),
                                row.at("t_cover_us").get<double>(), row.at("gain").get<double>(),
                                row.at("max_rel_err").get<double>());
                    std::fflush(stdout);
                    results.add(row);
                    all_alike = all_alike && row.at("max_rel_err") < tolerance;
                }
            }
        }
    }
    return all_alike ? 0 : 1;
}

}  // namespace

int main(int argc, char **argv) {
    Options options;
    CLI::App app("Measures convolutions over covers of mixed granularity on a GPU of compute capability 9.0.");
    app.footer(examples);
    app.add_option("--batch", options.batches, "Images")->check(CLI::Range(1, 256));
    app.add_option("--type", options.types, "float16 or tf32")->check(CLI::IsMember({"float16", "tf32"}));
    app.add_option("--rounds", options.rounds, "Rounds of a row")->check(CLI::Range(3, 1000));
    return run_command_line(app, argc, argv, options, run);
}
