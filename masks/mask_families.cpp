#include "masks/mask_families.h"
#include "masks/mask_files.h"
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <random>
#include <sstream>
#include <stb/stb_image.h>
#include <stdexcept>
#include <utility>

namespace distile {

namespace {

ByteMask empty_mask(int32_t batch, int32_t height, int32_t width) {
    if (batch < 1 || height < 1 || width < 1) {
        throw std::invalid_argument("a mask of batch " + std::to_string(batch) + ", height " + std::to_string(height) +
                                    " and width " + std::to_string(width) +
                                    " is not possible: each must be at least 1");
    }
    ByteMask mask;
    mask.batch = batch;
    mask.height = height;
    mask.width = width;
    mask.bytes.resize(static_cast<size_t>(batch) * height * width);
    return mask;
}

void check_density(double density) {
    if (!(density >= 0 && density <= 1)) {
        throw std::invalid_argument("a mask of density " + std::to_string(density) +
                                    " is not possible: it must lie between 0 and 1");
    }
}

/** White noise of mean 0: the sum of twelve uniform 16-bit numbers. The standard distributions, and thus our masks,
 * would differ between libraries; this sum is exact everywhere. */
double noise(std::mt19937_64 &engine) {
    uint64_t sum = 0;
    for (int draw = 0; draw < 3; draw++) {
        const uint64_t bits = engine();
        for (int shift = 0; shift < 64; shift += 16) {
            sum += (bits >> shift) & 0xffff;
        }
    }
    return static_cast<double>(sum) - 6 * 65535.0;
}

/** The weights of a Gaussian with standard deviation `sigma`, cut off at 3 sigma. */
std::vector<double> gaussian(double sigma) {
    const auto radius = static_cast<int>(std::ceil(3 * sigma));
    std::vector<double> weights;
    for (int x = -radius; x <= radius; x++) {
        weights.push_back(std::exp(-x * x / (2 * sigma * sigma)));
    }
    return weights;
}

/** A Gaussian random field [height, width]. White noise smoothed by a Gaussian with deviation sigma has the correlation
 * exp(-(d / (2 sigma))^2) at distance d. We call 2 sigma, where the correlation drops to 1/e, the correlation length;
 * here it is 1/8 of the extent along each axis. The noise extends beyond the image, so the field is as smooth and
 * varied at the edges as elsewhere. */
std::vector<double> gaussian_field(int32_t height, int32_t width, std::mt19937_64 &engine) {
    const std::vector<double> along_x = gaussian(width / 16.0), along_y = gaussian(height / 16.0);
    const size_t noise_width = width + along_x.size() - 1, noise_height = height + along_y.size() - 1;
    std::vector<double> rows(noise_height * width);
    std::vector<double> row(noise_width);
    for (size_t y = 0; y < noise_height; y++) {
        std::generate(row.begin(), row.end(), [&] { return noise(engine); });
        for (int32_t x = 0; x < width; x++) {
            rows[y * width + x] = std::inner_product(along_x.begin(), along_x.end(), row.begin() + x, 0.0);
        }
    }
    std::vector<double> field(static_cast<size_t>(height) * width);
    for (int32_t y = 0; y < height; y++) {
        double *out = &field[static_cast<size_t>(y) * width];
        for (size_t tap = 0; tap < along_y.size(); tap++) {
            const double *in = &rows[(y + tap) * width];
            for (int32_t x = 0; x < width; x++) {
                out[x] += along_y[tap] * in[x];
            }
        }
    }
    return field;
}

ByteMask read_npy(const std::string &path) {
    MaskImage image = read_npy_masks(path).front();
    return {1, image.height, image.width, std::move(image.bytes)};
}

/** Active within 5 pixels of any pixel where a channel of the two photos differs by more than .01, on SIGE's scale from
 * -1 to 1. */
ByteMask edit_mask(const std::string &before_file, const std::string &after_file) {
    const Photo before = read_photo(before_file), after = read_photo(after_file);
    if (before.height != after.height || before.width != after.width) {
        throw std::runtime_error("the photos '" + before_file + "' and '" + after_file +
                                 "' differ in size; restore the files from the repository");
    }
    constexpr double levels = .01 / 2 * 255;
    ByteMask mask = empty_mask(1, before.height, before.width);
    for (size_t i = 0; i < mask.bytes.size(); i++) {
        for (size_t channel = 3 * i; channel < 3 * i + 3; channel++) {
            mask.bytes[i] |= std::abs(before.rgb[channel] - after.rgb[channel]) > levels;
        }
    }
    return dilate_mask(mask, 5);
}

}  // namespace

Photo read_photo(const std::string &path) {
    Photo photo;
    const std::unique_ptr<stbi_uc, void (*)(void *)> rgb(
        stbi_load(path.c_str(), &photo.width, &photo.height, nullptr, 3), stbi_image_free);
    if (!rgb) {
        throw std::runtime_error("the photo '" + path + "' cannot be read (" + stbi_failure_reason() +
                                 "); restore the file from the repository");
    }
    photo.rgb.assign(rgb.get(), rgb.get() + size_t{3} * photo.width * photo.height);
    return photo;
}

int64_t ByteMask::active_pixels() const {
    return std::count_if(bytes.begin(), bytes.end(), [](uint8_t byte) { return byte != 0; });
}

double ByteMask::density() const {
    return bytes.empty() ? 0 : static_cast<double>(active_pixels()) / static_cast<double>(bytes.size());
}

ByteMask blob_mask(int32_t batch, int32_t height, int32_t width, double density, uint64_t seed) {
    check_density(density);
    ByteMask mask = empty_mask(batch, height, width);
    const size_t pixels = static_cast<size_t>(height) * width;
    const long long active = std::llround(density * static_cast<double>(pixels));
    std::mt19937_64 engine(seed);
    std::vector<size_t> order(pixels);
    for (int32_t n = 0; n < batch; n++) {
        const std::vector<double> field = gaussian_field(height, width, engine);
        // The order is total, with ties broken by index, so every library selects the same set of highest values.
        std::iota(order.begin(), order.end(), size_t{0});
        std::nth_element(order.begin(), order.begin() + active, order.end(),
                         [&](size_t a, size_t b) { return field[a] != field[b] ? field[a] > field[b] : a < b; });
        for (long long i = 0; i < active; i++) {
            mask.bytes[n * pixels + order[i]] = 1;
        }
    }
    return mask;
}

ByteMask random_mask(int32_t batch, int32_t height, int32_t width, double density, uint64_t seed) {
    check_density(density);
    ByteMask mask = empty_mask(batch, height, width);
    std::mt19937_64 engine(seed);
    for (uint8_t &byte : mask.bytes) {
        // The upper 53 bits, which a double holds exactly.
        byte = std::ldexp(static_cast<double>(engine() >> 11), -53) < density;
    }
    return mask;
}

ByteMask checkerboard_mask(int32_t batch, int32_t height, int32_t width) {
    ByteMask mask = empty_mask(batch, height, width);
    for (size_t i = 0; i < mask.bytes.size(); i++) {
        mask.bytes[i] = (i / width % height + i % width) % 2 == 0;
    }
    return mask;
}

ByteMask draw_mask(const std::string &family, int32_t batch, int32_t height, int32_t width, double density,
                   uint64_t seed) {
    if (family == "blob") {
        return blob_mask(batch, height, width, density, seed);
    }
    if (family == "random") {
        return random_mask(batch, height, width, density, seed);
    }
    if (family == "checkerboard") {
        return checkerboard_mask(batch, height, width);
    }
    throw std::invalid_argument("there is no mask family '" + family +
                                "'; the families are 'blob', 'random' and 'checkerboard'");
}

ByteMask draw_named_mask(const std::string &name, int32_t batch, int32_t height, int32_t width) {
    std::vector<std::string> parts;
    std::istringstream stream(name);
    for (std::string part; std::getline(stream, part, ':');) {
        parts.push_back(part);
    }
    std::string cause;
    try {
        size_t density_end = 0, seed_end = 0;
        const bool seeded = parts.size() == 3;
        const double density = seeded ? std::stod(parts[1], &density_end) : 0.5;
        const uint64_t seed = seeded ? std::stoull(parts[2], &seed_end) : 0;
        if (seeded ? density_end == parts[1].size() && seed_end == parts[2].size() && parts[0] != "checkerboard"
                   : name == "checkerboard") {
            return draw_mask(parts[0], batch, height, width, density, seed);
        }
    } catch (const std::logic_error &error) {
        // The exceptions of std::stod() and std::stoull() name the function only, which tells a user nothing.
        const std::string what = error.what();
        cause = what.rfind("sto", 0) == 0 ? "" : " (" + what + ")";
    }
    throw std::invalid_argument("not drawn as blob:DENSITY:SEED, random:DENSITY:SEED or checkerboard" + cause);
}

std::vector<std::string> real_masks() {
    return {"sige_church", "sige_church_edit", "sige_sd_inpaint"};
}

ByteMask read_real_mask(const std::string &name, const std::string &folder) {
    if (name == "sige_church") {
        return read_npy(folder + "/sige_church_256.npy");
    }
    if (name == "sige_church_edit") {
        return edit_mask(folder + "/sige_church_original.png", folder + "/sige_church_edited.png");
    }
    if (name == "sige_sd_inpaint") {
        return read_npy(folder + "/sige_sd_inpaint_512x1024.npy");
    }
    std::string names;
    for (const std::string &known : real_masks()) {
        names += (names.empty() ? "'" : ", '") + known + "'";
    }
    throw std::runtime_error("there is no real mask '" + name + "' in '" + folder + "'; the masks are: " + names);
}

ByteMask scale_mask(const ByteMask &mask, int32_t height, int32_t width) {
    ByteMask scaled = empty_mask(mask.batch, height, width);
    size_t i = 0;
    for (int32_t n = 0; n < mask.batch; n++) {
        for (int32_t y = 0; y < height; y++) {
            // The source pixel that contains the centre of the scaled pixel.
            const int64_t source_y = (2 * int64_t{y} + 1) * mask.height / (2 * int64_t{height});
            for (int32_t x = 0; x < width; x++) {
                const int64_t source_x = (2 * int64_t{x} + 1) * mask.width / (2 * int64_t{width});
                scaled.bytes[i++] = mask.bytes[(int64_t{n} * mask.height + source_y) * mask.width + source_x] != 0;
            }
        }
    }
    return scaled;
}

ByteMask dilate_mask(const ByteMask &mask, int32_t radius) {
    if (radius < 0) {
        throw std::invalid_argument("a mask cannot be dilated by " + std::to_string(radius) +
                                    " pixels: the radius must not be negative");
    }
    // Dilation by a square works one axis at a time.
    ByteMask wide = empty_mask(mask.batch, mask.height, mask.width);
    const int64_t rows = int64_t{mask.batch} * mask.height;
    for (int64_t row = 0; row < rows; row++) {
        for (int32_t x = 0; x < mask.width; x++) {
            if (mask.bytes[row * mask.width + x] != 0) {
                const int32_t first = x - std::min(x, radius);
                const auto last = static_cast<int32_t>(std::min(int64_t{x} + radius, int64_t{mask.width} - 1));
                std::fill_n(wide.bytes.begin() + row * mask.width + first, last - first + 1, uint8_t{1});
            }
        }
    }
    ByteMask dilated = empty_mask(mask.batch, mask.height, mask.width);
    for (int64_t row = 0; row < rows; row++) {
        const int64_t image = row / mask.height * mask.height;
        const int64_t first = std::max(row - radius, image);
        const int64_t last = std::min(row + radius, image + mask.height - 1);
        uint8_t *out = &dilated.bytes[row * mask.width];
        for (int64_t from = first; from <= last; from++) {
            const uint8_t *in = &wide.bytes[from * mask.width];
            for (int32_t x = 0; x < mask.width; x++) {
                out[x] |= in[x];
            }
        }
    }
    return dilated;
}

}  // namespace distile
