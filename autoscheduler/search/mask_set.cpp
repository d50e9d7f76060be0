#include "autoscheduler/search/mask_set.h"
#include "masks/mask_files.h"
#include "masks/mask_suite.h"
#include "runtime/cpu/bitmask.h"
#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <numeric>
#include <stdexcept>

namespace distile {

namespace {

[[noreturn]] void refuse(const std::string &source, const std::string &what) {
    throw FileError("the masks '" + source + "' " + what);
}

ByteMask draw(const std::string &source, int batch, int height, int width) {
    try {
        return draw_named_mask(source, batch, height, width);
    } catch (const std::invalid_argument &error) {
        refuse(source, std::string("are neither a .npy nor a .png file, and ") + error.what());
    }
}

/** The masks of a set of the suite. */
std::vector<SuiteMask> draw_set(const std::string &source, int batch, int height, int width) {
    try {
        return MaskSuite().draw(MaskSuite::set_in(source), batch, height, width);
    } catch (const std::invalid_argument &error) {
        refuse(source, std::string("cannot be drawn: ") + error.what());
    }
}

/** The masks of a file, one or more. */
std::vector<MaskImage> read_images(const std::string &path) {
    try {
        return ends_with(path, ".npy") ? read_npy_masks(path) : std::vector<MaskImage>{read_png_mask(path)};
    } catch (const std::runtime_error &error) {
        throw FileError(error.what());
    }
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

std::vector<Bucket> MaskSet::buckets() const {
    constexpr std::array<double, 7> bounds = {.02, .075, .15, .25, .4, .6, .8};
    std::array<std::vector<size_t>, bounds.size() + 1> groups;
    for (size_t mask = 0; mask < size(); mask++) {
        groups[std::lower_bound(bounds.begin(), bounds.end(), work(mask)) - bounds.begin()].push_back(mask);
    }
    std::vector<Bucket> buckets;
    for (const std::vector<size_t> &indices : groups) {
        if (indices.empty()) {
            continue;
        }
        Bucket bucket;
        for (size_t mask : indices) {
            bucket.density += work(mask) / static_cast<double>(indices.size());
        }
        // A ranking keeps its buckets, perhaps for longer than this set lives.
        bucket.tiles = [group = std::make_shared<const MaskSet>(subset(indices))](int tile_h, int tile_w) {
            const std::vector<int64_t> &tiles = group->tiles({tile_h, tile_w});
            const auto count = static_cast<int64_t>(tiles.size());
            return (std::accumulate(tiles.begin(), tiles.end(), int64_t{0}) + count / 2) / count;
        };
        buckets.push_back(std::move(bucket));
    }
    return buckets;
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

MaskSet read_mask_set(const std::vector<std::string> &sources, const Operator &op, int *left_out) {
    const int batch = op.typical_batch, height = op.typical_mask().height, width = op.typical_mask().width;
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
        if (!MaskSuite::set_in(source).empty()) {
            for (SuiteMask &drawn : draw_set(source, batch, height, width)) {
                add(std::move(drawn.mask));
            }
            continue;
        }
        if (!ends_with(source, ".npy") && !ends_with(source, ".png")) {
            add(draw(source, batch, height, width));
            continue;
        }
        const std::vector<MaskImage> images = read_images(source);
        if (images[0].height != height || images[0].width != width) {
            refuse(source, "have " + std::to_string(images[0].height) + " x " + std::to_string(images[0].width) +
                               " pixels, but the output of '" + op.name + "' for its typical input has " +
                               std::to_string(height) + " x " + std::to_string(width) +
                               ": give masks over the output, or change \"typical\" in the operator file");
        }
        if (images.size() % batch != 0) {
            refuse(source, "have " + std::to_string(images.size()) + " images, which are no whole batches of " +
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
                                        : "no mask has an active pixel: give masks that have some");
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
