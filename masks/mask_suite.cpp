#include "masks/mask_suite.h"
#include "plans/json_file.h"
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <set>
#include <stdexcept>
#include <utility>

namespace distile {

namespace mask_suite {
namespace {

using nlohmann::json;

/** Draws integers. The engine is exact everywhere, and so are remainders; the standard's distributions are not. */
class Draw {
public:
    explicit Draw(uint64_t seed) : engine_(seed) {
    }
    /** From `least` to `most`, both included. */
    int32_t between(int32_t least, int32_t most) {
        return least + static_cast<int32_t>(engine_() % (static_cast<uint64_t>(most) - least + 1));
    }
    uint64_t bits() {
        return engine_();
    }

private:
    std::mt19937_64 engine_;
};

/** A seed of several numbers, by the steps of splitmix64. */
uint64_t seed_of(const std::vector<uint64_t> &numbers) {
    uint64_t seed = 0;
    for (const uint64_t number : numbers) {
        seed += number + 0x9e3779b97f4a7c15;
        seed = (seed ^ (seed >> 30)) * 0xbf58476d1ce4e5b9;
        seed = (seed ^ (seed >> 27)) * 0x94d049bb133111eb;
        seed ^= seed >> 31;
    }
    return seed;
}

struct Rectangle {
    int32_t y = 0, x = 0, height = 0, width = 0;
};

/** The part of an image that a set may use. */
Rectangle part_of(bool held_out, int32_t height, int32_t width, int32_t split, int32_t margin) {
    return held_out ? Rectangle{0, split + margin, height, width - split - margin} : Rectangle{0, 0, height, split};
}

/** A rectangle within another, of at least two fifths of its sides. */
Rectangle draw_rectangle(const Rectangle &within, Draw &draw) {
    Rectangle drawn;
    drawn.height = draw.between(std::max(1, within.height * 2 / 5), within.height);
    drawn.width = draw.between(std::max(1, within.width * 2 / 5), within.width);
    drawn.y = within.y + draw.between(0, within.height - drawn.height);
    drawn.x = within.x + draw.between(0, within.width - drawn.width);
    return drawn;
}

ByteMask crop(const ByteMask &mask, const Rectangle &part, bool mirrored) {
    ByteMask cropped{1, part.height, part.width, {}};
    cropped.bytes.reserve(static_cast<size_t>(part.height) * part.width);
    for (int32_t y = 0; y < part.height; y++) {
        for (int32_t x = 0; x < part.width; x++) {
            const int32_t from = part.x + (mirrored ? part.width - 1 - x : x);
            cropped.bytes.push_back(mask.bytes[static_cast<size_t>(part.y + y) * mask.width + from]);
        }
    }
    return cropped;
}

/** Sums of 2 radius + 1 values along an axis, where the edge goes on beyond the image. */
std::vector<int64_t> sums_along(const std::vector<int64_t> &values, int32_t lines, int32_t length, size_t line_step,
                                size_t step, int32_t radius) {
    std::vector<int64_t> sums(values.size());
    for (int32_t line = 0; line < lines; line++) {
        const auto at = [&](int32_t i) {
            return values[line * line_step + static_cast<size_t>(std::clamp(i, 0, length - 1)) * step];
        };
        int64_t sum = 0;
        for (int32_t i = -radius; i <= radius; i++) {
            sum += at(i);
        }
        for (int32_t i = 0; i < length; i++) {
            sums[line * line_step + static_cast<size_t>(i) * step] = sum;
            sum += at(i + radius + 1) - at(i - radius);
        }
    }
    return sums;
}

/** Three sums along both axes, nearly a Gaussian, in exact integers: (2 radius + 1)^6 times the values at most. */
std::vector<int64_t> blurred(std::vector<int64_t> values, int32_t height, int32_t width, int32_t radius) {
    for (int pass = 0; pass < 3; pass++) {
        values = sums_along(values, height, width, width, 1, radius);
        values = sums_along(values, width, height, 1, width, radius);
    }
    return values;
}

/** The pixels with the highest values, of this density. */
ByteMask highest(const std::vector<int64_t> &field, int32_t height, int32_t width, double density) {
    std::vector<size_t> order(field.size());
    std::iota(order.begin(), order.end(), size_t{0});
    const auto active = static_cast<std::ptrdiff_t>(std::llround(density * static_cast<double>(field.size())));
    std::nth_element(order.begin(), order.begin() + active, order.end(),
                     [&](size_t a, size_t b) { return field[a] != field[b] ? field[a] > field[b] : a < b; });
    ByteMask mask{1, height, width, std::vector<uint8_t>(field.size())};
    std::for_each(order.begin(), order.begin() + active, [&](size_t pixel) { mask.bytes[pixel] = 1; });
    return mask;
}

/** An ellipse of a photo that moves. */
struct Moving {
    int32_t y, x, half_height, half_width; /**< Its centre in the first frame, and its half axes. */
    int32_t from_y, from_x;                /**< The centre of what it shows. */
    int32_t step_y, step_x;

    bool covers(int32_t at_y, int32_t at_x) const {
        const int64_t down = int64_t{at_y} * half_width, right = int64_t{at_x} * half_height;
        const int64_t limit = int64_t{half_height} * half_width;
        return down * down + right * right <= limit * limit;
    }
};

/** Frames of a part of a photo in front of which other parts of it move. */
class Frames {
public:
    Frames(const Photo &photo, const Rectangle &part, Draw &draw) : photo_(photo), part_(part) {
        const int32_t shorter = std::min(part.height, part.width);
        const int32_t count = draw.between(1, 5);
        for (int32_t i = 0; i < count; i++) {
            Moving moving{};
            moving.half_height = draw.between(std::max(1, shorter / 16), std::max(1, shorter / 4));
            moving.half_width = draw.between(std::max(1, shorter / 16), std::max(1, shorter / 4));
            moving.y = draw.between(0, part.height - 1);
            moving.x = draw.between(0, part.width - 1);
            moving.from_y = draw.between(0, part.height - 1);
            moving.from_x = draw.between(0, part.width - 1);
            moving.step_y = draw.between(-6, 6);
            moving.step_x = draw.between(-6, 6);
            moving_.push_back(moving);
        }
    }

    /** Where a channel of the first two frames differs by more than `levels`. */
    ByteMask difference(int32_t levels) const {
        ByteMask mask{1, part_.height, part_.width, {}};
        for (int32_t y = 0; y < part_.height; y++) {
            for (int32_t x = 0; x < part_.width; x++) {
                const uint8_t *before = pixel(y, x, 0), *after = pixel(y, x, 1);
                bool differs = false;
                for (int channel = 0; channel < 3; channel++) {
                    differs |= std::abs(before[channel] - after[channel]) > levels;
                }
                mask.bytes.push_back(differs ? 1 : 0);
            }
        }
        return mask;
    }

private:
    /** The colours of a pixel in a frame. */
    const uint8_t *pixel(int32_t y, int32_t x, int32_t frame) const {
        for (const Moving &moving : moving_) {
            const int32_t down = y - moving.y - frame * moving.step_y, right = x - moving.x - frame * moving.step_x;
            if (moving.covers(down, right)) {
                return of_photo(moving.from_y + down, moving.from_x + right);
            }
        }
        return of_photo(y, x);
    }
    const uint8_t *of_photo(int32_t y, int32_t x) const {
        const int32_t row = part_.y + std::clamp(y, 0, part_.height - 1);
        const int32_t column = part_.x + std::clamp(x, 0, part_.width - 1);
        return &photo_.rgb[(static_cast<size_t>(row) * photo_.width + column) * 3];
    }

    const Photo &photo_;
    Rectangle part_;
    std::vector<Moving> moving_;
};

/** Where a source is from. */
struct Origin {
    std::string url, licence;
};

struct Source {
    std::string name;
    ByteMask mask;
    int32_t split, margin;
    Origin origin;
};

struct Family {
    std::string name;
    std::vector<double> densities;   /**< A mask each; empty for families whose densities follow from their sources. */
    std::vector<std::string> layers; /**< What each density is of; "": nothing. */
    int32_t count;                   /**< The number of masks. */
    Origin origin;                   /**< The origin of layers. */
};

/** The image that a mask of tokens is drawn as: a square of rows, after a token of the class where that fills it. */
struct TokenImage {
    int32_t side, rows;
    bool has_class;
};

/** Whether a mask of this size is drawn as another image. */
bool is_of_tokens(int32_t height, int32_t width) {
    constexpr int32_t fewest_tokens = 4;
    return height == 1 && width >= fewest_tokens;
}

TokenImage image_of_tokens(int32_t tokens) {
    const auto root = [](int32_t square) {
        auto side = static_cast<int32_t>(std::sqrt(static_cast<double>(square)));
        while (side * side > square) {
            side--;
        }
        return side;
    };
    const int32_t side = root(tokens), without = root(tokens - 1);
    if (side * side != tokens && without * without == tokens - 1) {
        return {without, without, true};
    }
    return {side, (tokens + side - 1) / side, false};
}

std::string recipe_beside_program() {
    const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe");
    return (program.parent_path() / "masks" / "suite.json").string();
}

}  // namespace
}  // namespace mask_suite

using namespace mask_suite;

struct MaskSuite::Recipe {
    explicit Recipe(const std::string &path) {
        const std::string folder = std::filesystem::path(path).parent_path().string();
        if (!std::filesystem::exists(path)) {
            throw FileError("the recipe of masks '" + path +
                            "' is not there: run the `distile` of a complete installation or build");
        }
        const json file = read_json(path);
        if (!file.is_object() || file.value("distile_mask_suite", json()) != 1) {
            throw FileError("the file '" + path + "' has no \"distile_mask_suite\": 1: it is no recipe of masks");
        }
        try {
            check_members(
                file, {"distile_mask_suite", "seed", "licence", "sizes", "origins", "sources", "frames", "families"},
                "the recipe '" + path + "'");
            seed = file.at("seed");
            licence = file.at("licence");
            origins = file.at("origins");
            sizes = file.at("sizes").get<std::vector<std::string>>();
            for (const json &source : file.at("sources")) {
                const std::string name = source.at("mask");
                Source read{name, read_real_mask(name, folder), source.at("split"), source.at("margin"),
                            origin_of(source)};
                check_split(read.mask.width, read.split, read.margin);
                sources.push_back(std::move(read));
            }
            const json &frames = file.at("frames");
            photo_name = frames.at("photo");
            photo_origin = origin_of(frames);
            photo = read_photo(folder + "/" + photo_name);
            photo_split = frames.at("split");
            photo_margin = frames.at("margin");
            check_split(photo.width, photo_split, photo_margin);
            for (const json &family : file.at("families")) {
                read_family(family, folder);
            }
        } catch (const json::exception &error) {
            throw FileError("the recipe '" + path + "' cannot be read: " + error.what());
        } catch (const std::invalid_argument &error) {
            throw FileError("the recipe '" + path + "': " + error.what());
        }
    }

    Origin origin_of(const json &source) const {
        const json &origin = origins.at(source.at("origin").get<std::string>());
        return {origin.at("url"), origin.at("licence")};
    }

    static void check_split(int32_t width, int32_t split, int32_t margin) {
        if (split < 1 || margin < 0 || margin >= width || split >= width - margin) {
            throw std::invalid_argument("a split at column " + std::to_string(split) + " with a margin of " +
                                        std::to_string(margin) + " leaves no columns of " + std::to_string(width));
        }
    }

    void read_family(const json &file, const std::string &folder) {
        for (const bool held_out : {false, true}) {
            Family family{file.at("family"), {}, {}, 0, {}};
            if (family.name == "published") {
                family.origin = origin_of(file);
                const json layers = read_json(folder + "/" + file.at("file").get<std::string>());
                const int32_t every = file.at("every");
                if (every < 2) {
                    throw std::invalid_argument("\"every\" is below 2");
                }
                const json &densities = layers.at("density");
                for (size_t layer = held_out ? every / 2 : 0; layer < densities.size(); layer += every) {
                    family.densities.push_back(densities.at(layer).get<double>() / 100);
                    family.layers.push_back("layer " + std::to_string(layer) + " of " +
                                            layers.at("source").get<std::string>());
                }
            } else if (family.name == "crop" || family.name == "frames") {
                family.count = file.at("count");
            } else if (family.name == "blob" || family.name == "random" || family.name == "blur") {
                for (const double density : file.at("densities")) {
                    if (!(density >= 0 && density <= 1)) {
                        throw std::invalid_argument("a density is below 0 or above 1");
                    }
                    family.densities.insert(family.densities.end(), file.at("each").get<size_t>(), density);
                }
            } else {
                throw std::invalid_argument("there is no family '" + family.name +
                                            "'; they are blob, random, crop, blur, frames and published");
            }
            family.count = family.densities.empty() ? family.count : static_cast<int32_t>(family.densities.size());
            family.layers.resize(family.count);
            (held_out ? held_out_families : train_families).push_back(std::move(family));
        }
    }

    /** Notes what an image was made from. */
    static void add_source(SuiteMask &drawn, const std::string &name, const Origin &origin) {
        const std::string source = name + " of " + origin.url;
        if (std::find(drawn.sources.begin(), drawn.sources.end(), source) == drawn.sources.end()) {
            drawn.sources.push_back(source);
        }
        drawn.licence = origin.licence;
    }

    /** A piece of a real mask of the set, scaled to a size. */
    ByteMask real_piece(bool held_out, int32_t height, int32_t width, Draw &draw, SuiteMask &drawn) const {
        constexpr int attempts = 100;
        for (int attempt = 0;; attempt++) {
            const Source &source = sources[draw.between(0, static_cast<int32_t>(sources.size()) - 1)];
            const Rectangle part = draw_rectangle(
                part_of(held_out, source.mask.height, source.mask.width, source.split, source.margin), draw);
            const bool mirrored = draw.between(0, 1) == 1;
            ByteMask scaled = scale_mask(crop(source.mask, part, mirrored), height, width);
            // Pieces of what is active, or inactive, say nothing.
            if (attempt == attempts || (scaled.density() > .01 && scaled.density() < .95)) {
                add_source(drawn, source.name, source.origin);
                return scaled;
            }
        }
    }

    ByteMask image_of(const Family &family, int32_t index, bool held_out, int32_t height, int32_t width, uint64_t key,
                      SuiteMask &drawn) const {
        Draw draw(key);
        if (family.name == "frames") {
            const Frames frames(
                photo, draw_rectangle(part_of(held_out, photo.height, photo.width, photo_split, photo_margin), draw),
                draw);
            const int32_t levels = draw.between(4, 24), radius = draw.between(0, 3);
            add_source(drawn, photo_name, photo_origin);
            return scale_mask(dilate_mask(frames.difference(levels), radius), height, width);
        }
        if (family.name == "crop") {
            const ByteMask piece = real_piece(held_out, height, width, draw, drawn);
            const int32_t most = std::max(height, width) / 16;
            return dilate_mask(piece, draw.between(0, most));
        }
        const double density = family.densities[index];
        if (family.name == "blur") {
            const ByteMask piece = real_piece(held_out, height, width, draw, drawn);
            std::vector<int64_t> field, noise;
            for (const uint8_t byte : piece.bytes) {
                field.push_back(byte);
                noise.push_back(static_cast<int64_t>(draw.bits() >> 56));
            }
            const int32_t longer = std::max(height, width), radius = std::clamp(longer / draw.between(16, 48), 1, 64);
            field = blurred(std::move(field), height, width, radius);
            noise = blurred(std::move(noise), height, width, std::clamp(longer / 16, 1, 64));
            // Noise decides where the blurred mask does not: its own differences are below an eighth of a pixel's.
            const int64_t most_noise = *std::max_element(noise.begin(), noise.end()),
                          most_field = std::max<int64_t>(1, *std::max_element(field.begin(), field.end()));
            for (size_t i = 0; i < field.size(); i++) {
                // Both between 0 and 2^20, so that products stay exact.
                constexpr int64_t scale = int64_t{1} << 20;
                const int64_t noise_step = std::max<int64_t>(1, most_noise / scale),
                              field_step = std::max<int64_t>(1, most_field / scale);
                field[i] = 8 * (field[i] / field_step) * scale / (most_field / field_step) +
                           noise[i] / noise_step * scale / std::max<int64_t>(1, most_noise / noise_step);
            }
            return highest(field, height, width, density);
        }
        if (!family.layers[index].empty()) {
            add_source(drawn, family.layers[index], family.origin);
        }
        return draw_mask(family.name == "random" ? "random" : "blob", 1, height, width, density, key);
    }

    /** A mask of one image, whose rows are tokens if it has one row. */
    ByteMask image_or_tokens(const Family &family, int32_t index, bool held_out, int32_t height, int32_t width,
                             uint64_t key, SuiteMask &drawn) const {
        if (!is_of_tokens(height, width)) {
            return image_of(family, index, held_out, height, width, key, drawn);
        }
        const TokenImage image = image_of_tokens(width);
        ByteMask square = image_of(family, index, held_out, image.rows, image.side, key, drawn);
        if (image.has_class) {
            square.bytes.insert(square.bytes.begin(), 1);
        }
        square.bytes.resize(width);
        return {1, 1, width, std::move(square.bytes)};
    }

    SuiteMask draw(size_t family_index, int32_t index, bool held_out, int32_t batch, int32_t height, int32_t width,
                   uint64_t attempt) const {
        const Family &family = (held_out ? held_out_families : train_families)[family_index];
        SuiteMask drawn;
        drawn.mask = {batch, height, width, {}};
        drawn.name = family.name + "-" + std::to_string(index);
        drawn.family = family.name;
        drawn.licence = licence;
        for (int32_t n = 0; n < batch; n++) {
            const uint64_t key = seed_of({seed, held_out ? 2u : 1u, family_index, static_cast<uint64_t>(index),
                                          static_cast<uint64_t>(n), attempt});
            drawn.seed = n == 0 ? key : drawn.seed;
            const ByteMask image = image_or_tokens(family, index, held_out, height, width, key, drawn);
            drawn.mask.bytes.insert(drawn.mask.bytes.end(), image.bytes.begin(), image.bytes.end());
        }
        return drawn;
    }

    /** All masks of a set but those among `others`. */
    std::vector<SuiteMask> draw_all(bool held_out, int32_t batch, int32_t height, int32_t width,
                                    const std::set<std::vector<uint8_t>> &others) const {
        constexpr uint64_t attempts = 20;
        const std::vector<Family> &families = held_out ? held_out_families : train_families;
        std::vector<SuiteMask> masks;
        for (size_t family = 0; family < families.size(); family++) {
            for (int32_t index = 0; index < families[family].count; index++) {
                for (uint64_t attempt = 0; attempt < attempts; attempt++) {
                    SuiteMask drawn = draw(family, index, held_out, batch, height, width, attempt);
                    if (others.count(drawn.mask.bytes) == 0) {
                        masks.push_back(std::move(drawn));
                        break;
                    }
                }
            }
        }
        return masks;
    }

    uint64_t seed = 0;
    std::string licence; /**< The licence of what is only drawn. */
    std::vector<std::string> sizes;
    json origins;
    std::vector<Source> sources;
    Photo photo;
    std::string photo_name;
    Origin photo_origin;
    int32_t photo_split = 0, photo_margin = 0;
    std::vector<Family> train_families, held_out_families;
};

MaskSuite::MaskSuite() : MaskSuite(recipe_beside_program()) {
}

MaskSuite::MaskSuite(const std::string &recipe) : recipe_(std::make_unique<const Recipe>(recipe)) {
}

MaskSuite::~MaskSuite() = default;
MaskSuite::MaskSuite(MaskSuite &&) noexcept = default;

const std::vector<std::string> &MaskSuite::sets() {
    static const std::vector<std::string> names = {"train", "held-out"};
    return names;
}

std::string MaskSuite::set_in(const std::string &name) {
    const std::string prefix = "suite:";
    return name.compare(0, prefix.size(), prefix) == 0 ? name.substr(prefix.size()) : "";
}

ByteMask MaskSuite::picture_of(const ByteMask &mask) {
    const TokenImage image = is_of_tokens(mask.height, mask.width) ? image_of_tokens(mask.width)
                                                                   : TokenImage{mask.width, mask.height, false};
    ByteMask picture{1, image.rows, image.side, {}};
    const auto begin = mask.bytes.begin() + (image.has_class ? 1 : 0);
    const auto pixels = std::min<std::ptrdiff_t>(mask.bytes.end() - begin, std::ptrdiff_t{image.rows} * image.side);
    picture.bytes.assign(begin, begin + pixels);
    // The last row of a square may lack tokens.
    picture.bytes.resize(static_cast<size_t>(image.rows) * image.side);
    return picture;
}

const std::vector<std::string> &MaskSuite::sizes() const {
    return recipe_->sizes;
}

std::vector<SuiteMask> MaskSuite::draw(const std::string &set, int32_t batch, int32_t height, int32_t width) const {
    if (std::find(sets().begin(), sets().end(), set) == sets().end()) {
        throw std::invalid_argument("there is no set '" + set +
                                    "' of the suite of masks; the sets are 'train' and 'held-out'");
    }
    if (batch < 1 || height < 1 || width < 1) {
        throw std::invalid_argument("masks need at least one image, row and column");
    }
    std::vector<SuiteMask> train = recipe_->draw_all(false, batch, height, width, {});
    if (set == "train") {
        return train;
    }
    std::set<std::vector<uint8_t>> known;
    for (SuiteMask &mask : train) {
        known.insert(std::move(mask.mask.bytes));
    }
    return recipe_->draw_all(true, batch, height, width, known);
}

}  // namespace distile
