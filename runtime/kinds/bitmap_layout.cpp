#include "runtime/kinds/bitmap_layout.h"
#include "kernels/bitmap.h"
#include "runtime/base/stored_float.h"
#include <algorithm>
#include <cstring>

namespace distile {

namespace bitmap_layout {
namespace {

constexpr int32_t unit_rows = DISTILE_BITMAP_ROWS, unit_columns = DISTILE_BITMAP_COLUMNS, lanes = 32, steps = 8,
                  step_pairs = 4, halves = 4, half_bits = 16, granule = DISTILE_BITMAP_GRANULE;

int32_t units_over(int32_t count, int32_t unit) {
    return (count + unit - 1) / unit;
}

/** Where a weight of a lane is in its unit. */
struct Place {
    int32_t row, column;
};
Place place_of(int32_t lane, int32_t step, int32_t pair, int32_t weight) {
    return {lane / 4 + pair % 2 * 8, step / 2 * 32 + lane % 4 * 8 + step % 2 * 4 + pair / 2 * 2 + weight};
}

/** A number in 16 bits. A NaN stays one. */
uint16_t narrow(float value, distile_dtype type) {
    return type == DISTILE_BFLOAT16 ? StoredFloat<DISTILE_BFLOAT16>::from_float(value)
                                    : StoredFloat<DISTILE_FLOAT16>::from_float(value);
}

/** The arrays, as they are made. */
struct Arrays {
    int64_t nonzeros = 0;
    std::vector<uint32_t> bits, starts, values;

    /** Adds a unit of numbers in 16 bits, [row][column] with `stride` numbers from row to row. */
    void add(const uint16_t *numbers, int64_t stride) {
        std::vector<uint16_t> kept[lanes];
        size_t most = 0;
        for (int32_t lane = 0; lane < lanes; lane++) {
            uint32_t words[halves * half_bits / 32] = {};
            for (int32_t step = 0; step < steps; step++) {
                for (int32_t pair = 0; pair < step_pairs; pair++) {
                    for (int32_t weight = 0; weight < 2; weight++) {
                        const Place place = place_of(lane, step, pair, weight);
                        const uint16_t number = numbers[place.row * stride + place.column];
                        constexpr uint16_t magnitude = 0x7fff;
                        if ((number & magnitude) != 0) {
                            const int32_t half = step / 2, bit = step % 2 * step_pairs + pair + weight * 8;
                            words[half / 2] |= 1U << (half % 2 * half_bits + bit);
                            kept[lane].push_back(number);
                        }
                    }
                }
            }
            bits.insert(bits.end(), std::begin(words), std::end(words));
            nonzeros += static_cast<int64_t>(kept[lane].size());
            kept[lane].resize((kept[lane].size() + granule - 1) / granule * granule);
            most = std::max(most, kept[lane].size());
        }
        starts.push_back(static_cast<uint32_t>(values.size() * 2 / granule));
        for (size_t first = 0; first < most; first += granule) {
            for (const std::vector<uint16_t> &of_lane : kept) {
                for (size_t i = first; i < std::min(first + granule, of_lane.size()); i += 2) {
                    values.push_back(of_lane[i] | static_cast<uint32_t>(of_lane[i + 1]) << half_bits);
                }
            }
        }
    }

    std::vector<float> words() {
        starts.push_back(static_cast<uint32_t>(values.size() * 2 / granule));
        values.resize(values.size() + granule / 2);
        distile_cuda_bitmap_weights header{};
        header.nonzeros = nonzeros;
        std::vector<float> all(sizeof(header) / sizeof(float));
        const auto append = [&](const std::vector<uint32_t> &numbers) {
            constexpr size_t alignment = 4;
            all.resize((all.size() + alignment - 1) / alignment * alignment);
            const size_t first = all.size();
            all.resize(first + numbers.size());
            if (!numbers.empty()) {
                std::memcpy(all.data() + first, numbers.data(), numbers.size() * sizeof(float));
            }
            return static_cast<int32_t>(first);
        };
        header.bits = append(bits);
        header.starts = append(starts);
        header.values = append(values);
        std::memcpy(all.data(), &header, sizeof(header));
        return all;
    }
};

}  // namespace
}  // namespace bitmap_layout

std::vector<PackedArray> pack_bitmap(const FilterExtents &extents, const FilterSource &source) {
    using namespace bitmap_layout;
    PackedArray weights{DISTILE_ROLE_WEIGHTS, {0}, {}};  // How many weights there are, nobody knows yet.
    PackedArray bias{DISTILE_ROLE_BIAS, {extents.out_channels}, {}};
    if (source.filter) {
        const int32_t units = units_over(extents.in_channels, unit_columns);
        const int64_t stride = int64_t{units} * unit_columns;
        std::vector<uint16_t> numbers(unit_rows * stride);
        std::vector<float> folded;
        Arrays arrays;
        for (int32_t first = 0; first < extents.out_channels; first += unit_rows) {
            std::fill(numbers.begin(), numbers.end(), uint16_t{0});
            for (int32_t o = first; o < std::min(first + unit_rows, extents.out_channels); o++) {
                bias.values.push_back(fold_channel(extents, single_taps(1), single_taps(1), source, o, folded));
                std::transform(folded.begin(), folded.end(), numbers.begin() + (o - first) * stride,
                               [&](float value) { return narrow(value, source.input); });
            }
            for (int32_t unit = 0; unit < units; unit++) {
                arrays.add(numbers.data() + int64_t{unit} * unit_columns, stride);
            }
        }
        const std::vector<float> words = arrays.words();
        weights.values.assign(words.begin(), words.end());
        weights.extents = {static_cast<int32_t>(weights.values.size())};
    }
    std::vector<PackedArray> packed;
    packed.push_back(std::move(weights));
    packed.push_back(std::move(bias));
    return packed;
}

}  // namespace distile
