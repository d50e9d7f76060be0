// Code that multiplies with the nonzero weights alone, against the plain loops. It reads the operator at run time, so
// these PolyKernels are written here; nothing is generated.
#include "kernels/cpu/transpose.h"
#include "kernels/dot_products.h"
#include "runtime/dispatch/kernel.h"
#include "runtime/kinds/channel_sections.h"
#include "runtime/kinds/nonzeros_layout.h"
#include "test_pruned3_20_40_residual.h"
#include "tests/support/catch.h"
#include "tests/support/dot_product_kernel.h"
#include "tests/support/nonzero_cases.h"
#include "tests/support/operator_test.h"
#include "tests/support/test_tensor.h"
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <distile/distile.hpp>
#include <limits>
#include <random>
#include <vector>

using namespace distile;

namespace {

struct Window {
    int32_t height, width;
};

/** Variants of blocks of three sizes: pixels lie anywhere; are a window, if the taps allow it; are tiles of other
 * sizes.
 */
InstructionSet nonzeros(const char *name, const char *features, DotProductCall call,
                        const std::array<int32_t, 3> &pixels, const Window &window) {
    constexpr int32_t channels = DISTILE_NONZERO_BLOCK;
    return {name,
            features,
            call,
            {{pixels[0], channels}, {pixels[1], channels}, {pixels[2], channels}},
            true,
            DISTILE_CPU,
            {{1, 1}, {window.height, window.width}, {2, 3}}};
}

const InstructionSet instruction_sets[] = {
    nonzeros("portable_nonzeros", "", distile_call_portable_nonzeros, {32, 16, 48}, {4, 4}),
#ifdef DISTILE_TEST_avx2_nonzeros
    nonzeros("avx2_nonzeros", "avx2 fma", distile_call_avx2_nonzeros, {64, 56, 96}, {7, 8}),
#endif
#ifdef DISTILE_TEST_avx512_nonzeros
    nonzeros("avx512_nonzeros", "avx512bw avx512dq avx512vl", distile_call_avx512_nonzeros, {128, 160, 256}, {10, 16}),
#endif
};

template<int Lanes> void check_transpose() {
    struct Isa;
    float from[Lanes][Lanes], to[Lanes * Lanes];
    const float *rows[Lanes];
    for (int i = 0; i < Lanes; i++) {
        rows[i] = from[i];
        for (int j = 0; j < Lanes; j++) {
            from[i][j] = static_cast<float>(Lanes * i + j);
        }
    }
    dot_product::Transpose<Isa, Lanes>::run(rows, to, Lanes);
    for (int i = 0; i < Lanes; i++) {
        for (int j = 0; j < Lanes; j++) {
            CAPTURE(Lanes, i, j);
            CHECK(to[j * Lanes + i] == from[i][j]);
        }
    }
}

/** A filter of one output channel, packed; its nonzeros. */
int64_t packed_nonzeros(const std::vector<float> &filter, const distile_weights_source &rest) {
    distile_weights_source source = rest;
    source.filter = filter.data();
    source.order = DISTILE_OI;
    const std::vector<PackedArray> packed =
        pack_nonzeros({1, static_cast<int32_t>(filter.size()), 1, 1}, 1, {source, filter.data()});
    distile_nonzero_weights header{};
    std::memcpy(&header, packed[0].values.data(), sizeof(header));
    return static_cast<int64_t>(packed[0].values.size()) - header.values;
}

}  // namespace

TEST_CASE("Squares of each vector's width are turned", "[nonzeros]") {
    check_transpose<4>();
    check_transpose<8>();
    check_transpose<16>();
}

TEST_CASE("Variants of nonzero weights compute what the plain loop computes", "[nonzeros]") {
    for (const InstructionSet &set : instruction_sets) {
        for (const NonzeroCase &one : nonzero_cases) {
            INFO(set.name << ", " << one.name);
            const DotProductKernel kernel(set, operator_of(one, "cpu-nonzeros"));
            if (!can_run_or_warn(kernel.polykernel())) {
                break;
            }
            test_operator(kernel.polykernel(), one.zeros, nullptr, one.sharing, one.kept);
        }
    }
}

TEST_CASE("Weights that are 0 leave out what they would multiply", "[nonzeros]") {
    const NonzeroCase one = {
        "linear", DISTILE_MASKED_LINEAR, {20, 20, 1, 1, 1, 1, 1, 0, 0, 0, 0, 1, 1, DISTILE_ACTIVATION_NONE, 0}, 0};
    const DotProductKernel made(instruction_sets[0], operator_of(one, "cpu-nonzeros"));
    const Context context = make_context({});
    const Kernel kernel = make_kernel(context, made.polykernel());
    // Output channel o reads input channel o alone.
    std::vector<float> filter(400);
    for (size_t o = 0; o < 20; o++) {
        filter[o * 21] = 2;
    }
    distile_weights_source source{};
    source.filter = filter.data();
    source.order = DISTILE_OI;
    const Weights weights = pack_weights(context, kernel, source);
    std::vector<float> input(20, 1.0f), output(20);
    input[3] = std::numeric_limits<float>::infinity();
    input[5] = std::numeric_limits<float>::quiet_NaN();
    const distile_tensor from = distile_tensor_make(input.data(), 1, 1, 1, 20),
                         to = distile_tensor_make(output.data(), 1, 1, 1, 20);
    const Mask mask = make_mask(context);
    const uint8_t active = 1;
    check(context, distile_mask_set_bytes(mask.get(), &active, 1, 1, 1, 1, 1));
    distile_run_args args{};
    args.input = &from;
    args.output = &to;
    args.weights = weights.get();
    args.mask = mask.get();
    check(context, distile_run(kernel.get(), &args));
    for (size_t o = 0; o < 20; o++) {
        CAPTURE(o, output[o]);
        CHECK((o == 5 ? std::isnan(output[o]) : output[o] == 2 * input[o]));
    }
}

TEST_CASE("Operators with zeros are built with code for nonzero weights and for all", "[nonzeros]") {
    int tested = 0;
    for (const distile_polykernel *each = &test_pruned3_20_40_residual; each; each = each->fallback) {
        int skipping = 0, all = 0;
        for (int32_t i = 0; i < each->num_variants; i++) {
            const bool skips = std::string(each->variants[i].layout) == "cpu-nonzeros";
            (skips ? skipping : all)++;
            CHECK((std::string(each->variants[i].name).rfind("all_", 0) == 0) == !skips);
        }
        CAPTURE(each->name);
        CHECK(skipping > 1);
        const bool portable = each->fallback == nullptr;
        CHECK((portable ? all == 0 : all > 1));
        CHECK(each->nonzeros == 720);
        if (can_run_or_warn(*each)) {
            distile_polykernel alone = *each;
            alone.fallback = nullptr;
            test_operator(alone, .9);
            tested++;
        }
    }
    CHECK(tested > 0);
}

TEST_CASE("Variants of nonzero weights pass on NaN and infinity", "[nonzeros]") {
    for (const InstructionSet &set : instruction_sets) {
        for (const NonzeroCase &one : nonzero_cases) {
            INFO(set.name << ", " << one.name);
            const DotProductKernel kernel(set, operator_of(one, "cpu-nonzeros"));
            if (!can_run_or_warn(kernel.polykernel())) {
                break;
            }
            distile_context_options options{};
            options.threads = 2;
            const Context context = make_context(options);
            const ValueClasses classes = check_special_values(context, make_kernel(context, kernel.polykernel()),
                                                              SpecialCalls(kernel.polykernel(), false));
            CHECK(classes.nan > 0);
            CHECK(classes.finite > 0);
        }
    }
}

TEST_CASE("Only zeros are left out of packed weights", "[nonzeros]") {
    constexpr float nan = std::numeric_limits<float>::quiet_NaN();
    distile_weights_source source{};
    CHECK(packed_nonzeros({0, 1, -0.0f, 0, 0}, source) == 1);
    CHECK(packed_nonzeros({0, 0, 0}, source) == 0);
    CHECK(packed_nonzeros({nan, 0, INFINITY, std::numeric_limits<float>::denorm_min()}, source) == 3);
    // Batch normalisation with a factor of 0 leaves none.
    const float zero = 0, one = 1;
    source.bn_gamma = &zero;
    source.bn_mean = &zero;
    source.bn_variance = &one;
    CHECK(packed_nonzeros({1, 2, 3}, source) == 0);
}

TEST_CASE("Weights with few zeros take the code for all weights", "[nonzeros]") {
    const InstructionSet &set = instruction_sets[0];
    const NonzeroCase one = {
        "linear", DISTILE_MASKED_LINEAR, {64, 64, 1, 1, 1, 1, 1, 0, 0, 0, 0, 1, 1, DISTILE_ACTIVATION_NONE, 0}, 0};
    const DotProductKernel made(set, operator_of(one, "cpu-nonzeros"));
    distile_polykernel polykernel = made.polykernel();
    // The dense variant stands for code that multiplies with all weights.
    std::vector<distile_variant> variants(polykernel.variants, polykernel.variants + polykernel.num_variants);
    variants[2].layout = "cpu-o16";
    const distile_time_point times[] = {{0, 1, 100, 100}, {1, 1, 100, 100}, {2, 1, 100, 250}};
    polykernel.variants = variants.data();
    polykernel.times = times;
    polykernel.num_times = 3;
    polykernel.nonzeros = 400;
    distile_context_options options{};
    options.threads = 1;
    const Context context = make_context(options);
    const Kernel kernel = make_kernel(context, polykernel);
    const Mask mask = make_mask(context);
    const std::vector<uint8_t> all(100, 1);
    check(context, distile_mask_set_bytes(mask.get(), all.data(), 1, 1, 100, 100, 100));
    const auto choose = [&](int32_t nonzeros) {
        std::vector<float> filter(4096);
        std::fill(filter.begin(), filter.begin() + nonzeros, 1.0f);
        distile_weights_source source{};
        source.filter = filter.data();
        source.order = DISTILE_OI;
        const Weights weights = pack_weights(context, kernel, source);
        return std::string(kernel->choose(*mask, nullptr, weights.get()).variant);
    };
    for (const int32_t few : {0, 200, 400, 900}) {
        CHECK(choose(few) == "fine");
    }
    for (const int32_t many : {1100, 4096}) {
        CHECK(choose(many) == "dense");
    }
    CHECK(std::string(kernel->choose(*mask, nullptr, nullptr).variant) == "fine");
}

TEST_CASE("Pairs of nonzeros are those of the filter", "[nonzeros]") {
    std::mt19937 random(1);
    for (const auto &[groups, group_inputs, group_outputs, kernel] :
         {std::array{1, 20, 40, 3}, {1, 300, 20, 1}, {2, 5, 9, 3}, {6, 4, 4, 2}, {7, 1, 1, 3}}) {
        CAPTURE(groups, group_inputs, group_outputs, kernel);
        const FilterExtents extents{groups * group_outputs, group_inputs, kernel, kernel};
        const ChannelSections sections{groups, group_inputs, group_outputs, 1};
        std::vector<float> filter(static_cast<size_t>(extents.elements()));
        for (float &weight : filter) {
            weight = random() % 3 == 0 ? static_cast<float>(random() % 100) : 0;
        }
        distile_weights_source source{};
        source.filter = filter.data();
        source.order = DISTILE_OIHW;
        const std::vector<PackedArray> packed = pack_paired_nonzeros(extents, groups, {source, filter.data()});
        CHECK(nonzeros_of(packed[0], WeightOrder::PairedNonzeros) ==
              static_cast<int64_t>(filter.size()) - std::count(filter.begin(), filter.end(), 0.0f));
        // Take all weights back from where code finds them.
        std::vector<uint32_t> words(packed[0].values.size());
        std::memcpy(words.data(), packed[0].values.data(), 4 * words.size());
        distile_cuda_nonzero_weights header{};
        std::memcpy(&header, words.data(), sizeof(header));
        const int32_t tap_columns = (sections.inputs() + 3) / 4 * 4, taps = kernel * kernel,
                      chunks = (taps * tap_columns + DISTILE_CUDA_CHUNK_COLUMNS - 1) / DISTILE_CUDA_CHUNK_COLUMNS,
                      section_rows = (sections.outputs() + 15) / 16 * 16, rows = sections.count() * section_rows;
        std::vector<float> found(filter.size());
        int64_t before = 0;
        for (int32_t row = 0; row < rows; row++) {
            const uint32_t channel = words[header.order + row];
            const int32_t in_section = row % section_rows / 16 * 16 + static_cast<int32_t>(channel),
                          output = row / section_rows * sections.outputs() + in_section;
            const uint32_t *const starts = &words[header.starts + int64_t{row} * chunks];
            for (int32_t chunk = 0; chunk < chunks; chunk++) {
                for (uint32_t i = 2 * starts[chunk]; i < 2 * starts[chunk + 1]; i++) {
                    const uint32_t place = words[header.pairs + 2 * int64_t{i}],
                                   word = words[header.pairs + 2 * int64_t{i} + 1];
                    const auto staged = static_cast<int32_t>(place / 128);
                    REQUIRE(staged / DISTILE_CUDA_CHUNK_STRIDE == chunk);
                    const int32_t in_chunk = staged % DISTILE_CUDA_CHUNK_STRIDE;
                    if (in_chunk == DISTILE_CUDA_CHUNK_COLUMNS) {
                        REQUIRE(word == 0);
                        continue;
                    }
                    const int32_t column = chunk * DISTILE_CUDA_CHUNK_COLUMNS + in_chunk;
                    REQUIRE(static_cast<int32_t>(place % 128) == column / 4 % 8 * 16);
                    const int32_t input =
                        sections.first_input(output) + column % tap_columns - output / group_outputs * group_inputs;
                    REQUIRE((input >= 0 && input < group_inputs));
                    float value = 0;
                    std::memcpy(&value, &word, sizeof(value));
                    found[(int64_t{output} * group_inputs + input) * taps + column / tap_columns] = value;
                }
            }
            const int64_t length = starts[chunks] - starts[0];
            REQUIRE((row % 16 == 0 || chunks > 1 || length <= before));
            before = length;
        }
        CHECK(found == filter);
    }
}

TEST_CASE("Output channels that share columns are packed together", "[nonzeros]") {
    std::mt19937 random(3);
    constexpr int32_t outputs = 70, inputs = 300;  // Two blocks, three chunks.
    for (const int32_t sharing : {1, 2, 3, 4, 8}) {
        CAPTURE(sharing);
        const int32_t groups = (outputs + sharing - 1) / sharing;
        std::vector<float> filter(size_t{outputs} * inputs);
        for (int32_t i = 0; i < inputs; i++) {
            std::vector<bool> zero(groups);
            std::generate(zero.begin(), zero.end(), [&] { return random() % 10 != 0; });
            for (int32_t o = 0; o < outputs; o++) {
                const bool own = random() % 50 == 0;
                filter[size_t{1} * o * inputs + i] =
                    zero[o % groups] == own ? static_cast<float>(random() % 100 + 1) : 0;
            }
        }
        distile_weights_source source{};
        source.filter = filter.data();
        source.order = DISTILE_OI;
        const PackedArray packed = pack_nonzeros({outputs, inputs, 1, 1}, 1, {source, filter.data()}).front();
        CHECK(nonzeros_of(packed, WeightOrder::Nonzeros) ==
              static_cast<int64_t>(filter.size()) - std::count(filter.begin(), filter.end(), 0.0f));
        // Take all weights back, as code finds them.
        const auto *const bytes = reinterpret_cast<const char *>(packed.values.data());
        distile_nonzero_weights header{};
        std::memcpy(&header, bytes, sizeof(header));
        const auto word = [&](int64_t at) {
            uint32_t value = 0;
            std::memcpy(&value, bytes + 4 * at, sizeof(value));
            return value;
        };
        std::vector<float> found(filter.size());
        int64_t together = 0, value = header.values, column = 0;
        REQUIRE((header.chunks == 3 && header.blocks == 2));
        for (int32_t chunk = 0; chunk < header.chunks; chunk++) {
            for (int32_t block = 0; block < header.blocks; block++) {
                const int64_t part = header.parts + 3 * (int64_t{chunk} * header.blocks + block);
                std::vector<bool> has_sums(DISTILE_NONZERO_BLOCK, chunk > 0);
                REQUIRE((word(part + 1) == column && word(part + 2) == value - header.values));
                for (int64_t row = word(part); row < word(part + 3);) {
                    const uint32_t first = word(header.rows + row);
                    const int64_t channels = first >> 8 & 0x7f, columns = first >> 16;
                    REQUIRE((channels == 1 || channels == 2 || channels == 4));
                    together += channels > 1 ? channels * columns : 0;
                    for (int64_t i = 0; i < channels; i++) {
                        const auto channel = static_cast<int32_t>(word(header.rows + row + i) & 0xff);
                        REQUIRE(has_sums[channel] == ((first & 0x8000) != 0));
                        has_sums[channel] = true;
                        for (int64_t j = 0; j < columns; j++) {
                            uint16_t place = 0;
                            std::memcpy(&place, bytes + 4 * int64_t{header.columns} + 2 * (column + j), sizeof(place));
                            const int32_t o = block * DISTILE_NONZERO_BLOCK + channel;
                            float &weight = found[int64_t{o} * inputs + chunk * header.channels + place];
                            REQUIRE(weight == 0);
                            std::memcpy(&weight, bytes + 4 * (value + channels * j + i), sizeof(weight));
                        }
                    }
                    row += channels;
                    value += channels * columns;
                    column += columns;
                }
                for (int32_t o = 0; o < std::min(64, 80 - 64 * block); o++) {
                    REQUIRE(has_sums[o]);
                }
            }
        }
        CHECK(found == filter);
        CHECK(value == static_cast<int64_t>(packed.values.size()));
        // Few channels have much in common by chance.
        const double share =
            static_cast<double>(together) / static_cast<double>(nonzeros_of(packed, WeightOrder::Nonzeros));
        CHECK(share < (sharing == 1 ? .1 : 1));
        CHECK(share > (sharing == 1 ? -1 : sharing == 3 ? .3 : .5));
    }
}

TEST_CASE("Packed weights take as much memory as they have nonzeros", "[nonzeros]") {
    const InstructionSet &set = instruction_sets[0];
    const NonzeroCase one = {
        "linear", DISTILE_MASKED_LINEAR, {512, 512, 1, 1, 1, 1, 1, 0, 0, 0, 0, 1, 1, DISTILE_ACTIVATION_NONE, 0}, 0};
    const DotProductKernel kernel(set, operator_of(one, "cpu-nonzeros"));
    const Context context = make_context({});
    const Kernel made = make_kernel(context, kernel.polykernel());
    std::vector<float> filter(size_t{512} * 512);
    std::mt19937 random(1);
    int64_t nonzeros = 0;
    for (float &weight : filter) {
        weight = random() % 10 == 0 ? 1 : 0;
        nonzeros += weight != 0 ? 1 : 0;
    }
    distile_weights_source source{};
    source.filter = filter.data();
    source.order = DISTILE_OI;
    const int64_t bytes = distile_weights_bytes(pack_weights(context, made, source).get());
    // A place and a value each; each row of a chunk takes a word, too.
    CHECK(bytes >= 6 * nonzeros);
    CHECK(bytes <= 6 * nonzeros + 4 * 512 * 5 + 4096);
}
