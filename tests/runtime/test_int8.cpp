// Quantized operators against integer sums in plain loops. Their code reads the operator at run time, so these
// PolyKernels are written here.
#include "kernels/cpu/matrix_tiles.h"
#include "kernels/dot_products.h"
#include "reference/conv2d_reference.h"
#include "test_conv3_24_40_residual_uint8.h"
#include "tests/support/callers.h"
#include "tests/support/catch.h"
#include "tests/support/emulated_tiles.h"
#include "tests/support/operator_test.h"
#include "tests/support/quantized_cases.h"
#include "tests/support/quantized_variant.h"
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <distile/distile.hpp>
#include <distile/polykernel.h>
#include <distile/quantize.h>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

using namespace distile;

namespace {

int call_emulated_tiles(const distile_dot_product_code *code, const distile_kernel_call *call) {
    return dot_product::Product<dot_product::Steps<dot_product::TileSet<EmulatedInt8Tiles>>>(*code, *call).run();
}

const InstructionSet instruction_sets[] = {
    {"emulated tiles", "", call_emulated_tiles, {{32, 32}, {16, 32}, {32, 16}}, false},
    {"portable_int8", "", distile_call_portable_int8, {{4, 16}, {2, 32}, {1, 48}}},
#ifdef DISTILE_TEST_avx2_int8
    {"avx2_int8", "avx2", distile_call_avx2_int8, {{4, 16}, {2, 32}, {1, 64}}},
    {"avx_vnni", "avx2 avx_vnni", distile_call_avx_vnni, {{6, 16}, {2, 32}, {1, 48}}},
    {"avx512_vnni", "avx512bw avx512dq avx512vl avx512_vnni", distile_call_avx512_vnni, {{14, 32}, {5, 64}, {9, 48}}},
    {"amx_int8", "avx512bw avx512dq avx512vl amx_int8", distile_call_amx_int8, {{32, 32}, {16, 32}, {32, 16}}, false},
#endif
};

DotProductOperator operator_of(const QuantizedCase &of) {
    return quantized_operator_of(of, "cpu-k64");
}

distile_context_options with_threads(int32_t threads) {
    distile_context_options options{};
    options.threads = threads;
    return options;
}

}  // namespace

TEST_CASE("Quantized operators compute what integer sums give", "[int8]") {
    std::mt19937 random(1);
    QuantizedRuns runs;
    int number = 0;
    for (const InstructionSet &set : instruction_sets) {
        if (!can_run_or_warn(DotProductKernel(set, operator_of(quantized_cases[0])).polykernel())) {
            continue;
        }
        for (const QuantizedCase &one : quantized_cases) {
            if (dot_product_taps(one.kind, one.conv, 4).read_channels == 0 && !set.depthwise) {
                continue;
            }
            for (const auto &[halves, dtype] :
                 {std::pair(false, DISTILE_INT8), {true, DISTILE_INT8}, {false, DISTILE_INT4}}) {
                INFO(set.name << ", " << one.name << (halves ? ", halves" : "") << ", type of the filter " << dtype);
                const DotProductKernel kernel(set, operator_of(one));
                const QuantizedModel model(one, halves, random, dtype);
                // Every operator meets each of one thread, three, and the caller's pool.
                const int threads = (number + number / 3) % 3, with_allocator = number % 2;
                number++;
                INFO((threads == 0   ? "one thread"
                      : threads == 1 ? "three threads"
                                     : "the caller's pool")
                     << (with_allocator ? ", the caller's allocator" : ""));
                CallersPool pool;
                CallersAllocator allocator;
                distile_context_options options = with_threads(threads == 0 ? 1 : 3);
                if (threads == 2) {
                    pool.use_in(options);
                }
                if (with_allocator) {
                    allocator.use_in(options);
                }
                {
                    const Context context = make_context(options);
                    const Kernel made = make_kernel(context, kernel.polykernel());
                    const Weights weights = model.pack(context, made);
                    for (int32_t variant = 0; variant < InstructionSet::num_variants; variant++) {
                        for (int run = 0; run < 6; run++) {
                            check_quantized_variant(context, made, weights, model, runs, variant, random);
                        }
                    }
                    CHECK((allocator.blocks_in_use() > 0) == (with_allocator != 0));
                }
                CHECK((pool.loops() > 0) == (threads == 2));
                CHECK(allocator.blocks_in_use() == 0);
                CHECK(allocator.mistakes() == 0);
            }
        }
    }
    CHECK(EmulatedTiles::mistakes() == 0);
    CHECK(EmulatedTiles::spread_loads() > 0);
}

TEST_CASE("Quantized operators that are built from an operator file compute the same", "[int8]") {
    const distile_polykernel *polykernel = &test_conv3_24_40_residual_uint8;
    const QuantizedCase one = {"", polykernel->kind, *static_cast<const distile_conv2d *>(polykernel->op),
                               DISTILE_UINT8, DISTILE_INT8};
    std::mt19937 random(3);
    QuantizedRuns runs;
    const QuantizedModel model(one, false, random), int4(one, false, random, DISTILE_INT4);
    // The best code that this CPU has, and that which every CPU has.
    for (const char *features : {static_cast<const char *>(nullptr), "", "avx2 avx sse41 fma f16c"}) {
        distile_context_options options = with_threads(2);
        options.cpu_features = features;
        const Context context = make_context(options);
        const Kernel kernel = make_kernel(context, *polykernel);
        distile_kernel_info info{};
        check(context, distile_kernel_get_info(kernel.get(), &info));
        INFO(info.name);
        CHECK(info.dtype == DISTILE_UINT8);
        CHECK(info.output_dtype == DISTILE_INT8);
        const Weights weights = model.pack(context, kernel), halves = int4.pack(context, kernel);
        constexpr int64_t steps = 4, blocks = 3;  // Steps of 9 * 24 inputs, and blocks of 40 outputs.
        CHECK(distile_weights_bytes(weights.get()) - distile_weights_bytes(halves.get()) ==
              steps * blocks * 64 * 16 / 2);
        for (int32_t variant = 0; variant < info.num_variants; variant++) {
            for (int run = 0; run < 6; run++) {
                check_quantized_variant(context, kernel, weights, model, runs, variant, random);
                check_quantized_variant(context, kernel, halves, int4, runs, variant, random);
            }
        }
    }
}

TEST_CASE("A quantized model computes about what its real model does", "[int8]") {
    constexpr int32_t channels = 16, extent = 12, taps = 9 * channels;
    const QuantizedCase one = {"",
                               DISTILE_MASKED_CONV2D,
                               {channels, channels, 1, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1, DISTILE_ACTIVATION_RELU, 0},
                               DISTILE_UINT8,
                               DISTILE_UINT8};
    const DotProductKernel polykernel(instruction_sets[1], operator_of(one));
    const Context context = make_context(with_threads(2));
    const Kernel kernel = make_kernel(context, polykernel.polykernel());
    std::mt19937 random(4);
    std::vector<float> input = draw(Values::Floats, extent * extent * channels, random),
                       filter = draw(Values::Floats, taps * channels, random),
                       bias = draw(Values::Floats, channels, random), due(input.size());
    distile_weights_source source{};
    source.filter = filter.data();
    source.order = DISTILE_OHWI;
    source.bias = bias.data();
    distile_tensor real_input = distile_tensor_make(input.data(), 1, extent, extent, channels);
    const Conv2dReference reference(one.conv, source);
    for (int32_t pixel = 0; pixel < extent * extent; pixel++) {
        std::vector<double> sums;
        reference.sums(real_input, nullptr, 0, pixel / extent, pixel % extent, sums);
        std::transform(sums.begin(), sums.end(), due.begin() + size_t{1} * pixel * channels,
                       [](double sum) { return static_cast<float>(std::max(sum, 0.0)); });
    }
    const distile_tensor real_output = distile_tensor_make(due.data(), 1, extent, extent, channels);

    distile_calibration calibration{};
    calibration.percentile = 100;
    distile_quantization quantization{};
    const auto calibrate = [&](const distile_tensor &tensor, distile_scale &scale) {
        check(context, distile_calibrate(context.get(), &tensor, nullptr, 1, DISTILE_UINT8, &calibration, &scale));
    };
    calibrate(real_input, quantization.input);
    calibrate(real_output, quantization.output);
    const distile_filter_extents extents = {channels, channels, 3, 3};
    std::vector<uint8_t> stored_input(input.size()), stored_output(input.size());
    std::vector<float> output(input.size());
    distile_tensor from = distile_tensor_make(stored_input.data(), 1, extent, extent, channels), to = from;
    to.data = stored_output.data();
    from.dtype = to.dtype = DISTILE_UINT8;
    check(context, distile_quantize(context.get(), &real_input, nullptr, quantization.input, &from));
    const Mask mask = make_mask(context);
    const std::vector<uint8_t> all(extent * extent, 1);
    check(context, distile_mask_set_bytes(mask.get(), all.data(), 1, extent, extent, extent * extent, extent));
    distile_run_args args{};
    args.input = &from;
    args.output = &to;
    args.mask = mask.get();
    const distile_tensor back = distile_tensor_make(output.data(), 1, extent, extent, channels);
    for (const distile_dtype dtype : {DISTILE_INT8, DISTILE_INT4}) {
        INFO("type of the filter " << dtype);
        std::vector<int8_t> quantized_filter(filter.size());
        std::vector<float> scales(channels), folded(channels);
        check(context, distile_quantize_filter(context.get(), &source, &extents, dtype, quantized_filter.data(),
                                               scales.data(), folded.data()));
        quantization.filter_scales = scales.data();
        distile_weights_source quantized = source;
        quantized.filter = quantized_filter.data();
        quantized.dtype = dtype;
        quantized.bias = folded.data();
        quantized.quantization = &quantization;
        const Weights weights = pack_weights(context, kernel, quantized);
        args.weights = weights.get();
        check(context, distile_run(kernel.get(), &args));
        check(context, distile_dequantize(context.get(), &to, nullptr, quantization.output, &back));
        // Numbers are from -1 to 1, and each is off by at most half its scale; the zero point moves all by as much.
        const double bound = taps * (quantization.input.scale + *std::max_element(scales.begin(), scales.end()) / 2) +
                             quantization.output.scale;
        double worst = 0, sum = 0;
        for (size_t i = 0; i < output.size(); i++) {
            worst = std::max<double>(worst, std::abs(output[i] - due[i]));
            sum += std::abs(output[i] - due[i]);
        }
        CHECK(worst < bound);
        CHECK(sum / static_cast<double>(output.size()) < (dtype == DISTILE_INT8 ? 2 : 8) * quantization.output.scale);
    }
}

TEST_CASE("Quantized operators say what is wrong with their numbers", "[int8]") {
    const QuantizedCase one = {"",
                               DISTILE_MASKED_CONV2D,
                               {8, 16, 1, 1, 1, 1, 1, 0, 0, 0, 0, 1, 1, DISTILE_ACTIVATION_NONE, 0},
                               DISTILE_UINT8,
                               DISTILE_INT8};
    std::mt19937 random(2);
    const QuantizedModel model(one, false, random);
    DotProductKernel kernel(instruction_sets[1], operator_of(one));
    const Context context = make_context(with_threads(1));
    const Kernel made = make_kernel(context, kernel.polykernel());
    const auto refuses = [&](distile_status status, const char *part, const auto &spoil) {
        distile_quantization quantization = model.quantization;
        distile_weights_source source{};
        source.filter = model.filter.data();
        source.dtype = DISTILE_INT8;
        source.order = DISTILE_HWIO;
        source.quantization = &quantization;
        spoil(source, quantization);
        distile_weights *weights = nullptr;
        CHECK(distile_weights_pack(made.get(), &source, &weights) == status);
        CHECK(weights == nullptr);
        const std::string message = distile_context_message(context.get());
        INFO(message);
        CHECK(message.find(part) != std::string::npos);
    };
    using Source = distile_weights_source;
    using Quantization = distile_quantization;
    refuses(DISTILE_ERROR_NULL_POINTER, "quantization is null",
            [](Source &s, Quantization &) { s.quantization = nullptr; });
    refuses(DISTILE_ERROR_NULL_POINTER, "filter's scales",
            [](Source &, Quantization &q) { q.filter_scales = nullptr; });
    refuses(DISTILE_ERROR_BAD_TYPE, "filter of int8", [](Source &s, Quantization &) { s.dtype = DISTILE_FLOAT32; });
    refuses(DISTILE_ERROR_BAD_TYPE, "filter of int8", [](Source &s, Quantization &) { s.dtype = DISTILE_UINT8; });
    refuses(DISTILE_ERROR_BAD_VALUE, "scale of the input", [](Source &, Quantization &q) { q.input.scale = 0; });
    refuses(DISTILE_ERROR_BAD_VALUE, "scale of the output",
            [](Source &, Quantization &q) { q.output.scale = std::numeric_limits<float>::infinity(); });
    refuses(DISTILE_ERROR_BAD_VALUE, "uint8 it is 0 to 255",
            [](Source &, Quantization &q) { q.input.zero_point = -1; });
    refuses(DISTILE_ERROR_BAD_VALUE, "int8 it is -128 to 127",
            [](Source &, Quantization &q) { q.output.zero_point = 128; });
    refuses(DISTILE_ERROR_BAD_VALUE, "residual is not quantized",
            [](Source &, Quantization &q) { q.residual.scale = 1; });
    refuses(DISTILE_ERROR_BAD_VALUE, "reserved", [](Source &, Quantization &q) { q.reserved[0] = 1; });
    const std::vector<float> bad_scales = {1, 1, -1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}, ones(16, 1);
    refuses(DISTILE_ERROR_BAD_VALUE, "channel 2",
            [&](Source &, Quantization &q) { q.filter_scales = bad_scales.data(); });
    refuses(DISTILE_ERROR_BAD_VALUE, "batch normalisation",
            [&](Source &s, Quantization &) { s.bn_mean = s.bn_variance = ones.data(); });

    // Weights for other types of activations.
    QuantizedCase other = one;
    other.input = DISTILE_INT8;
    const DotProductKernel of_int8(instruction_sets[1], operator_of(other));
    const Kernel made_of_int8 = make_kernel(context, of_int8.polykernel());
    const Weights weights = QuantizedModel(other, false, random).pack(context, made_of_int8);
    const QuantizedTensor input(DISTILE_UINT8, 1, 3, 3, 8, {}, Flush::Back, random),
        output(DISTILE_INT8, 1, 3, 3, 16, {}, Flush::Back, random);
    const Mask mask = make_mask(context);
    const std::vector<uint8_t> all(9, 1);
    check(context, distile_mask_set_bytes(mask.get(), all.data(), 1, 3, 3, 9, 3));
    distile_run_args args{};
    args.input = &input.view;
    args.output = &output.view;
    args.weights = weights.get();
    args.mask = mask.get();
    CHECK(distile_run(made.get(), &args) == DISTILE_ERROR_BAD_WEIGHTS);

    // Descriptors that no build makes.
    for (const int32_t dtype : {static_cast<int32_t>(DISTILE_FLOAT16), 77}) {
        std::memcpy(&kernel.operands().back().dtype, &dtype, sizeof(dtype));
        distile_kernel *none = nullptr;
        CHECK(distile_kernel_create(context.get(), &kernel.polykernel(), &none) == DISTILE_ERROR_VERSION);
    }
}
