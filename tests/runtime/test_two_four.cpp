// Weights of the pattern 2:4 as sparse tensor cores read them: a warp in plain loops computes with what was packed.
#include "kernels/two_four.h"
#include "runtime/base/stored_float.h"
#include "runtime/kinds/two_four_layout.h"
#include "tests/support/catch.h"
#include "tests/support/contains.h"
#include "tests/support/two_of_four.h"
#include <algorithm>
#include <cmath>
#include <cstring>
#include <distile/distile.hpp>
#include <distile/pruned.h>
#include <limits>
#include <random>

using namespace distile;

namespace two_four_test {
namespace {

constexpr int32_t unit_rows = DISTILE_TWO_FOUR_ROWS, unit_columns = DISTILE_TWO_FOUR_COLUMNS, lanes = 32,
                  tile_rows = 16, tile_columns = 8, step_columns = 32, steps = unit_columns / step_columns;

float widen(uint16_t bits, distile_dtype dtype) {
    return dtype == DISTILE_FLOAT16 ? StoredFloat<DISTILE_FLOAT16>::to_float(bits)
                                    : StoredFloat<DISTILE_BFLOAT16>::to_float(bits);
}

/** What lanes get of eight lines of 16 bytes, whose addresses are given: two halves each (ldmatrix). */
void load_matrix(const unsigned char *const (&lines)[8], uint32_t (&values)[lanes]) {
    for (int32_t lane = 0; lane < lanes; lane++) {
        std::memcpy(&values[lane], lines[lane / 4] + lane % 4 * 4, sizeof(uint32_t));
    }
}

/** The products of 16 rows of a unit by the instruction m16n8k32 with sparse rows, as its documentation has its factors
 * in the registers of the lanes. `x` is [column][64]. */
void multiply(const unsigned char *unit, int32_t tile, distile_dtype dtype,
              const float (&x)[tile_columns][unit_columns], float (&sums)[tile_rows][tile_columns]) {
    for (int32_t step = 0; step < steps; step++) {
        uint32_t rows[4][lanes], places[lanes];
        for (int32_t matrix = 0; matrix < 4; matrix++) {
            const unsigned char *lines[8];
            for (int32_t i = 0; i < 8; i++) {
                const int32_t line = tile * tile_rows + matrix % 2 * 8 + i, piece = step * 2 + matrix / 2;
                lines[i] = unit + line * 64 + (piece ^ line / 2 % 4) * 16;
            }
            load_matrix(lines, rows[matrix]);
        }
        std::memcpy(places, unit + DISTILE_TWO_FOUR_VALUE_BYTES + tile * sizeof(places), sizeof(places));
        for (int32_t row = 0; row < tile_rows; row++) {
            for (int32_t kept = 0; kept < step_columns / 2; kept++) {
                // Lane l has kept values 2 * (l % 4) and the next one of row l / 4, and in other registers those of the
                // row 8 below and those 8 later.
                const int32_t lane = row % 8 * 4 + kept % 8 / 2;
                const auto value = static_cast<uint16_t>(rows[row / 8 + kept / 8 * 2][lane] >> kept % 2 * 16);
                // Two lanes of four have the places, of 16 columns each.
                const int32_t of_places = row % 8 * 4 + step * 2 + kept / 8;
                const auto half = static_cast<uint16_t>(places[of_places] >> row / 8 * 16);
                const int32_t four = kept / 2, bits = half >> four % 4 * 4 & 0xf, first = bits & 3, second = bits >> 2;
                // Instructions with ordered places need this.
                REQUIRE(first < second);
                const int32_t k = step * step_columns + four * 4 + (kept % 2 == 0 ? first : second);
                for (int32_t column = 0; column < tile_columns; column++) {
                    sums[row][column] += widen(value, dtype) * x[column][k];
                }
            }
        }
    }
}

std::vector<unsigned char> bytes_of(const PackedArray &packed) {
    std::vector<unsigned char> bytes(packed.values.size() * sizeof(float));
    std::memcpy(bytes.data(), packed.values.data(), bytes.size());
    return bytes;
}

distile_weights_source source_of(const std::vector<float> &filter, distile_weights_order order) {
    distile_weights_source source{};
    source.filter = filter.data();
    source.order = order;
    return source;
}

}  // namespace

TEST_CASE("Two of four weights and their places are those of the filter", "[two_four]") {
    std::mt19937 random(1);
    struct Shape {
        int32_t inputs, outputs, kernel_h, kernel_w;
    };
    for (const auto &[inputs, outputs, kernel_h, kernel_w] :
         {Shape{8, 8, 1, 1}, Shape{64, 64, 1, 1}, Shape{136, 72, 1, 1}, Shape{40, 200, 1, 1}, Shape{72, 24, 3, 2},
          Shape{8, 80, 2, 3}}) {
        for (const distile_dtype dtype : {DISTILE_FLOAT16, DISTILE_BFLOAT16}) {
            CAPTURE(inputs, outputs, kernel_h, kernel_w, dtype);
            distile_conv2d conv{};
            conv.in_channels = inputs;
            conv.out_channels = outputs;
            conv.kernel_h = kernel_h;
            conv.kernel_w = kernel_w;
            const int32_t taps = kernel_h * kernel_w;
            std::vector<float> filter(static_cast<size_t>(inputs) * outputs * taps), bias(outputs);
            for (float &weight : filter) {
                // Some fours keep fewer than two.
                weight = random() % 4 == 0 ? 0 : static_cast<float>(random() % 100 + 1) * (random() % 2 == 0 ? 1 : -1);
            }
            keep_two_of_four(filter, conv, random);
            for (float &each : bias) {
                each = static_cast<float>(random() % 100);
            }
            distile_weights_source source = source_of(filter, DISTILE_HWIO);
            source.bias = bias.data();
            const FilterExtents extents{outputs, inputs, kernel_h, kernel_w};
            REQUIRE(packs_two_four(extents, 1));
            const std::vector<PackedArray> packed = pack_two_four(extents, {source, filter.data(), nullptr, dtype});
            REQUIRE(packed.size() == 2);
            CHECK(packed[0].role == DISTILE_ROLE_WEIGHTS);
            CHECK(packed[1].values == PackedValues(bias.begin(), bias.end()));
            const int32_t units = (inputs + unit_columns - 1) / unit_columns,
                          row_units = (outputs + unit_rows - 1) / unit_rows;
            CHECK(packed[0].extents == std::vector<int32_t>{DISTILE_TWO_FOUR_UNIT_BYTES / 4, taps * units, row_units});
            const std::vector<unsigned char> bytes = bytes_of(packed[0]);
            REQUIRE(bytes.size() == size_t{DISTILE_TWO_FOUR_UNIT_BYTES} * taps * units * row_units);
            // What is known before the filter is.
            CHECK(pack_two_four(extents, {source, nullptr, nullptr, dtype})[0].extents == packed[0].extents);

            std::vector<float> x(static_cast<size_t>(tile_columns) * taps * inputs);
            for (float &each : x) {
                each = static_cast<float>(random() % 20) - 10;
            }
            for (int32_t first = 0; first < row_units * unit_rows; first += tile_rows) {
                float sums[tile_rows][tile_columns] = {};
                for (int32_t tap = 0; tap < taps; tap++) {
                    for (int32_t unit = 0; unit < units; unit++) {
                        float staged[tile_columns][unit_columns] = {};
                        for (int32_t column = 0; column < tile_columns; column++) {
                            for (int32_t k = 0; k < std::min(unit_columns, inputs - unit * unit_columns); k++) {
                                staged[column][k] =
                                    x[(static_cast<size_t>(column) * taps + tap) * inputs + unit * unit_columns + k];
                            }
                        }
                        const int64_t index = (int64_t{first / unit_rows} * taps + tap) * units + unit;
                        multiply(bytes.data() + index * DISTILE_TWO_FOUR_UNIT_BYTES, first % unit_rows / tile_rows,
                                 dtype, staged, sums);
                    }
                }
                for (int32_t row = 0; row < tile_rows; row++) {
                    for (int32_t column = 0; column < tile_columns; column++) {
                        float expected = 0;
                        for (int32_t k = 0; first + row < outputs && k < taps * inputs; k++) {
                            expected += filter[static_cast<size_t>(k) * outputs + first + row] *
                                        x[static_cast<size_t>(column) * taps * inputs + k];
                        }
                        CAPTURE(first, row, column);
                        REQUIRE(sums[row][column] == expected);
                    }
                }
            }
        }
    }
}

TEST_CASE("Weights of another pattern than 2:4 are refused", "[two_four]") {
    constexpr int32_t inputs = 16, outputs = 8;
    const auto message_of = [&](const std::vector<float> &filter) -> std::string {
        try {
            pack_two_four({outputs, inputs, 1, 1},
                          {source_of(filter, DISTILE_OI), filter.data(), nullptr, DISTILE_FLOAT16});
        } catch (const SourceError &error) {
            return error.what();
        }
        return "";
    };
    std::vector<float> filter(inputs * outputs);
    CHECK(message_of(filter).empty());
    float *const four = &filter[3 * inputs + 8];
    four[0] = four[3] = 1;
    CHECK(message_of(filter).empty());
    // What is 0 in 16 bits is 0, and a NaN is not.
    four[1] = 1e-30f;
    four[2] = -0.0f;
    CHECK(message_of(filter).empty());
    four[2] = std::numeric_limits<float>::quiet_NaN();
    CHECK(contains(message_of(filter), "pattern 2:4"));
    CHECK(contains(message_of(filter), "output channel 3"));
    CHECK(contains(message_of(filter), "four input channels from 8 on"));
    CHECK(contains(message_of(filter), "position 0, 0"));
    four[0] = 0;
    CHECK(message_of(filter).empty());

    CHECK_FALSE(packs_two_four({8, 12, 1, 1}, 1));
    CHECK_FALSE(packs_two_four({12, 8, 1, 1}, 1));
    CHECK_FALSE(packs_two_four({8, 8, 17, 1}, 1));
    CHECK_FALSE(packs_two_four({8, 8, 1, 17}, 1));
    CHECK_FALSE(packs_two_four({16, 8, 3, 3}, 2));
    CHECK(packs_two_four({8, 8, 16, 16}, 1));
}

TEST_CASE("Weights that pack as 2:4 are those of which the library says so", "[two_four]") {
    const Context context = make_context();
    std::mt19937 random(5);
    // Where a weight is in a filter.
    const auto place_of = [](const FilterExtents &of, distile_weights_order order, int32_t o, int32_t tap, int32_t i) {
        const int64_t taps = int64_t{of.kernel_h} * of.kernel_w;
        return order == DISTILE_OIHW   ? (int64_t{o} * of.in_channels + i) * taps + tap
               : order == DISTILE_OHWI ? (o * taps + tap) * of.in_channels + i
               : order == DISTILE_HWIO ? (int64_t{tap} * of.in_channels + i) * of.out_channels + o
                                       : (int64_t{i} * of.out_channels + o) * taps + tap;
    };
    for (const FilterExtents &extents : {FilterExtents{8, 8, 1, 1}, FilterExtents{16, 24, 3, 2},
                                         FilterExtents{3, 10, 1, 1}, FilterExtents{1, 3, 2, 2}}) {
        const distile_filter_extents given{extents.out_channels, extents.in_channels, extents.kernel_h,
                                           extents.kernel_w};
        const int32_t taps = extents.kernel_h * extents.kernel_w;
        for (const distile_weights_order order : {DISTILE_OIHW, DISTILE_OHWI, DISTILE_HWIO, DISTILE_IOHW}) {
            int32_t with = 0, without = 0;
            for (int32_t trial = 0; trial < 60; trial++) {
                CAPTURE(extents.out_channels, extents.in_channels, taps, order, trial);
                const distile_dtype dtype = trial % 2 == 0 ? DISTILE_FLOAT16 : DISTILE_BFLOAT16;
                // Two of each four, and in every other filter one more somewhere, which float16 may round to 0.
                std::vector<float> filter(static_cast<size_t>(extents.elements()));
                bool expected = true;
                const int64_t one_more = trial % 4 < 2 ? -1 : static_cast<int64_t>(random() % filter.size());
                for (int32_t o = 0; o < extents.out_channels; o++) {
                    for (int32_t tap = 0; tap < taps; tap++) {
                        for (int32_t first = 0; first < extents.in_channels; first += 4) {
                            int32_t nonzeros = 0;
                            for (int32_t i = first; i < std::min(first + 4, extents.in_channels); i++) {
                                const int64_t place = place_of(extents, order, o, tap, i);
                                const bool is_more = place == one_more || (nonzeros < 2 && random() % 2 == 0);
                                const bool is_tiny = random() % 4 == 0;
                                filter[place] = !is_more ? -0.0f : is_tiny ? 1e-30f : 1.5f;
                                nonzeros += is_more && !(is_tiny && dtype == DISTILE_FLOAT16) ? 1 : 0;
                            }
                            expected = expected && nonzeros <= 2;
                        }
                    }
                }
                const distile_weights_source source = source_of(filter, order);
                int32_t keep = -1;
                check(context, distile_weights_keep_two_of_four(context.get(), &source, &given, dtype, &keep));
                CHECK(keep == (expected ? 1 : 0));
                bool packs = true;
                try {
                    pack_two_four(extents, {source, filter.data(), nullptr, dtype});
                } catch (const SourceError &) {
                    packs = false;
                }
                CHECK(packs == expected);
                // The filter's own type changes nothing.
                std::vector<uint16_t> stored(filter.size());
                std::transform(filter.begin(), filter.end(), stored.begin(),
                               [](float weight) { return StoredFloat<DISTILE_BFLOAT16>::from_float(weight); });
                distile_weights_source narrow = source;
                narrow.filter = stored.data();
                narrow.dtype = DISTILE_BFLOAT16;
                check(context, distile_weights_keep_two_of_four(context.get(), &narrow, &given, dtype, &keep));
                CHECK(keep == (expected ? 1 : 0));
                (expected ? with : without)++;
            }
            CHECK(with > 0);
            CHECK((without > 0 || extents.in_channels == 3));
        }
    }
}

}  // namespace two_four_test
