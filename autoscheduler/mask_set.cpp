#include "mask_set.h"
#include "bitmask.h"
#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <memory>
#include <sstream>
#include <stb/stb_image.h>
// xtensor moved its headers into folders in version 0.26.
#if __has_include(<xtensor/xnpy.hpp>)
#include <xtensor/xarray.hpp>
#include <xtensor/xnpy.hpp>
#else
#include <xtensor/containers/xarray.hpp>
#include <xtensor/io/xnpy.hpp>
#endif

namespace distile {

namespace {

[[noreturn]] void refuse(const std::string &source, const std::string &what) {
    throw FileError("the masks '" + source + "' " + what);
}

/** The array of a NumPy file of type bool or uint8. Throws what xtensor throws. */
xt::xarray<uint8_t> load_array(std::string file) {
    // Bools are read as bytes, because a file may hold bytes that are no bools.
    const std::string bools = "'descr': '|b1'";
    const size_t type = file.substr(0, file.find('\n')).find(bools);
    if (type != std::string::npos) {
        file[type + bools.find("b1")] = 'u';
    }
    std::istringstream stream(file);
    // Otherwise the end of a file that is too short would go unnoticed.
    stream.exceptions(std::ios::failbit | std::ios::badbit);
    return xt::load_npy<uint8_t>(stream);
}

MaskImage read_png(const std::string &path) {
    MaskImage image;
    const std::unique_ptr<stbi_uc, void (*)(void *)> gray(
        stbi_load(path.c_str(), &image.width, &image.height, nullptr, 1), stbi_image_free);
    if (!gray) {
        refuse(path, std::string("cannot be read as a PNG file (") + stbi_failure_reason() + ")");
    }
    image.name = path;
    image.bytes.assign(gray.get(), gray.get() + static_cast<ptrdiff_t>(image.height) * image.width);
    return image;
}

/** A family as "name:density:seed". */
ByteMask draw(const std::string &source, int batch, int height, int width) {
    std::vector<std::string> parts;
    std::istringstream stream(source);
    for (std::string part; std::getline(stream, part, ':');) {
        parts.push_back(part);
    }
    try {
        size_t density_end = 0, seed_end = 0;
        const bool seeded = parts.size() == 3;
        const double density = seeded ? std::stod(parts[1], &density_end) : 0.5;
        const uint64_t seed = seeded ? std::stoull(parts[2], &seed_end) : 0;
        if (seeded ? density_end != parts[1].size() || seed_end != parts[2].size() || parts[0] == "checkerboard"
                   : source != "checkerboard") {
            throw std::invalid_argument("");
        }
        return draw_mask(parts[0], batch, height, width, density, seed);
    } catch (const std::exception &error) {
        const std::string cause = error.what();
        refuse(source, "are neither a .npy nor a .png file, nor drawn as blob:DENSITY:SEED, random:DENSITY:SEED or "
                       "checkerboard" +
                           (cause.empty() || cause.rfind("sto", 0) == 0 ? "" : " (" + cause + ")"));
    }
}

bool ends_with(const std::string &text, const std::string &end) {
    return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

}  // namespace

MaskSet::MaskSet(std::vector<ByteMask> masks) : masks_(std::move(masks)) {
    for (const ByteMask &mask : masks_) {
        work_.push_back(mask.density());
    }
}

const std::vector<int64_t> &MaskSet::tiles(std::pair<int, int> granularity) const {
    std::vector<int64_t> &counts = tiles_[granularity];
    if (counts.empty()) {
        const Granularity wanted{granularity.first, granularity.second};
        std::vector<uint64_t> words, scratch;
        for (const ByteMask &mask : masks_) {
            Bitmask bitmask{nullptr, mask.batch, mask.height, mask.width};
            words.resize(static_cast<size_t>(mask.batch) * mask.height * bitmask.words_per_row());
            pack_bitmask(mask.bytes.data(), int64_t{mask.height} * mask.width, mask.width, mask.batch, mask.height,
                         mask.width, words.data());
            bitmask.words = words.data();
            scratch.resize(tile_scratch_words(bitmask));
            int64_t count = 0;
            count_tiles(bitmask, &wanted, 1, scratch.data(), &count);
            counts.push_back(count);
        }
    }
    return counts;
}

int64_t MaskSet::all_tiles(std::pair<int, int> granularity) const {
    return int64_t{batch()} * ((height() + granularity.first - 1) / granularity.first) *
           ((width() + granularity.second - 1) / granularity.second);
}

std::vector<Bucket> MaskSet::buckets(const Workload &workload) const {
    const auto pixels = static_cast<ptrdiff_t>(height()) * width();
    std::vector<MaskImage> images;
    for (const ByteMask &mask : masks_) {
        for (auto begin = mask.bytes.begin(); begin != mask.bytes.end(); begin += pixels) {
            images.push_back({"", height(), width(), {begin, begin + pixels}});
        }
    }
    return mask_buckets(workload, images);
}

MaskSet MaskSet::subset(const std::vector<size_t> &indices) const {
    std::vector<ByteMask> chosen;
    chosen.reserve(indices.size());
    for (size_t index : indices) {
        chosen.push_back(masks_[index]);
    }
    MaskSet result(std::move(chosen));
    for (const auto &[granularity, counts] : tiles_) {
        for (size_t index : indices) {
            result.tiles_[granularity].push_back(counts[index]);
        }
    }
    return result;
}

std::vector<MaskImage> read_npy_masks(const std::string &path) {
    std::ifstream stream(path, std::ios::binary);
    if (!stream || (stream.peek(), stream.bad())) {
        throw FileError("the file '" + path + "' cannot be opened");
    }
    xt::xarray<uint8_t> array;
    try {
        array = load_array(std::string(std::istreambuf_iterator<char>(stream), {}));
    } catch (const std::exception &error) {
        refuse(path, std::string("are no NumPy array of type bool or uint8 (") + error.what() +
                         "); save them with numpy.save");
    }
    const size_t dimensions = array.dimension(), most = 65535;
    const auto extent = [&](size_t from_last) { return array.shape(dimensions - 1 - from_last); };
    if (dimensions < 2 || dimensions > 3 || array.size() == 0 || extent(0) > most || extent(1) > most) {
        std::string shape;
        for (size_t i = 0; i < dimensions; i++) {
            shape += (i > 0 ? ", " : "") + std::to_string(array.shape(i));
        }
        refuse(path, "have the shape (" + shape + "), not [height, width] or [masks, height, width]");
    }
    const size_t pixels = extent(0) * extent(1), count = array.size() / pixels;
    std::vector<MaskImage> masks;
    auto next = array.begin();
    for (size_t i = 0; i < count; i++) {
        MaskImage mask;
        mask.name = count == 1 ? path : path + "[" + std::to_string(i) + "]";
        mask.height = static_cast<int>(extent(1));
        mask.width = static_cast<int>(extent(0));
        mask.bytes.assign(next, next + static_cast<ptrdiff_t>(pixels));
        next += static_cast<ptrdiff_t>(pixels);
        masks.push_back(std::move(mask));
    }
    return masks;
}

MaskSet read_mask_set(const std::vector<std::string> &sources, const Operator &op, int *left_out) {
    const int batch = op.typical_batch, height = op.typical_output_height(), width = op.typical_output_width();
    std::vector<ByteMask> masks;
    int empty = 0;
    const auto add = [&](ByteMask mask) {
        if (mask.active_pixels() > 0) {
            masks.push_back(std::move(mask));
        } else {
            empty++;
        }
    };
    for (const std::string &source : sources) {
        if (!ends_with(source, ".npy") && !ends_with(source, ".png")) {
            add(draw(source, batch, height, width));
            continue;
        }
        const std::vector<MaskImage> images =
            ends_with(source, ".npy") ? read_npy_masks(source) : std::vector<MaskImage>{read_png(source)};
        if (images[0].height != height || images[0].width != width) {
            refuse(source, "are of " + std::to_string(images[0].height) + " x " + std::to_string(images[0].width) +
                               " pixels, and the output of '" + op.name + "' for its typical input has " +
                               std::to_string(height) + " x " + std::to_string(width) +
                               ": give masks over the output, or change \"typical\" in the operator file");
        }
        if (images.size() % batch != 0) {
            refuse(source, "are " + std::to_string(images.size()) + ", which are no whole batches of " +
                               std::to_string(batch) + ", the operator's typical batch");
        }
        for (size_t first = 0; first < images.size(); first += batch) {
            ByteMask mask{batch, height, width, {}};
            for (size_t i = first; i < first + batch; i++) {
                mask.bytes.insert(mask.bytes.end(), images[i].bytes.begin(), images[i].bytes.end());
            }
            add(std::move(mask));
        }
    }
    if (masks.empty()) {
        throw FileError(sources.empty() ? "there are no masks: name some with --masks"
                                        : "none of the masks has an active pixel, so there is nothing to be fast at");
    }
    if (left_out) {
        *left_out = empty;
    }
    return MaskSet(std::move(masks));
}

std::vector<int64_t> tile_counts(const MaskSet &masks, std::pair<int, int> granularity, int count) {
    const std::vector<int64_t> &tiles = masks.tiles(granularity);
    const auto [least, most] = std::minmax_element(tiles.begin(), tiles.end());
    const double step = std::log(static_cast<double>(*most) / static_cast<double>(*least)) / std::max(count - 1, 1);
    std::vector<int64_t> counts;
    counts.reserve(count);
    for (int i = 0; i < count; i++) {
        counts.push_back(std::llround(static_cast<double>(*least) * std::exp(step * i)));
    }
    counts.back() = *most;
    counts.erase(std::unique(counts.begin(), counts.end()), counts.end());
    return counts;
}

}  // namespace distile
