#include "autoscheduler/command/commands.h"
#include "masks/mask_files.h"
#include "plans/json_file.h"
#include "plans/operator.h"
#include <CLI/CLI.hpp>
#include <cstdint>
#include <cstdio>
#include <fmt/core.h>
#include <memory>
#include <nlohmann/json.hpp>

namespace distile {

namespace masks_command {
namespace {

constexpr int largest_extent = 65535;

struct Options {
    std::vector<std::string> names;
    std::string size, op, out;
    bool json = false, quiet = false;
};

Extents size_of(const Options &options) {
    if (!options.op.empty()) {
        return read_operator(options.op).typical_mask();
    }
    int height = 0, width = 0, end = 0;
    if (std::sscanf(options.size.c_str(), "%5dx%5d%n", &height, &width, &end) != 2 ||
        options.size.size() != static_cast<size_t>(end) || height < 1 || width < 1 || height > largest_extent ||
        width > largest_extent) {
        throw FileError("--size is '" + options.size + "', not HEIGHTxWIDTH with extents from 1 to " +
                        std::to_string(largest_extent));
    }
    constexpr int64_t most_pixels = int64_t{1} << 28;
    if (int64_t{height} * width > most_pixels) {
        throw FileError("--size is " + options.size + ": a mask may have up to 2^28 pixels");
    }
    return {height, width};
}

void write_masks(const Options &options) {
    const bool png = ends_with(options.out, ".png");
    if (!png && !ends_with(options.out, ".npy")) {
        throw FileError("the file '" + options.out + "' is neither a .npy nor a .png file by its name");
    }
    if (png && options.names.size() > 1) {
        throw FileError("a .png file holds one mask, not " + std::to_string(options.names.size()) +
                        ": write a .npy file, or one .png file for each");
    }
    const Extents size = size_of(options);
    std::vector<ByteMask> masks;
    nlohmann::json rows = nlohmann::json::array();
    std::string text;
    {
        ProgressLine line(options.quiet);
        for (const std::string &name : options.names) {
            line.show("drawing " + name, static_cast<double>(masks.size()) / static_cast<double>(options.names.size()));
            try {
                masks.push_back(draw_named_mask(name, 1, size.height, size.width));
            } catch (const std::invalid_argument &error) {
                throw FileError("the mask '" + name + "' is " + error.what());
            }
            const ByteMask &mask = masks.back();
            rows.push_back({{"mask", name}, {"active_pixels", mask.active_pixels()}, {"density", mask.density()}});
            text += fmt::format("  {:<24}{:>10} active pixels, density {:.4f}\n", name, mask.active_pixels(),
                                mask.density());
        }
        write_file(options.out, png ? png_of_mask(masks.front()) : npy_of_masks(masks));
    }
    if (options.json) {
        const nlohmann::json result = {
            {"file", options.out}, {"height", size.height}, {"width", size.width}, {"masks", rows}};
        std::fputs(format_json(result).c_str(), stdout);
    } else if (!options.quiet) {
        std::fputs(fmt::format("{} x {} pixels\n{}Written to {}\n", size.height, size.width, text, options.out).c_str(),
                   stdout);
    }
}

}  // namespace
}  // namespace masks_command

void add_masks_command(CLI::App &app) {
    using namespace masks_command;
    const auto options = std::make_shared<Options>();
    CLI::App *command = app.add_subcommand("masks", "Draw masks and write them to a file, for tune, rank or a program");
    command->add_option("names", options->names, "Masks: blob:DENSITY:SEED, random:DENSITY:SEED or checkerboard")
        ->required();
    command
        ->add_option("-o,--out", options->out,
                     "File to write: .npy, of type bool, [y, x] for one mask and [n, y, x] for more; or .png, white "
                     "where the mask is active")
        ->required();
    CLI::Option_group *size = command->add_option_group("Size");
    size->add_option("--size", options->size, "Size of the masks, HEIGHTxWIDTH");
    size->add_option("--operator", options->op, "Operator file: the size of its output for the typical input");
    size->require_option(1);
    command->add_flag("--json", options->json, "Print the masks' densities as JSON");
    command->add_flag("-q,--quiet", options->quiet, "Print nothing but errors");
    command->footer(
        "Examples:\n  distile masks blob:0.3:7 --size 56x56 -o m.npy\n"
        "  distile masks blob:0.1:{1..20} random:0.5:1 --operator data/operators/conv3x3_256.json -o m.npy\n"
        "  distile masks blob:0.3:7 --size 512x512 -o m.png");
    command->callback([options] { write_masks(*options); });
}

}  // namespace distile
