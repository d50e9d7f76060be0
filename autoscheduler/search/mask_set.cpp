#include "mask_set.h"
#include "bitmask.h"
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <numeric>
#include <sstream>
#include <stb/stb_image.h>
#include <stdexcept>

namespace distile {

namespace {

[[noreturn]] void refuse(const std::string &source, const std::string &what) {
    throw FileError("the masks '" + source + "' " + what);
}

/** A NumPy file of bytes: a header, which is a Python dictionary, and the elements behind it. Made for files of
 * anybody's, of which libraries that read all types trust too much. Throws std::invalid_argument that says what is
 * wrong. */
class NpyFile {
public:
    explicit NpyFile(std::string file) : file_(std::move(file)) {
        const auto byte = [&](size_t place) { return static_cast<size_t>(static_cast<uint8_t>(file_[place])); };
        constexpr size_t least = 12;
        if (file_.size() < least || file_.compare(0, 6, "\x93NUMPY") != 0) {
            throw std::invalid_argument("it does not begin as one");
        }
        const bool long_header = byte(6) > 1;
        const size_t begin = long_header ? 12 : 10;
        const size_t length = byte(8) | byte(9) << 8 | (long_header ? byte(10) << 16 | byte(11) << 24 : 0);
        if (length > file_.size() - begin) {
            throw std::invalid_argument("it ends within its header");
        }
        elements_ = begin + length;
        header_ = file_.substr(begin, length);
        header_.erase(std::remove(header_.begin(), header_.end(), ' '), header_.end());
        if (!has("'descr':", "'|b1'") && !has("'descr':", "'|u1'")) {
            throw std::invalid_argument("its elements have another type");
        }
        columns_first_ = has("'fortran_order':", "True");
        read_shape();
    }

    const std::vector<size_t> &shape() const {
        return shape_;
    }
    /** All elements, the last dimension's next to each other. */
    std::vector<uint8_t> elements() const {
        const auto begin = file_.begin() + static_cast<ptrdiff_t>(elements_);
        std::vector<uint8_t> values(begin, begin + static_cast<ptrdiff_t>(size_));
        if (columns_first_) {
            std::vector<size_t> place(shape_.size(), 0);
            for (uint8_t &value : values) {
                size_t from = 0;
                for (size_t i = shape_.size(); i > 0; i--) {
                    from = from * shape_[i - 1] + place[i - 1];
                }
                value = static_cast<uint8_t>(begin[static_cast<ptrdiff_t>(from)]);
                for (size_t i = shape_.size(); i > 0 && ++place[i - 1] == shape_[i - 1]; i--) {
                    place[i - 1] = 0;
                }
            }
        }
        return values;
    }

private:
    /** True if the value of a key in the header begins with a text. */
    bool has(const char *key, const std::string &text) const {
        const size_t found = header_.find(key);
        return found != std::string::npos && header_.compare(found + std::strlen(key), text.size(), text) == 0;
    }

    void read_shape() {
        const std::string key = "'shape':(";
        const size_t found = header_.find(key), end = found == std::string::npos ? found : header_.find(')', found);
        if (end == std::string::npos) {
            throw std::invalid_argument("its header has no shape");
        }
        const size_t available = file_.size() - elements_;
        const char *next = header_.data() + found + key.size(), *const last = header_.data() + end;
        for (size_ = 1; next < last; next++) {
            size_t extent = 0;
            const auto [rest, error] = std::from_chars(next, last, extent);
            constexpr size_t most_dimensions = 8;
            if (error != std::errc() || (rest != last && *rest != ',') || shape_.size() == most_dimensions) {
                throw std::invalid_argument("its header has a broken shape");
            }
            if (extent != 0 && size_ > available / extent) {
                throw std::invalid_argument("it is shorter than its shape");
            }
            size_ *= extent;
            shape_.push_back(extent);
            next = rest;
        }
    }

    std::string file_, header_;
    size_t elements_ = 0; /**< Where they begin. */
    bool columns_first_ = false;
    std::vector<size_t> shape_;
    size_t size_ = 0; /**< The product of the shape, at most the elements that there are. */
};

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

std::vector<MaskImage> read_npy_masks(const std::string &path) {
    std::ifstream stream(path, std::ios::binary);
    if (!stream || (stream.peek(), stream.bad())) {
        throw FileError("the file '" + path + "' cannot be opened");
    }
    std::vector<size_t> shape;
    std::vector<uint8_t> elements;
    try {
        const NpyFile file(std::string(std::istreambuf_iterator<char>(stream), {}));
        shape = file.shape();
        elements = file.elements();
    } catch (const std::invalid_argument &error) {
        refuse(path, std::string("are no NumPy array of type bool or uint8 (") + error.what() +
                         "); save them with numpy.save");
    }
    constexpr size_t most = 65535;
    const size_t height = shape.size() < 2 ? 0 : shape[shape.size() - 2], width = shape.empty() ? 0 : shape.back();
    if (shape.size() > 3 || elements.empty() || height < 1 || height > most || width > most) {
        std::string extents;
        for (size_t i = 0; i < shape.size(); i++) {
            extents += (i > 0 ? ", " : "") + std::to_string(shape[i]);
        }
        refuse(path, "have the shape (" + extents + "), not [height, width] or [masks, height, width]");
    }
    const size_t pixels = height * width, count = elements.size() / pixels;
    std::vector<MaskImage> masks;
    for (size_t i = 0; i < count; i++) {
        MaskImage mask;
        mask.name = count == 1 ? path : path + "[" + std::to_string(i) + "]";
        mask.height = static_cast<int>(height);
        mask.width = static_cast<int>(width);
        const auto begin = elements.begin() + static_cast<ptrdiff_t>(i * pixels);
        mask.bytes.assign(begin, begin + static_cast<ptrdiff_t>(pixels));
        masks.push_back(std::move(mask));
    }
    return masks;
}

MaskSet read_mask_set(const std::vector<std::string> &sources, const Operator &op, int *left_out) {
    const int batch = op.typical_batch, height = op.typical_output().height, width = op.typical_output().width;
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
