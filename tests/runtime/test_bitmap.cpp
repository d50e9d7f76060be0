// Weights of 16 bits with a bit for each, as code for GPUs reads them: a warp in plain loops computes with what was
// packed.
#include "kernels/bitmap.h"
#include "runtime/base/stored_float.h"
#include "runtime/kinds/bitmap_layout.h"
#include "runtime/kinds/nonzeros_layout.h"
#include "tests/support/catch.h"
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

using namespace distile;

namespace {

constexpr int32_t lanes = 32, unit_rows = DISTILE_BITMAP_ROWS, unit_columns = DISTILE_BITMAP_COLUMNS,
                  columns_at_once = 8;

float widen(uint16_t bits, distile_dtype dtype) {
    return dtype == DISTILE_FLOAT16 ? StoredFloat<DISTILE_FLOAT16>::to_float(bits)
                                    : StoredFloat<DISTILE_BFLOAT16>::to_float(bits);
}

/** The instruction that selects four bytes of two registers, of which the second one is 0. */
uint32_t select_bytes(uint32_t from, uint32_t selector) {
    uint32_t result = 0;
    for (int32_t i = 0; i < 4; i++) {
        const uint32_t byte = selector >> 4 * i & 0xf;
        REQUIRE(byte < 8);
        result |= (byte < 4 ? from >> 8 * byte & 0xff : 0) << 8 * i;
    }
    return result;
}

/** The sum of the products of four bytes, and a number. */
uint32_t add_bytes(uint32_t a, uint32_t b, uint32_t sum) {
    for (int32_t i = 0; i < 4; i++) {
        sum += (a >> 8 * i & 0xff) * (b >> 8 * i & 0xff);
    }
    return sum;
}

/** What a warp computes of a unit: 16 rows and 8 columns, from x of [column][128]. */
class EmulatedWarp {
public:
    EmulatedWarp(const uint32_t *words, distile_dtype dtype) : words_(words), dtype_(dtype) {
        std::memcpy(&header_, words, sizeof(header_));
    }
    void multiply(int64_t unit, const std::vector<float> &x, float (&sums)[unit_rows][columns_at_once]) {
        load(unit);
        // Where each lane has got to in its values, in the bytes of rows of 128.
        uint32_t at[lanes] = {};
        for (int32_t half = 0; half < 4; half++) {
            uint32_t factors[2][4][lanes];
            for (int32_t lane = 0; lane < lanes; lane++) {
                uint32_t word = bits_[lane][half / 2] >> half % 2 * 16;
                for (int32_t pair = 0; pair < 8; pair++) {
                    const int32_t bit = pair % 3;
                    word = pair > 0 && bit == 0 ? word >> 3 : word;
                    const uint32_t weights = word & 0x101U << bit;
                    REQUIRE(at[lane] % 128 == 0);
                    REQUIRE(at[lane] / 128 < 65);
                    factors[pair / 4][pair % 4][lane] =
                        select_bytes(rows_.at(at[lane] / 128)[lane], (weights * (0x21bcU >> bit) + 0x5454) & 0xffff);
                    at[lane] = add_bytes(weights, 0x8080U >> bit, at[lane]);
                }
            }
            for (int32_t step = 0; step < 2; step++) {
                multiply_step(factors[step], x, half * 32 + step * 4, sums);
            }
        }
    }

private:
    void load(int64_t unit) {
        int32_t counts[lanes], most = 0;
        for (int32_t lane = 0; lane < lanes; lane++) {
            int32_t nonzeros = 0;
            for (int32_t i = 0; i < 2; i++) {
                bits_[lane][i] = words_[header_.bits + (unit * lanes + lane) * 2 + i];
                for (uint32_t left = bits_[lane][i]; left != 0; left &= left - 1) {
                    nonzeros++;
                }
            }
            counts[lane] = (nonzeros + 3) / 4;
            most = std::max(most, counts[lane]);
        }
        std::array<std::array<uint16_t, lanes>, 65 + 4> values{};
        uint32_t granule = words_[header_.starts + unit];
        for (int32_t i = 0; i < most; i++) {
            for (int32_t lane = 0; lane < lanes; lane++) {
                if (i < counts[lane]) {
                    const uint32_t *const from = words_ + header_.values + int64_t{granule++} * 2;
                    for (int32_t j = 0; j < 4; j++) {
                        values[4 * i + j][lane] = static_cast<uint16_t>(from[j / 2] >> j % 2 * 16);
                    }
                }
            }
        }
        REQUIRE(granule == words_[header_.starts + unit + 1]);
        for (int32_t row = 0; row < 65; row++) {
            for (int32_t lane = 0; lane < lanes; lane++) {
                rows_[row][lane] = values[row][lane] | static_cast<uint32_t>(values[row + 1][lane]) << 16;
            }
        }
    }
    /** m16n8k16, whose factors of x are in the order in which lanes load them: from column `first` on. */
    void multiply_step(const uint32_t (&a)[4][lanes], const std::vector<float> &x, int32_t first,
                       float (&sums)[unit_rows][columns_at_once]) const {
        for (int32_t row = 0; row < unit_rows; row++) {
            for (int32_t column = 0; column < columns_at_once; column++) {
                for (int32_t k = 0; k < 16; k++) {
                    const int32_t lane = row % 8 * 4 + k % 8 / 2, pair = k / 8 * 2 + row / 8;
                    const auto weight = static_cast<uint16_t>(a[pair][lane] >> k % 2 * 16);
                    const int32_t of_x = first + k % 8 / 2 * 8 + k / 8 * 2 + k % 2;
                    sums[row][column] += widen(weight, dtype_) * x[column * unit_columns + of_x];
                }
            }
        }
    }

    const uint32_t *words_;
    distile_dtype dtype_;
    distile_cuda_bitmap_weights header_{};
    uint32_t bits_[lanes][2] = {};
    std::array<std::array<uint32_t, lanes>, 65> rows_{};
};

std::vector<uint32_t> words_of(const PackedArray &packed) {
    std::vector<uint32_t> words(packed.values.size());
    std::memcpy(words.data(), packed.values.data(), words.size() * sizeof(float));
    return words;
}

}  // namespace

TEST_CASE("A bitmap of weights and its values are those of the filter", "[nonzeros]") {
    std::mt19937 random(1);
    struct Shape {
        int32_t inputs, outputs;
        double zeros;
    };
    for (const auto &[inputs, outputs, zeros] :
         {Shape{1, 1, 0}, Shape{128, 16, .5}, Shape{129, 17, .5}, Shape{300, 40, 0}, Shape{520, 33, .9},
          Shape{70, 16, 1}, Shape{260, 50, .98}, Shape{5, 100, .6}}) {
        for (const distile_dtype dtype : {DISTILE_FLOAT16, DISTILE_BFLOAT16}) {
            CAPTURE(inputs, outputs, zeros, dtype);
            std::vector<float> filter(static_cast<size_t>(inputs) * outputs), bias(outputs);
            std::bernoulli_distribution is_zero(zeros);
            int64_t nonzeros = 0;
            for (float &weight : filter) {
                weight = is_zero(random) ? 0 : static_cast<float>(random() % 100 + 1) * (random() % 2 == 0 ? 1 : -1);
                nonzeros += weight != 0 ? 1 : 0;
            }
            for (float &each : bias) {
                each = static_cast<float>(random() % 100);
            }
            distile_weights_source source{};
            source.filter = filter.data();
            source.order = DISTILE_OI;
            source.bias = bias.data();
            const std::vector<PackedArray> packed =
                pack_bitmap({outputs, inputs, 1, 1}, {source, filter.data(), nullptr, dtype});
            REQUIRE(packed.size() == 2);
            CHECK(packed[0].role == DISTILE_ROLE_WEIGHTS);
            CHECK(packed[1].values == PackedValues(bias.begin(), bias.end()));
            CHECK(nonzeros_of(packed[0], WeightOrder::NonzeroBitmap) == nonzeros);
            const std::vector<uint32_t> words = words_of(packed[0]);
            distile_cuda_bitmap_weights header{};
            std::memcpy(&header, words.data(), sizeof(header));
            const int32_t units = (inputs + unit_columns - 1) / unit_columns;
            // Code computes these places, too.
            const int32_t all_units = (outputs + unit_rows - 1) / unit_rows * units;
            REQUIRE(header.bits == static_cast<int32_t>(sizeof(header) / sizeof(float)));
            REQUIRE(header.starts == header.bits + all_units * 2 * lanes);
            REQUIRE(header.values == (header.starts + all_units + 1 + 3) / 4 * 4);
            REQUIRE(header.values + int64_t{words[header.starts + all_units] + 1} * 2 ==
                    static_cast<int64_t>(words.size()));
            EmulatedWarp warp(words.data(), dtype);
            std::vector<float> x(columns_at_once * static_cast<size_t>(inputs));
            for (float &each : x) {
                each = static_cast<float>(random() % 20) - 10;
            }
            for (int32_t first = 0; first < outputs; first += unit_rows) {
                float sums[unit_rows][columns_at_once] = {};
                for (int32_t unit = 0; unit < units; unit++) {
                    std::vector<float> staged(columns_at_once * unit_columns);
                    for (int32_t column = 0; column < columns_at_once; column++) {
                        for (int32_t k = 0; k < std::min(unit_columns, inputs - unit * unit_columns); k++) {
                            staged[column * unit_columns + k] =
                                x[static_cast<size_t>(column) * inputs + unit * unit_columns + k];
                        }
                    }
                    warp.multiply(int64_t{first / unit_rows} * units + unit, staged, sums);
                }
                for (int32_t row = 0; row < std::min(unit_rows, outputs - first); row++) {
                    for (int32_t column = 0; column < columns_at_once; column++) {
                        float expected = 0;
                        for (int32_t k = 0; k < inputs; k++) {
                            expected += filter[static_cast<size_t>(first + row) * inputs + k] *
                                        x[static_cast<size_t>(column) * inputs + k];
                        }
                        CAPTURE(first, row, column);
                        REQUIRE(sums[row][column] == expected);
                    }
                }
            }
        }
    }
}

TEST_CASE("A bitmap keeps weights that are NaN or infinite in 16 bits, and none that become 0", "[nonzeros]") {
    const std::vector<float> filter = {1e-30f, -0.0f, std::numeric_limits<float>::quiet_NaN(), 1e30f, 2, 0};
    distile_weights_source source{};
    source.filter = filter.data();
    source.order = DISTILE_OI;
    const auto pack = [&](distile_dtype dtype) {
        return pack_bitmap({1, 6, 1, 1}, {source, filter.data(), nullptr, dtype});
    };
    CHECK(nonzeros_of(pack(DISTILE_FLOAT16)[0], WeightOrder::NonzeroBitmap) == 3);
    CHECK(nonzeros_of(pack(DISTILE_BFLOAT16)[0], WeightOrder::NonzeroBitmap) == 4);
    const std::vector<uint32_t> words = words_of(pack(DISTILE_FLOAT16)[0]);
    distile_cuda_bitmap_weights header{};
    std::memcpy(&header, words.data(), sizeof(header));
    // Lane 0 has columns 0 to 3 of the first step, in pairs 0 and 2.
    CHECK(words[header.bits] == (1U << 2 | 1U << 10 | 1U << 4));
    CHECK(std::isnan(widen(static_cast<uint16_t>(words[header.values]), DISTILE_FLOAT16)));
    CHECK(std::isinf(widen(static_cast<uint16_t>(words[header.values] >> 16), DISTILE_FLOAT16)));
    // How much there is, nobody knows before.
    const std::vector<PackedArray> unknown = pack_bitmap({3, 6, 1, 1}, {source, nullptr, nullptr, DISTILE_FLOAT16});
    CHECK(unknown[0].extents == std::vector<int32_t>{0});
    CHECK(unknown[1].extents == std::vector<int32_t>{3});
}
