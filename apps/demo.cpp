/** \file
 * The demonstration: the gain from masked convolutions on this machine, as a table and as pictures.
 */
#include "gpu_layer.h"
#include "layer.h"
#include "masks/mask_families.h"
#include "onednn_dense.h"
#include "pictures.h"
#include "reference/processor.h"
#include <CLI/CLI.hpp>
#include <cstdio>
#include <distile_conv3x3_128.h>
#include <distile_conv3x3_256.h>
#include <exception>
#include <filesystem>
#include <fmt/core.h>
#include <fstream>
#include <nlohmann/json.hpp>
#include <unistd.h>

namespace {

using namespace distile;
using nlohmann::json;

struct Options {
    std::string json_file, pictures;
    std::vector<std::string> times;
    int32_t threads = 0;
    bool quick = false;
};

/** A layer of the demonstration: its name and the PolyKernel that computes it. */
struct Subject {
    std::string name;
    const distile_polykernel *polykernel;
    int32_t size;
};

struct NamedMask {
    std::string name;
    ByteMask mask;
    bool draw;
    std::string photo; /**< A photo that illustrates the mask, or "". */
};

/** One row of the table; eta = rate x waste x overhead. */
struct Row {
    std::string mask;
    double density, tile_density;
    distile_choice choice;
    Times times;
    double speedup, eta, rate, waste, overhead;
    Deviation deviation;
};

/** Reports progress on stderr; on a terminal in one line that the next row of the table overwrites. */
class Progress {
public:
    ~Progress() {
        clear();
    }
    void say(const std::string &text) {
        clear();
        fmt::print(stderr, terminal_ ? "{}" : "{}\n", text);
        std::fflush(stderr);
        shown_ = terminal_;
    }
    /** A step whose end the table shows, not worth a line in a log. */
    void say_on_terminal(const std::string &text) {
        if (terminal_) {
            say(text);
        }
    }
    void clear() {
        if (shown_) {
            std::fputs("\r\033[K", stderr);
            std::fflush(stderr);
            shown_ = false;
        }
    }

private:
    bool terminal_ = isatty(STDERR_FILENO) != 0;
    bool shown_ = false;
};

/** This program's folder, so the pictures lie in the build tree wherever it is started. */
std::filesystem::path program_folder() {
    std::error_code error;
    const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
    return error ? std::filesystem::current_path() : program.parent_path();
}

std::vector<NamedMask> make_masks(int32_t size, bool quick) {
    std::vector<NamedMask> masks;
    for (double density : quick ? std::vector<double>{.1, .5, 1} : std::vector<double>{.05, .1, .3, .5, .7, 1}) {
        masks.push_back({fmt::format("blob {:.2f}", density), blob_mask(1, size, size, density, 1),
                         density == .1 || density == .3, ""});
    }
    for (const std::string &name : real_masks()) {
        const bool edit = name == "sige_church_edit";
        if (!quick || edit) {
            masks.push_back({name, scale_mask(read_real_mask(name), size, size), true,
                             edit ? DISTILE_MASKS_FOLDER "/sige_church_edited.png" : ""});
        }
    }
    return masks;
}

/** Loads every time table into the layer of its operator. */
void load_times(const Context &context, const std::vector<std::unique_ptr<Layer>> &layers,
                const std::vector<std::string> &files) {
    for (const std::string &file : files) {
        bool taken = false;
        std::string reasons;
        for (const std::unique_ptr<Layer> &layer : layers) {
            const distile_status status = distile_kernel_load_times(layer->kernel.get(), file.c_str());
            taken = taken || status == DISTILE_OK;
            if (status != DISTILE_OK && status != DISTILE_ERROR_OTHER_OPERATOR) {
                check(context, status);
            }
            if (status != DISTILE_OK) {
                reasons += std::string("\n    ") + distile_context_message(context.get());
            }
        }
        if (!taken) {
            throw std::runtime_error(fmt::format("the time table '{}' matches none of the kernels:{}", file, reasons));
        }
    }
}

/** The vendor's side; if it does not work, the demonstration goes on without it. */
VendorDense try_vendor(const Layer &layer, Progress &progress) {
    try {
        return make_onednn_dense(layer);
    } catch (const std::exception &error) {
        progress.clear();
        fmt::print(stderr, "distile_demo: oneDNN is left out: {}.\n", error.what());
        return {};
    }
}

Row measure_row(Layer &layer, const NamedMask &named, const std::function<void()> &vendor, double seconds) {
    Row row;
    row.mask = named.name;
    row.density = named.mask.density();
    row.choice = layer.choose(named.mask);
    const int64_t tile_rows = (layer.height + row.choice.tile_h - 1) / row.choice.tile_h;
    const int64_t tile_columns = (layer.width + row.choice.tile_w - 1) / row.choice.tile_w;
    row.tile_density = static_cast<double>(row.choice.tiles) / static_cast<double>(tile_rows * tile_columns);
    row.deviation = layer.check(named.mask);
    row.times = layer.measure(named.mask, vendor, seconds);

    const Times &times = row.times;
    const auto pixels = static_cast<double>(layer.pixels()), active = static_cast<double>(row.choice.active_pixels);
    const double computed = static_cast<double>(row.choice.tiles) * row.choice.tile_h * row.choice.tile_w;
    const double dense = times.vendor > 0 ? std::min(times.dense, times.vendor) : times.dense;
    row.speedup = dense / times.masked;
    row.eta = row.speedup * active / pixels;
    row.rate = computed / times.kernel / (pixels / dense);
    row.waste = active / computed;
    row.overhead = times.kernel / times.masked;
    return row;
}

constexpr const char *table_heading =
    "                  -- density --                 ----- time in us ------           "
    "--- eta = rate x waste x overhead --\n"
    "mask              pixels  tiles  variant         masked   dense  oneDNN  speedup    "
    "eta   rate  waste  overhead    error\n"
    "----------------  ------  -----  -------------  -------  ------  ------  -------  "
    "-----  -----  -----  --------  -------\n";

void print_row(const Row &row) {
    fmt::print(
        "{:<16}  {:6.3f}  {:5.3f}  {:<13}  {:7.0f}  {:6.0f}  {:>6}  {:6.2f}x  {:5.2f}  {:5.2f}  {:5.2f}  {:8.2f}  "
        "{:7.1e}\n",
        row.mask, row.density, row.tile_density, row.choice.variant, row.times.masked, row.times.dense,
        row.times.vendor > 0 ? fmt::format("{:.0f}", row.times.vendor) : "-", row.speedup, row.eta, row.rate, row.waste,
        row.overhead, row.deviation.error);
    std::fflush(stdout);
}

/** Shows the same layers on a GPU, or one line with the reason why not. Returns false if a result is wrong. */
bool show_gpu(const std::vector<std::unique_ptr<Layer>> &layers, json &document) {
    std::vector<std::unique_ptr<GpuLayer>> on_gpu;
    try {
        for (const std::unique_ptr<Layer> &layer : layers) {
            on_gpu.push_back(std::make_unique<GpuLayer>(*layer));
        }
    } catch (const std::exception &error) {
        fmt::print("\nNo GPU: {}\n", error.what());
        return true;
    }
    fmt::print("\n{}. Times in us, from the byte mask on the device; dense: our own dense candidate there.\n"
               "layer                      mask       variant      masked   dense  speedup    eta    error\n"
               "-------------------------  ---------  ----------  -------  ------  -------  -----  -------\n",
               on_gpu.front()->device());
    bool right = true;
    document["gpu"] = {{"device", on_gpu.front()->device()}, {"rows", json::array()}};
    for (size_t i = 0; i < layers.size(); i++) {
        const Layer &layer = *layers[i];
        for (const double density : {.1, .3}) {
            const GpuTimes times = on_gpu[i]->measure(blob_mask(1, layer.height, layer.width, density, 1));
            const double speedup = times.dense / times.masked;
            fmt::print("{:<25}  blob {:.2f}  {:<10}  {:7.1f}  {:6.1f}  {:6.2f}x  {:5.2f}  {:7.1e}\n",
                       fmt::format("{} -> {}, {} x {}", layer.conv2d().in_channels, layer.conv2d().out_channels,
                                   layer.height, layer.width),
                       density, times.variant, times.masked, times.dense, speedup, speedup * density, times.error);
            document["gpu"]["rows"].push_back({{"layer", layer.summary()},
                                               {"density", density},
                                               {"variant", times.variant},
                                               {"masked_us", times.masked},
                                               {"dense_us", times.dense},
                                               {"largest_error", times.error}});
            right = right && times.error < largest_fair_error;
        }
    }
    if (!right) {
        fmt::print(stderr, "distile_demo: error: a result of the GPU is wrong. Please report this table.\n");
    }
    return right;
}

/** Explains the table in words. */
void explain(bool vendor_measured, bool unprofiled, int scattered) {
    fmt::print(
        "\n"
        "Times are medians of interleaved runs, 'masked' from the byte mask to the result. 'dense' is our own\n"
        "dense candidate. 'tiles' is the density of the tiles that the variant computes. 'speedup' is over the\n"
        "faster dense side. 'error' is the largest error of an active pixel against a plain loop, relative to the\n"
        "largest value.\n");
    if (!vendor_measured) {
        fmt::print("oneDNN is not measured; `cmake/setup.sh bench` installs it for the next build.\n");
    }
    fmt::print(
        "\n"
        "eta is the share of the ideal speedup: at eta = 1 a mask of density .1 runs 10 times as fast as the best\n"
        "dense convolution, at eta = .8 it runs 8 times as fast. It falls below 1 if tiles are computed at a lower\n"
        "rate than dense pixels (rate), if tiles contain inactive pixels (waste: active by computed pixels), or if\n"
        "the mask itself takes time (overhead: kernel time by total time).\n");
    if (unprofiled) {
        fmt::print("\n"
                   "Some plans have no time table, so the variant with the fewest pixels runs, which may not be the\n"
                   "fastest. `distile profile PLAN -o FILE` measures one; pass it with --times FILE.\n");
    }
    if (scattered > 0) {
        fmt::print(
            "\n"
            "The times of {} row{} scatter by more than 20 %: other programs use the cores. Run this again when\n"
            "they are idle.\n",
            scattered, scattered == 1 ? "" : "s");
    }
}

json to_json(const Row &row) {
    return {{"mask", row.mask},
            {"density", row.density},
            {"tile_density", row.tile_density},
            {"tile_h", row.choice.tile_h},
            {"tile_w", row.choice.tile_w},
            {"tiles", row.choice.tiles},
            {"active_pixels", row.choice.active_pixels},
            {"variant", row.choice.variant},
            {"predicted_us", row.choice.predicted_us},
            {"masked_us", row.times.masked},
            {"kernel_us", row.times.kernel},
            {"dense_us", row.times.dense},
            {"onednn_us", row.times.vendor > 0 ? json(row.times.vendor) : json()},
            {"scatter", row.times.scatter},
            {"rounds", row.times.rounds},
            {"speedup", row.speedup},
            {"eta", row.eta},
            {"rate", row.rate},
            {"waste", row.waste},
            {"overhead", row.overhead},
            {"largest_error", row.deviation.error},
            {"touched_inactive_pixels", row.deviation.touched}};
}

/** Draws the tiles of the chosen variant, and coarser ones to show what they would waste. */
void draw(Layer &layer, const std::string &layer_name, const NamedMask &named, const std::filesystem::path &folder) {
    const distile_choice choice = layer.choose(named.mask);
    std::vector<TilePanel> panels;
    const auto add = [&](const std::string &name, int32_t tile_h, int32_t tile_w) {
        TilePanel panel;
        panel.tile_h = tile_h;
        panel.tile_w = tile_w;
        const distile_tile_list list = layer.tiles(tile_h, tile_w);
        panel.tiles.assign(list.xy, list.xy + list.count);
        const int64_t computed = list.count * tile_h * tile_w;
        panel.caption =
            fmt::format("{}: {}x{}\n{} tiles, {} pixels, {:.0f} % active", name, tile_h, tile_w, list.count, computed,
                        100 * static_cast<double>(choice.active_pixels) / static_cast<double>(computed));
        panels.push_back(std::move(panel));
    };
    if (choice.dense != 0) {
        TilePanel panel;
        for (uint32_t i = 0; i < layer.pixels(); i++) {
            const auto width = static_cast<uint32_t>(layer.width);
            panel.tiles.push_back((i / width) << 16 | i % width);
        }
        panel.caption = fmt::format("chosen, {}: every pixel\n{} pixels, {:.0f} % active", choice.variant,
                                    layer.pixels(), 100 * named.mask.density());
        panels.push_back(std::move(panel));
    } else {
        add(fmt::format("chosen, {}", choice.variant), choice.tile_h, choice.tile_w);
    }
    for (int32_t tile : {4, 8}) {
        if (choice.dense != 0 || choice.tile_h != tile || choice.tile_w != tile) {
            add("for comparison", tile, tile);
        }
    }
    std::string file = layer_name + "_" + named.name + ".png";
    std::replace(file.begin(), file.end(), ' ', '_');
    write_sheet(folder / file,
                fmt::format("{}: {} x {} pixels, {} active ({:.1f} %)", named.name, layer.height, layer.width,
                            choice.active_pixels, 100 * named.mask.density()),
                named.mask, panels, named.photo, "the edited photo");
}

std::string cannot_write(const std::string &path) {
    return "the file '" + path + "' cannot be written; name another one with --json";
}

void write_json(const std::string &path, const json &document) {
    std::ofstream file(path);
    file << document.dump(1) << '\n';
    file.close();
    if (!file) {
        throw std::runtime_error(cannot_write(path));
    }
}

int demonstrate(const Options &options) {
    const std::vector<Subject> subjects = {{"conv3x3_256", &distile_conv3x3_256, 40},
                                           {"conv3x3_128", &distile_conv3x3_128, 128}};
    // Try the output files first, so a wrong name fails at once and not after a minute.
    if (!options.json_file.empty() && !std::ofstream(options.json_file, std::ios::app)) {
        throw std::runtime_error(cannot_write(options.json_file));
    }
    const std::filesystem::path folder = options.pictures;
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    if (error) {
        throw std::runtime_error("the folder '" + folder.string() + "' for the pictures cannot be made (" +
                                 error.message() + "); name another one with --out");
    }

    // oneDNN takes all cores that it finds; both sides must have the same cores.
    const int32_t threads = restrict_to_cores(options.threads);
    distile_context_options context_options{};
    context_options.threads = threads;
    const Context context = make_context(context_options);
    std::vector<std::unique_ptr<Layer>> layers;
    layers.reserve(subjects.size());
    for (const Subject &subject : subjects) {
        layers.push_back(std::make_unique<Layer>(context, *subject.polykernel, subject.size, subject.size));
    }
    load_times(context, layers, options.times);

    fmt::print("{}, {} thread{}. The input has a zero border; inactive pixels keep what the output held.\n", cpu_name(),
               threads, threads == 1 ? "" : "s");
    json document = {{"cpu", cpu_name()}, {"threads", threads}, {"mode", "keep"}, {"layers", json::array()}};
    Progress progress;
    bool wrong = false, unprofiled = false, vendor_measured = false;
    int scattered = 0;
    const double seconds = options.quick ? .3 : 1.3;
    for (size_t i = 0; i < layers.size(); i++) {
        Layer &layer = *layers[i];
        const std::string &name = subjects[i].name;
        fmt::print("\n{} ({})\n", layer.summary(), layer.name());
        std::fflush(stdout);
        progress.say(name + ": computing the expected result with a plain loop (a few seconds) ...");
        layer.compute_reference();
        const VendorDense vendor = try_vendor(layer, progress);
        vendor_measured = vendor_measured || vendor.run;
        const std::vector<NamedMask> masks = make_masks(subjects[i].size, options.quick);
        progress.clear();
        if (vendor.run) {
            fmt::print("against {}\n", vendor.name);
        }
        fmt::print("{}", table_heading);
        std::fflush(stdout);
        json rows = json::array();
        for (size_t m = 0; m < masks.size(); m++) {
            progress.say_on_terminal(
                fmt::format("{}: measuring {} (mask {} of {}) ...", name, masks[m].name, m + 1, masks.size()));
            const Row row = measure_row(layer, masks[m], vendor.run, seconds);
            progress.clear();
            print_row(row);
            rows.push_back(to_json(row));
            scattered += row.times.scatter > .2;
            unprofiled = unprofiled || row.choice.predicted_us == 0;
            if (row.deviation.touched > 0 || !(row.deviation.error < largest_fair_error)) {
                wrong = true;
                fmt::print(
                    stderr,
                    "distile_demo: error: {} computes '{}' wrongly: the largest error is {:.1e}, and {} inactive "
                    "pixels were written. Please report this with the first line of the output.\n",
                    layer.name(), row.mask, row.deviation.error, row.deviation.touched);
            }
        }
        document["layers"].push_back({{"name", name},
                                      {"kernel", layer.name()},
                                      {"operator", layer.summary()},
                                      {"vendor", vendor.run ? json(vendor.name) : json()},
                                      {"rows", rows}});
        progress.say_on_terminal(name + ": drawing ...");
        for (const NamedMask &mask : masks) {
            if (mask.draw) {
                draw(layer, name, mask, folder);
            }
        }
        progress.clear();
    }
    wrong = !show_gpu(layers, document) || wrong;
    if (!options.json_file.empty()) {
        write_json(options.json_file, document);
    }

    explain(vendor_measured, unprofiled, scattered);
    fmt::print("\nPictures of masks and their tiles: {}\n", folder.string());
    return wrong ? 1 : 0;
}

int parse_and_run(int argc, char **argv) {
    CLI::App app("Runs masked convolutions on drawn and real masks, compares them with dense ones, checks every\n"
                 "result, and draws the masks with their tiles. Takes about half a minute.");
    app.footer("Examples:\n"
               "  distile_demo                                 the whole table\n"
               "  distile_demo --quick                         fewer masks, fewer runs\n"
               "  distile_demo --threads 1 --json demo.json    one thread, and the numbers also as JSON\n"
               "  distile_demo --out pictures                  pictures go to ./pictures");
    Options options;
    options.pictures = program_folder() / "demo";
    app.add_option("--json", options.json_file, "Also write the numbers to this file")->type_name("FILE");
    app.add_option("--out", options.pictures, "Folder for the pictures; created if missing")
        ->type_name("FOLDER")
        ->capture_default_str();
    app.add_option("--threads", options.threads, "Threads to use; 0: one per core")
        ->check(CLI::Range(0, 1024))
        ->capture_default_str();
    app.add_option("--times", options.times, "Time tables of this machine, written by `distile profile`")
        ->type_name("FILE")
        ->check(CLI::ExistingFile);
    app.add_flag("--quick", options.quick, "Fewer masks and shorter measurements");
    CLI11_PARSE(app, argc, argv);
    return demonstrate(options);
}

}  // namespace

int main(int argc, char **argv) {
    try {
        return parse_and_run(argc, argv);
    } catch (const std::exception &error) {
        std::fprintf(stderr, "distile_demo: error: %s.\n", error.what());
        return 1;
    }
}
