// Operators whose output has more pixels than their input: their phases, what the API says of them, and nearest
// upsampling alone. That their kernels compute what they should is seen with all others, in test_masked_conv2d.cpp.
#include "runtime/kinds/polyphase.h"
#include "test_polykernels.h"
#include "tests/support/callers.h"
#include "tests/support/catch.h"
#include "tests/support/descriptors.h"
#include "tests/support/reference.h"
#include "tests/support/test_tensor.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <distile/distile.hpp>
#include <distile/mask_algebra.h>
#include <distile/upsample.h>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

using namespace distile;

namespace {

/** The input that a position of the kernel reads for output o, by the definition; false if it reads none. */
bool reads(const PolyphaseAxis &axis, int o, int position, int &input) {
    if (axis.nearest) {
        input = static_cast<int>(
            std::floor(static_cast<double>(o - axis.pad_before + position * axis.dilation) / axis.stride));
        return true;
    }
    for (input = -100; input <= 100; input++) {
        if (input * axis.stride - axis.pad_before + position * axis.dilation == o) {
            return true;
        }
    }
    return false;
}

void check_axis(const PolyphaseAxis &axis) {
    const std::vector<Phase> phases = axis.phases();
    const std::vector<MergedTap> taps = axis.taps();
    REQUIRE(static_cast<int>(phases.size()) == axis.stride);
    REQUIRE(static_cast<int>(taps.size()) == axis.num_taps());
    int begin = 0, most = 0, first = 1000, last = -1000;
    for (int p = 0; p < axis.stride; p++) {
        const Phase &phase = phases[p];
        REQUIRE(phase.begin == begin);
        begin += phase.taps;
        most = std::max(most, phase.taps);
        // For every input, how often each position of the kernel reads it.
        std::map<std::pair<int, int>, int> expected, found;
        for (int position = 0; position < axis.kernel; position++) {
            int input = 0;
            if (reads(axis, p, position, input)) {
                expected[{input, position}]++;
            }
        }
        for (int t = 0; t < phase.taps; t++) {
            const int input = phase.first + t * phase.step;
            first = std::min(first, input);
            last = std::max(last, input);
            const MergedTap &tap = taps[phase.begin + t];
            for (int position = tap.begin; position < tap.end; position++) {
                found[{input, position}]++;
            }
        }
        REQUIRE(found == expected);
    }
    REQUIRE(begin == axis.num_taps());
    REQUIRE(most == axis.most_taps());
    REQUIRE(first == axis.first_read());
    REQUIRE(last == axis.last_read());
    // The border is all that the pixels of an output read beyond its input, in whole virtual pixels.
    const int input = 20;
    const int64_t output = axis.output_extent(input);
    if (output > 0) {
        const int64_t last_virtual = (output - 1) / axis.stride;
        REQUIRE(axis.border_before() == std::max(0, -first));
        REQUIRE(axis.border_after() == std::max<int64_t>(0, last_virtual + last - (input - 1)));
    }
}

/** One axis of an operator of any kind, by the definition. */
struct Axis {
    distile_operator_kind kind;
    int kernel, stride, pad_before, pad_after, dilation;

    int output_extent(int input) const {
        const int pads = pad_before + pad_after, span = dilation * (kernel - 1) + 1;
        return kind == DISTILE_MASKED_CONV_TRANSPOSE2D  ? (input - 1) * stride + span - pads
               : kind == DISTILE_MASKED_UPSAMPLE_CONV2D ? input * stride + pads - span + 1
                                                        : (input + pads - span) / stride + 1;
    }
    /** The inputs that an output reads, those in the border included. */
    std::set<int> inputs_of(int output) const {
        const bool nearest = kind == DISTILE_MASKED_UPSAMPLE_CONV2D;
        std::set<int> inputs;
        for (int position = 0; position < kernel; position++) {
            int input = output * stride - pad_before + position * dilation;
            if (kind == DISTILE_MASKED_CONV2D ||
                reads({kernel, stride, pad_before, pad_after, dilation, nearest}, output, position, input)) {
                inputs.insert(input);
            }
        }
        return inputs;
    }
    /** How far the outputs read beyond inputs of any extent, on either side. Where they are computed in phases, all
     * phases of the last one are. */
    std::pair<int, int> border() const {
        const int phases = kind == DISTILE_MASKED_CONV2D ? 1 : stride;
        int before = 0, after = 0;
        for (int input = 5; input < 20; input++) {
            const int outputs = (output_extent(input) + phases - 1) / phases * phases;
            for (int output = 0; output < outputs; output++) {
                for (int read : inputs_of(output)) {
                    before = std::max(before, -read);
                    after = std::max(after, read - (input - 1));
                }
            }
        }
        return {before, after};
    }
};

/** What a weights object is packed from, of drawn integers. */
struct DrawnWeights {
    DrawnWeights(const distile_conv2d &conv, std::mt19937 &random)
        : filter(draw(Values::Integers, size_t(conv.kernel_h) * conv.kernel_w * conv.in_channels * conv.out_channels,
                      random)),
          bias(draw(Values::Integers, conv.out_channels, random)) {
        source.filter = filter.data();
        source.order = DISTILE_HWIO;
        source.bias = bias.data();
    }
    std::vector<float> filter, bias;
    distile_weights_source source{};
};

/** A call of nearest upsampling, and what it must leave. */
struct UpsampleCall {
    UpsampleCall(const Context &given, int32_t batch, int32_t height, int32_t width, int32_t channels, int32_t scale_h,
                 int32_t scale_w, const TensorLayout &layout, std::mt19937 &random,
                 distile_dtype dtype = DISTILE_FLOAT32)
        : context(given), input(batch, height, width, channels, layout, Flush::Back, dtype),
          output(batch, height * scale_h, width * scale_w, channels, layout, Flush::Front, dtype),
          mask(make_mask(context)), bytes(size_t(batch) * height * scale_h * width * scale_w), input_view(input.view()),
          output_view(output.view()) {
        input.draw(Values::Floats, random);
        output.draw(Values::Floats, random);
        std::generate(bytes.begin(), bytes.end(), [&] { return random() % 3 == 0; });
        set_mask();
        args.input = &input_view;
        args.output = &output_view;
        args.mask = mask.get();
        args.scale_h = scale_h;
        args.scale_w = scale_w;
    }

    void set_mask() {
        const distile_tensor &view = output.view();
        REQUIRE(distile_mask_set_bytes(mask.get(), bytes.data(), view.batch, view.height, view.width,
                                       int64_t{view.height} * view.width, view.width) == DISTILE_OK);
    }

    void accept() {
        const distile_tensor &view = output.view();
        ReferenceOutput expected;
        for (int32_t n = 0, pixel = 0; n < view.batch; n++) {
            for (int32_t y = 0; y < view.height; y++) {
                for (int32_t x = 0; x < view.width; x++, pixel++) {
                    expected.states.push_back(bytes[pixel]                    ? PixelState::Computed
                                              : args.inactive == DISTILE_ZERO ? PixelState::Zeroed
                                                                              : PixelState::Kept);
                    for (int32_t c = 0; c < view.channels; c++) {
                        expected.values.push_back(bytes[pixel] ? input.get(n, y / args.scale_h, x / args.scale_w, c)
                                                               : 0.0f);
                    }
                }
            }
        }
        const auto before = output.snapshot(), input_before = input.snapshot();
        REQUIRE(distile_upsample_nearest(context.get(), &args) == DISTILE_OK);
        CHECK(output.difference(before, expected, 0) == "");
        CHECK(input.snapshot() == input_before);
    }

    void refuse(distile_status status, const std::string &word) {
        const auto before = output.snapshot();
        CHECK(distile_upsample_nearest(context.get(), &args) == status);
        INFO(distile_context_message(context.get()));
        CHECK(std::string(distile_context_message(context.get())).find(word) != std::string::npos);
        CHECK(output.snapshot() == before);
    }

    const Context &context;
    TestTensor input, output;
    Mask mask;
    std::vector<uint8_t> bytes;
    distile_tensor input_view, output_view;
    distile_upsample_args args{};
};

}  // namespace

TEST_CASE("The phases read what the definition says", "[polyphase]") {
    for (bool nearest : {false, true}) {
        for (int kernel = 1; kernel <= 6; kernel++) {
            for (int stride = 1; stride <= 5; stride++) {
                for (int pad : {0, 1, 2, 5, 9}) {
                    for (int dilation = 1; dilation <= 4; dilation++) {
                        for (int pad_after : {-1, 0, 2}) {
                            CAPTURE(nearest, kernel, stride, pad, pad_after, dilation);
                            check_axis({kernel, stride, pad, pad_after, dilation, nearest});
                        }
                    }
                }
            }
        }
    }
}

TEST_CASE("A kernel's window says what its operator reads, and its border how far", "[polyphase]") {
    CHECK(distile_kernel_border(nullptr).left == 0);
    CHECK(distile_kernel_window(nullptr).kernel_h == 0);
    std::mt19937 random(2);
    const Context context = make_context();
    for (const distile_polykernel *polykernel : test_polykernels) {
        CAPTURE(polykernel->name);
        // Nothing runs, so that any CPU will do.
        distile_polykernel any_cpu = *polykernel;
        any_cpu.features = "";
        const distile_conv2d conv = convolution_of(*polykernel);
        const Kernel kernel = make_kernel(context, any_cpu);
        // A linear layer is a convolution of one pixel.
        const distile_operator_kind kind =
            polykernel->kind == DISTILE_MASKED_LINEAR ? DISTILE_MASKED_CONV2D : polykernel->kind;
        const Axis rows{kind, conv.kernel_h, conv.stride_h, conv.pad_top, conv.pad_bottom, conv.dilation_h};
        const Axis columns{kind, conv.kernel_w, conv.stride_w, conv.pad_left, conv.pad_right, conv.dilation_w};

        const distile_window window = distile_kernel_window(kernel.get());
        CHECK(window.kernel_h == conv.kernel_h);
        CHECK(window.kernel_w == conv.kernel_w);
        CHECK(window.stride_h == conv.stride_h);
        CHECK(window.stride_w == conv.stride_w);
        CHECK(window.dilation_h == conv.dilation_h);
        CHECK(window.dilation_w == conv.dilation_w);
        CHECK(window.pad_top == conv.pad_top);
        CHECK(window.pad_left == conv.pad_left);
        CHECK(window.kind == (kind == DISTILE_MASKED_CONV2D             ? DISTILE_WINDOW_CONV
                              : kind == DISTILE_MASKED_CONV_TRANSPOSE2D ? DISTILE_WINDOW_TRANSPOSED
                                                                        : DISTILE_WINDOW_UPSAMPLED));
        const distile_border border = distile_kernel_border(kernel.get());
        CHECK(std::make_pair(border.top, border.bottom) == rows.border());
        CHECK(std::make_pair(border.left, border.right) == columns.border());

        // What one output pixel needs.
        const int32_t height = 8, width = 9;
        const int32_t out_height = rows.output_extent(height), out_width = columns.output_extent(width);
        REQUIRE(std::min(out_height, out_width) > 0);
        const Mask mask = make_mask(context);
        const auto set_one = [&](int32_t all_rows, int32_t all_columns, int32_t y, int32_t x) {
            std::vector<uint8_t> one(size_t(all_rows) * all_columns);
            one[y * all_columns + x] = 1;
            REQUIRE(distile_mask_set_bytes(mask.get(), one.data(), 1, all_rows, all_columns,
                                           static_cast<int64_t>(one.size()), all_columns) == DISTILE_OK);
        };
        const auto is_active = [&](int32_t y, int32_t x) {
            const uint32_t *words = nullptr;
            int32_t words_per_row = 0;
            REQUIRE(distile_mask_bits(mask.get(), &words, &words_per_row) == DISTILE_OK);
            return (words[y * words_per_row + x / 32] >> (x % 32) & 1) != 0;
        };
        int64_t wrong = 0;
        for (int32_t v = 0; v < out_height; v++) {
            for (int32_t u = 0; u < out_width; u++) {
                set_one(out_height, out_width, v, u);
                REQUIRE(distile_mask_needed_input(mask.get(), mask.get(), &window, height, width) == DISTILE_OK);
                const std::set<int> read_rows = rows.inputs_of(v), read_columns = columns.inputs_of(u);
                for (int32_t y = 0; y < height; y++) {
                    for (int32_t x = 0; x < width; x++) {
                        const bool needed = read_rows.count(y) != 0 && read_columns.count(x) != 0;
                        wrong += is_active(y, x) == needed ? 0 : 1;
                    }
                }
            }
        }
        CHECK(wrong == 0);

        // The outputs that one input pixel reaches: those that change with it. No two weights cancel.
        TestTensor input(1, height, width, conv.in_channels);
        input.draw(Values::Integers, random);
        ReferenceArgs args;
        args.kind = kind;
        args.conv = conv;
        args.conv.epilogue = DISTILE_ACTIVATION_NONE;
        args.input = input.view();
        args.filter.assign(filter_size(conv), 1.0f);
        args.mask.assign(size_t(out_height) * out_width, 1);
        const ReferenceOutput before = reference_masked_conv2d(args);
        for (int32_t y : {0, 3, height - 1}) {
            for (int32_t x : {0, 2, width - 1}) {
                CAPTURE(y, x);
                const float was = input.at(0, y, x, 0);
                input.at(0, y, x, 0) = was + 0.5f;
                const ReferenceOutput after = reference_masked_conv2d(args);
                input.at(0, y, x, 0) = was;
                set_one(height, width, y, x);
                REQUIRE(distile_mask_affected_output(mask.get(), mask.get(), &window, out_height, out_width) ==
                        DISTILE_OK);
                for (int32_t v = 0; v < out_height; v++) {
                    for (int32_t u = 0; u < out_width; u++) {
                        const auto *values = &before.values[(size_t(v) * out_width + u) * conv.out_channels];
                        const auto *changed = &after.values[(size_t(v) * out_width + u) * conv.out_channels];
                        wrong += is_active(v, u) == !std::equal(values, values + conv.out_channels, changed) ? 0 : 1;
                    }
                }
                CHECK(wrong == 0);
            }
        }
    }
}

TEST_CASE("Weights are for one order of the phases, and come in any order of their own", "[polyphase]") {
    std::mt19937 random(3);
    const Context context = make_context();
    const distile_polykernel &polykernel = test_transpose34_s23_3_17_avx2;
    const distile_conv2d conv = convolution_of(polykernel);
    const Kernel kernel = make_kernel(context, polykernel);
    const Mask mask = make_mask(context);
    const DrawnWeights drawn(conv, random);
    ReferenceArgs reference;
    reference.kind = polykernel.kind;
    reference.conv = conv;
    TestTensor input(1, 5, 4, conv.in_channels);
    input.draw(Values::Integers, random);
    reference.input = input.view();
    reference.filter = drawn.filter;
    reference.bias = drawn.bias;
    TestTensor output(1, reference_output_height(conv, 5, polykernel.kind),
                      reference_output_width(conv, 4, polykernel.kind), conv.out_channels);
    reference.mask.assign(size_t(output.view().height) * output.view().width, 1);
    const ReferenceOutput expected = reference_masked_conv2d(reference);
    REQUIRE(distile_mask_set_bytes(mask.get(), reference.mask.data(), 1, output.view().height, output.view().width,
                                   static_cast<int64_t>(reference.mask.size()), output.view().width) == DISTILE_OK);

    // [input channel][output channel][row][column], as PyTorch's transposed convolutions have it.
    const size_t taps = size_t(conv.kernel_h) * conv.kernel_w;
    std::vector<float> iohw(drawn.filter.size());
    for (size_t tap = 0, from = 0; tap < taps; tap++) {
        for (int32_t i = 0; i < conv.in_channels; i++) {
            for (int32_t o = 0; o < conv.out_channels; o++, from++) {
                iohw[(size_t(i) * conv.out_channels + o) * taps + tap] = drawn.filter[from];
            }
        }
    }
    distile_weights_source source = drawn.source;
    source.filter = iohw.data();
    source.order = DISTILE_IOHW;
    const Weights weights = pack_weights(context, kernel, source);
    distile_run_args args{};
    args.input = &input.view();
    args.output = &output.view();
    args.weights = weights.get();
    args.mask = mask.get();
    auto before = output.snapshot();
    REQUIRE(distile_run(kernel.get(), &args) == DISTILE_OK);
    CHECK(output.difference(before, expected, 0) == "");

    // Packed for another kind of operator, stride, padding or dilation, the filter is in another order.
    before = output.snapshot();
    for (int change = 0; change < 6; change++) {
        Descriptor other(polykernel);
        other.conv.stride_h += change == 0 ? 1 : 0;
        other.conv.stride_w += change == 1 ? 1 : 0;
        other.conv.pad_top += change == 2 ? 1 : 0;
        other.conv.pad_left += change == 3 ? 1 : 0;
        other.conv.dilation_w += change == 4 ? 1 : 0;
        other.polykernel.kind = change == 5 ? DISTILE_MASKED_CONV2D : polykernel.kind;
        const Kernel other_kernel = make_kernel(context, other.polykernel);
        const Weights other_weights = pack_weights(context, other_kernel, drawn.source);
        args.weights = other_weights.get();
        CAPTURE(change);
        CHECK(distile_run(kernel.get(), &args) == DISTILE_ERROR_BAD_WEIGHTS);
        CHECK(std::string(distile_context_message(context.get())).find(polykernel.name) != std::string::npos);
    }
    CHECK(output.snapshot() == before);
    // The padding behind does not matter.
    Descriptor same(polykernel);
    same.conv.pad_bottom++;
    const Weights fitting = pack_weights(context, make_kernel(context, same.polykernel), drawn.source);
    args.weights = fitting.get();
    CHECK(distile_run(kernel.get(), &args) == DISTILE_OK);
    CHECK(output.difference(before, expected, 0) == "");
}

TEST_CASE("Sums of weights are rounded once, after batch normalisation", "[polyphase]") {
    const Context context = make_context();
    const distile_polykernel &polykernel = test_upsample3_s2_16_17_avx2;
    const distile_conv2d conv = convolution_of(polykernel);
    const Kernel kernel = make_kernel(context, polykernel);
    // In float the small weight would vanish beside the large one, of which the third leaves nothing.
    const float large = 1048576, small = 0.1f;
    std::vector<float> filter(size_t(9) * conv.in_channels * conv.out_channels, 0.0f);
    const auto at = [&](int tap) -> float & { return filter[size_t(tap) * conv.in_channels * conv.out_channels]; };
    at(1) = large;
    at(2) = small;
    at(4) = -large;
    const std::vector<float> mean(conv.out_channels, 0.0f), variance(conv.out_channels, 0.25f);
    distile_weights_source source{};
    source.filter = filter.data();
    source.order = DISTILE_HWIO;
    source.bn_mean = mean.data();
    source.bn_variance = variance.data();
    const Weights weights = pack_weights(context, kernel, source);
    TestTensor input(1, 1, 1, conv.in_channels), output(1, 2, 2, conv.out_channels);
    for (int32_t c = 0; c < conv.in_channels; c++) {
        input.at(0, 0, 0, c) = c == 0 ? 1.0f : 0.0f;
    }
    const Mask mask = make_mask(context);
    // Output row 1 reads the one input row by the kernel's rows 0 and 1, output column 0 by its columns 1 and 2.
    const uint8_t bytes[] = {0, 0, 1, 0};
    REQUIRE(distile_mask_set_bytes(mask.get(), bytes, 1, 2, 2, 4, 2) == DISTILE_OK);
    distile_run_args args{};
    args.input = &input.view();
    args.output = &output.view();
    args.weights = weights.get();
    args.mask = mask.get();
    REQUIRE(distile_run(kernel.get(), &args) == DISTILE_OK);
    CHECK(output.at(0, 1, 0, 0) == 2 * small);
    CHECK(output.at(0, 1, 0, 1) == 0);
}

TEST_CASE("Outputs of a wrong size are refused", "[polyphase]") {
    std::mt19937 random(4);
    const Context context = make_context();
    for (const distile_polykernel *polykernel : {&test_transpose34_s23_3_17_avx2, &test_upsample3_s2_16_17_avx2}) {
        const distile_conv2d conv = convolution_of(*polykernel);
        const Kernel kernel = make_kernel(context, *polykernel);
        const DrawnWeights drawn(conv, random);
        const Weights weights = pack_weights(context, kernel, drawn.source);
        TestTensor input(1, 5, 6, conv.in_channels);
        input.draw(Values::Integers, random);
        const int32_t height = reference_output_height(conv, 5, polykernel->kind);
        const int32_t width = reference_output_width(conv, 6, polykernel->kind);
        for (int change = 0; change < 4; change++) {
            TestTensor output(1, height + (change == 0 ? 1 : 0) - (change == 1 ? 1 : 0),
                              width + (change == 2 ? 1 : 0) - (change == 3 ? 1 : 0), conv.out_channels);
            const distile_tensor &view = output.view();
            const std::vector<uint8_t> bytes(size_t(view.height) * view.width, 1);
            const Mask mask = make_mask(context);
            REQUIRE(distile_mask_set_bytes(mask.get(), bytes.data(), 1, view.height, view.width,
                                           static_cast<int64_t>(bytes.size()), view.width) == DISTILE_OK);
            distile_run_args args{};
            args.input = &input.view();
            args.output = &view;
            args.weights = weights.get();
            args.mask = mask.get();
            const auto before = output.snapshot();
            CHECK(distile_run(kernel.get(), &args) == DISTILE_ERROR_BAD_SHAPE);
            const std::string due = std::to_string(height) + " x " + std::to_string(width);
            INFO(distile_context_message(context.get()));
            CHECK(std::string(distile_context_message(context.get())).find(due) != std::string::npos);
            CHECK(output.snapshot() == before);
        }
    }
}

TEST_CASE("Nearest upsampling copies the active pixels, and touches nothing else", "[upsample]") {
    std::mt19937 random(5);
    for (int32_t threads : {1, 3}) {
        distile_context_options options{};
        options.threads = threads;
        const Context context = make_context(options);
        const TensorLayout layouts[] = {{}, {3, 0, 0}, {0, 5, 7}, {2, 9, 30, 1, 2, 1, 2}};
        const int32_t shapes[][6] = {{1, 1, 1, 1, 1, 1},   {2, 3, 5, 7, 2, 2},   {1, 16, 33, 64, 2, 2},
                                     {3, 4, 22, 3, 1, 3},  {1, 5, 13, 5, 4, 5},  {2, 30, 40, 32, 2, 1},
                                     {1, 2, 1, 16, 3, 64}, {1, 1, 3, 4, 130, 70}};
        for (const auto &shape : shapes) {
            for (const TensorLayout &layout : layouts) {
                // Every type meets every shape and every layout, in turn.
                const distile_dtype types[] = {DISTILE_FLOAT32, DISTILE_FLOAT16, DISTILE_BFLOAT16};
                const distile_dtype dtype = types[(&shape - shapes + (&layout - layouts) + threads / 2) % 3];
                CAPTURE(dtype, threads, shape[1], shape[2], shape[3], shape[4], shape[5], layout.pixel_gap);
                UpsampleCall call(context, shape[0], shape[1], shape[2], shape[3], shape[4], shape[5], layout, random,
                                  dtype);
                for (const char *mask : {"random", "empty", "full", "runs"}) {
                    for (size_t pixel = 0; pixel < call.bytes.size(); pixel++) {
                        if (mask[0] != 'r') {
                            call.bytes[pixel] = mask[0] == 'f' ? 1 : 0;
                        } else if (mask[1] == 'u') {
                            call.bytes[pixel] = pixel / 67 % 2 == 0 ? 1 : 0;
                        }
                    }
                    call.set_mask();
                    for (distile_inactive inactive : {DISTILE_KEEP, DISTILE_ZERO}) {
                        CAPTURE(mask, inactive);
                        call.args.inactive = inactive;
                        call.accept();
                    }
                }
            }
        }
    }
}

TEST_CASE("Nearest upsampling runs in the caller's pool", "[upsample]") {
    std::mt19937 random(6);
    CallersPool pool;
    distile_context_options options{};
    pool.use_in(options);
    const Context context = make_context(options);
    UpsampleCall call(context, 2, 40, 40, 64, 2, 2, {}, random);
    call.accept();
    CHECK(pool.loops() > 0);
}

TEST_CASE("Nearest upsampling refuses what makes no sense, and writes nothing", "[upsample]") {
    std::mt19937 random(7);
    const Context context = make_context(), other_context = make_context();
    UpsampleCall call(context, 2, 3, 4, 5, 2, 3, {}, random);
    CHECK(distile_upsample_nearest(nullptr, &call.args) == DISTILE_ERROR_NULL_POINTER);
    CHECK(distile_upsample_nearest(context.get(), nullptr) == DISTILE_ERROR_NULL_POINTER);
    const distile_upsample_args good = call.args;
    const auto refuse = [&](distile_status status, const std::string &word) {
        call.refuse(status, word);
        call.args = good;
        call.input_view = call.input.view();
        call.output_view = call.output.view();
    };
    call.args.input = nullptr;
    refuse(DISTILE_ERROR_NULL_POINTER, "input");
    call.args.output = nullptr;
    refuse(DISTILE_ERROR_NULL_POINTER, "output");
    call.args.mask = nullptr;
    refuse(DISTILE_ERROR_NULL_POINTER, "mask");
    for (int32_t scale : {0, -1, 3, 1 << 30}) {
        call.args.scale_h = scale;
        refuse(scale < 1 ? DISTILE_ERROR_BAD_VALUE : DISTILE_ERROR_BAD_SHAPE, "");
        call.args.scale_w = scale == 3 ? 2 : scale;
        refuse(scale < 1 ? DISTILE_ERROR_BAD_VALUE : DISTILE_ERROR_BAD_SHAPE, "");
    }
    for (int32_t bad : {-1, 2}) {
        std::memcpy(&call.args.inactive, &bad, sizeof(bad));
        refuse(DISTILE_ERROR_BAD_VALUE, "inactive");
    }
    call.input_view.channels = 0;
    refuse(DISTILE_ERROR_BAD_CHANNELS, "input");
    call.output_view.channels = 4;
    refuse(DISTILE_ERROR_BAD_CHANNELS, "output");
    call.input_view.stride_w = 4;
    refuse(DISTILE_ERROR_BAD_STRIDE, "input");
    const int32_t no_type = 9;
    std::memcpy(&call.output_view.dtype, &no_type, sizeof(no_type));
    refuse(DISTILE_ERROR_BAD_TYPE, "output");
    call.output_view.batch = 1;
    refuse(DISTILE_ERROR_BAD_SHAPE, "2 x 6 x 12");
    call.output_view.data = call.input_view.data;
    refuse(DISTILE_ERROR_ALIASING, "overlaps");
    const Mask unset = make_mask(context), small = make_mask(context), others = make_mask(other_context);
    call.args.mask = unset.get();
    refuse(DISTILE_ERROR_BAD_MASK, "never set");
    REQUIRE(distile_mask_set_bytes(small.get(), call.bytes.data(), 2, 6, 11, 66, 11) == DISTILE_OK);
    call.args.mask = small.get();
    refuse(DISTILE_ERROR_BAD_MASK, "2 x 6 x 11");
    call.args.mask = others.get();
    refuse(DISTILE_ERROR_BAD_MASK, "context");
    call.accept();
}
