#include "autoscheduler/command/commands.h"
#include "autoscheduler/command/hash.h"
#include "masks/contact_sheet.h"
#include "masks/mask_files.h"
#include "masks/mask_suite.h"
#include "plans/json_file.h"
#include "plans/operator.h"
#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <filesystem>
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
    int batch = 1;
    bool suite = false, json = false, quiet = false;
};

Extents parse_size(const std::string &size) {
    int height = 0, width = 0, end = 0;
    if (std::sscanf(size.c_str(), "%5dx%5d%n", &height, &width, &end) != 2 || size.size() != static_cast<size_t>(end) ||
        height < 1 || width < 1 || height > largest_extent || width > largest_extent) {
        throw FileError("--size is '" + size + "', not HEIGHTxWIDTH with extents from 1 to " +
                        std::to_string(largest_extent));
    }
    constexpr int64_t most_pixels = int64_t{1} << 28;
    if (int64_t{height} * width > most_pixels) {
        throw FileError("--size is " + size + ": a mask may have up to 2^28 pixels");
    }
    return {height, width};
}

Extents size_of(const Options &options) {
    return options.op.empty() ? parse_size(options.size) : read_operator(options.op).typical_mask();
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

void make_folder(const std::filesystem::path &folder) {
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    if (error) {
        throw FileError("the folder '" + folder.string() + "' cannot be made: " + error.message());
    }
}

/** What the index says of a mask. */
nlohmann::json row_of(const SuiteMask &drawn) {
    return {{"name", drawn.name},
            {"family", drawn.family},
            {"active_pixels", drawn.mask.active_pixels()},
            {"density", std::round(drawn.mask.density() * 1e4) / 1e4},
            {"seed", fmt::format("{:016x}", drawn.seed)},
            {"sources", drawn.sources},
            {"licence", drawn.licence}};
}

/** Writes a set of the suite for a size, with a picture, and returns what the index says of it. */
nlohmann::json write_set(const MaskSuite &suite, const Options &options, const std::string &set, const Extents &size) {
    std::vector<ByteMask> masks;
    std::vector<std::vector<ByteMask>> pictures;
    std::string family;
    Hash hash;
    nlohmann::json rows = nlohmann::json::array();
    for (SuiteMask &drawn : suite.draw(set, options.batch, size.height, size.width)) {
        rows.push_back(row_of(drawn));
        hash.add(drawn.mask.bytes);
        // Families begin lines.
        if (drawn.family != family) {
            pictures.emplace_back();
            family = drawn.family;
        }
        pictures.back().push_back(MaskSuite::picture_of(drawn.mask));
        masks.push_back(std::move(drawn.mask));
    }
    const std::string name = fmt::format("{}x{}/{}", size.height, size.width, set);
    const std::string path = (std::filesystem::path(options.out) / name).string();
    make_folder(std::filesystem::path(path).parent_path());
    write_file(path + ".npy", npy_of_masks(masks));
    write_file(path + ".png", contact_sheet_png(pictures));
    return {{"file", name + ".npy"}, {"picture", name + ".png"}, {"set", set},          {"height", size.height},
            {"width", size.width},   {"batch", options.batch},   {"hash", hash.text()}, {"masks", std::move(rows)}};
}

constexpr const char *suite_readme = R"(# A suite of masks

Masks to tune sparse operators with (`train.npy`), and others to judge the result by (`held-out.npy`), for each size a
folder. Drawn by `distile masks --suite`: the same version of it writes the same bits on every machine, and index.json has
a hash of each file (64-bit FNV-1a of the array's bytes).

The files are NumPy arrays of type bool, [masks x batch, height, width]: `numpy.load("40x40/train.npy")`. index.json has the
name, family, density, seed, sources and licence of each mask, in the order of the array. The pictures beside the arrays,
`train.png` and `held-out.png`, show them in this order, a family from the left of a line; tokens stand in a square.

| family | |
|---|---|
| blob | Gaussian random fields with a correlation length of 1/8 of the image, cut off at a density |
| random | independent pixels |
| crop | rectangles of real masks (edits and inpainting), mirrored or not, scaled and dilated |
| blur | the same, blurred, with noise where they say nothing, and cut off at a density |
| frames | where two frames differ in which parts of a photo move |
| published | blobs with the densities of a network's layers, as it was published |

No mask of one set is in the other, and their real masks and frames are of parts of the images that do not overlap. The
real masks and the photo are from SIGE (<https://github.com/lmxyy/sige>, BSD licence; copyright 2020, Muyang Li, Ji Lin,
Chenlin Meng, Stefano Ermon, Song Han, and Jun-Yan Zhu), the densities from DynConv
(<https://github.com/thomasverelst/dynconv>, MIT licence, Thomas Verelst).
)";

void write_suite(const Options &options) {
    const MaskSuite suite;
    std::vector<Extents> sizes;
    if (options.size.empty() && options.op.empty()) {
        for (const std::string &size : suite.sizes()) {
            sizes.push_back(parse_size(size));
        }
    } else {
        sizes.push_back(size_of(options));
    }
    make_folder(options.out);
    nlohmann::json files = nlohmann::json::array();
    {
        ProgressLine line(options.quiet);
        for (const Extents &size : sizes) {
            for (const std::string &set : MaskSuite::sets()) {
                line.show(fmt::format("drawing {} x {} {}", size.height, size.width, set),
                          static_cast<double>(files.size()) / static_cast<double>(2 * sizes.size()));
                files.push_back(write_set(suite, options, set, size));
            }
        }
    }
    const std::filesystem::path folder = options.out;
    const nlohmann::json index = {{"distile_masks", 1}, {"files", files}};
    write_file((folder / "index.json").string(), format_json(index));
    write_file((folder / "README.md").string(), suite_readme);
    if (options.json) {
        std::fputs(format_json(index).c_str(), stdout);
    } else if (!options.quiet) {
        for (const nlohmann::json &file : files) {
            std::fputs(fmt::format("{:<24} {} masks, hash {}\n", file.at("file").get<std::string>(),
                                   file.at("masks").size(), file.at("hash").get<std::string>())
                           .c_str(),
                       stdout);
        }
        std::fputs(fmt::format("Written to {}, with README.md and index.json\n", options.out).c_str(), stdout);
    }
}

}  // namespace
}  // namespace masks_command

void add_masks_command(CLI::App &app) {
    using namespace masks_command;
    const auto options = std::make_shared<Options>();
    CLI::App *command = app.add_subcommand("masks", "Draw masks and write them to a file, for tune, rank or a program");
    CLI::Option *names =
        command->add_option("names", options->names, "Masks: blob:DENSITY:SEED, random:DENSITY:SEED or checkerboard");
    CLI::Option *suite =
        command
            ->add_flag("--suite", options->suite,
                       "Write the suite: masks to search with and others to judge by, for several sizes")
            ->excludes(names);
    command->add_option("--batch", options->batch, "Images of a mask of the suite")
        ->capture_default_str()
        ->check(CLI::Range(1, 4096))
        ->needs(suite);
    command
        ->add_option("-o,--out", options->out,
                     "File to write: .npy, of type bool, [y, x] for one mask and [n, y, x] for more; or .png, white "
                     "where the mask is active; with --suite, a folder")
        ->required();
    CLI::Option_group *size = command->add_option_group("Size");
    size->add_option("--size", options->size, "Size of the masks, HEIGHTxWIDTH");
    size->add_option("--operator", options->op, "Operator file: the size of its output for the typical input");
    size->require_option(0, 1);
    command->add_flag("--json", options->json, "Print the masks' densities as JSON");
    command->add_flag("-q,--quiet", options->quiet, "Print nothing but errors");
    command->footer(
        "Examples:\n  distile masks blob:0.3:7 --size 56x56 -o m.npy\n"
        "  distile masks blob:0.1:{1..20} random:0.5:1 --operator data/operators/conv3x3_256.json -o m.npy\n"
        "  distile masks blob:0.3:7 --size 512x512 -o m.png\n"
        "  distile masks --suite -o masks                      # train.npy and held-out.npy of several sizes\n"
        "  distile masks --suite --operator data/operators/conv3x3_256.json -o masks");
    command->callback([options, size] {
        if (options->suite) {
            write_suite(*options);
            return;
        }
        if (options->names.empty()) {
            throw CLI::RequiredError("names or --suite");
        }
        if (size->count_all() == 0) {
            throw CLI::RequiredError("--size or --operator");
        }
        write_masks(*options);
    });
}

}  // namespace distile
