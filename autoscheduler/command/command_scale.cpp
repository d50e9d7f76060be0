#include "autoscheduler/command/commands.h"
#include "autoscheduler/scaling/scaling.h"
#include "masks/mask_families.h"
#include "masks/mask_files.h"
#include "plans/json_file.h"
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <fmt/core.h>
#include <memory>
#include <nlohmann/json.hpp>

namespace distile {

namespace scale_command {
namespace {

constexpr int most_extent = 65535;

struct Options {
    std::string mask = "blob:0.3:1", size = "1024x1024";
    int batch = 1, layers = 12, kernel = 3, channels = 256, element_bytes = 2;
    std::vector<int> devices = {1, 2, 4, 8};
    std::vector<std::string> times;
    Cluster cluster;
    double inside_gb = 300, between_gb = 50;
    bool no_overlap = false, json = false;
};

/** The mask of every image of the batch. */
BitImage mask_of(const Options &options) {
    ByteMask mask;
    if (ends_with(options.mask, ".npy") || ends_with(options.mask, ".png")) {
        const std::vector<MaskImage> images = ends_with(options.mask, ".npy")
                                                  ? read_npy_masks(options.mask)
                                                  : std::vector<MaskImage>{read_png_mask(options.mask)};
        mask.batch = static_cast<int32_t>(images.size());
        mask.height = images.front().height;
        mask.width = images.front().width;
        for (const MaskImage &image : images) {
            mask.bytes.insert(mask.bytes.end(), image.bytes.begin(), image.bytes.end());
        }
    } else {
        int height = 0, width = 0, end = 0;
        if (std::sscanf(options.size.c_str(), "%5dx%5d%n", &height, &width, &end) != 2 ||
            options.size.size() != static_cast<size_t>(end) || height < 1 || width < 1 || height > most_extent ||
            width > most_extent || int64_t{height} * width * options.batch > int64_t{1} << 28) {
            throw FileError("--size is '" + options.size +
                            "', not HEIGHTxWIDTH with extents from 1 to 65535 and up to 2^28 pixels in the batch");
        }
        try {
            mask = draw_named_mask(options.mask, options.batch, height, width);
        } catch (const std::invalid_argument &error) {
            throw FileError("the mask '" + options.mask + "' is " + error.what());
        }
    }
    BitImage bits({mask.batch, mask.height, mask.width});
    pack_bitmask(mask.bytes.data(), int64_t{mask.height} * mask.width, mask.width, mask.batch, mask.height, mask.width,
                 bits.words.data());
    return bits;
}

/** Points PIXELS:MICROSECONDS, by pixels. */
std::vector<TimePoint> points_of(const std::vector<std::string> &texts) {
    std::vector<TimePoint> points;
    for (const std::string &text : texts) {
        long long pixels = 0;
        double us = 0;
        int end = 0;
        if (std::sscanf(text.c_str(), "%18lld:%lf%n", &pixels, &us, &end) != 2 ||
            text.size() != static_cast<size_t>(end) || pixels < 1 || !(us > 0)) {
            throw FileError("the time '" + text + "' is not PIXELS:MICROSECONDS, both above 0");
        }
        points.push_back({pixels, us});
    }
    std::sort(points.begin(), points.end(), [](const TimePoint &a, const TimePoint &b) { return a.tiles < b.tiles; });
    return points;
}

void show_scaling(const Options &options) {
    const BitImage mask = mask_of(options);
    PlannedLayer layer{};
    const int32_t pad = options.kernel / 2;
    layer.rows = layer.columns = {options.kernel, 1, 1, pad, options.kernel - 1 - pad};
    layer.residual = -1;
    layer.work = static_cast<double>(options.channels) * options.channels * options.kernel * options.kernel;
    layer.pixel_bytes = int64_t{options.channels} * options.element_bytes;
    const std::vector<PlannedLayer> layers(static_cast<size_t>(options.layers), layer);
    const std::vector<const BitImage *> masks(layers.size(), &mask);
    Cluster cluster = options.cluster;
    cluster.device.points = points_of(options.times);
    constexpr double bytes_per_us_of_gb = 1e3;
    cluster.inside.bytes_per_us = options.inside_gb * bytes_per_us_of_gb;
    cluster.between.bytes_per_us = options.between_gb * bytes_per_us_of_gb;
    cluster.overlaps = !options.no_overlap;
    nlohmann::json rows = nlohmann::json::array();
    std::string text = fmt::format("{:>8}{:>7}{:>12}{:>10}{:>15}{:>11}{:>12}{:>12}\n", "devices", "hosts", "us",
                                   "speed-up", "communication", "imbalance", "halo MB", "rows' MB");
    for (const int devices : options.devices) {
        cluster.devices = devices;
        const Scaling found = predict_scaling(layers, mask.shape, masks, cluster);
        rows.push_back({{"devices", found.devices},
                        {"hosts", found.hosts},
                        {"us", found.us},
                        {"one_us", found.one_us},
                        {"speed_up", found.speed_up()},
                        {"communication", found.communication},
                        {"imbalance", found.imbalance},
                        {"halo_bytes", found.halo_bytes},
                        {"host_bytes", found.host_bytes},
                        {"row_bytes", found.row_bytes}});
        text += fmt::format("{:>8}{:>7}{:>12.1f}{:>10.2f}{:>14.1f}%{:>10.1f}%{:>12.3f}{:>12.3f}\n", found.devices,
                            found.hosts, found.us, found.speed_up(), 100 * found.communication, 100 * found.imbalance,
                            static_cast<double>(found.halo_bytes) / 1e6, static_cast<double>(found.row_bytes) / 1e6);
    }
    if (options.json) {
        const nlohmann::json result = {{"height", mask.shape.height}, {"width", mask.shape.width},
                                       {"batch", mask.shape.batch},   {"active_pixels", mask.count()},
                                       {"layers", options.layers},    {"rows", rows}};
        std::fputs(format_json(result).c_str(), stdout);
    } else {
        std::fputs(text.c_str(), stdout);
    }
}

}  // namespace
}  // namespace scale_command

void add_scale_command(CLI::App &app) {
    using namespace scale_command;
    const auto options = std::make_shared<Options>();
    CLI::App *command =
        app.add_subcommand("scale", "Predict how long a chain of convolutions takes on several devices");
    command
        ->add_option("--mask", options->mask,
                     "Mask of all outputs: a .npy or .png file, or blob:DENSITY:SEED, "
                     "random:DENSITY:SEED or checkerboard")
        ->capture_default_str();
    command->add_option("--size", options->size, "Size of a drawn mask, HEIGHTxWIDTH")->capture_default_str();
    command->add_option("--batch", options->batch, "Images with drawn masks")
        ->capture_default_str()
        ->check(CLI::Range(1, 4096));
    command->add_option("--layers", options->layers, "Convolutions")->capture_default_str()->check(CLI::Range(1, 1024));
    command->add_option("--kernel", options->kernel, "Rows and columns of their kernels")
        ->capture_default_str()
        ->check(CLI::Range(1, 63));
    command->add_option("--channels", options->channels, "Channels of their inputs and outputs")
        ->capture_default_str()
        ->check(CLI::Range(1, 65536));
    command->add_option("--element-bytes", options->element_bytes, "Bytes of an element")
        ->capture_default_str()
        ->check(CLI::Range(1, 4));
    command->add_option("--devices", options->devices, "Numbers of devices")
        ->capture_default_str()
        ->check(CLI::Range(1, 1024));
    command->add_option("--devices-per-host", options->cluster.devices_per_host, "Devices of a host")
        ->capture_default_str()
        ->check(CLI::Range(1, 1024));
    command->add_option(
        "--times", options->times,
        "Times of a layer on one device, PIXELS:MICROSECONDS by active pixels, in place of the next two");
    command
        ->add_option("--launch-us", options->cluster.device.launch_us, "What a layer takes however few pixels it has")
        ->capture_default_str()
        ->check(CLI::Range(0.0, 1e9));
    command->add_option("--products-per-us", options->cluster.device.products_per_us, "Multiply-adds of a device")
        ->capture_default_str()
        ->check(CLI::Range(1e-3, 1e18));
    command
        ->add_option("--bandwidth", options->inside_gb, "GB/s between devices of a host, of each device and direction")
        ->capture_default_str()
        ->check(CLI::Range(1e-6, 1e9));
    command
        ->add_option("--latency-us", options->cluster.inside.latency_us, "What a copy between them takes beside that")
        ->capture_default_str()
        ->check(CLI::Range(0.0, 1e9));
    command->add_option("--host-bandwidth", options->between_gb, "GB/s between hosts, of each host and direction")
        ->capture_default_str()
        ->check(CLI::Range(1e-6, 1e9));
    command->add_option("--host-latency-us", options->cluster.between.latency_us, "What such a copy takes beside that")
        ->capture_default_str()
        ->check(CLI::Range(0.0, 1e9));
    command
        ->add_option("--run-us-per-mb", options->cluster.group.run_us_per_mb,
                     "What a group takes in a run for a MB of the pixels that a device computes")
        ->capture_default_str()
        ->check(CLI::Range(0.0, 1e9));
    command
        ->add_option("--layer-us-per-mb", options->cluster.group.layer_us_per_mb,
                     "What it takes for such a MB in a layer")
        ->capture_default_str()
        ->check(CLI::Range(0.0, 1e9));
    command
        ->add_option("--devices-per-rank", options->cluster.devices_per_rank,
                     "Devices of a process; 0: one process has all")
        ->capture_default_str()
        ->check(CLI::Range(0, 1024));
    command
        ->add_option("--meeting-us", options->cluster.rank.meeting_us,
                     "What ranks take to compare before a run, and again after it")
        ->capture_default_str()
        ->check(CLI::Range(0.0, 1e9));
    command
        ->add_option("--message-us", options->cluster.rank.message_us,
                     "What a rank takes to exchange messages with another before a layer")
        ->capture_default_str()
        ->check(CLI::Range(0.0, 1e9));
    command->add_flag("--no-overlap", options->no_overlap, "Devices do not compute while copies travel");
    command->add_flag("--json", options->json, "Print JSON");
    command->footer("Examples:\n  distile scale --mask blob:0.3:1 --size 4096x4096\n"
                    "  distile scale --mask m.npy --times 10000:40 1000000:2500 --devices 8 16 --json");
    command->callback([options] { show_scaling(*options); });
}

}  // namespace distile
