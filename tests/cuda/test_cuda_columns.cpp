// Blocks of output channels of kernels for tensor cores: with the packed weights that they copy and the input channels
// that they read, each output channel has its sum, in one block.
#include "kernels/tensor_core/columns.h"
#include "runtime/kinds/operator_kind.h"
#include "tests/support/catch.h"
#include <vector>

using namespace distile;
using tensor_core::Column;

namespace {

constexpr int32_t kernel_h = 2, kernel_w = 3, taps = kernel_h * kernel_w;

/** Small whole numbers, whose sums are exact. */
float number(size_t i) {
    return static_cast<float>(i * 7 % 19) - 9;
}

distile_conv2d conv_of(int32_t in, int32_t out, int32_t groups) {
    return {in, out, groups, kernel_h, kernel_w, 1, 1, 0, 0, 0, 0, 1, 1, DISTILE_ACTIVATION_NONE, 0};
}

/** By definition. The input is [tap][channel], the filter [output channel][input channel of its group][tap]. */
std::vector<float> sums_of(const distile_conv2d &conv, const std::vector<float> &filter,
                           const std::vector<float> &input) {
    const int32_t inputs = conv.in_channels / conv.groups, outputs = conv.out_channels / conv.groups;
    std::vector<float> sums(conv.out_channels);
    for (int32_t o = 0; o < conv.out_channels; o++) {
        for (int32_t i = 0; i < inputs * taps; i++) {
            const int32_t channel = o / outputs * inputs + i / taps;
            sums[o] += filter[o * inputs * taps + i] * input[i % taps * conv.in_channels + channel];
        }
    }
    return sums;
}

/** The sum of a row of packed weights, as a block goes through its steps: of blocks of channels if steps divide them.
 */
template<class Block> float sum_of_row(const Block &block, int32_t row, const PackedValues &weights, int32_t elements,
                                       int32_t read_channels, const float *input, int32_t in_channels) {
    const int32_t block_channels = read_channels % elements == 0 ? elements : read_channels;
    const int32_t steps = (taps * read_channels + elements - 1) / elements, piece = elements / 8;
    float sum = 0;
    for (int32_t k = 0; k < taps * read_channels; k++) {
        const int32_t within = k % elements, place = ((within / piece) ^ (row % 8)) * piece + within % piece;
        const int32_t tap = k / block_channels % taps;
        const int32_t channel = k / (block_channels * taps) * block_channels + k % block_channels;
        sum += weights[(block.weight_row(steps, k / elements) + row) * elements + place] *
               input[tap * in_channels + block.input_channel() + channel];
    }
    return sum;
}

/** `Joined` groups are in a panel. */
template<int32_t In, int32_t Out, int32_t Groups, int32_t Joined, int32_t BlockChannels>
void check_columns(const char *layout_name) {
    constexpr int32_t read_channels = In / Groups * Joined;
    using Block = Column<Out, Out / Groups * Joined, read_channels, BlockChannels>;
    CAPTURE(In, Out, Groups, BlockChannels, layout_name);
    const distile_conv2d conv = conv_of(In, Out, Groups);
    std::vector<float> filter(conv2d_kind.weights->filter_elements(&conv)), input(taps * In);
    for (size_t i = 0; i < filter.size(); i++) {
        filter[i] = number(i);
    }
    for (size_t i = 0; i < input.size(); i++) {
        input[i] = number(3 * i + 1);
    }
    distile_weights_source source{};
    source.filter = filter.data();
    source.order = DISTILE_OIHW;
    const WeightLayout &layout = *find_layout(layout_name);
    const std::vector<PackedArray> packed = conv2d_kind.weights->pack(&conv, {source, filter.data()}, layout);
    const std::vector<float> due = sums_of(conv, filter, input);
    std::vector<int> computed(Out);
    for (int32_t index = 0; index < Block::count; index++) {
        const Block block(index);
        REQUIRE(block.end() <= Out);
        for (int32_t row = 0; row < BlockChannels && block.channel() + row < block.end(); row++) {
            REQUIRE(row < block.weight_rows());
            computed[block.channel() + row]++;
            CHECK(sum_of_row(block, row, packed[0].values, layout.block, read_channels, input.data(), In) ==
                  due[block.channel() + row]);
        }
    }
    CHECK(computed == std::vector<int>(Out, 1));
}

}  // namespace

TEST_CASE("Blocks of output channels read their panel's input channels and weights", "[cuda]") {
    check_columns<64, 40, 1, 1, 32>("cuda-k16");
    check_columns<40, 9, 1, 1, 32>("cuda-k32");
    // Groups of 8, 24 and 40 channels in a block each, and of 64 -> 40 in two.
    check_columns<32, 32, 4, 1, 32>("cuda-k16");
    check_columns<72, 72, 3, 1, 32>("cuda-k32");
    check_columns<120, 120, 3, 1, 64>("cuda-k16");
    check_columns<192, 120, 3, 1, 32>("cuda-k16");
    // Quantized ones together: groups of 4 and of 100 channels, and of 16 -> 32 alone.
    check_columns<64, 64, 16, 8, 32>("cuda-k8");
    check_columns<400, 400, 4, 4, 128>("cuda-k8");
    check_columns<32, 64, 2, 1, 32>("cuda-k8");
}
