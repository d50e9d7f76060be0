/** \file
 * The benchmark of several GPUs: a chain of masked convolutions on a group of them against the same layers on one.
 */
#include "autoscheduler/measure/gpu.h"
#include "autoscheduler/scaling/scaling.h"
#include "bench/gpu/results_header.h"
#include "bench/harness/command_line.h"
#include "bench/harness/masks.h"
#include "bench/harness/measure.h"
#include "bench/harness/results.h"
#include "distile_conv3x3_256_cuda.h"
#include "distile_conv3x3_256_float16_cuda.h"
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <deque>
#include <distile/cuda.h>
#include <distile/distile.hpp>
#include <distile/group.h>
#include <fmt/core.h>
#include <limits>
#include <map>
#include <memory>
#include <random>

namespace {

using namespace distile;
using namespace distile::bench;

constexpr const char *examples = R"(
A row is <type>/<size>/<batch>/<density>/<GPUs>: the chain on as many GPUs against one, in turns. Where an image is too
large for one call, one GPU computes it in parts, one after the other.

Examples:
  distile_group_bench --devices 2 --out results.json
  distile_group_bench --devices 2 4 --size 4096 --density 0.3 1 --type float16
)";

struct Options {
    std::vector<int32_t> devices{2}, sizes{256, 1024}, batches{1};
    std::vector<double> densities{.3, 1};
    std::vector<std::string> types{"float16", "tf32"};
    int32_t layers = 12, rounds = 15;
    double seconds = 1;
    std::string out;
    bool resume = false, overlap = false;
};

/** Contexts with streams of their own, and their group. */
struct GpuGroup {
    GpuGroup(const std::vector<int32_t> &gpus, bool overlap, bool any_order) {
        std::vector<distile_context *> pointers;
        for (const int32_t gpu : gpus) {
            streams.emplace_back(gpu);
            distile_cuda_options cuda{};
            cuda.device = gpu;
            cuda.stream = streams.back().get();
            distile_context_options options{};
            options.math = DISTILE_MATH_TF32;
            contexts.push_back(make_cuda_context(cuda, options));
            pointers.push_back(contexts.back().get());
        }
        distile_group_options options{};
        options.overlap = overlap ? DISTILE_OVERLAP_ALWAYS : DISTILE_OVERLAP_WHERE_ASYNCHRONOUS;
        options.any_order = any_order ? 1 : 0;
        distile_group *made = nullptr;
        const distile_status status =
            distile_group_create(pointers.data(), static_cast<int32_t>(gpus.size()), &options, &made);
        group.reset(made);
        check(status);
    }
    void check(distile_status status) const {
        if (status != DISTILE_OK) {
            throw Error(status, distile_group_message(group.get()));
        }
    }

    std::deque<GpuStream> streams;
    std::vector<Context> contexts;
    Group group;
};

/** A chain of equal layers on a group. */
struct GroupChain {
    /** `variant`: the one of all layers; null: the group chooses. */
    GroupChain(const GpuGroup &on, const distile_polykernel &code, const distile_weights_source &source, int32_t count,
               const char *variant = nullptr)
        : group(on) {
        const std::vector<const distile_polykernel *> codes(on.contexts.size(), &code);
        std::vector<distile_chain_layer> layers(static_cast<size_t>(count));
        for (distile_chain_layer &layer : layers) {
            layer.polykernels = codes.data();
            layer.weights = &source;
            layer.variant = variant;
        }
        distile_chain *made = nullptr;
        on.check(distile_chain_create(on.group.get(), layers.data(), count, &made));
        chain.reset(made);
    }
    void run(const distile_tensor *input, const distile_tensor *output, const Mask &mask, int32_t layers) const {
        const std::vector<distile_mask *> masks(static_cast<size_t>(layers), mask.get());
        distile_chain_args args{};
        args.input = input;
        args.output = output;
        args.masks = masks.data();
        group.check(distile_chain_run(chain.get(), &args));
    }

    const GpuGroup &group;
    Chain chain;
};

/** Memory of the first GPU with numbers from -1 to 1. */
class DrawnTensor {
public:
    DrawnTensor(int32_t batch, int32_t size, int32_t channels, distile_dtype dtype)
        : tensor(distile_tensor_make(nullptr, batch, size, size, channels)),
          bytes(static_cast<size_t>(tensor.stride_n) * batch * distile_dtype_size(dtype)), memory_(bytes) {
        tensor.data = memory_.data();
        tensor.dtype = dtype;
        draw();
    }
    void draw() const {
        constexpr size_t drawn_bytes = size_t{1} << 22;
        const size_t piece = std::min(bytes, drawn_bytes);
        std::vector<uint8_t> values(piece);
        std::mt19937 random(1);
        const bool is_half = tensor.dtype == DISTILE_FLOAT16;
        for (size_t i = 0; i < piece; i += is_half ? 2 : 4) {
            if (is_half) {
                // A sign, an exponent of -4 to -1 and any fraction.
                const uint32_t bits = random();
                const auto half = static_cast<uint16_t>((bits & 0x8fffU) | 0x2c00U);
                std::memcpy(&values[i], &half, sizeof(half));
            } else {
                const float value = std::uniform_real_distribution<float>(-1, 1)(random);
                std::memcpy(&values[i], &value, sizeof(value));
            }
        }
        const auto address = reinterpret_cast<CUdeviceptr>(tensor.data);
        CU(cuMemcpyHtoD, address, static_cast<const void *>(values.data()), piece);
        for (size_t done = piece; done < bytes; done += std::min(done, bytes - done)) {
            CU(cuMemcpyDtoD, address + done, address, std::min(done, bytes - done));
        }
        CU(cuCtxSynchronize);
    }
    std::vector<uint8_t> get(size_t first, size_t count) const {
        std::vector<uint8_t> values(count);
        CU(cuMemcpyDtoH, static_cast<void *>(values.data()), reinterpret_cast<CUdeviceptr>(tensor.data) + first, count);
        return values;
    }

    distile_tensor tensor;
    size_t bytes;

private:
    DeviceArray<uint8_t> memory_;
};

bool same_bytes(const DrawnTensor &one, const DrawnTensor &other) {
    constexpr size_t piece = size_t{1} << 28;
    for (size_t first = 0; first < one.bytes; first += piece) {
        const size_t count = std::min(piece, one.bytes - first);
        if (one.get(first, count) != other.get(first, count)) {
            return false;
        }
    }
    return true;
}

/** A mask of one density, or for several images densities from .02 to .9. */
ByteMask draw_row_mask(int32_t batch, int32_t size, double density) {
    if (batch == 1) {
        return make_byte_mask({"blob", density, 1}, 1, size, size);
    }
    ByteMask mask{batch, size, size, {}};
    for (int32_t n = 0; n < batch; n++) {
        // In an order in which no half of the images has half of the pixels.
        constexpr double least = .02, most = .9;
        const double part = least + (most - least) * n / (batch - 1);
        const ByteMask image = make_byte_mask({"blob", part, static_cast<uint64_t>(n)}, 1, size, size);
        mask.bytes.insert(mask.bytes.end(), image.bytes.begin(), image.bytes.end());
    }
    return mask;
}

/** The layers on one device, one after the other: on the whole images, or where these are too large, part after part.
 */
class OneDevice {
public:
    OneDevice(const GpuGroup &on, const distile_polykernel &code, const distile_weights_source &source, int32_t layers)
        : context_(on.contexts[0]), stream_(on.streams[0]), layers_(layers), kernel_(make_kernel(context_, code)),
          weights_(pack_weights(context_, kernel_, source)), planner_(make_planner(context_, {})) {
    }
    /** With a chain, as its devices compute. */
    void run(const distile_tensor &input, const distile_tensor &output, const Mask &mask,
             const distile_chain *like) const {
        distile_tensor from = input;
        distile_output_spec spec{};
        spec.batch = input.batch;
        spec.height = input.height;
        spec.width = input.width;
        spec.channels = input.channels;
        spec.dtype = input.dtype;
        const distile_border border = distile_kernel_border(kernel_.get());
        spec.border_top = border.top;
        spec.border_bottom = border.bottom;
        spec.border_left = border.left;
        spec.border_right = border.right;
        for (int32_t i = 0; i < layers_; i++) {
            distile_tensor to = output;
            if (i + 1 < layers_) {
                check(context_, distile_planner_next(planner_.get(), &spec, mask.get(), DISTILE_STORE_EXACT, &to));
            }
            distile_run_args args{};
            args.input = &from;
            args.output = &to;
            args.weights = weights_.get();
            args.mask = mask.get();
            args.fixed_order = like ? 1 : 0;
            args.variant = like ? distile_chain_variant(like, i) : nullptr;
            check(context_, distile_run(kernel_.get(), &args));
            from = to;
        }
        CU(cuStreamSynchronize, stream_.get());
    }

private:
    const Context &context_;
    const GpuStream &stream_;
    int32_t layers_;
    Kernel kernel_;
    Weights weights_;
    Planner planner_;
};

/** What a layer takes on the whole GPU by active pixels: the fastest variant of the PolyKernel's time table. */
std::vector<TimePoint> layer_times(const distile_polykernel &code) {
    int32_t threads = 0;
    for (int64_t i = 0; i < code.num_times; i++) {
        threads = std::max(threads, code.times[i].threads);
    }
    std::map<int32_t, std::vector<TimePoint>> by_variant;  // In pixels.
    std::map<int64_t, double> fastest;
    for (int64_t i = 0; i < code.num_times; i++) {
        const distile_time_point &point = code.times[i];
        const distile_variant &variant = code.variants[point.variant];
        // A dense variant takes as long however many pixels are active.
        if (point.threads == threads && variant.dense == 0) {
            const int64_t pixels = point.tiles * variant.tile_h * variant.tile_w;
            by_variant[point.variant].push_back({pixels, point.microseconds});
            fastest[pixels] = std::numeric_limits<double>::infinity();
        }
    }
    for (auto &[pixels, least] : fastest) {
        for (const auto &[variant, points] : by_variant) {
            least = std::min(least, predict_time(points.data(), static_cast<int32_t>(points.size()), pixels));
        }
    }
    std::vector<TimePoint> points;
    for (const auto &[pixels, us] : fastest) {
        points.push_back({pixels, us});
    }
    return points;
}

/** The layers of a chain as plans know them. */
std::vector<PlannedLayer> planned_layers(const distile_polykernel &code, int32_t layers) {
    const auto &conv = *static_cast<const distile_conv2d *>(code.op);
    PlannedLayer layer{};
    layer.rows = rows_of(conv);
    layer.columns = columns_of(conv);
    layer.work = static_cast<double>(conv.in_channels) * conv.out_channels * conv.kernel_h * conv.kernel_w;
    layer.pixel_bytes = conv.out_channels * static_cast<int64_t>(distile_dtype_size(code.operands[0].dtype));
    return std::vector<PlannedLayer>(static_cast<size_t>(layers), layer);
}

BitImage bits_of(const ByteMask &bytes) {
    BitImage image({bytes.batch, bytes.height, bytes.width});
    size_t at = 0;
    for (int32_t n = 0; n < bytes.batch; n++) {
        for (int32_t y = 0; y < bytes.height; y++) {
            for (int32_t x = 0; x < bytes.width; x++) {
                if (bytes.bytes[at++] != 0) {
                    image.set(n, y, x, x + 1);
                }
            }
        }
    }
    return image;
}

/** The masks of each device's pixels, as a group of equal devices cuts the images. */
std::vector<ByteMask> masks_of_parts(const distile_polykernel &code, const ByteMask &bytes, int32_t layers,
                                     int32_t devices) {
    const BitImage image = bits_of(bytes);
    const std::vector<const BitImage *> masks(static_cast<size_t>(layers), &image);
    const Partition partition = partition_chain(planned_layers(code, layers), image.shape, masks,
                                                std::vector<DeviceTime>(static_cast<size_t>(devices)));
    std::vector<ByteMask> parts(static_cast<size_t>(devices), bytes);
    size_t at = 0;
    for (int32_t n = 0; n < bytes.batch; n++) {
        for (int32_t y = 0; y < bytes.height; y++) {
            for (int32_t x = 0; x < bytes.width; x++, at++) {
                for (size_t part = 0; part < parts.size(); part++) {
                    if (partition.owner(n, y / partition.cell_h, x / partition.cell_w) != part) {
                        parts[part].bytes[at] = 0;
                    }
                }
            }
        }
    }
    return parts;
}

/** What the model of time says of a row. */
Scaling predict(const distile_polykernel &code, const ByteMask &bytes, int32_t layers, int32_t devices) {
    const BitImage image = bits_of(bytes);
    Cluster cluster{};
    cluster.devices = devices;
    cluster.device.points = layer_times(code);
    cluster.overlaps = false;
    const std::vector<const BitImage *> masks(static_cast<size_t>(layers), &image);
    return predict_scaling(planned_layers(code, layers), image.shape, masks, cluster);
}

struct RowOf {
    std::string type;
    int32_t size, batch;
    double density;
    int32_t devices;

    std::string name() const {
        return fmt::format("{}/{}/n{}/{}/{}", type, size, batch, batch > 1 ? "unequal" : fmt::format("{}", density),
                           devices);
    }
};

std::vector<int32_t> first_gpus(int32_t count) {
    std::vector<int32_t> gpus;
    for (int32_t i = 0; i < count; i++) {
        gpus.push_back(i);
    }
    return gpus;
}

Json measure(const RowOf &row, const Options &options) {
    constexpr int32_t channels = 256, taps = 9;
    const bool is_half = row.type == "float16";
    const distile_polykernel &code = is_half ? distile_conv3x3_256_float16_cuda : distile_conv3x3_256_cuda;
    const distile_dtype dtype = is_half ? DISTILE_FLOAT16 : DISTILE_FLOAT32;
    std::vector<float> filter(size_t{channels} * channels * taps);
    std::mt19937 random(2);
    for (float &value : filter) {
        value = std::uniform_real_distribution<float>(-.04F, .04F)(random);
    }
    distile_weights_source source{};
    source.filter = filter.data();
    source.order = DISTILE_HWIO;

    const GpuGroup several(first_gpus(row.devices), options.overlap, false);
    const GroupChain chain(several, code, source, options.layers);
    // A second group adds sums in any order.
    const GpuGroup free(first_gpus(row.devices), options.overlap, true);
    const GroupChain free_chain(free, code, source, options.layers);
    CU(cuCtxSetCurrent, several.streams[0].context());
    const DrawnTensor input(row.batch, row.size, channels, dtype), output(row.batch, row.size, channels, dtype),
        other(row.batch, row.size, channels, dtype);
    const ByteMask bytes = draw_row_mask(row.batch, row.size, row.density);
    const DeviceArray<uint8_t> mask_bytes(bytes.bytes);
    const auto mask_of = [&](const Context &context, const DeviceArray<uint8_t> &of) {
        Mask mask = make_mask(context);
        check(context, distile_mask_set_bytes(mask.get(), of.data(), row.batch, row.size, row.size,
                                              int64_t{row.size} * row.size, row.size));
        CU(cuCtxSynchronize);
        return mask;
    };
    const auto mask_in = [&](const Context &context) { return mask_of(context, mask_bytes); };
    const Mask mask = mask_in(several.contexts[0]), free_mask = mask_in(free.contexts[0]);

    // One device: calls on whole images, or where these are too large for a call, a group of contexts that share it.
    constexpr double most_elements = 2147483647.0;
    const bool whole = static_cast<double>(row.batch) * row.size * row.size * channels < most_elements;
    std::unique_ptr<OneDevice> one;
    std::unique_ptr<GpuGroup> parts;
    std::unique_ptr<GroupChain> chain_of_parts;
    Mask mask_of_parts;
    if (whole) {
        one = std::make_unique<OneDevice>(several, code, source, options.layers);
    } else {
        parts = std::make_unique<GpuGroup>(std::vector<int32_t>(4, 0), false, false);
        chain_of_parts = std::make_unique<GroupChain>(*parts, code, source, options.layers);
        mask_of_parts = mask_in(parts->contexts[0]);
    }
    chain.run(&input.tensor, &other.tensor, mask, options.layers);
    if (one) {
        one->run(input.tensor, output.tensor, mask, chain.chain.get());
    } else {
        chain_of_parts->run(&input.tensor, &output.tensor, mask_of_parts, options.layers);
    }
    const bool equal = same_bytes(output, other);

    // With images that the devices keep, as steps of diffusion do.
    const auto keep = [&](const GroupChain &of, const Mask &by) {
        of.run(&input.tensor, nullptr, by, options.layers);
        return [&] { of.run(nullptr, nullptr, by, options.layers); };
    };
    std::vector<std::string> names;
    std::vector<std::function<void()>> sides;
    const auto add = [&](const char *name, const std::function<void()> &side) {
        names.emplace_back(name);
        sides.push_back(side);
    };
    if (one) {
        add("one", [&] { one->run(input.tensor, output.tensor, mask, nullptr); });
        add("group", [&] { chain.run(&input.tensor, &other.tensor, mask, options.layers); });
        add("kept", keep(chain, mask));
        add("any_order", keep(free_chain, free_mask));
    } else {
        add("one", keep(*chain_of_parts, mask_of_parts));
        add("kept", keep(chain, mask));
    }
    // Each device's part alone on the first GPU, without others to wait for or copy from.
    const GpuGroup alone({0}, false, false);
    std::deque<GroupChain> part_chains;
    std::deque<Mask> part_masks;
    const size_t first_part = sides.size();
    if (whole) {
        for (const ByteMask &part : masks_of_parts(code, bytes, options.layers, row.devices)) {
            const DeviceArray<uint8_t> part_bytes(part.bytes);
            part_masks.push_back(mask_of(alone.contexts[0], part_bytes));
            part_chains.emplace_back(alone, code, source, options.layers, distile_chain_variant(chain.chain.get(), 0));
            add("part", keep(part_chains.back(), part_masks.back()));
        }
    }
    const std::vector<Spread> spreads = measure_turns(sides, {options.rounds, options.seconds});
    distile_chain_info info{};
    several.check(distile_chain_get_info(chain.chain.get(), &info));
    Json result{{"row", row.name()},
                {"status", "measured"},
                {"kind", "group"},
                {"type", row.type},
                {"size", row.size},
                {"batch", row.batch},
                {"density", bytes.density()},
                {"devices", row.devices},
                {"layers", options.layers},
                {"equal", equal},
                {"in_parts", !whole}};
    const double one_us = spreads[0].median;
    double longest_part = 0;
    for (size_t i = first_part; i < sides.size(); i++) {
        longest_part = std::max(longest_part, spreads[i].median);
    }
    if (whole) {
        result["t_longest_part_us"] = rounded(longest_part);
        const auto kept = static_cast<size_t>(std::find(names.begin(), names.end(), "kept") - names.begin());
        result["communication"] = rounded(1 - longest_part / spreads[kept].median);
    }
    for (size_t i = 0; i < first_part; i++) {
        result["t_" + names[i] + "_us"] = rounded(spreads[i].median);
        result[names[i] + "_us"] = to_json(spreads[i]);
        if (i > 0) {
            result["speed_up_" + names[i]] = rounded(one_us / spreads[i].median);
        }
    }
    const Scaling model = predict(code, bytes, options.layers, row.devices);
    result["predicted_one_us"] = rounded(model.one_us);
    result["predicted_us"] = rounded(model.us);
    result["predicted_speed_up"] = rounded(model.speed_up());
    result["predicted_communication"] = rounded(model.communication);
    result["imbalance"] = rounded(info.imbalance);
    result["halo_bytes"] = info.halo_bytes;
    result["row_bytes"] = info.row_bytes;
    result["input_bytes"] = info.input_bytes;
    return result;
}

int run(const Options &options) {
    CU(cuInit, 0U);
    int count = 0;
    CU(cuDeviceGetCount, &count);
    CUdevice device = 0;
    CU(cuDeviceGet, &device, 0);
    char name[256] = "";
    CU(cuDeviceGetName, name, static_cast<int>(sizeof(name)), device);
    Json header = results_header(
        name,
        "a chain of masked 3x3 convolutions of 256 channels, one mask for all; times are medians in "
        "microseconds by the host's clock, all sides in turns; t_one_us: the layers on one GPU, called one "
        "after the other (in_parts: as a group of contexts on that GPU, because the images are too large for a "
        "call); "
        "t_group_us: from an input on the first GPU to an output there; t_kept_us: the devices keep the images; "
        "t_any_order_us: so too, but with any_order; speed_up_...: of t_one_us to these; equal: all bits are those "
        "of one GPU in calls with a "
        "fixed order of sums; t_longest_part_us: the part of a device alone on one GPU, with kept images, the "
        "longest "
        "of all; communication: what t_kept_us is above that, as a part of it; predicted: by the model of time, from "
        "the PolyKernel's time table, with copies of 5 us and 300 GB/s");
    header["gpus"] = count;
    Results results(options.out, options.resume, header);
    bool all_equal = true;
    for (const std::string &type : options.types) {
        for (const int32_t size : options.sizes) {
            for (const int32_t batch : options.batches) {
                for (const double density : options.densities) {
                    for (const int32_t devices : options.devices) {
                        const RowOf row{type, size, batch, density, devices};
                        if (devices > count || results.is_measured(row.name())) {
                            std::printf("%-32s %s\n", row.name().c_str(),
                                        devices > count ? "skipped: there are fewer GPUs" : "measured before");
                            continue;
                        }
                        const Json result = measure(row, options);
                        all_equal = all_equal && result.at("equal") == true;
                        std::printf("%-32s one %9.1f us, kept %9.1f us: %.2f times%s, imbalance %.3f, bits %s\n",
                                    row.name().c_str(), result.at("t_one_us").get<double>(),
                                    result.at("t_kept_us").get<double>(), result.at("speed_up_kept").get<double>(),
                                    result.contains("speed_up_group")
                                        ? fmt::format(" (from an input {:.2f}, in any order {:.2f})",
                                                      result.at("speed_up_group").get<double>(),
                                                      result.at("speed_up_any_order").get<double>())
                                              .c_str()
                                        : "",
                                    result.at("imbalance").get<double>(),
                                    result.at("equal") == true ? "equal" : "NOT equal");
                        std::fflush(stdout);
                        results.add(result);
                    }
                }
            }
        }
    }
    return all_equal ? 0 : 1;
}

}  // namespace

int main(int argc, char **argv) {
    Options options;
    CLI::App app("Measures a chain of masked convolutions on several GPUs against one.");
    app.footer(examples);
    app.add_option("--devices", options.devices, "Numbers of GPUs")->check(CLI::Range(1, 64));
    app.add_option("--size", options.sizes, "Rows and columns of the images")->check(CLI::Range(8, 16384));
    app.add_option("--batch", options.batches, "Images; more than one have unequal masks")->check(CLI::Range(1, 256));
    app.add_option("--density", options.densities, "Parts of active pixels")->check(CLI::Range(0.0, 1.0));
    app.add_option("--type", options.types, "float16 or tf32")->check(CLI::IsMember({"float16", "tf32"}));
    app.add_option("--layers", options.layers, "Layers of the chain")->check(CLI::Range(1, 64));
    app.add_option("--rounds", options.rounds, "Rounds of a row, at least")->check(CLI::Range(3, 1000));
    app.add_option("--seconds", options.seconds, "Seconds of a row, at least")->check(CLI::Range(0.0, 60.0));
    app.add_flag("--overlap", options.overlap, "Compute while halos travel");
    return run_command_line(app, argc, argv, options, run);
}
