#include "inputs.h"
#include "masks/mask_families.h"
#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <iterator>
#include <numeric>
#include <random>
#include <string>

namespace distile::networks {

namespace {

/** The percentage of active pixels of each residual block of a trained DynConv pose network, in execution order: model
 * s0125 on MPII, from the README of DynConv (Thomas Verelst, MIT licence). */
constexpr std::array<int, 57> dynconv_percentages = {
    11, 6,  0,  58, 0,  75, 77, 72, 64, 63, 80, 97, 62, 37, 26, 1, 21, 25, 33, 42, 66, 31, 61, 46, 87, 97, 42, 31, 22,
    1,  14, 18, 27, 31, 32, 27, 59, 45, 95, 50, 34, 31, 21, 0,  4, 10, 28, 15, 29, 26, 51, 47, 58, 44, 20, 21, 13,
};

double mean_of(const std::vector<double> &values) {
    return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

}  // namespace

std::vector<float> photo(int32_t size, int32_t batch) {
    const Photo read = read_photo(std::string(DISTILE_MASKS_FOLDER) + "/sige_church_original.png");
    std::vector<float> values;
    for (int32_t n = 0; n < batch; n++) {
        for (int32_t y = 0; y < size; y++) {
            for (int32_t x = 0; x < size; x++) {
                const int64_t column = (int64_t{x} + 17 * int64_t{n}) % size;
                const int64_t pixel = int64_t{y} * read.height / size * read.width + column * read.width / size;
                for (int64_t c = 0; c < 3; c++) {
                    values.push_back(static_cast<float>(read.rgb[3 * pixel + c]) / 127.5F - 1);
                }
            }
        }
    }
    return values;
}

std::vector<double> block_densities(size_t blocks, double mean) {
    std::vector<double> drawn;
    for (size_t i = 0; i < blocks; i++) {
        const double at =
            blocks == 1 ? 0
                        : static_cast<double>(i * (dynconv_percentages.size() - 1)) / static_cast<double>(blocks - 1);
        const auto before = static_cast<size_t>(at), after = std::min(before + 1, dynconv_percentages.size() - 1);
        const double share = at - static_cast<double>(before);
        const double percentage = (1 - share) * dynconv_percentages.at(before) + share * dynconv_percentages.at(after);
        drawn.push_back(std::clamp(percentage / 100, .002, .998));
    }
    const auto bent = [&](double exponent) {
        std::vector<double> result(drawn);
        std::transform(result.begin(), result.end(), result.begin(),
                       [&](double density) { return mean >= 1 ? 1 : std::pow(density, exponent); });
        return result;
    };
    double low = 1e-3, high = 1e3;
    for (int i = 0; i < 60; i++) {
        const double middle = std::sqrt(low * high);
        (mean_of(bent(middle)) > mean ? low : high) = middle;
    }
    return bent(low);
}

std::vector<double> smooth_fields(int32_t batch, int32_t height, int32_t width) {
    constexpr int waves = 3;
    const double turn = 2 * std::acos(-1.0);
    std::minstd_rand generator;
    std::uniform_real_distribution<double> uniform;
    std::vector<double> fields;
    for (int32_t n = 0; n < batch; n++) {
        std::vector<double> field(size_t{1} * height * width);
        for (int32_t wave = 0; wave < (waves + 1) * (waves + 1); wave++) {
            const int32_t down = wave / (waves + 1), across = wave % (waves + 1);
            const double size = 2 * uniform(generator) - 1, phase = uniform(generator);
            for (size_t i = 0; i < field.size(); i++) {
                const size_t row = i / width, column = i % width;
                const double y = (static_cast<double>(row) + .5) / height;
                const double x = (static_cast<double>(column) + .5) / width;
                field[i] += size * std::cos(turn * (phase + (down * y + across * x) / 2));
            }
        }
        const double mean = mean_of(field);
        std::transform(field.begin(), field.end(), std::back_inserter(fields),
                       [mean](double value) { return value - mean; });
    }
    return fields;
}

float threshold_of(std::vector<float> scores, double density) {
    std::sort(scores.begin(), scores.end(), std::greater<>());
    const auto kept = static_cast<size_t>(std::lround(density * static_cast<double>(scores.size())));
    if (kept >= scores.size()) {
        return -HUGE_VALF;
    }
    return kept == 0 ? HUGE_VALF : (scores[kept] + scores[kept - 1]) / 2;
}

}  // namespace distile::networks
