// The order and the rounding of packed weights, against formulas of their own.
#include "runtime/kinds/channel_sections.h"
#include "runtime/kinds/group_blocks.h"
#include "runtime/kinds/operator_kind.h"
#include "tests/support/catch.h"
#include <algorithm>
#include <cstring>
#include <functional>
#include <random>
#include <thread>
#include <tuple>
#include <vector>

using namespace distile;

namespace {

/** The weight of an output channel at a kernel position and input channel. */
using WeightAt = std::function<float(int32_t out, int32_t tap, int32_t in)>;

distile_conv2d conv_of_size(int32_t in, int32_t out, int32_t kernel_h, int32_t kernel_w) {
    return {in, out, 1, kernel_h, kernel_w, 1, 1, 0, 0, 0, 0, 1, 1, DISTILE_ACTIVATION_NONE, 0};
}

/** What the array for tensor cores holds at a place of a row, which has `elements`, in a step of a panel of groups. */
float expected_at(const distile_conv2d &conv, int32_t panel_groups, const WeightAt &weight, int32_t elements,
                  int32_t panel, int32_t step, int32_t row, int32_t place) {
    const int32_t piece = elements / 8, taps = conv.kernel_h * conv.kernel_w;
    const int32_t group_in = conv.in_channels / conv.groups, group_out = conv.out_channels / conv.groups;
    const int32_t in = group_in * panel_groups, out = group_out * panel_groups;
    const int32_t k = step * elements + ((place / piece) ^ (row % 8)) * piece + place % piece;
    if (row >= out || k >= taps * in) {
        return 0;
    }
    const bool in_steps = in % elements == 0;
    const int32_t tap = in_steps ? k / elements % taps : k / in;
    const int32_t channel = in_steps ? k / (elements * taps) * elements + k % elements : k % in;
    return channel / group_in == row / group_out ? weight(panel * out + row, tap, channel % group_in) : 0;
}

/** Checks packed weights and their bias, which is 1, 2, 3 and so on. */
void check_packed(const std::vector<PackedArray> &packed, const distile_conv2d &conv, const WeightAt &weight,
                  int32_t elements, int32_t panel_groups = 1) {
    const int32_t panels = conv.groups / panel_groups, bias_rows = (conv.out_channels + 7) / 8 * 8;
    const int32_t rows = (conv.out_channels / panels + 7) / 8 * 8;
    const int32_t reduction = conv.in_channels / panels * conv.kernel_h * conv.kernel_w;
    const int32_t steps = (reduction + elements - 1) / elements;
    CAPTURE(conv.in_channels, conv.out_channels, conv.groups, conv.kernel_h, conv.kernel_w, elements);
    REQUIRE(packed.size() == 2);
    CHECK(packed[0].role == DISTILE_ROLE_WEIGHTS);
    CHECK(packed[0].extents == std::vector<int32_t>{elements, rows, steps * panels});
    PackedValues expected;
    for (int32_t step = 0; step < steps * panels; step++) {
        for (int32_t row = 0; row < rows; row++) {
            for (int32_t place = 0; place < elements; place++) {
                expected.push_back(
                    expected_at(conv, panel_groups, weight, elements, step / steps, step % steps, row, place));
            }
        }
    }
    CHECK((packed[0].values == expected));
    CHECK(packed[1].role == DISTILE_ROLE_BIAS);
    CHECK(packed[1].extents == std::vector<int32_t>{bias_rows});
    REQUIRE(packed[1].values.size() == static_cast<size_t>(bias_rows));
    for (int32_t row = 0; row < bias_rows; row++) {
        CHECK(packed[1].values[row] == static_cast<float>(row < conv.out_channels ? row + 1 : 0));
    }
}

/** What a filter is packed from: its size, and a bias of 1, 2, 3 and so on. */
struct Source {
    explicit Source(const distile_conv2d &conv) : filter(conv2d_kind.weights->filter_elements(&conv)) {
        for (int32_t o = 0; o < conv.out_channels; o++) {
            bias.push_back(static_cast<float>(o + 1));
        }
        given.filter = filter.data();
        given.order = DISTILE_OIHW;
        given.bias = bias.data();
    }
    Source(const Source &) = delete;
    Source &operator=(const Source &) = delete;

    std::vector<PackedArray> pack(const OperatorKind &kind, const void *op, const char *layout) const {
        return kind.weights->pack(op, {given, filter.data()}, *find_layout(layout));
    }

    std::vector<float> filter, bias;
    distile_weights_source given{};
};

uint32_t bits_of(float value) {
    uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof(bits));
    return bits;
}

/** Float32 by its bits, packed as TF32. */
std::vector<uint32_t> packed_as_tf32(const std::vector<uint32_t> &values) {
    const distile_conv2d conv = conv_of_size(32, 1, 1, 1);
    Source source(conv);
    REQUIRE(values.size() <= source.filter.size());
    std::memcpy(source.filter.data(), values.data(), values.size() * sizeof(values[0]));
    // The pieces of row 0 are in order.
    const std::vector<PackedArray> packed = source.pack(conv2d_kind, &conv, "cuda-k32");
    std::vector<uint32_t> found;
    for (size_t i = 0; i < values.size(); i++) {
        found.push_back(bits_of(packed[0].values[i]));
    }
    return found;
}

}  // namespace

TEST_CASE("Layouts are known by name", "[weight_layouts]") {
    CHECK(find_layout("cpu-o16")->block == 16);
    CHECK(find_layout("cpu-k32")->block == 32);
    CHECK(find_layout("cuda-o32")->block == 32);
    CHECK(find_layout("cuda-k64")->block == 64);
    for (const char *unknown : {"", "cpu-o17", "cuda-k4"}) {
        CHECK(find_layout(unknown) == nullptr);
    }
    const distile_linear linear{8, 8, DISTILE_ACTIVATION_NONE, 0};
    distile_conv2d conv = conv_of_size(8, 8, 3, 3);
    const auto packs = [](const OperatorKind &kind, const void *op) {
        CHECK(kind.weights->packs(op, WeightOrder::ChannelBlocks));
        return kind.weights->packs(op, WeightOrder::TensorCore);
    };
    CHECK(packs(linear_kind, &linear));
    CHECK(packs(conv2d_kind, &conv));
    CHECK(!packs(conv_transpose2d_kind, &conv));
    CHECK(!packs(upsample_conv2d_kind, &conv));
    for (const OperatorKind *kind : {&conv2d_kind, &conv_transpose2d_kind, &upsample_conv2d_kind}) {
        CHECK(kind->weights->packs(&conv, WeightOrder::DotProduct));
    }
    CHECK(linear_kind.weights->packs(&linear, WeightOrder::DotProduct));
    conv.groups = 8;
    CHECK(!packs(conv2d_kind, &conv));
    for (const OperatorKind *kind : {&conv_transpose2d_kind, &upsample_conv2d_kind}) {
        CHECK(!kind->weights->packs(&conv, WeightOrder::DotProduct));
    }
    CHECK(conv2d_kind.weights->packs(&conv, WeightOrder::DotProduct));
    CHECK(conv2d_kind.weights->packs(&conv, WeightOrder::QuantizedDotProduct));
    CHECK(!upsample_conv2d_kind.weights->packs(&conv, WeightOrder::QuantizedDotProduct));
}

TEST_CASE("Weights for dot products lie in pairs of the reduction", "[weight_layouts]") {
    for (const auto &[in, out, kernel_h, kernel_w] :
         {std::tuple(32, 16, 3, 3), {64, 33, 1, 1}, {3, 5, 5, 2}, {17, 48, 3, 1}, {1, 1, 1, 1}}) {
        const distile_conv2d conv = conv_of_size(in, out, kernel_h, kernel_w);
        const int32_t taps = kernel_h * kernel_w, reduction = taps * in, steps = (reduction + 31) / 32;
        const int32_t blocks = (out + 15) / 16;
        CAPTURE(in, out, kernel_h, kernel_w);
        Source source(conv);
        for (size_t i = 0; i < source.filter.size(); i++) {
            source.filter[i] = static_cast<float>(i + 1);
        }
        const std::vector<PackedArray> packed = source.pack(conv2d_kind, &conv, "cpu-k32");
        REQUIRE(packed[0].extents == std::vector<int32_t>{512, steps, blocks});
        REQUIRE(packed[0].values.size() == static_cast<size_t>(512) * steps * blocks);
        REQUIRE(packed[1].extents == std::vector<int32_t>{16 * blocks});
        int32_t wrong = 0;
        for (int32_t o = 0; o < 16 * blocks; o++) {
            wrong += packed[1].values[o] == static_cast<float>(o < out ? o + 1 : 0) ? 0 : 1;
            for (int32_t k = 0; k < 32 * steps; k++) {
                const size_t place =
                    ((static_cast<size_t>(o / 16) * steps + k / 32) * 16 + k % 32 / 2) * 32 + o % 16 * 2 + k % 2;
                // The filter is [out][in][tap], the reduction [tap][in].
                const size_t from = (static_cast<size_t>(o) * in + k % in) * taps + k / in;
                const float expected = o < out && k < reduction ? source.filter[from] : 0;
                wrong += packed[0].values[place] == expected ? 0 : 1;
            }
        }
        CHECK(wrong == 0);
        CHECK(conv2d_kind.weights->pack(&conv, {source.given, nullptr}, *find_layout("cpu-k32"))[0].values.empty());
        const distile_linear linear{in, out, DISTILE_ACTIVATION_NONE, 0};
        if (taps == 1) {
            CHECK((source.pack(linear_kind, &linear, "cpu-k32")[0].values == packed[0].values));
        }
    }
}

TEST_CASE("Weights of groups for tensor cores lie in panels, quantized ones of up to 32 channels", "[weight_layouts]") {
    struct GroupedCase {
        int32_t in, out, groups;
        int32_t apart;     ///< Whether groups of floats have panels; 0: they have no code.
        int32_t together;  ///< Quantized groups of a panel; 0: they have no code.
    };
    // Groups of 4, 8, 24, 40, 56 and 100, of other numbers of inputs and outputs, and depthwise.
    for (const GroupedCase &each :
         {GroupedCase{128, 128, 32, 0, 8}, GroupedCase{256, 256, 32, 1, 4}, GroupedCase{96, 96, 4, 1, 2},
          GroupedCase{160, 160, 4, 1, 2}, GroupedCase{112, 112, 2, 1, 2}, GroupedCase{400, 400, 4, 0, 4},
          GroupedCase{128, 64, 2, 1, 1}, GroupedCase{32, 64, 2, 1, 1}, GroupedCase{16, 96, 2, 1, 2},
          GroupedCase{64, 64, 64, 0, 0}}) {
        distile_conv2d conv = conv_of_size(each.in, each.out, 3, 2);
        conv.groups = each.groups;
        CAPTURE(each.in, each.out, each.groups);
        const int32_t channels = each.in / each.groups;
        Source source(conv);
        for (size_t i = 0; i < source.filter.size(); i++) {
            source.filter[i] = static_cast<float>(i % 2039 + 1);
        }
        const WeightAt weight = [&](int32_t o, int32_t tap, int32_t i) {
            return source.filter[(o * channels + i) * 6 + tap];
        };
        CHECK(conv2d_kind.weights->packs(&conv, WeightOrder::TensorCore) == (each.apart != 0));
        CHECK(conv2d_kind.weights->packs(&conv, WeightOrder::QuantizedTensorCore) == (each.together != 0));
        if (each.apart != 0) {
            check_packed(source.pack(conv2d_kind, &conv, "cuda-k16"), conv, weight, 64);
            check_packed(source.pack(conv2d_kind, &conv, "cuda-k32"), conv, weight, 32);
        }
        if (each.together != 0) {
            check_packed(source.pack(conv2d_kind, &conv, "cuda-k8"), conv, weight, 128, each.together);
        }
    }
}

TEST_CASE("Weights for tensor cores lie in swizzled steps of the reduction", "[weight_layouts]") {
    // Channels that are whole steps of both types, of one, and of none; output channels that need padding.
    for (const auto &[in, out, kernel_h, kernel_w] : {std::tuple(64, 16, 3, 3),
                                                      {128, 24, 1, 1},
                                                      {192, 9, 3, 2},
                                                      {96, 8, 2, 3},
                                                      {24, 40, 3, 3},
                                                      {8, 1, 1, 1},
                                                      {40, 250, 5, 1}}) {
        const distile_conv2d conv = conv_of_size(in, out, kernel_h, kernel_w);
        const int32_t taps = kernel_h * kernel_w, channels = in;
        Source source(conv);
        // Whole numbers, which TF32 has.
        for (size_t i = 0; i < source.filter.size(); i++) {
            source.filter[i] = static_cast<float>(i % 2039);
        }
        const WeightAt weight = [&](int32_t o, int32_t tap, int32_t i) {
            return source.filter[(o * channels + i) * taps + tap];
        };
        check_packed(source.pack(conv2d_kind, &conv, "cuda-k8"), conv, weight, 128);
        check_packed(source.pack(conv2d_kind, &conv, "cuda-k16"), conv, weight, 64);
        check_packed(source.pack(conv2d_kind, &conv, "cuda-k32"), conv, weight, 32);
        if (taps == 1) {
            const distile_linear linear{in, out, DISTILE_ACTIVATION_NONE, 0};
            check_packed(source.pack(linear_kind, &linear, "cuda-k16"), conv, weight, 64);
        }
        // Without a filter there are only the extents.
        const std::vector<PackedArray> packed =
            conv2d_kind.weights->pack(&conv, {source.given, nullptr}, *find_layout("cuda-k16"));
        CHECK(packed[0].extents[0] == 64);
        CHECK(packed[0].values.empty());
    }
}

TEST_CASE("All orders hold the same folded weights", "[weight_layouts]") {
    const distile_conv2d conv = conv_of_size(24, 40, 3, 2);
    Source source(conv);
    std::mt19937 random(9);
    const auto draw = [&](std::vector<float> &values, float least) {
        for (float &value : values) {
            value = std::uniform_real_distribution<float>(least, 1)(random);
        }
    };
    std::vector<float> gamma(conv.out_channels), variance(conv.out_channels);
    draw(source.filter, -1);
    draw(gamma, -1);
    draw(variance, 0.1f);
    // This mean and this beta leave the bias as it is.
    source.given.bn_mean = source.given.bn_beta = source.bias.data();
    source.given.bn_gamma = gamma.data();
    source.given.bn_variance = variance.data();
    source.given.bn_epsilon = 1e-3f;
    const std::vector<PackedArray> blocks = source.pack(conv2d_kind, &conv, "cuda-o32");
    const int32_t taps = conv.kernel_h * conv.kernel_w;
    const WeightAt weight = [&](int32_t o, int32_t tap, int32_t i) {
        return blocks[0].values[((o / 32 * taps + tap) * conv.in_channels + i) * 32 + o % 32];
    };
    check_packed(source.pack(conv2d_kind, &conv, "cuda-k16"), conv, weight, 64);
    CHECK(weight(39, 5, 23) != source.filter.back());
}

TEST_CASE("Threads share out the blocks of a CPU's weights", "[weight_layouts]") {
    // Blocks that are whole, padded at the end, padded in each group, and made of diagonals, which one thread packs.
    const std::tuple<int32_t, int32_t, int32_t> shapes[] = {{130, 96, 1}, {200, 90, 1}, {300, 102, 3}, {264, 264, 33}};
    for (const auto &[in, out, groups] : shapes) {
        CAPTURE(in, out, groups);
        distile_conv2d conv = conv_of_size(in, out, 3, 3);
        conv.groups = groups;
        Source source(conv);
        for (size_t i = 0; i < source.filter.size(); i++) {
            source.filter[i] = static_cast<float>(i % 2039) + 1;
        }
        int32_t most = 0;
        const TaskLoop loop = [&](int32_t count, const std::function<void(int32_t)> &task) {
            most = std::max(most, count);
            std::vector<std::thread> threads;
            for (int32_t i = count; i-- > 0;) {
                threads.emplace_back(task, i);
            }
            for (std::thread &thread : threads) {
                thread.join();
            }
        };
        FilterSource shared{source.given, source.filter.data()};
        shared.loop = loop;
        const std::vector<PackedArray> alone = source.pack(conv2d_kind, &conv, "cpu-o16"),
                                       packed = conv2d_kind.weights->pack(&conv, shared, *find_layout("cpu-o16"));
        const GroupBlocks blocks{groups, in / groups, out / groups, 16};
        const bool shares = blocks.form() != GroupForm::Diagonals;
        CHECK((most > 1) == shares);
        CHECK((packed[0].values == alone[0].values));
        CHECK((packed[1].values == alone[1].values));
        const auto nonzeros =
            std::count_if(packed[0].values.begin(), packed[0].values.end(), [](float value) { return value != 0; });
        CHECK(nonzeros == static_cast<int64_t>(source.filter.size()));
        for (int32_t o = 0; shares && o < out; o++) {
            const int32_t place = blocks.channel(o), channels = in / groups;
            const size_t first = static_cast<size_t>(place / 16) * 9 * channels * 16 + place % 16;
            CHECK(packed[0].values[first + size_t(5 * channels + 7) * 16] ==
                  source.filter[(size_t(o) * channels + 7) * 9 + 5]);
            CHECK(packed[1].values[place] == source.bias[o]);
        }
    }
}

TEST_CASE("No block of dot products' weights has parts of groups", "[weight_layouts]") {
    // Groups, input and output channels of each, elements of a pack; groups of a section and those kept apart; blocks;
    // where the last output channel is, and the first input channel that its section reads.
    struct Case {
        ChannelSections sections;
        int32_t together, apart, blocks, channel, first_input;
    };
    for (const Case &test : {Case{{1, 24, 40, 4}, 1, 1, 3, 39, 0}, Case{{2, 24, 24, 4}, 1, 1, 4, 32 + 23, 24},
                             Case{{4, 100, 100, 2}, 1, 1, 28, 3 * 112 + 99, 300}, Case{{8, 4, 4, 4}, 4, 4, 2, 31, 16},
                             Case{{8, 4, 4, 2}, 4, 4, 2, 31, 16},
                             Case{{13, 8, 8, 4}, 2, 2, 7, 6 * 16 + 7, 11 * 8},  // The last section is half full.
                             Case{{13, 8, 8, 2}, 2, 2, 7, 6 * 16 + 7, 11 * 8},
                             Case{{8, 3, 5, 4}, 3, 1, 3, 2 * 16 + 9, 15},  // Inputs are no whole packs:
                             Case{{8, 3, 5, 2}, 1, 1, 8, 7 * 16 + 4, 21},  // only integers multiply zeros.
                             Case{{40, 1, 1, 4}, 40, 1, 3, 39, 0}}) {      // Depthwise.
        const ChannelSections &of = test.sections;
        CAPTURE(of.groups, of.group_inputs, of.group_outputs, of.pack);
        const int32_t last = of.groups * of.group_outputs - 1;
        CHECK(of.together() == test.together);
        CHECK(of.apart() == test.apart);
        CHECK(of.blocks() == test.blocks);
        CHECK(of.channel(last) == test.channel);
        CHECK(of.first_input(last) == test.first_input);
    }
}

TEST_CASE("No block of a CPU's weights spans groups that it does not have side by side", "[weight_layouts]") {
    // Input and output channels of a group, groups; the blocks; and where the blocks have the weight of the last output
    // channel and input channel: as a channel, and as one of its weights.
    struct Case {
        int32_t inputs, outputs, groups, blocks, channel, row;
    };
    for (const Case &test :
         {Case{8, 24, 3, 6, 2 * 32 + 23, 7},  // Two blocks a group, of which the second is half full.
          Case{3, 5, 4, 4, 3 * 16 + 4, 2},    // A block a group.
          Case{5, 16, 2, 2, 31, 4},           // In order: groups are whole blocks.
          Case{4, 4, 5, 2, 19, 0},            // By diagonals: of the last channels of both, the first.
          Case{1, 1, 17, 2, 16, 0}}) {
        distile_conv2d conv = conv_of_size(test.inputs * test.groups, test.outputs * test.groups, 1, 2);
        conv.groups = test.groups;
        CAPTURE(test.inputs, test.outputs, test.groups);
        Source source(conv);
        source.filter.back() = 1;
        const std::vector<PackedArray> packed = source.pack(conv2d_kind, &conv, "cpu-o16");
        CHECK(packed[0].extents == std::vector<int32_t>{16, test.inputs, 2, 1, test.blocks});
        const int32_t place = ((test.channel / 16 * 2 + 1) * test.inputs + test.row) * 16 + test.channel % 16;
        REQUIRE(packed[0].values.size() == static_cast<size_t>(test.blocks) * 2 * test.inputs * 16);
        CHECK(packed[0].values[place] == 1);
        CHECK(std::count(packed[0].values.begin(), packed[0].values.end(), 0.0F) ==
              static_cast<int64_t>(packed[0].values.size()) - 1);
        REQUIRE(packed[1].values.size() == static_cast<size_t>(test.blocks) * 16);
        CHECK(packed[1].values[test.channel] == static_cast<float>(conv.out_channels));
        // The layouts of GPUs have them in order.
        CHECK(source.pack(conv2d_kind, &conv, "cuda-o32")[0].extents.back() == (conv.out_channels + 31) / 32);
    }
    // By diagonals, output channel 1 of a group of 4 multiplies input channel 3 in lane 3, as the channel 2 behind it.
    const GroupBlocks::Place place = GroupBlocks{5, 4, 4, 16}.place(4 + 1, 3);
    CHECK(place.channel == 4 + 3);
    CHECK(place.row == 2);
}

TEST_CASE("Weights are rounded to TF32, to nearest even", "[weight_layouts]") {
    CHECK(packed_as_tf32({0x3f800000, 0x3f800fff, 0x3f801000, 0x3f801001, 0x3f802fff, 0x3f803000, 0xbf803000}) ==
          std::vector<uint32_t>{0x3f800000, 0x3f800000, 0x3f800000, 0x3f802000, 0x3f802000, 0x3f804000, 0xbf804000});
    // Into the next exponent, to infinity, and below the normal numbers.
    CHECK(packed_as_tf32({0x3fffffff, 0x7f7fefff, 0x7f7ff000, 0xff7fffff, 0x00000fff, 0x00001000, 0x80003000}) ==
          std::vector<uint32_t>{0x40000000, 0x7f7fe000, 0x7f800000, 0xff800000, 0, 0, 0x80004000});
    CHECK(packed_as_tf32({0x7f800000, 0xff800000}) == std::vector<uint32_t>{0x7f800000, 0xff800000});
    for (const uint32_t nan : packed_as_tf32({0x7f800001, 0x7fc00000, 0x7fffffff, 0xff801fff, 0xffffffff})) {
        CHECK((nan & 0x7fffffff) > 0x7f800000);
        CHECK((nan & 0x1fff) == 0);
    }
}
